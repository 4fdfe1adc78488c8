//! Webhooks of many shops and topics. As in a load, the webhook id contains the event.

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::ledger::Event;
use crate::webhook::{SECRET, Webhook, now, rfc3339, sign};

/// About the size of a webhook whose subscription has a few fields.
const FILL_BYTES: usize = 300;

/// The domain of the shop with this number.
pub fn domain(shop: u64) -> String {
    format!("shop-{shop:04}.myshopify.com")
}

/// A webhook of this shop and topic for an event. Resources of a test must have different numbers,
/// even across shops and topics.
pub fn webhook(shop: u64, topic: &str, event: Event) -> Webhook {
    let Event { resource, sequence } = event;
    let fill = "x".repeat(FILL_BYTES);
    let body = format!("{{\"id\":{resource},\"sequence\":{sequence},\"fill\":\"{fill}\"}}");
    let webhook = Webhook::product(resource, &event.webhook_id(), body.into_bytes())
        .with("X-Shopify-Shop-Domain", domain(shop))
        .with("X-Shopify-Triggered-At", now())
        .topic(topic);
    match topic.split_once('/') {
        Some(("products", _)) => webhook,
        Some(("orders", _)) => {
            let number = resource.to_string();
            webhook.without("X-Shopify-Product-Id").header("X-Shopify-Order-Id", number)
        }
        _ => webhook.without("X-Shopify-Product-Id"),
    }
}

/// An Event `Product/update` of this shop, of the subscription with this handle.
pub fn event(shop: u64, handle: &str, event: Event) -> Webhook {
    let gid = format!("gid://shopify/Product/{}", event.resource);
    let body = json!({
        "topic": "Product", "action": "update", "handle": handle,
        "data": { "product": { "id": gid, "sequence": event.sequence, "fill": "x".repeat(FILL_BYTES) } },
        "fields_changed": {
            "added": [], "updated": [format!("product[id: '{gid}'].title")], "removed": [],
        },
        "query_variables": { "productId": gid },
    });
    event_with(shop, handle, event, &body)
}

/// A stub in place of an Event `Product/update` of this shop. The payload lies at `payload_url`.
pub fn stub(shop: u64, event: Event, payload_url: &str, expires_at: OffsetDateTime) -> Webhook {
    let body = json!({
        "topic": "Product", "action": "update", "handle": "whole",
        "payload_url": payload_url, "payload_size_bytes": 1_500_000,
        "expires_at": rfc3339(expires_at),
    });
    event_with(shop, "whole", event, &body)
}

fn event_with(shop: u64, handle: &str, event: Event, body: &Value) -> Webhook {
    let body = body.to_string().into_bytes();
    let signature = sign(SECRET, &body);
    Webhook::bare(body)
        .header("Content-Type", "application/json")
        .header("Shopify-Topic", "Product")
        .header("Shopify-Action", "update")
        .header("Shopify-Handle", handle)
        .header("Shopify-Shop-Domain", domain(shop))
        .header("Shopify-API-Version", "2026-10")
        .header("Shopify-Webhook-Id", event.webhook_id())
        .header("Shopify-Triggered-At", now())
        .header("Shopify-Hmac-Sha256", signature)
}
