//! Figures of the received webhooks: their number, delays and order. Bounded by the resources and
//! topics that the load sends.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use axum::http::HeaderMap;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Upper bound of latencies: the longest time that a delivery may wait. Three digits are kept.
const LATENCY_US_MAX: u64 = 48 * 3_600 * 1_000_000;

/// Figures of all webhooks since the start.
pub(crate) struct Seen {
    requests: u64,
    body_bytes: u64,
    /// Number of requests, and of the older webhooks for which they stand.
    stood_for: u64,
    first: Option<(Instant, OffsetDateTime)>,
    last: Option<Instant>,
    since_triggered: Histogram<u64>,
    since_received: Histogram<u64>,
    /// Shop that is counted separately.
    flooding: Option<String>,
    of_flooding: u64,
    /// Delays of the webhooks of other shops.
    since_received_by_topic: BTreeMap<String, Histogram<u64>>,
    order: Order,
}

/// Newest webhook of each resource, by the numbers that `fill` assigns.
#[derive(Default)]
struct Order {
    newest: HashMap<u64, u64>,
    disordered: u64,
    repeated: u64,
}

impl Seen {
    /// Creates empty figures. The webhooks of `flooding` are counted separately.
    pub(crate) fn nothing(flooding: Option<String>) -> Self {
        Self {
            requests: 0,
            body_bytes: 0,
            stood_for: 0,
            first: None,
            last: None,
            since_triggered: latencies(),
            since_received: latencies(),
            flooding,
            of_flooding: 0,
            since_received_by_topic: BTreeMap::new(),
            order: Order::default(),
        }
    }

    /// Resets the figures.
    pub(crate) fn forget(&mut self) {
        *self = Self::nothing(self.flooding.take());
    }

    /// Counts a webhook that was answered.
    pub(crate) fn note(&mut self, headers: &HeaderMap, body_bytes: usize) {
        let now = Instant::now();
        self.requests += 1;
        self.body_bytes += body_bytes as u64;
        self.stood_for += 1 + number(headers, "spillway-coalesced").unwrap_or(0);
        self.first.get_or_insert_with(|| (now, OffsetDateTime::now_utc()));
        self.last = Some(now);
        if let Some(age) = age_us(headers, "x-shopify-triggered-at") {
            self.since_triggered.saturating_record(age);
        }
        if let Some(age) = age_us(headers, "spillway-received-at") {
            self.since_received.saturating_record(age);
            self.note_flood(headers, age);
        }
        self.order.note(headers);
    }

    fn note_flood(&mut self, headers: &HeaderMap, age: u64) {
        let Some(flooding) = &self.flooding else { return };
        if text(headers, "x-shopify-shop-domain") == Some(flooding) {
            self.of_flooding += 1;
            return;
        }
        let topic = text(headers, "x-shopify-topic").unwrap_or_default().to_owned();
        self.since_received_by_topic.entry(topic).or_insert_with(latencies).saturating_record(age);
    }

    /// Returns all figures as JSON.
    pub(crate) fn report(&self) -> Value {
        let span = self.first.zip(self.last).map(|((first, _), last)| last - first);
        let first_at = self.first.map(|(_, at)| at.unix_timestamp_nanos() as f64 / 1e9);
        let by_topic = self.since_received_by_topic.iter();
        json!({
            "pid": std::process::id(),
            "requests": self.requests,
            "body_bytes": self.body_bytes,
            "stood_for": self.stood_for,
            "first_at": first_at,
            "seconds_first_to_last": span.unwrap_or_default().as_secs_f64(),
            "since_triggered_us": percentiles(&self.since_triggered),
            "since_received_us": percentiles(&self.since_received),
            "of_flooding_shop": self.of_flooding,
            "others_since_received_us": by_topic
                .map(|(topic, latencies)| (topic.clone(), percentiles(latencies)))
                .collect::<serde_json::Map<_, _>>(),
            "resources": self.order.newest.len(),
            "newest_of_the_last_resource": self.order.newest.values().min(),
            "disordered": self.order.disordered,
            "repeated": self.order.repeated,
        })
    }
}

impl Order {
    fn note(&mut self, headers: &HeaderMap) {
        let product = number(headers, "x-shopify-product-id");
        let Some((product, sequence)) = product.zip(number(headers, "x-bench-sequence")) else {
            return;
        };
        let newest = self.newest.entry(product).or_default();
        self.disordered += u64::from(sequence < *newest);
        self.repeated += u64::from(sequence == *newest);
        *newest = sequence.max(*newest);
    }
}

fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_US_MAX, 3).expect("BUG: legal bounds")
}

fn percentiles(latencies: &Histogram<u64>) -> Value {
    json!({
        "count": latencies.len(),
        "p50": latencies.value_at_quantile(0.50),
        "p90": latencies.value_at_quantile(0.90),
        "p99": latencies.value_at_quantile(0.99),
        "max": latencies.max(),
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

/// Age of the time in a header. A time in the future counts as now.
fn age_us(headers: &HeaderMap, name: &str) -> Option<u64> {
    let then = OffsetDateTime::parse(text(headers, name)?, &Rfc3339).ok()?;
    let age = (OffsetDateTime::now_utc() - then).whole_microseconds();
    Some(u64::try_from(age).unwrap_or(0))
}
