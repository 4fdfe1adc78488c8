//! Which dead letters are meant.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use spillway_queue::dead::DeadLetter;
use spillway_webhook::{WebhookId, freshness};

use crate::failure::Failure;

/// Filters as written; all of those given have to match.
#[derive(Debug, Args)]
pub struct FilterArguments {
    /// One of them, by its Spillway-Id
    id: Option<String>,

    /// Of this shop
    #[arg(long)]
    shop: Option<String>,

    /// Of this topic; orders/* means every topic that begins so
    #[arg(long)]
    topic: Option<String>,

    /// About this resource, such as product/12
    #[arg(long)]
    resource: Option<String>,

    /// With this Shopify webhook id or Spillway-Id
    #[arg(long)]
    webhook_id: Option<String>,

    /// Given up since: an RFC 3339 time, or how long ago, such as 2h
    #[arg(long)]
    since: Option<String>,

    /// Given up until: an RFC 3339 time, or how long ago, such as 30m
    #[arg(long)]
    until: Option<String>,
}

/// Filters, checked.
#[derive(Debug, Default)]
pub struct Filter {
    id: Option<WebhookId>,
    shop: Option<String>,
    topic: Option<String>,
    resource: Option<String>,
    webhook_id: Option<String>,
    since_ms: Option<u64>,
    until_ms: Option<u64>,
}

impl FilterArguments {
    /// Checks them.
    pub fn checked(self) -> Result<Filter, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.checked_at(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }

    fn checked_at(self, now_ms: u64) -> Result<Filter, Failure> {
        let moment = |flag: &str, text: Option<String>| {
            text.map(|text| moment_ms(flag, &text, now_ms)).transpose()
        };
        Ok(Filter {
            id: self.id.as_deref().map(webhook_id).transpose()?,
            shop: self.shop,
            topic: self.topic,
            resource: self.resource,
            webhook_id: self.webhook_id,
            since_ms: moment("--since", self.since)?,
            until_ms: moment("--until", self.until)?,
        })
    }
}

/// Reads a Spillway-Id.
pub fn webhook_id(text: &str) -> Result<WebhookId, Failure> {
    text.parse().map_err(|_| {
        Failure::Usage(format!(
            "{text:?} is no Spillway-Id such as a1b2c3d4-1767268800000-0000000000-00000; for \
             Shopify's id use --webhook-id"
        ))
    })
}

impl Filter {
    /// Exactly this one.
    pub fn only(id: WebhookId) -> Self {
        Self { id: Some(id), ..Self::default() }
    }

    /// Whether everything matches because nothing was asked for.
    pub fn is_empty(&self) -> bool {
        let Self { id, shop, topic, resource, webhook_id, since_ms, until_ms } = self;
        id.is_none()
            && [shop, topic, resource, webhook_id].iter().all(|filter| filter.is_none())
            && [since_ms, until_ms].iter().all(|filter| filter.is_none())
    }

    /// Whether no later letter can match, going from the oldest to the youngest.
    pub fn is_past(&self, letter: &DeadLetter) -> bool {
        self.until_ms.is_some_and(|until| letter.id.ms > until)
    }

    /// Whether this letter is meant.
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        let is = |wanted: &Option<String>, have: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == have)
        };
        self.id.is_none_or(|id| id == letter.webhook)
            && is(&self.shop, &letter.shop)
            && is(&self.resource, &letter.resource)
            && self.topic.as_deref().is_none_or(|topic| topic_matches(topic, &letter.topic))
            && self
                .webhook_id
                .as_deref()
                .is_none_or(|id| id == letter.delivery_id || id.parse() == Ok(letter.webhook))
            && self.since_ms.is_none_or(|since| letter.id.ms >= since)
            && !self.is_past(letter)
    }
}

fn topic_matches(pattern: &str, topic: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => topic.starts_with(start),
        None => topic == pattern,
    }
}

/// An RFC 3339 time, or a duration before now, in milliseconds since the Unix epoch.
fn moment_ms(flag: &str, text: &str, now_ms: u64) -> Result<u64, Failure> {
    if let Some(ms) = freshness::millis(text.as_bytes()) {
        return Ok(u64::try_from(ms.max(0)).unwrap_or(u64::MAX));
    }
    match humantime::parse_duration(text) {
        Ok(ago) => Ok(now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))),
        Err(_) => Err(Failure::Usage(format!(
            "{flag} {text:?} is neither a time such as 2026-01-01T12:00:00Z nor how long ago, \
             such as 2h"
        ))),
    }
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
            delivery_id: "d-1".to_owned(),
            reason: "refused".to_owned(),
            status: 400,
            attempts: 1,
            answer: Bytes::new(),
            pack: Bytes::new(),
        }
    }

    fn given(set: impl FnOnce(&mut FilterArguments)) -> FilterArguments {
        let mut arguments = FilterArguments {
            id: None,
            shop: None,
            topic: None,
            resource: None,
            webhook_id: None,
            since: None,
            until: None,
        };
        set(&mut arguments);
        arguments
    }

    fn check(expected: bool, set: impl FnOnce(&mut FilterArguments)) {
        let arguments = given(set);
        let shown = format!("{arguments:?}");
        let filter = arguments.checked_at(20_000).unwrap();
        assert_eq!(filter.matches(&letter()), expected, "{shown}");
        assert!(!filter.is_empty(), "{shown}");
    }

    #[test]
    fn each_filter_matches_and_does_not() {
        check(true, |f| f.id = Some(ID.to_owned()));
        check(false, |f| f.id = Some(ID.replace("5000", "5001")));
        check(true, |f| f.shop = Some("a.myshopify.com".to_owned()));
        check(false, |f| f.shop = Some("a".to_owned()));
        check(true, |f| f.topic = Some("orders/create".to_owned()));
        check(true, |f| f.topic = Some("orders/*".to_owned()));
        check(false, |f| f.topic = Some("orders".to_owned()));
        check(false, |f| f.topic = Some("products/*".to_owned()));
        check(true, |f| f.resource = Some("order/12".to_owned()));
        check(false, |f| f.resource = Some("order/1".to_owned()));
        check(true, |f| f.webhook_id = Some("d-1".to_owned()));
        check(true, |f| f.webhook_id = Some(ID.to_owned()));
        check(false, |f| f.webhook_id = Some("d-2".to_owned()));
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
        let shop = |f: &mut FilterArguments| f.shop = Some("a.myshopify.com".to_owned());
        check(false, |f| {
            shop(f);
            f.topic = Some("carts/*".to_owned());
        });
        assert!(given(|_| ()).checked_at(0).unwrap().is_empty());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(given(|f| f.since = Some("yesterday".to_owned())).checked_at(0).is_err());
        assert!(given(|f| f.id = Some("d-1".to_owned())).checked_at(0).is_err());
    }
}
