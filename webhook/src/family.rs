//! Checks that the headers and the body of a delivery belong together, and reads the stub that
//! stands for the body of an Event that is too large.
//!
//! A classic webhook has `X-Shopify-*` headers, and its body is the resource. An Event has the same
//! headers without `X-`, and its body names what changed. A delivery with `Shopify-Hmac-Sha256` is
//! an Event, whatever other headers it has. The signature covers the body alone. The body of an
//! Event repeats its topic, action and handle, so these can be compared with the headers.
//! Sources: Shopify, "Structure of a webhook delivery" and "Events: delivery structure".

use std::fmt;
use std::sync::LazyLock;

use http::HeaderMap;
use memchr::memmem::Finder;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::freshness::millis;
use crate::shopify::{Family, Headers, without_mark};

/// Bytes of a body in which its head is looked for. Larger Events do not exist: they are stubs. The
/// shard serves no other connection while it reads.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// Longest body of a stub. A URL that carries its own permission takes some kilobytes at most.
const STUB_BYTES_MAX: usize = 16 << 10;

/// Headers and body that do not belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the headers and the body name different events")]
pub struct HeaderMismatch;

/// Topic, action and handle in the body of an Event. None of them was found in another body.
#[derive(Debug, Default)]
struct EventHead {
    topic: Option<String>,
    action: Option<String>,
    handle: Option<String>,
}

struct HeadVisitor<'a>(&'a mut EventHead);

/// Body that Shopify sends in place of one over its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// URL of the payload. It is a secret: no other permission is needed to read the payload.
    pub payload_url: String,
    /// Size of the payload in bytes, if the stub names it.
    pub payload_bytes: Option<u64>,
    /// Time at which the URL expires, in milliseconds since the Unix epoch, if the stub names it.
    pub expires_at_ms: Option<u64>,
}

#[derive(Deserialize)]
struct StubBody<'a> {
    payload_url: String,
    #[serde(borrow)]
    payload_size_bytes: Option<&'a RawValue>,
    #[serde(borrow)]
    expires_at: Option<&'a RawValue>,
    query_variables: Option<IgnoredAny>,
}

/// Checks that the body is of the headers' family, and that the headers of an Event name the topic,
/// action and handle of its body. An Event may lack the headers of the action and the handle, but
/// none of them may be there twice: a backend could read the other one.
///
/// # Errors
/// [`HeaderMismatch`] if they are not.
pub fn check(family: Family, headers: &HeaderMap, body: &[u8]) -> Result<(), HeaderMismatch> {
    let is_right = match family {
        Family::Classic => !may_be_event(body) || !EventHead::of(body).is_complete(),
        Family::Event => !is_any_repeated(headers) && EventHead::of(body).is_named_by(headers),
    };
    if is_right { Ok(()) } else { Err(HeaderMismatch) }
}

fn is_any_repeated(headers: &HeaderMap) -> bool {
    let mut names = ["shopify-topic", "shopify-action", "shopify-handle"].into_iter();
    names.any(|name| headers.get_all(name).iter().nth(1).is_some())
}

/// True unless the body is certainly not an Event's. Hardly any other body has this key.
fn may_be_event(body: &[u8]) -> bool {
    static ACTION: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"action\""));
    ACTION.find(body).is_some()
}

impl EventHead {
    /// Reads a body up to the last of the three parts.
    fn of(body: &[u8]) -> Self {
        let mut head = Self::default();
        let text = without_mark(body);
        let text = &text[..text.len().min(HEAD_BYTES_MAX)];
        // Reading ends with an error once all parts are found. In a body that is not JSON, some may
        // have been found before the fault.
        serde_json::Deserializer::from_slice(text).deserialize_map(HeadVisitor(&mut head)).ok();
        head
    }

    fn is_complete(&self) -> bool {
        self.topic.is_some() && self.action.is_some() && self.handle.is_some()
    }

    fn is_named_by(&self, headers: &impl Headers) -> bool {
        let is = |part: &Option<String>, header: Option<&[u8]>| {
            let header = header.filter(|value| !value.is_empty());
            part.as_ref().is_some_and(|part| header.is_none_or(|value| value == part.as_bytes()))
        };
        headers.topic().is_some()
            && is(&self.topic, headers.shopify("topic"))
            && is(&self.action, headers.shopify("action"))
            && is(&self.handle, headers.shopify("handle"))
    }
}

impl Stub {
    /// Reads a stub. `None` for any other body.
    pub fn of(headers: &impl Headers, body: &[u8]) -> Option<Self> {
        static URL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"payload_url\""));
        if headers.family() == Family::Classic || body.len() > STUB_BYTES_MAX {
            return None;
        }
        URL.find(body)?;
        let stub: StubBody = serde_json::from_slice(without_mark(body)).ok()?;
        if stub.query_variables.is_some() {
            return None;
        }
        let size = stub.payload_size_bytes;
        let expires: Option<String> =
            stub.expires_at.and_then(|text| serde_json::from_str(text.get()).ok());
        let expires_ms = expires.and_then(|text| millis(text.as_bytes()));
        Some(Self {
            payload_url: stub.payload_url,
            payload_bytes: size.and_then(|size| size.get().parse().ok()),
            expires_at_ms: expires_ms.and_then(|ms| u64::try_from(ms).ok()),
        })
    }

    /// True if the URL has expired at `now_ms`.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }
}

