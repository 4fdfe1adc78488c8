//! What is asked of a webhook whose signature is good: that it is one, fresh, and new to us.

use http::HeaderMap;
use spillway_webhook::Webhook;
use spillway_webhook::freshness::{self, Window};
use spillway_webhook::shopify::{Headers, is_compliance};

use crate::reply::Refusal;
use crate::settings::BodyKinds;

/// Set by a downstreamer on every delivery.
const DELIVERY_HEADER: &str = "spillway-id";

/// Checks a verified webhook, in the order the contract gives.
///
/// # Errors
/// The first rule it breaks.
pub fn inspect(
    webhook: &Webhook,
    now_ms: u64,
    kinds: BodyKinds,
    window: &Window,
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

fn fresh(headers: &HeaderMap, now_ms: u64, window: &Window) -> Result<(), Refusal> {
    freshness::check(headers.shopify("triggered-at"), now_ms, window).map_err(Refusal::NotFresh)
}

/// Whether the first byte that is neither white space nor a byte order mark begins an allowed kind.
/// The client secret also signs session tokens (`eyJ…`) and OAuth queries, whose holders must not
/// pass as Shopify.
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
