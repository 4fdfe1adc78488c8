//! CloudEvents 1.0 in the Kafka binding's binary mode: the value is the body, the attributes are
//! record headers. Source: cloudevents/spec, `bindings/kafka-protocol-binding.md`.

use std::borrow::Cow;

use rdkafka::message::{Header, OwnedHeaders};
use spillway_webhook::freshness::{millis, rfc3339};
use spillway_webhook::pack::View;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;

/// Headers, including those of every record.
const HEADERS: usize = 12;

/// Attributes of a webhook with this id.
pub(super) fn headers(webhook: &View<'_>, id: &str, resource: Option<&Resource>) -> OwnedHeaders {
    let topic = text(webhook.topic().as_deref()).replace('/', ".");
    let kind = format!("com.shopify.{topic}");
    let mut headers = OwnedHeaders::new_with_capacity(HEADERS)
        .insert(header("content-type", &content_type(webhook)))
        .insert(header("ce_specversion", "1.0"))
        .insert(header("ce_id", id))
        .insert(header("ce_source", &source(webhook)))
        .insert(header("ce_type", &kind))
        .insert(header("ce_time", &time(webhook)));
    if let Some(resource) = resource.filter(|resource| !resource.is_fallback) {
        headers = headers.insert(header("ce_subject", &resource.id));
    }
    // An extension: two webhooks of one id are one event, sent twice.
    if let Some(webhook_id) = webhook.shopify("webhook-id") {
        headers = headers.insert(header("ce_shopifywebhookid", &text(Some(webhook_id))));
    }
    headers
}

fn header<'a>(key: &'a str, value: &'a str) -> Header<'a, &'a str> {
    Header { key, value: Some(value) }
}

fn content_type<'a>(webhook: &'a View<'_>) -> Cow<'a, str> {
    match webhook.value("content-type") {
        Some(value) => text(Some(value)),
        None => Cow::Borrowed("application/json"),
    }
}

/// URI of the source. An event must have one also if the shop is not known.
fn source(webhook: &View<'_>) -> String {
    match webhook.shop() {
        Some(shop) => format!("https://{}", text(Some(shop))),
        None => "urn:shopify:unknown-shop".to_owned(),
    }
}

/// Time at which the webhook was triggered, as Shopify wrote it. Otherwise the time at which it was
/// received.
fn time<'a>(webhook: &'a View<'_>) -> Cow<'a, str> {
    match webhook.shopify("triggered-at").filter(|text| millis(text).is_some()) {
        Some(triggered) => text(Some(triggered)),
        None => Cow::Owned(rfc3339(webhook.received_at_ms)),
    }
}

fn text(value: Option<&[u8]>) -> Cow<'_, str> {
    String::from_utf8_lossy(value.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{headers_of, id, pack};
    use crate::format::Encoder;
    use crate::settings::{Format, Key};

    fn check(sent: &[(&str, &[u8])], body: &[u8], expected: &[(&str, &str)]) {
        let pack = pack("/hooks", sent, body);
        let mut encoder = Encoder::new(Format::CloudEvents, Key::Shop);
        let view = pack.view(0);
        let encoded = encoder.encode(&view, id(), None, false);
        let all = headers_of(&encoded);
        let told: Vec<_> = all
            .iter()
            .map(|(name, value)| (name.as_str(), std::str::from_utf8(value).unwrap()))
            .filter(|(name, _)| !name.starts_with("spillway-"))
            .collect();
        assert_eq!(told, expected);
        assert_eq!(encoded.value, body);
    }

    #[test]
    fn a_webhook_is_an_event() {
        check(
            &[
                ("content-type", b"application/json; charset=utf-8"),
                ("x-shopify-topic", b"inventory_levels/update"),
                ("x-shopify-shop-domain", b"a.myshopify.com"),
                ("x-shopify-triggered-at", b"2026-01-01T11:00:00.123456789Z"),
                ("x-shopify-webhook-id", b"w-1"),
            ],
            br#"{"inventory_item_id":1,"location_id":2}"#,
            &[
                ("content-type", "application/json; charset=utf-8"),
                ("ce_specversion", "1.0"),
                ("ce_id", "000000ab-1767268800000-0000000001-00002"),
                ("ce_source", "https://a.myshopify.com"),
                ("ce_type", "com.shopify.inventory_levels.update"),
                ("ce_time", "2026-01-01T11:00:00.123456789Z"),
                ("ce_subject", "1@2"),
                ("ce_shopifywebhookid", "w-1"),
            ],
        );
    }

    #[test]
    fn what_a_webhook_does_not_say_is_made_up_or_left_out() {
        check(
            &[("x-shopify-topic", b"carts/update"), ("x-shopify-triggered-at", b"now")],
            b"{}",
            &[
                ("content-type", "application/json"),
                ("ce_specversion", "1.0"),
                ("ce_id", "000000ab-1767268800000-0000000001-00002"),
                ("ce_source", "urn:shopify:unknown-shop"),
                ("ce_type", "com.shopify.carts.update"),
                ("ce_time", "2026-01-01T12:00:00.000Z"),
            ],
        );
    }
}
