//! Filters that select dead letters.

use clap::Args;
use spillway_queue::controls;
use spillway_queue::dead::DeadLetter;
use spillway_webhook::WebhookId;
use spillway_webhook::pack::Pack;
use spillway_webhook::received::APP_HEADER;
use spillway_webhook::shopify::Headers;

use crate::failure::Failure;
use crate::filter::{self, moment_ms, spillway_id};
use crate::out::now_ms;

/// Filters as given on the command line. A dead letter must match all of them.
#[derive(Debug, Args)]
pub(super) struct WrittenFilter {
    /// Spillway-Id of one dead letter
    spillway_id: Option<String>,

    #[command(flatten)]
    which: filter::FilterArguments,

    /// Given up at or after this RFC 3339 time, or this long ago, such as 2h
    #[arg(long)]
    since: Option<String>,

    /// Given up at or before this RFC 3339 time, or this long ago, such as 30m
    #[arg(long)]
    until: Option<String>,
}

/// Filters after their values were checked.
#[derive(Debug, Default)]
pub(super) struct DeadFilter {
    id: Option<WebhookId>,
    which: controls::Filter,
    since_ms: Option<u64>,
    until_ms: Option<u64>,
}

impl WrittenFilter {
    /// Checks the values.
    pub(super) fn checked(self) -> Result<DeadFilter, Failure> {
        self.checked_at(now_ms())
    }

    fn checked_at(self, now_ms: u64) -> Result<DeadFilter, Failure> {
        let moment = |flag: &str, text: Option<String>| {
            text.map(|text| moment_ms(flag, &text, now_ms)).transpose()
        };
        Ok(DeadFilter {
            id: self.spillway_id.as_deref().map(spillway_id).transpose()?,
            which: self.which.filter(),
            since_ms: moment("--since", self.since)?,
            until_ms: moment("--until", self.until)?,
        })
    }
}

impl DeadFilter {
    /// A filter that matches all dead letters with this Shopify webhook id or Spillway-Id.
    pub(super) fn with_id(id: &str) -> Self {
        let which =
            controls::Filter { webhook_id: Some(id.to_owned()), ..controls::Filter::default() };
        Self { which, ..Self::default() }
    }

    /// Message if no dead letter matches.
    pub(super) fn nothing(&self) -> &'static str {
        if self.is_empty() { "there are no dead letters" } else { "no dead letter matches" }
    }

    /// The Spillway-Id, if one was given.
    pub(super) fn spillway_id(&self) -> Option<WebhookId> {
        self.id
    }

    /// True if no filter is set, so that every dead letter matches.
    pub(super) fn is_empty(&self) -> bool {
        let Self { id, which, since_ms, until_ms } = self;
        id.is_none() && which.is_empty() && since_ms.is_none() && until_ms.is_none()
    }

    /// True if no later dead letter can match, in a walk from the oldest to the newest.
    pub(super) fn is_past(&self, letter: &DeadLetter) -> bool {
        self.until_ms.is_some_and(|until| letter.id.ms > until)
    }

    /// True if this dead letter matches.
    pub(super) fn matches(&self, letter: &DeadLetter) -> bool {
        let app = self.which.app.as_ref().map(|_| app_of(letter)).unwrap_or_default();
        self.id.is_none_or(|id| id == letter.webhook)
            && self.which.matches(controls::WebhookFacts {
                id: letter.webhook,
                shop: &letter.shop,
                topic: &letter.topic,
                app: &app,
                webhook_id: &letter.webhook_id,
                resource: || letter.resource.clone(),
            })
            && self.since_ms.is_none_or(|since| letter.id.ms >= since)
            && !self.is_past(letter)
    }
}

/// App of a dead letter, from its headers; empty if it has none.
pub(super) fn app_of(letter: &DeadLetter) -> String {
    let Ok(pack) = Pack::decode(&letter.pack) else { return String::new() };
    let view = pack.view(0);
    String::from_utf8_lossy(view.value(APP_HEADER.as_str()).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use spillway_webhook::StreamId;

    const ID: &str = "a1b2c3d4-0000000005000-0000000000-00000";

    fn letter() -> DeadLetter {
        DeadLetter {
            id: StreamId { ms: 10_000, seq: 0 },
            webhook: ID.parse().unwrap(),
            shop: "a.myshopify.com".to_owned(),
            topic: "orders/create".to_owned(),
            resource: "order/12".to_owned(),
            webhook_id: "d-1".to_owned(),
            reason: "refused".to_owned(),
            status: 400,
            attempts: 1,
            answer: Bytes::new(),
            pack: Bytes::new(),
        }
    }

    fn given(set: impl FnOnce(&mut WrittenFilter)) -> WrittenFilter {
        let mut arguments = WrittenFilter {
            spillway_id: None,
            which: filter::FilterArguments::default(),
            since: None,
            until: None,
        };
        set(&mut arguments);
        arguments
    }

    fn check(expected: bool, set: impl FnOnce(&mut WrittenFilter)) {
        let arguments = given(set);
        let shown = format!("{arguments:?}");
        let filter = arguments.checked_at(20_000).unwrap();
        assert_eq!(filter.matches(&letter()), expected, "{shown}");
        assert!(!filter.is_empty(), "{shown}");
    }

    #[test]
    fn each_filter_matches_and_does_not() {
        check(true, |f| f.spillway_id = Some(ID.to_owned()));
        check(false, |f| f.spillway_id = Some(ID.replace("5000", "5001")));
        check(true, |f| f.which.shop = Some("a.myshopify.com".to_owned()));
        check(false, |f| f.which.shop = Some("a".to_owned()));
        check(true, |f| f.which.topic = Some("orders/create".to_owned()));
        check(true, |f| f.which.topic = Some("orders/*".to_owned()));
        check(false, |f| f.which.topic = Some("orders".to_owned()));
        check(false, |f| f.which.topic = Some("products/*".to_owned()));
        check(true, |f| f.which.resource = Some("order/12".to_owned()));
        check(false, |f| f.which.resource = Some("order/1".to_owned()));
        check(true, |f| f.which.webhook_id = Some("d-1".to_owned()));
        check(true, |f| f.which.webhook_id = Some(ID.to_owned()));
        check(false, |f| f.which.webhook_id = Some("d-2".to_owned()));
    }

    #[test]
    fn times_are_moments_or_ages() {
        check(true, |f| f.since = Some("10s".to_owned()));
        check(false, |f| f.since = Some("9s".to_owned()));
        check(true, |f| f.until = Some("10s".to_owned()));
        check(false, |f| f.until = Some("11s".to_owned()));
        check(true, |f| f.since = Some("1970-01-01T00:00:10Z".to_owned()));
        check(false, |f| f.until = Some("1970-01-01T00:00:09.999Z".to_owned()));
        check(true, |f| f.since = Some("100years".to_owned()));
    }

    #[test]
    fn all_of_several_have_to_match() {
        let shop = |f: &mut WrittenFilter| f.which.shop = Some("a.myshopify.com".to_owned());
        check(false, |f| {
            shop(f);
            f.which.topic = Some("carts/*".to_owned());
        });
        assert!(given(|_| ()).checked_at(0).unwrap().is_empty());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(given(|f| f.since = Some("yesterday".to_owned())).checked_at(0).is_err());
        assert!(given(|f| f.spillway_id = Some("d-1".to_owned())).checked_at(0).is_err());
    }
}
