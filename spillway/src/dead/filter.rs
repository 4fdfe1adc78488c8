//! Filters that select dead letters.

use std::collections::BTreeSet;
use std::fmt;

use clap::Args;
use spillway_console::model::change::CHOSEN_MAX;
use spillway_queue::controls;
use spillway_queue::dead::DeadLetter;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::pack::Pack;
use spillway_webhook::received::APP_HEADER;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{StreamId, WebhookId};

use crate::failure::Failure;
use crate::filter::{self, moment_ms, spillway_id};
use crate::out::now_ms;

/// Ids that a text names one by one: the audit keeps 2,048 bytes of it.
const TOLD_MAX: usize = 40;

/// Filters as given on the command line. A dead letter must match all of them.
#[derive(Debug, Args)]
pub(super) struct WrittenFilter {
    /// Spillway-Ids of dead letters, at most 200
    #[arg(value_name = "SPILLWAY_ID")]
    spillway_ids: Vec<String>,

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
#[derive(Debug, Clone, Default)]
pub(crate) struct DeadFilter {
    /// Dead letters that are chosen by their ids; all if it is empty.
    ids: BTreeSet<WebhookId>,
    which: controls::Filter,
    since_ms: Option<u64>,
    until_ms: Option<u64>,
    /// True to look from the oldest letter on, wherever an id says that its letter is.
    is_thorough: bool,
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
        let filter = DeadFilter {
            ids: BTreeSet::new(),
            which: self.which.filter(),
            since_ms: moment("--since", self.since)?,
            until_ms: moment("--until", self.until)?,
            is_thorough: false,
        };
        filter.among(&self.spillway_ids)
    }
}

/// Times between which dead letters were given up, as given: RFC 3339 or how long ago.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeadTimes {
    /// Earliest time.
    pub since: Option<String>,
    /// Latest time.
    pub until: Option<String>,
}

impl DeadFilter {
    /// A filter of values that come from elsewhere than the command line.
    pub(crate) fn of(which: filter::FilterArguments, times: DeadTimes) -> Result<Self, Failure> {
        let now = now_ms();
        let moment = |name: &str, text: Option<String>| {
            let given = text.filter(|text| !text.trim().is_empty());
            given.map(|text| moment_ms(name, text.trim(), now)).transpose()
        };
        Ok(Self {
            ids: BTreeSet::new(),
            which: which.checked()?,
            since_ms: moment("since", times.since)?,
            until_ms: moment("until", times.until)?,
            is_thorough: false,
        })
    }

    /// The same filter for the dead letters with these Spillway-Ids alone, if any are given.
    pub(crate) fn among(self, ids: &[String]) -> Result<Self, Failure> {
        if ids.len() > CHOSEN_MAX {
            let number = ids.len();
            return Err(Failure::Usage(format!(
                "{number} dead letters are too many to be chosen by their ids: choose at most {CHOSEN_MAX}, or give a filter"
            )));
        }
        let ids =
            ids.iter().map(|id| spillway_id(id.trim())).collect::<Result<BTreeSet<_>, _>>()?;
        Ok(Self { ids, ..self })
    }

    /// Id after which the first dead letter that may match is.
    pub(super) fn first_after(&self) -> StreamId {
        let since = self.since_ms.map(|ms| StreamId { ms, seq: 0 }.previous());
        if self.is_thorough {
            return since.unwrap_or_default();
        }
        // A webhook is given up after it was accepted, both by Redis' clock, unless that went back.
        let id = self.which.webhook_id.as_ref().and_then(|id| id.parse::<WebhookId>().ok());
        let first = self.ids.iter().map(|id| id.entry).min();
        let accepted = id.map(|id| id.entry).max(first).map(StreamId::previous);
        since.max(accepted).unwrap_or_default()
    }

    /// The same filter for a second walk, if an id let the first one leave out letters: after a clock went back, the
    /// letter may be among these.
    pub(super) fn thorough(&self) -> Option<Self> {
        let all = Self { is_thorough: true, ..self.clone() };
        (all.first_after() < self.first_after()).then_some(all)
    }

    /// A filter that matches all dead letters with this Shopify webhook id or Spillway-Id.
    pub(crate) fn with_id(id: &str) -> Self {
        let which =
            controls::Filter { webhook_id: Some(id.to_owned()), ..controls::Filter::default() };
        Self { which, ..Self::default() }
    }

