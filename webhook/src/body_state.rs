//! State that the body of an update shows, to find out that an update shows nothing new.
//!
//! Shopify sends an update whenever a resource is saved, also if nothing changed but the time. In a
//! classic body, that time is `updated_at`: of the resource, and of its parts, such as each variant
//! of a product. In the data of an Event it is `updatedAt`, where the query asks for it. The hash
//! leaves the values of these members out, at any depth, if they are times or null. Everything else
//! counts, byte for byte.
//!
//! A state has a time only if its body shows one. A header says when a webhook was triggered, and the
//! body may have been read before or after that.
//!
//! Two passes read the body: one over its members, and one for the hash. Neither builds a tree.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::Finder;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::freshness::millis;
use crate::resource::root_of;
use crate::shopify::{Family, Headers, without_mark};

/// State that the body of an update shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyState {
    /// 128 bits of a SHA-256 of the body without its times: nobody can make two states share one.
    pub hash: u128,
    /// Time of the state in milliseconds since the Unix epoch, if it is known.
    pub updated_ms: Option<u64>,
}

/// Members of a classic body that matter here.
#[derive(Debug, Default)]
struct ClassicMembers {
    updated_at: Option<String>,
    /// True if there is more than ids and times of the resource.
    shows_state: bool,
}

struct MembersVisitor<'a>(&'a mut ClassicMembers);

/// Result of an Event's query; absent without one.
#[derive(Deserialize)]
struct EventData<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

/// Time of a resource in the data of an Event.
#[derive(Deserialize)]
struct DatedResource {
    #[serde(rename = "updatedAt")]
    updated_at: Option<String>,
}

impl BodyState {
    /// Reads the state of a webhook with these headers and this body. `None` if the body is no JSON object, or
    /// if a classic body holds nothing except ids and times: it says that something changed, not what.
    pub fn of(headers: &impl Headers, body: &[u8]) -> Option<Self> {
        static CLASSIC: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"updated_at\""));
        static EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"updatedAt\""));
        let body = without_mark(body);
        Some(match headers.family() {
            Family::Classic => {
                let members = ClassicMembers::of(body)?;
                let updated_at = members.updated_at.as_deref().map(str::as_bytes);
                let updated_ms = updated_at.and_then(time_ms);
                Self { hash: hash_without(&CLASSIC, body), updated_ms }
            }
            // The data is read when the Event is sent, which may be long after it was triggered.
            Family::Event => {
                let EventData { data } = serde_json::from_slice(body).ok()?;
                let topic = headers.topic().unwrap_or_default();
                let topic = String::from_utf8_lossy(&topic);
                let updated_at = data.and_then(|data| time_in_data(data, &topic));
                let updated_ms = updated_at.and_then(|text| time_ms(text.as_bytes()));
                Self { hash: hash_without(&EVENT, body), updated_ms }
            }
        })
    }
}

impl ClassicMembers {
    fn of(body: &[u8]) -> Option<Self> {
        let mut members = Self::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        json.deserialize_map(MembersVisitor(&mut members)).ok()?;
        json.end().ok()?;
        members.shows_state.then_some(members)
    }
}

impl<'de> Visitor<'de> for MembersVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a resource")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "updated_at" {
                let value: &RawValue = map.next_value()?;
                self.0.updated_at = serde_json::from_str(value.get()).ok();
                continue;
            }
            map.next_value::<IgnoredAny>()?;
            self.0.shows_state |= !is_of_signal(&key);
        }
        Ok(())
    }
}

/// True for a member that a body may have that says only that something changed: an id, or a time that
/// never changes.
fn is_of_signal(key: &str) -> bool {
    matches!(key, "id" | "created_at") || key.ends_with("_id")
}

/// Time of the resource in the data of an Event, such as `{"product": {"updatedAt": ..}}`.
fn time_in_data(data: &RawValue, topic: &str) -> Option<String> {
    let roots: HashMap<String, &RawValue> = serde_json::from_str(data.get()).ok()?;
    let resource = roots.get(&root_of(topic)?)?;
    let dated: DatedResource = serde_json::from_str(resource.get()).ok()?;
    dated.updated_at
}

fn time_ms(text: &[u8]) -> Option<u64> {
    u64::try_from(millis(text)?).ok()
}

/// Hash of a JSON text without the times of all members with this name, which `name` finds with its
/// quotes.
fn hash_without(name: &Finder<'_>, body: &[u8]) -> u128 {
    let mut hash = Sha256::new();
    let mut hashed = 0;
    for at in name.find_iter(body) {
        // Within a text, each quote follows a backslash. So this is a whole text, and a name if a
        // value follows.
        let is_text = !body[..at].ends_with(b"\\");
        let Some(value) = time_after(body, at + name.needle().len()) else { continue };
        if is_text && value.start >= hashed {
            hash.update(&body[hashed..value.start]);
            hashed = value.end;
        }
    }
    hash.update(&body[hashed..]);
    first_half(&hash.finalize())
}

