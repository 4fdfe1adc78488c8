//! Conversion of a stored webhook to a record: key, value, headers, timestamp.
//!
//! A record allocates only what librdkafka keeps of it. The buffers here are reused for each
//! record.

mod cloudevents;
mod envelope;

use std::fmt::Write;

use rdkafka::message::{Header, OwnedHeaders};
use spillway_trace::{TRACEPARENT, TRACESTATE};
use spillway_webhook::WebhookId;
use spillway_webhook::freshness::{millis, rfc3339};
use spillway_webhook::pack::View;
use spillway_webhook::received::APP_HEADER;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;

use crate::key;
use crate::settings::{Format, Key};

/// Record headers in addition to those of a request.
const OWN_HEADERS: usize = 5;

/// Header of a record whose webhook is replayed.
const REPLAYED: &str = "spillway-replayed";

/// Builds records.
pub(crate) struct Encoder {
    format: Format,
    by: Key,
    key: String,
    value: Vec<u8>,
    text: String,
    received_at: Received,
}

/// Record that librdkafka can copy.
pub(crate) struct Encoded<'a> {
    /// Key: records with the same key are kept in order.
    pub key: &'a str,
    /// Value of the record.
    pub value: &'a [u8],
    /// Headers of the record.
    pub headers: OwnedHeaders,
    /// Time at which the webhook was triggered, in milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
    /// True if the webhook has no resource id, and is keyed by its shop and type.
    pub is_fallback: bool,
}

/// Last time of receipt as text. Many webhooks share theirs.
#[derive(Default)]
struct Received {
    ms: u64,
    text: String,
}

impl Encoder {
    /// Encoder for records of `format`, keyed by `by`.
    pub(crate) fn new(format: Format, by: Key) -> Self {
        Self {
            format,
            by,
            key: String::new(),
            value: Vec::new(),
            text: String::new(),
            received_at: Received::default(),
        }
    }

    /// Encodes one webhook. `traceparent` is that of its record, if its trace is recorded. One that is replayed is
    /// marked.
    pub(crate) fn encode<'a>(
        &'a mut self,
        webhook: &View<'a>,
        id: WebhookId,
        traceparent: Option<&str>,
        is_replay: bool,
    ) -> Encoded<'a> {
        let needs_resource = self.by == Key::Resource || self.format == Format::CloudEvents;
        let resource = needs_resource.then(|| Resource::of(webhook, webhook.body));
        key::write(self.by, webhook, resource.as_ref(), &mut self.key);
        self.text.clear();
        // Writing to a string cannot fail.
        write!(self.text, "{id}").ok();
        let received_at = self.received_at.text(webhook.received_at_ms);
        let (headers, value) = match self.format {
            Format::Raw => (raw_headers(webhook, traceparent), webhook.body),
            Format::Envelope => {
                envelope::write(webhook, &mut self.value);
                (OwnedHeaders::new_with_capacity(OWN_HEADERS), &self.value[..])
            }
            Format::CloudEvents => {
                (cloudevents::headers(webhook, &self.text, resource.as_ref()), webhook.body)
            }
        };
        // Raw records have it among the headers of the request.
        let app = webhook.value(APP_HEADER.as_str()).filter(|_| self.format != Format::Raw);
        let headers = match app {
            Some(app) => headers.insert(Header { key: APP_HEADER.as_str(), value: Some(app) }),
            None => headers,
        };
        let headers = match traceparent.filter(|_| self.format != Format::Raw) {
            Some(traceparent) => trace_headers(headers, webhook, traceparent),
            None => headers,
        };
        let headers = own_headers(headers, webhook.target, received_at, &self.text);
        let headers = match is_replay {
            true => headers.insert(Header { key: REPLAYED, value: Some("true") }),
            false => headers,
        };
        Encoded {
            key: &self.key,
            value,
            headers,
            timestamp_ms: timestamp_ms(webhook),
            is_fallback: self.by == Key::Resource
                && resource.is_some_and(|resource| resource.is_fallback),
        }
    }
}

impl Received {
    fn text(&mut self, ms: u64) -> &str {
        if self.ms != ms || self.text.is_empty() {
            *self = Self { ms, text: rfc3339(ms) };
        }
        &self.text
    }
}

