//! Webhooks of many shops and topics. As in a load, the webhook id contains the event.

use crate::ledger::Event;
use crate::webhook::{Webhook, now};

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