impl<'de> Visitor<'de> for HeadVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of an Event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let part = match key.as_str() {
                "topic" => &mut self.0.topic,
                "action" => &mut self.0.action,
                "handle" => &mut self.0.handle,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let value: &RawValue = map.next_value()?;
            *part = serde_json::from_str(value.get()).ok();
            if self.0.is_complete() {
                return Err(A::Error::custom("the rest is not needed"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: [(&str, &str); 4] = [
        ("shopify-hmac-sha256", "signature"),
        ("shopify-topic", "Product"),
        ("shopify-action", "update"),
        ("shopify-handle", "prices"),
    ];
    const CLASSIC: [(&str, &str); 2] =
        [("x-shopify-hmac-sha256", "signature"), ("x-shopify-topic", "products/update")];
    const BODY: &str = r#"{"topic":"Product","action":"update","handle":"prices","data":null}"#;

    fn checked(headers: &[(&'static str, &str)], body: &str) -> Result<(), HeaderMismatch> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        check(map.family(), &map, body.as_bytes())
    }

    #[test]
    fn an_event_is_named_alike_in_headers_and_body() {
        assert_eq!(checked(&EVENT, BODY), Ok(()));
        assert_eq!(checked(&EVENT, &format!("\u{feff}{BODY}")), Ok(()));
        assert_eq!(checked(&EVENT[..2], BODY), Ok(()), "action and handle may be missing");
        for changed in 1..4 {
            let mut headers = EVENT;
            headers[changed].1 = "other";
            assert_eq!(checked(&headers, BODY), Err(HeaderMismatch), "{headers:?}");
        }
        assert_eq!(checked(&EVENT[..1], BODY), Err(HeaderMismatch), "the topic may not");
        let empty = [EVENT[0], EVENT[1], ("shopify-action", ""), ("shopify-handle", "")];
        assert_eq!(checked(&empty, BODY), Ok(()));
        for repeated in &EVENT[1..] {
            let headers: Vec<_> = EVENT.iter().chain([repeated]).copied().collect();
            assert_eq!(checked(&headers, BODY), Err(HeaderMismatch), "{headers:?}");
        }
        let late = format!("{{\"data\":\"{}\",{}", "x".repeat(HEAD_BYTES_MAX), &BODY[1..]);
        assert_eq!(checked(&EVENT, &late), Err(HeaderMismatch));
    }

    #[test]
    fn the_body_of_the_other_family_is_refused() {
        assert_eq!(checked(&CLASSIC, BODY), Err(HeaderMismatch));
        let product = r#"{"id":1,"handle":"snowboard","title":"action"}"#;
        assert_eq!(checked(&CLASSIC, product), Ok(()));
        for body in [product, "{}", "[]", "<x/>", "", r#"{"topic":"Product","action":"update"}"#] {
            assert_eq!(checked(&EVENT, body), Err(HeaderMismatch), "{body}");
        }
        let named = r#"{"action":"create","handle":"a","topic":7}"#;
        assert_eq!(checked(&CLASSIC, named), Ok(()), "not an Event: its topic is a number");
        assert_eq!(checked(&CLASSIC, r#"{"a":{"action":"b","topic":"c","handle":"d"}}"#), Ok(()));
    }

    fn stub(headers: &[(&'static str, &str)], body: &str) -> Option<Stub> {
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| {
            map.append(*name, value.parse().unwrap());
        });
        Stub::of(&map, body.as_bytes())
    }

    #[test]
    fn a_stub_is_an_event_with_a_url_and_without_variables() {
        let body = r#"{"topic":"Product","action":"update","handle":"prices",
            "payload_url":"https:\/\/a.example/1?b=c","payload_size_bytes":1500000,
            "expires_at":"2026-11-02T10:15:01.5Z"}"#;
        let expected = Stub {
            payload_url: "https://a.example/1?b=c".to_owned(),
            payload_bytes: Some(1_500_000),
            expires_at_ms: Some(1_793_614_501_500),
        };
        assert_eq!(stub(&EVENT, body), Some(expected.clone()));
        assert_eq!(stub(&EVENT, &format!("\u{feff}{body}")), Some(expected));
        assert_eq!(stub(&CLASSIC, body), None);
        let variables = body.replace("\"expires_at\"", "\"query_variables\":{},\"expires_at\"");
        assert_eq!(stub(&EVENT, &variables), None);
        for other in [BODY, "{}", "", "[\"payload_url\"]", r#"{"payload_url":7}"#] {
            assert_eq!(stub(&EVENT, other), None, "{other}");
        }
        assert_eq!(stub(&EVENT, &format!("{body}{}", " ".repeat(STUB_BYTES_MAX))), None);
    }

    #[test]
    fn a_stub_may_lack_its_size_and_its_time() {
        for rest in ["", r#","expires_at":"soon""#, r#","expires_at":7,"payload_size_bytes":"7""#] {
            let found = stub(&EVENT, &format!("{{\"payload_url\":\"https://a.example\"{rest}}}"));
            let found = found.expect("a stub");
            assert_eq!((found.payload_bytes, found.expires_at_ms), (None, None), "{rest}");
        }
    }

    #[test]
    fn both_families_together_are_an_event() {
        let both: Vec<_> = CLASSIC.into_iter().chain(EVENT).collect();
        assert_eq!(checked(&both, BODY), Ok(()));
        assert_eq!(checked(&both, r#"{"id":1}"#), Err(HeaderMismatch));
    }
}
