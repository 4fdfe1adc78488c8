//! Generates webhook number n of a plan, in its form on the wire.

use std::io::Write;

use bench::id;
use bench::product::Products;
use bench::signature::Secret;
use bench::target::{Placeholder, Target, Value};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Number of bodies: as many as wrk uses, and more than any window of compression holds.
const BODIES: u64 = 10_000;
/// Memory limit of the bodies, in bytes.
const BODIES_BYTES_MAX: usize = 128 << 20;

/// Plan of the shops, products and topics.
pub(crate) struct Plan {
    /// Number of products that are used in turn; `None` for a new product in each webhook.
    pub products: Option<u64>,
    /// Number of the first product.
    pub product_first: u64,
    /// Number of shops. A product always belongs to the same shop.
    pub shops: u64,
    /// Number of the first shop.
    pub shop_first: u64,
    /// Topics that every shop sends, in turn.
    pub topics: Vec<String>,
}

/// Parts of which webhooks are made.
pub(crate) struct Supply {
    plan: Plan,
    target: Target,
    bodies: Vec<(Vec<u8>, String)>,
    /// Random part of the webhook ids, so that two runs do not share any.
    run: u64,
}

/// Values that differ between webhooks.
struct Facts<'a> {
    body: &'a [u8],
    hmac: &'a str,
    product: u64,
    shop: u64,
    topic: &'a str,
    sequence: Option<u64>,
    number: u64,
}

impl Supply {
    /// Creates the bodies.
    pub(crate) fn new(target: Target, products: &Products, secret: &Secret, plan: Plan) -> Self {
        let mut random = SmallRng::seed_from_u64(1);
        let now = OffsetDateTime::now_utc();
        let (mut bodies, mut bytes) = (Vec::new(), 0);
        for _ in 0..BODIES {
            let (_, body) = products.make(&mut random, now);
            bytes += body.len();
            let hmac = secret.sign(&body);
            bodies.push((body, hmac));
            if bytes > BODIES_BYTES_MAX {
                break;
            }
        }
        Self { plan, target, bodies, run: rand::random() }
    }

    /// Appends the request with this number.
    pub(crate) fn write(&self, number: u64, out: &mut Vec<u8>) {
        let plan = &self.plan;
        let product = number % plan.products.unwrap_or(u64::MAX);
        // Shifted by one in each round, so that the webhooks of a product have different bodies.
        let bodies = self.bodies.len() as u64;
        let (body, hmac) = &self.bodies[((number + number / bodies) % bodies) as usize];
        let round = number / plan.shops;
        self.write_request(
            &Facts {
                body,
                hmac,
                product: plan.product_first + product,
                shop: plan.shop_first + product % plan.shops,
                topic: &plan.topics[round as usize % plan.topics.len()],
                sequence: plan.products.map(|products| number / products + 1),
                number,
            },
            out,
        );
    }

    fn write_request(&self, facts: &Facts<'_>, out: &mut Vec<u8>) {
        let (authority, path) = self.target.authority_and_path();
        let start = format!("{} {path} HTTP/1.1\r\nHost: {authority}\r\n", self.target.method);
        out.extend_from_slice(start.as_bytes());
        if let Some(sequence) = facts.sequence {
            write(out, format_args!("X-Bench-Sequence: {sequence}\r\n"));
        }
        for (name, value) in &self.target.headers {
            let is_order = facts.topic.starts_with("orders/");
            match (value, name.as_str()) {
                (Value::Filled(Placeholder::ProductId), _) if is_order => {
                    write(out, format_args!("X-Shopify-Order-Id: {}", facts.product));
                }
                (Value::Fixed(_), "X-Shopify-Topic") => {
                    write(out, format_args!("{name}: {}", facts.topic));
                }
                (Value::Fixed(text), _) => write(out, format_args!("{name}: {text}")),
                (Value::Filled(placeholder), _) => {
                    write(out, format_args!("{name}: {}", self.value(*placeholder, facts)));
                }
            }
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(facts.body);
    }

    fn value(&self, placeholder: Placeholder, facts: &Facts<'_>) -> String {
        match placeholder {
            Placeholder::BodyBytes => facts.body.len().to_string(),
            Placeholder::EventId => id::numbered(!self.run, facts.number),
            Placeholder::WebhookId => id::numbered(self.run, facts.number),
            Placeholder::Hmac => facts.hmac.to_owned(),
            Placeholder::ProductId => facts.product.to_string(),
            Placeholder::Shop => format!("shop-{:04}.myshopify.com", facts.shop),
            Placeholder::TriggeredAt => {
                OffsetDateTime::now_utc().format(&Rfc3339).expect("BUG: a year of four digits")
            }
        }
    }
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("BUG: a Vec takes it");
}