/// All headers of the request, with names in lower case and values byte for byte, except that
/// `traceparent` takes the place of its own.
fn raw_headers(webhook: &View<'_>, traceparent: Option<&str>) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new_with_capacity(webhook.header_count() + OWN_HEADERS);
    for (name, value) in webhook.headers() {
        // The name of a header is always ASCII.
        let key = std::str::from_utf8(name).unwrap_or_default();
        let own = traceparent.filter(|_| key == TRACEPARENT).map(str::as_bytes);
        headers = headers.insert(Header { key, value: Some(own.unwrap_or(value)) });
    }
    headers
}

fn trace_headers(headers: OwnedHeaders, webhook: &View<'_>, traceparent: &str) -> OwnedHeaders {
    let headers = headers.insert(Header { key: TRACEPARENT, value: Some(traceparent) });
    match webhook.value(TRACESTATE) {
        Some(state) => headers.insert(Header { key: TRACESTATE, value: Some(state) }),
        None => headers,
    }
}

fn own_headers(headers: OwnedHeaders, target: &[u8], received_at: &str, id: &str) -> OwnedHeaders {
    headers
        .insert(Header { key: "spillway-path", value: Some(target) })
        .insert(Header { key: "spillway-received-at", value: Some(received_at) })
        .insert(Header { key: "spillway-id", value: Some(id) })
}

