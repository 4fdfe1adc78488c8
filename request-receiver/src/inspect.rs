//! Checks of a webhook whose signature is good: loop, kind of body, topic, freshness.

use http::HeaderMap;
use spillway_webhook::Webhook;
use spillway_webhook::freshness::{self, FreshnessWindow};
use spillway_webhook::shopify::{Headers, is_compliance};

use crate::reply::Refusal;
use crate::settings::BodyKinds;

/// Header that a downstreamer sets on every delivery.
const DELIVERY_HEADER: &str = "spillway-id";

/// Checks a verified webhook, in the order of the contract.
///
/// # Errors
/// The first rule that the webhook breaks.
pub fn inspect(
    webhook: &Webhook,
    now_ms: u64,
    kinds: BodyKinds,
    window: &FreshnessWindow,
) -> Result<(), Refusal> {
    if webhook.headers.contains_key(DELIVERY_HEADER) {
        return Err(Refusal::Loop);
    }
    if !begins_as(&webhook.body, kinds) {
        return Err(Refusal::NotAWebhook);
    }
    let topic = webhook.headers.topic().ok_or(Refusal::NoTopic)?;
    if is_compliance(topic) {
        return Ok(());
    }
    fresh(&webhook.headers, now_ms, window)
}

fn fresh(headers: &HeaderMap, now_ms: u64, window: &FreshnessWindow) -> Result<(), Refusal> {
    freshness::check(headers.shopify("triggered-at"), now_ms, window).map_err(Refusal::NotFresh)
}

/// Returns true if the body begins as an allowed kind, after white space and a byte order mark. The
/// client secret also signs session tokens (`eyJ…`) and OAuth queries. Their holders must not pass
/// as Shopify.
fn begins_as(body: &[u8], kinds: BodyKinds) -> bool {
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        _ if kinds.any => true,
        Some(b'{' | b'[') => kinds.json,
        Some(b'<') => kinds.xml,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