/// Place of the value of a member whose name ends before `from`, if it is a time or null.
fn time_after(body: &[u8], from: usize) -> Option<Range<usize>> {
    let rest = body.get(from..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let length = match rest.strip_prefix(b"\"") {
        Some(text) => {
            // A time has no escapes, so the next quote ends it.
            let length = memchr(b'"', text)?;
            time_ms(&text[..length])?;
            length + 2
        }
        None => rest.starts_with(b"null").then_some(4)?,
    };
    let start = body.len() - rest.len();
    Some(start..start + length)
}

fn first_half(digest: &[u8]) -> u128 {
    u128::from_le_bytes(digest[..16].try_into().expect("BUG: a SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.insert(*name, value.parse().unwrap());
        }
        map
    }

    fn classic(body: &str) -> Option<BodyState> {
        let topic = ("x-shopify-topic", "products/update");
        let time = ("x-shopify-triggered-at", "1970-01-01T00:00:09Z");
        BodyState::of(&headers(&[topic, time]), body.as_bytes())
    }

    fn hash(body: &str) -> u128 {
        classic(body).expect("an object with a state").hash
    }

    const PRODUCT: &str = r#"{"id":1,"title":"a","updated_at":"1970-01-01T00:00:01Z","variants":[{"updated_at": null,"price":"5"}]}"#;

    #[test]
    fn only_times_are_left_out_at_any_depth() {
        let later = PRODUCT.replace("00:01Z", "00:02-05:00");
        let of_variant = PRODUCT.replace(": null", r#" : "1970-01-01T00:00:03Z""#);
        assert_eq!(hash(PRODUCT), hash(&later));
        // White space before a value counts, because only the value is left out.
        assert_ne!(hash(PRODUCT), hash(&of_variant));
        let of_variant = PRODUCT.replace(": null", r#": "1970-01-01T00:00:03Z""#);
        assert_eq!(hash(PRODUCT), hash(&of_variant));
        assert_eq!(hash(PRODUCT), hash(&format!("\u{feff}{PRODUCT}")));
        for (from, to) in [("\"a\"", "\"b\""), ("\"5\"", "\"6\""), ("\"id\":1", "\"id\":2")] {
            assert_ne!(hash(PRODUCT), hash(&PRODUCT.replace(from, to)), "{from}");
        }
        // Values of this member that are no times.
        for to in ["1", "{}", r#""\"""#, r#""""#, r#""yesterday""#, r#""1970-01-01""#] {
            assert_ne!(hash(PRODUCT), hash(&PRODUCT.replacen("null", to, 1)), "{to}");
        }
        let text = |value: &str| format!(r#"{{"title":1,"updated_at":"{value}"}}"#);
        assert_ne!(hash(&text("draft")), hash(&text("final")));
    }

    #[test]
    fn the_name_of_a_time_within_a_text_is_text() {
        let body = |value: &str| {
            format!(r#"{{"title":"\"updated_at\":\"{value}\"","tags":["updated_at","{value}"]}}"#)
        };
        let [first, second] = ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"];
        assert_ne!(hash(&body(first)), hash(&body(second)));
        let key = |value: &str| format!(r#"{{"a \"updated_at":"{value}"}}"#);
        assert_ne!(hash(&key(first)), hash(&key(second)));
    }

    #[test]
    fn the_time_is_that_of_the_resource_and_never_that_of_the_header() {
        let time = |body: &str| classic(body).expect("a state").updated_ms;
        assert_eq!(time(PRODUCT), Some(1_000));
        let without = r#"{"id":1,"variants":[{"updated_at":"1970-01-01T00:00:03Z"}]}"#;
        assert_eq!(time(without), None);
        assert_eq!(time(r#"{"title":1,"updated_at":null}"#), None);
        assert_eq!(time(r#"{"title":1,"updated_at":"yesterday"}"#), None);
    }

    #[test]
    fn a_body_without_a_state_is_not_compared() {
        let thin = r#"{"id":1,"admin_graphql_api_id":"2","updated_at":"1970-01-01T00:00:01Z"}"#;
        let signal =
            r#"{"id":1,"shop_id":2,"created_at":"1970-01-01T00:00:01Z","updated_at":null}"#;
        for body in [thin, signal, "{}", "[1]", "<a/>", "", r#"{"title":1"#, r#"{"title":1}}"#] {
            assert_eq!(classic(body), None, "{body}");
        }
        // A level names its resource by such ids, and has more.
        assert!(classic(r#"{"inventory_item_id":1,"location_id":2,"available":3}"#).is_some());
    }

    #[test]
    fn the_time_of_an_event_is_in_its_data() {
        let of = |body: &str| {
            let map = headers(&[
                ("shopify-hmac-sha256", "s"),
                ("shopify-topic", "Product"),
                ("shopify-action", "update"),
                ("shopify-triggered-at", "1970-01-01T00:00:09Z"),
            ]);
            BodyState::of(&map, body.as_bytes()).expect("an object")
        };
        let body = r#"{"action":"update","data":{"product":{"title":"a","updatedAt":"1970-01-01T00:00:01Z"}}}"#;
        assert_eq!(of(body).updated_ms, Some(1_000));
        let later = of(&body.replace("00:01Z", "00:02Z"));
        assert_eq!((of(body).hash, later.updated_ms), (later.hash, Some(2_000)));
        assert_ne!(of(body).hash, of(&body.replace("\"a\"", "\"b\"")).hash);
        assert_eq!(of(&body.replace("\"product\"", "\"shop\"")).updated_ms, None);
        assert_eq!(of(r#"{"data":null}"#).updated_ms, None);
    }
}
