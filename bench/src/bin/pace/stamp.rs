//! Ids, product and time of a request that is sent, in place of those that were prepared. Without them,
//! a prepared request that is sent twice would be a duplicate, which a consumer drops.
//!
//! Only values of headers change, and each keeps its length. The signature covers the body alone, so
//! it stays valid.

use std::ops::Range;

use anyhow::ensure;
use bench::id::{mixed, numbered};
use time::OffsetDateTime;

/// Length of a UUID in text.
const UUID_BYTES: usize = 36;
/// Last digits of a product id that are replaced, and the number of their values.
const PRODUCT_DIGITS: usize = 10;
const PRODUCTS: u64 = 10_000_000_000;
/// Lengths of a time in text, from whole seconds to nanoseconds.
const TIME_BYTES: [usize; 10] = [20, 22, 23, 24, 25, 26, 27, 28, 29, 30];

/// Places of the values in one prepared request.
#[derive(Debug, Default)]
pub(crate) struct Places {
    webhook_id: Option<Range<usize>>,
    event_id: Option<Range<usize>>,
    product: Option<Range<usize>>,
    triggered_at: Option<Range<usize>>,
}

impl Places {
    /// Finds the values in the head of a request.
    pub(crate) fn find(request: &[u8]) -> anyhow::Result<Self> {
        let mut places = Self::default();
        let mut at = 0;
        for line in request.split_inclusive(|byte| *byte == b'\n') {
            let text = line.trim_ascii_end();
            if text.is_empty() {
                break;
            }
            if let Some(colon) = text.iter().position(|byte| *byte == b':') {
                let value = text[colon + 1..].trim_ascii_start();
                let end = at + text.len();
                places.note(&text[..colon].to_ascii_lowercase(), end - value.len()..end);
            }
            at += line.len();
        }
        ensure!(places.webhook_id.is_some(), "no webhook id by which its copies would differ");
        let is_uuid = |place: &Range<usize>| place.len() == UUID_BYTES;
        ensure!(places.webhook_id.iter().all(is_uuid), "a webhook id that is no UUID");
        ensure!(places.event_id.iter().all(is_uuid), "an event id that is no UUID");
        let is_time = |place: &Range<usize>| TIME_BYTES.contains(&place.len());
        ensure!(places.triggered_at.iter().all(is_time), "a time that does not end in Z");
        Ok(places)
    }

    fn note(&mut self, name: &[u8], place: Range<usize>) {
        match name.strip_prefix(b"x-").unwrap_or(name) {
            b"shopify-webhook-id" => self.webhook_id = Some(place),
            b"shopify-event-id" => self.event_id = Some(place),
            b"shopify-product-id" => self.product = Some(place),
            b"shopify-triggered-at" => self.triggered_at = Some(place),
            _ => {}
        }
    }

    /// Writes the values of request `number` of a run into a copy of the prepared request. `run` is
    /// random, so that two runs share no id.
    pub(crate) fn stamp(&self, request: &mut [u8], run: u64, number: u64, now: OffsetDateTime) {
        for (place, run) in [(&self.webhook_id, run), (&self.event_id, !run)] {
            if let Some(place) = place {
                request[place.clone()].copy_from_slice(numbered(run, number).as_bytes());
            }
        }
        if let Some(place) = &self.product {
            let digits = format!("{:0PRODUCT_DIGITS$}", mixed(run ^ number) % PRODUCTS);
            let last = place.len().min(PRODUCT_DIGITS);
            request[place.end - last..place.end]
                .copy_from_slice(&digits.as_bytes()[digits.len() - last..]);
        }
        if let Some(place) = &self.triggered_at {
            let text = in_nanoseconds(now);
            request[place.clone()].copy_from_slice(&text.as_bytes()[..place.len()]);
            request[place.end - 1] = b'Z';
        }
    }
}

/// Time as RFC 3339 with nine digits after the point.
fn in_nanoseconds(now: OffsetDateTime) -> String {
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z",
        now.year(),
        u8::from(now.month()),
        now.day(),
        now.hour(),
        now.minute(),
        now.second(),
        now.nanosecond()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "POST /webhooks HTTP/1.1\r\nHost: h:1\r\n\
        X-Shopify-Event-Id: 00000000-0000-4000-8000-000000000000\r\nX-Shopify-Hmac-Sha256: abc=\r\n\
        X-Shopify-Product-Id: 8120358962288\r\nX-Shopify-Triggered-At: 2026-01-01T00:00:00.125Z\r\n\
        X-Shopify-Webhook-Id: 00000000-0000-4000-8000-000000000000\r\n\r\n{\"x-shopify-product-id: 1\"}";

    fn stamped(request: &str, run: u64, number: u64, now: OffsetDateTime) -> String {
        let mut bytes = request.as_bytes().to_vec();
        Places::find(&bytes).unwrap().stamp(&mut bytes, run, number, now);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_request_gets_values_of_its_own_and_keeps_its_body() {
        let now = OffsetDateTime::from_unix_timestamp_nanos(1_800_000_000_012_345_678).unwrap();
        let text = stamped(REQUEST, 5, 31, now);
        let has = |name: &str, value: &str| text.contains(&format!("{name}: {value}\r\n"));
        assert!(has("X-Shopify-Webhook-Id", &numbered(5, 31)), "{text}");
        assert!(has("X-Shopify-Event-Id", &numbered(!5, 31)), "{text}");
        assert!(!has("X-Shopify-Product-Id", "8120358962288"), "{text}");
        assert!(text.contains("X-Shopify-Product-Id: 812"), "{text}");
        assert!(text.contains("X-Shopify-Triggered-At: 2027-01-15T08:00:00.012Z\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n{\"x-shopify-product-id: 1\"}"), "{text}");
        assert_eq!(text.len(), REQUEST.len());
    }

    #[test]
    fn two_numbers_and_two_runs_share_no_id() {
        let of = |run, number| stamped(REQUEST, run, number, OffsetDateTime::UNIX_EPOCH);
        assert_ne!(of(1, 1), of(1, 2));
        assert_ne!(of(1, 1), of(2, 1));
        assert_eq!(of(1, 1), of(1, 1));
    }

    #[test]
    fn a_time_of_whole_seconds_stays_one() {
        let request = REQUEST.replace(".125Z", "Z");
        let text = stamped(&request, 1, 1, OffsetDateTime::UNIX_EPOCH);
        assert!(text.contains("X-Shopify-Triggered-At: 1970-01-01T00:00:00Z\r\n"), "{text}");
    }

    #[test]
    fn a_request_without_an_id_is_refused() {
        let problem = Places::find(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n{}").unwrap_err();
        assert!(problem.to_string().starts_with("no webhook id"), "{problem}");
    }
}
