//! A webhook: a body, its signature, ids and the time. Webhook number `n` of a seed is the same in
//! every run except for the time, on any thread.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::event::EventHead;
use crate::id;
use crate::product::Products;
use crate::signature::Secret;
use crate::target::{Placeholder, Value};

/// Contents of one request.
pub struct Webhook {
    /// Raw bytes, which are signed.
    pub body: Vec<u8>,
    event_id: String,
    hmac: String,
    product_id: u64,
    shop: String,
    triggered_at: String,
    webhook_id: String,
}

/// Generator of webhooks. It can be used from any thread.
pub struct Maker {
    /// Source of the bodies.
    pub products: Products,
    /// Event of which each body is made; without it, bodies are those of classic webhooks.
    pub event: Option<EventHead>,
    /// Secret that signs the bodies.
    pub secret: Secret,
    /// Number of shops that send the webhooks.
    pub shops: u32,
    /// Seed. Other seeds give other products and ids.
    pub seed: u64,
    /// Time used instead of the clock if runs must give identical bytes.
    pub now: Option<OffsetDateTime>,
}

impl Maker {
    /// Makes the webhook with this number, with the current time.
    pub fn make(&self, number: u64) -> Webhook {
        // The multiplication keeps neighbouring seeds from sharing neighbouring numbers.
        let stream = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number);
        let mut random = SmallRng::seed_from_u64(stream);
        let now = self.now.unwrap_or_else(OffsetDateTime::now_utc);
        let (product_id, product) = self.products.make(&mut random, now);
        let body = match &self.event {
            Some(event) => event.body(product_id, &product),
            None => product,
        };
        Webhook {
            hmac: self.secret.sign(&body),
            body,
            product_id,
            event_id: random_uuid(&mut random),
            webhook_id: random_uuid(&mut random),
            shop: format!("shop-{:04}.myshopify.com", random.random_range(0..self.shops)),
            triggered_at: now.format(&Rfc3339).expect("BUG: a year of four digits"),
        }
    }
}

impl Webhook {
    /// Appends the value of a header.
    pub fn write_value(&self, value: &Value, out: &mut Vec<u8>) {
        let text = match value {
            Value::Fixed(text) => text,
            Value::Filled(Placeholder::BodyBytes) => &self.body.len().to_string(),
            Value::Filled(Placeholder::EventId) => &self.event_id,
            Value::Filled(Placeholder::Hmac) => &self.hmac,
            Value::Filled(Placeholder::ProductId) => &self.product_id.to_string(),
            Value::Filled(Placeholder::Shop) => &self.shop,
            Value::Filled(Placeholder::TriggeredAt) => &self.triggered_at,
            Value::Filled(Placeholder::WebhookId) => &self.webhook_id,
        };
        out.extend_from_slice(text.as_bytes());
    }
}

/// A random UUID.
fn random_uuid(random: &mut SmallRng) -> String {
    id::uuid(random.random(), random.random())
}