/// Time at which the webhook was triggered, or received if that is missing or later. A broker
/// refuses records from the future, and retention counts from this time.
fn timestamp_ms(webhook: &View<'_>) -> i64 {
    let received = webhook.received_at_ms.cast_signed();
    let triggered = webhook.shopify("triggered-at").and_then(millis);
    let triggered = triggered.and_then(|ms| i64::try_from(ms).ok()).filter(|ms| *ms > 0);
    triggered.map_or(received, |ms| ms.min(received))
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use rdkafka::message::Headers as _;
    use spillway_webhook::pack::{Pack, Packer, Records};
    use spillway_webhook::{StreamId, Webhook};

    use super::*;

    pub(super) const NOON: u64 = 1_767_268_800_000;

    pub(crate) fn pack(target: &str, headers: &[(&str, &[u8])], body: &[u8]) -> Pack {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let mut records = Records::default();
        records.push(&Webhook {
            received_at_ms: NOON,
            target: target.parse().unwrap(),
            headers: map,
            body: Bytes::copy_from_slice(body),
        });
        Pack::decode(Packer::new().pack(&records)).unwrap()
    }

    pub(crate) fn id() -> WebhookId {
        WebhookId { cell: 0xab, entry: StreamId { ms: NOON, seq: 1 }, index: 2 }
    }

    pub(super) fn headers_of(encoded: &Encoded<'_>) -> Vec<(String, Vec<u8>)> {
        encoded
            .headers
            .as_borrowed()
            .iter()
            .map(|header| (header.key.to_owned(), header.value.unwrap_or_default().to_vec()))
            .collect()
    }

    #[test]
    fn each_format_names_its_trace_once() {
        let sent: [(&str, &[u8]); 3] = [
            ("traceparent", b"stored"),
            ("tracestate", b"vendor=1"),
            ("x-shopify-topic", b"products/update"),
        ];
        let pack = pack("/hooks", &sent, b"{}");
        let view = pack.view(0);
        for format in [Format::Raw, Format::Envelope, Format::CloudEvents] {
            let values = |own| {
                let mut encoder = Encoder::new(format, Key::Shop);
                let headers = headers_of(&encoder.encode(&view, id(), own, false));
                let found = headers.into_iter().filter(|(name, _)| name.starts_with("trace"));
                found.map(|(_, value)| String::from_utf8_lossy(&value).into_owned()).collect()
            };
            let found: Vec<String> = values(Some("own"));
            assert_eq!(found, ["own", "vendor=1"], "{format:?}");
            let stored: &[&str] = if format == Format::Raw { &["stored", "vendor=1"] } else { &[] };
            assert_eq!(values(None), stored, "{format:?}");
        }
    }

    #[test]
    fn each_format_names_the_app_once() {
        let sent: [(&str, &[u8]); 2] =
            [("x-shopify-topic", b"products/update"), ("spillway-app", b"one")];
        let pack = pack("/hooks", &sent, b"{}");
        let view = pack.view(0);
        for format in [Format::Raw, Format::Envelope, Format::CloudEvents] {
            let mut encoder = Encoder::new(format, Key::Shop);
            let encoded = encoder.encode(&view, id(), None, false);
            let all = headers_of(&encoded);
            let named: Vec<_> = all.iter().filter(|(name, _)| name == "spillway-app").collect();
            assert_eq!(named.len(), 1, "{format:?}");
            assert_eq!(named[0].1, b"one");
        }
    }

    #[test]
    fn each_format_marks_what_is_replayed() {
        let pack = pack("/hooks", &[("x-shopify-topic", b"products/update")], b"{}");
        let view = pack.view(0);
        for format in [Format::Raw, Format::Envelope, Format::CloudEvents] {
            for is_replay in [true, false] {
                let mut encoder = Encoder::new(format, Key::Shop);
                let headers = headers_of(&encoder.encode(&view, id(), None, is_replay));
                let marks = headers.iter().filter(|(name, _)| name == "spillway-replayed");
                let marks: Vec<_> = marks.map(|(_, value)| value.as_slice()).collect();
                let expected: &[&[u8]] = if is_replay { &[b"true"] } else { &[] };
                assert_eq!(marks, expected, "{format:?}");
            }
        }
    }

    #[test]
    fn raw_is_the_body_and_every_header_byte_for_byte() {
        let sent: [(&str, &[u8]); 4] = [
            ("x-shopify-topic", b"products/update"),
            ("x-a", b"one"),
            ("x-a", b"\xff\xfe two"),
            ("x-empty", b""),
        ];
        let pack = pack("/hooks?a=1", &sent, b"{\"id\":7,\0\xff");
        let mut encoder = Encoder::new(Format::Raw, Key::Resource);
        let view = pack.view(0);
        let encoded = encoder.encode(&view, id(), None, false);
        assert_eq!(encoded.value, b"{\"id\":7,\0\xff");
        let mut expected: Vec<_> =
            sent.iter().map(|(n, v)| ((*n).to_owned(), v.to_vec())).collect();
        expected.push(("spillway-path".into(), b"/hooks?a=1".to_vec()));
        expected.push(("spillway-received-at".into(), b"2026-01-01T12:00:00.000Z".to_vec()));
        expected.push(("spillway-id".into(), b"000000ab-1767268800000-0000000001-00002".to_vec()));
        assert_eq!(headers_of(&encoded), expected);
        assert_eq!(encoded.key, "/products");
        assert!(encoded.is_fallback);
    }

    #[test]
    fn each_form_of_an_event_has_its_key_and_its_cloud_event() {
        let samples = include_str!("../../webhook/samples/events.json");
        let samples: Vec<serde_json::Value> = serde_json::from_str(samples).unwrap();
        for sample in samples {
            let text = |name: &str| sample[name].as_str().unwrap();
            let sent = [
                ("shopify-hmac-sha256", &b"signature"[..]),
                ("shopify-topic", text("topic").as_bytes()),
                ("shopify-action", text("action").as_bytes()),
                ("shopify-shop-domain", b"a.myshopify.com"),
            ];
            let pack = pack("/", &sent, sample["body"].to_string().as_bytes());
            let mut encoder = Encoder::new(Format::CloudEvents, Key::Resource);
            let view = pack.view(0);
            let encoded = encoder.encode(&view, id(), None, false);
            assert_eq!(encoded.key, format!("a.myshopify.com/{}", text("resource")));
            let headers = headers_of(&encoded);
            let header = |name: &str| {
                let found = headers.iter().find(|(known, _)| known == name);
                found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            };
            assert_eq!(header("ce_type").as_deref(), Some(text("type")));
            assert_eq!(header("ce_subject").as_deref(), sample["subject"].as_str());
            assert_eq!(encoded.is_fallback, sample["subject"].is_null());
        }
    }

    #[test]
    fn the_timestamp_is_when_it_was_triggered_and_never_in_the_future() {
        let check = |triggered: &str, expected: u64| {
            let header: [(&str, &[u8]); 1] = [("x-shopify-triggered-at", triggered.as_bytes())];
            let pack = pack("/", &header, b"{}");
            let mut encoder = Encoder::new(Format::Raw, Key::Shop);
            let view = pack.view(0);
            assert_eq!(
                encoder.encode(&view, id(), None, false).timestamp_ms,
                expected.cast_signed()
            );
        };
        check("2026-01-01T11:59:59.123456789Z", NOON - 877);
        check("2026-01-01T14:00:00+02:00", NOON);
        check("2026-01-01T12:30:00Z", NOON);
        check("1969-01-01T12:30:00Z", NOON);
        check("soon", NOON);
    }
}