    /// Message if no dead letter matches.
    pub(crate) fn nothing(&self) -> &'static str {
        if self.is_empty() { "there are no dead letters" } else { "no dead letter matches" }
    }

    /// The Spillway-Ids that are chosen; all if it is empty.
    pub(super) fn ids(&self) -> &BTreeSet<WebhookId> {
        &self.ids
    }

    /// True if no filter is set, so that every dead letter matches.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { ids, which, since_ms, until_ms, is_thorough: _ } = self;
        ids.is_empty() && which.is_empty() && since_ms.is_none() && until_ms.is_none()
    }

    /// True if no later dead letter can match, in a walk from the oldest to the newest.
    pub(super) fn is_past(&self, letter: &DeadLetter) -> bool {
        self.until_ms.is_some_and(|until| letter.id.ms > until)
    }

    /// True if this dead letter matches.
    pub(super) fn matches(&self, letter: &DeadLetter) -> bool {
        let app = self.which.app.as_ref().map(|_| app_of(letter)).unwrap_or_default();
        (self.ids.is_empty() || self.ids.contains(&letter.webhook))
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

impl fmt::Display for DeadFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ids, which, since_ms, until_ms, is_thorough: _ } = self;
        let id = match ids.len() {
            0 => None,
            1 => Some(format!("spillway-id {}", told_ids(ids))),
            _ => Some(format!("spillway-ids {}", told_ids(ids))),
        };
        let which = (!which.is_empty()).then(|| which.to_string());
        let since = since_ms.map(|ms| format!("since {}", rfc3339(ms)));
        let until = until_ms.map(|ms| format!("until {}", rfc3339(ms)));
        let parts: Vec<String> = [id, which, since, until].into_iter().flatten().collect();
        f.write_str(
            if parts.is_empty() { "everything".to_owned() } else { parts.join(", ") }.as_str(),
        )
    }
}

/// Ids in words: the first ones, and the number of the others.
pub(super) fn told_ids(ids: &BTreeSet<WebhookId>) -> String {
    let mut words: Vec<String> = ids.iter().take(TOLD_MAX).map(ToString::to_string).collect();
    if let Some(more) = ids.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
        words.push(format!("and {more} more"));
    }
    words.join(" ")
}

/// App of a dead letter, from its headers; empty if it has none.
pub(crate) fn app_of(letter: &DeadLetter) -> String {
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
            spillway_ids: Vec::new(),
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
        let other = || ID.replace("5000", "5001");
        check(true, |f| f.spillway_ids = vec![ID.to_owned()]);
        check(true, |f| f.spillway_ids = vec![other(), ID.to_owned()]);
        check(false, |f| f.spillway_ids = vec![other()]);
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
    fn a_filter_is_told_in_words_and_says_where_its_first_letter_can_be() {
        assert_eq!(DeadFilter::default().to_string(), "everything");
        assert_eq!(DeadFilter::default().first_after(), StreamId::ZERO);
        let times = DeadTimes { since: Some("1970-01-01T00:00:10Z".to_owned()), until: None };
        let of = |id: Option<&str>| {
            let webhook_id = id.map(str::to_owned);
            let which = filter::FilterArguments { webhook_id, ..Default::default() };
            DeadFilter::of(which, times.clone()).unwrap()
        };
        let told = of(Some("d-1")).to_string();
        assert!(told.starts_with("webhook-id d-1, since 1970-01-01T00:00:10"), "{told}");
        assert!(of(Some("d-1")).matches(&letter()));
        assert_eq!(of(None).first_after(), StreamId { ms: 9_999, seq: u64::MAX });
        assert_eq!(of(Some(ID)).first_after(), StreamId { ms: 9_999, seq: u64::MAX });
        assert_eq!(DeadFilter::with_id(ID).first_after().ms, 4_999);
        let thorough = DeadFilter::with_id(ID).thorough().unwrap();
        assert_eq!(thorough.first_after(), StreamId::ZERO);
        assert!(thorough.matches(&letter()) && thorough.thorough().is_none());
        assert!(of(None).thorough().is_none());
    }

    #[test]
    fn chosen_ids_are_bounded_and_told_in_words() {
        let id = |number: usize| ID.replace("00000-", &format!("{number:05}-"));
        let of = |ids: Vec<String>| DeadFilter::default().among(&ids);
        let two = of(vec![id(7), id(3), id(7)]).expect("good ids");
        assert_eq!(two.to_string(), format!("spillway-ids {} {}", id(3), id(7)));
        let before = StreamId { ms: 5_000, seq: 2 };
        assert_eq!((two.ids().len(), two.first_after()), (2, before));
        assert!(two.thorough().is_some_and(|all| all.first_after() == StreamId::ZERO));
        let one = of(vec![format!(" {ID}\n")]).expect("a good id");
        assert_eq!(one.to_string(), format!("spillway-id {ID}"));
        assert!(of(Vec::new()).expect("none").is_empty());
        let most = of((0..CHOSEN_MAX).map(id).collect()).expect("as many as there may be");
        let text = most.to_string();
        assert!(text.ends_with(" and 160 more") && text.len() < 2_000, "{text}");
        let over = of((0..=CHOSEN_MAX).map(id).collect()).expect_err("one more");
        assert!(over.to_string().contains("at most 200"), "{over}");
        for bad in ["", " ", "d-1", "'\"><script>", ID.trim_end_matches('0')] {
            assert!(of(vec![ID.to_owned(), bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(given(|f| f.since = Some("yesterday".to_owned())).checked_at(0).is_err());
        assert!(given(|f| f.spillway_ids = vec!["d-1".to_owned()]).checked_at(0).is_err());
    }
}
