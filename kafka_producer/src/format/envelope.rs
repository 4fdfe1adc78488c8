//! One JSON object with the whole request, for consumers that read no record headers.
//!
//! ```json
//! {"endpoint": "/hooks", "method": "POST", "headers": {"x-shopify-topic": "orders/create"},
//!  "queries": {"tenant": "7"}, "payload": "{\"id\":1}"}
//! ```
//! A body that is not UTF-8 is `payload_base64` instead. A header value that is not UTF-8 is read
//! as Latin-1; repeated headers are joined by `, ` (RFC 9110, section 5.3). A repeated query
//! parameter is an array.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};
use spillway_webhook::pack::View;

struct Envelope<'a>(&'a View<'a>);

struct HeaderMap<'a>(&'a View<'a>);

struct QueryMap<'a>(&'a [u8]);

/// Writes the envelope of a webhook into `value`.
pub(super) fn write(webhook: &View<'_>, value: &mut Vec<u8>) {
    value.clear();
    // One huge webhook must not keep its size allocated for good.
    value.shrink_to(1 << 20);
    serde_json::to_writer(value, &Envelope(webhook)).expect("BUG: an envelope is JSON");
}

impl Serialize for Envelope<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let webhook = self.0;
        let (path, query) = split_target(webhook.target);
        let mut map = serializer.serialize_map(Some(5))?;
        map.serialize_entry("endpoint", &text(path))?;
        map.serialize_entry("method", "POST")?;
        map.serialize_entry("headers", &HeaderMap(webhook))?;
        map.serialize_entry("queries", &QueryMap(query))?;
        match std::str::from_utf8(webhook.body) {
            Ok(body) => map.serialize_entry("payload", body)?,
            Err(_) => map.serialize_entry("payload_base64", &STANDARD.encode(webhook.body))?,
        }
        map.end()
    }
}

impl Serialize for HeaderMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (at, (name, value)) in self.0.headers().enumerate() {
            if self.0.headers().take(at).any(|(other, _)| other == name) {
                continue;
            }
            let mut joined = text(value);
            let again = self.0.headers().skip(at + 1).filter(|(other, _)| *other == name);
            for (_, value) in again {
                let joined = joined.to_mut();
                joined.push_str(", ");
                joined.push_str(&text(value));
            }
            map.serialize_entry(&text(name), &joined)?;
        }
        map.end()
    }
}

impl Serialize for QueryMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pairs: Vec<_> = pairs(self.0).collect();
        let mut map = serializer.serialize_map(None)?;
        for (at, (name, value)) in pairs.iter().enumerate() {
            if pairs[..at].iter().any(|(other, _)| other == name) {
                continue;
            }
            let again = pairs[at + 1..].iter().filter(|(other, _)| other == name);
            let values: Vec<_> = std::iter::once(value).chain(again.map(|(_, v)| v)).collect();
            match values.as_slice() {
                [one] => map.serialize_entry(name, one)?,
                several => map.serialize_entry(name, several)?,
            }
        }
        map.end()
    }
}

fn split_target(target: &[u8]) -> (&[u8], &[u8]) {
    match target.iter().position(|byte| *byte == b'?') {
        Some(at) => (&target[..at], &target[at + 1..]),
        None => (target, &[]),
    }
}

/// Parameters of a query in form encoding, where `+` is a space.
fn pairs(query: &[u8]) -> impl Iterator<Item = (String, String)> {
    query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=');
        let (name, value) = at.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]));
        (decode(name), decode(value))
    })
}

fn decode(text: &[u8]) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'+', _) => (b' ', after),
            (b'%', [high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                (hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0), after)
            }
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    self::text(&plain).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Decodes UTF-8, or Latin-1 if it is not valid UTF-8.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::pack;
    use super::*;

    fn envelope(target: &str, headers: &[(&str, &[u8])], body: &[u8]) -> Value {
        let pack = pack(target, headers, body);
        let mut value = b"left over".to_vec();
        write(&pack.view(0), &mut value);
        serde_json::from_slice(&value).unwrap()
    }

    #[test]
    fn the_whole_request_is_in_it() {
        let headers: [(&str, &[u8]); 3] =
            [("x-shopify-topic", b"orders/create"), ("x-a", b"1"), ("x-a", b"2")];
        let told =
            envelope("/hooks/7?tenant=a%20b+c&x&tag=1&tag=2", &headers, b"{\"a\":\"\xc3\xa9\"}");
        assert_eq!(
            told,
            json!({
                "endpoint": "/hooks/7",
                "method": "POST",
                "headers": {"x-shopify-topic": "orders/create", "x-a": "1, 2"},
                "queries": {"tenant": "a b c", "x": "", "tag": ["1", "2"]},
                "payload": "{\"a\":\"é\"}",
            })
        );
    }

    #[test]
    fn what_is_not_text_is_kept_all_the_same() {
        let told = envelope("/%zz?q=%e9%", &[("x-b", b"\xe9")], b"{\xff");
        assert_eq!(told["payload_base64"], json!("e/8="));
        assert_eq!(told["payload"], Value::Null);
        assert_eq!(told["headers"]["x-b"], json!("é"));
        assert_eq!(told["queries"]["q"], json!("é%"));
        assert_eq!(told["endpoint"], json!("/%zz"));
    }
}
