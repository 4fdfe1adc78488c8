//! Checks of a webhook whose signature is good: loop, kind of body, topic, family, freshness.

use std::ops::RangeInclusive;
use std::time::Duration;

use spillway_process::Checker;
use spillway_webhook::freshness::{self, FreshnessWindow};
use spillway_webhook::shopify::{Headers, is_compliance, without_mark};
use spillway_webhook::{Webhook, family};

use crate::head::RequestHead;
use crate::reply::Refusal;
use crate::topics::TopicClaim;

/// Range of the largest age of a webhook.
pub const AGE_RANGE: RangeInclusive<Duration> =
    RangeInclusive::new(Duration::from_secs(1), Duration::from_secs(365 * 24 * 3600));

/// Rules for verified webhooks.
#[derive(Debug, Clone, Copy)]
pub struct InspectionRules {
    /// Allowed kinds of bodies.
    pub body_kinds: BodyKinds,
    /// Accepted window of triggered-at.
    pub window: FreshnessWindow,
}

/// Allowed kinds of bodies, by their first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyKinds {
    /// `{` or `[`.
    pub json: bool,
    /// `<`.
    pub xml: bool,
    /// Any body, also an empty one.
    pub any: bool,
}

impl BodyKinds {
    /// Parses kinds of bodies, comma separated. `key` is named in a mistake.
    pub fn check(checker: &mut Checker, key: &str, text: &str) -> Self {
        let mut kinds = Self { json: false, xml: false, any: false };
        for word in text.split(',').map(str::trim) {
            match word {
                "json" => kinds.json = true,
                "xml" => kinds.xml = true,
                "any" => kinds.any = true,
                _ => checker.mistake(key, format_args!("{word:?} is none of json, xml, any")),
            }
        }
        kinds
    }
}

impl InspectionRules {
    /// Checks a verified webhook, rule by rule. Returns true if the webhook tells
    /// when it was triggered.
    ///
    /// # Errors
    /// The first rule that the webhook breaks.
    pub fn inspect(
        &self,
        head: &RequestHead,
        webhook: &Webhook,
        now_ms: u64,
    ) -> Result<bool, Refusal> {
        if head.is_delivery {
            return Err(Refusal::Loop);
        }
        if !begins_as(&webhook.body, self.body_kinds) {
            return Err(Refusal::NotAWebhook);
        }
        if head.topic == TopicClaim::Missing {
            return Err(Refusal::NoTopic);
        }
        let headers = &webhook.headers;
        family::check(head.family, headers, &webhook.body).map_err(|_| Refusal::HeaderMismatch)?;
        let triggered_at = headers.of_family(head.family, "triggered-at");
        if let Err(error) = freshness::check(triggered_at, now_ms, &self.window)
            && !headers.topic().is_some_and(|topic| is_compliance(&topic))
        {
            return Err(Refusal::NotFresh(error));
        }
        Ok(triggered_at.is_some())
    }
}

/// Returns true if the body begins as an allowed kind, after white space and a byte order mark. The
/// client secret also signs session tokens (`eyJ…`) and OAuth queries. Their holders must not pass
/// as Shopify.
fn begins_as(body: &[u8], kinds: BodyKinds) -> bool {
    match without_mark(body).iter().find(|byte| !byte.is_ascii_whitespace()) {
        _ if kinds.any => true,
        Some(b'{' | b'[') => kinds.json,
        Some(b'<') => kinds.xml,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http::uri::PathAndQuery;
    use prometheus::Registry;

    use super::*;
    use crate::topics::TopicMetrics;

    #[test]
    fn only_what_shopify_must_be_able_to_send_may_be_of_any_age() {
        let window = FreshnessWindow {
            age_max: Duration::from_secs(60),
            skew_max: Duration::from_secs(60),
            required: true,
        };
        let body_kinds = BodyKinds { json: true, xml: false, any: false };
        let topics = TopicMetrics::new(&Registry::new());
        for (topic, time, is_taken) in [
            ("customers/redact", "2020-01-01T00:00:00Z", true),
            ("shop/redact", "no time", true),
            ("orders/create", "2020-01-01T00:00:00Z", false),
            ("orders/create", "no time", false),
        ] {
            let request = Request::post("/").header("x-shopify-topic", topic);
            let request = request.header("x-shopify-triggered-at", time).body(());
            let request = request.expect("a request");
            let head = RequestHead::read(&request, &topics);
            let webhook = Webhook {
                received_at_ms: 0,
                target: PathAndQuery::from_static("/"),
                headers: request.headers().clone(),
                body: Bytes::from_static(b"{}"),
            };
            let rules = InspectionRules { body_kinds, window };
            let inspected = rules.inspect(&head, &webhook, 1_900_000_000_000);
            assert_eq!(inspected.is_ok(), is_taken, "{topic} {time}: {inspected:?}");
        }
    }

    #[test]
    fn only_what_begins_as_json_or_xml_is_a_webhook() {
        let both = BodyKinds { json: true, xml: true, any: false };
        for body in ["{}", " \r\n[1]", "\u{feff}{\"a\":1}", "<x/>"] {
            assert!(begins_as(body.as_bytes(), both), "{body:?}");
        }
        for body in ["", " ", "eyJhbGciOiJIUzI1NiJ9.e30.x", "code=1&shop=a", "\"{", "1"] {
            assert!(!begins_as(body.as_bytes(), both), "{body:?}");
            assert!(begins_as(body.as_bytes(), BodyKinds { any: true, ..both }));
        }
        assert!(!begins_as(b"<x/>", BodyKinds { xml: false, ..both }));
    }
}
