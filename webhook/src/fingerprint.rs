//! Fingerprint of a stored webhook, by which duplicates are found. Only a certain duplicate is
//! dropped.
//!
//! Shop, topic, path, name, the webhook id (else the event id) and the signature of the body must
//! all be equal. The ids alone are not enough: one merchant action gives one event id to many
//! subscriptions, and no header except the signature is bound to the body. A webhook without an id,
//! or without a signature, is never a duplicate.
//!
//! One half of a fingerprint is a hash of the id alone. With it, an operator who knows the id finds
//! the outcome of its webhook.

use sha2::{Digest, Sha256};

use crate::shopify::Headers;

/// 128 bits of a webhook's identity: 64 of a SHA-256 of all its parts, and 64 of a SHA-256 of its
/// id. That is wide enough that nobody can make two webhooks share one.
pub type Fingerprint = u128;

/// Returns the fingerprint of a stored webhook, or `None` if a duplicate could not be certain.
pub fn fingerprint(headers: &impl Headers, target: &[u8]) -> Option<Fingerprint> {
    let family = headers.family();
    let part = |name| headers.of_family(family, name).filter(|value| !value.is_empty());
    let id = ["webhook-id", "event-id"].iter().find_map(|name| Some((*name, part(name)?)))?;
    let signature = part("hmac-sha256")?;
    let topic = headers.topic_of_family(family).unwrap_or_default();
    let parts = [
        part("shop-domain").unwrap_or_default(),
        &*topic,
        target,
        part("name").unwrap_or_default(),
        id.0.as_bytes(),
        id.1,
        signature,
    ];
    let mut hash = Sha256::new();
    for part in parts {
        // The length first: no two lists of parts give the same bytes.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let whole = first_half(&hash.finalize());
    Some(u128::from(whole) << 64 | u128::from(id_key(id.1)))
}

/// Half of a fingerprint that is made from the webhook's id, or else from its event's id.
pub fn id_key(id: &[u8]) -> u64 {
    first_half(&Sha256::digest(id))
}

/// Digest of a set whose members come in a fixed order, such as ids that are sorted.
#[derive(Debug, Clone, Default)]
pub struct SetDigest(Sha256);

impl SetDigest {
    /// Adds one member.
    pub fn add(&mut self, member: &[u8]) {
        // The length first: no two lists of members give the same bytes.
        self.0.update(member.len().to_le_bytes());
        self.0.update(member);
    }

    /// The digest as 32 hexadecimal digits.
    pub fn text(self) -> String {
        self.0.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the half of `fingerprint` that [`id_key`] makes.
pub fn key_of(fingerprint: Fingerprint) -> u64 {
    fingerprint as u64
}

fn first_half(digest: &[u8]) -> u64 {
    u64::from_le_bytes(digest[..8].try_into().expect("BUG: a SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::pack::Record;

    #[test]
    fn a_digest_is_that_of_its_members() {
        let of = |members: &[&str]| {
            let mut digest = SetDigest::default();
            members.iter().for_each(|member| digest.add(member.as_bytes()));
            digest.text()
        };
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_eq!(of(&[]).len(), 32);
        for other in [&["ab"][..], &["a"], &["a", "c"], &["b", "a"], &[]] {
            assert_ne!(of(&["a", "b"]), of(other), "{other:?}");
        }
    }

    const PLAIN: [(&str, &str); 5] = [
        ("x-shopify-topic", "products/update"),
        ("x-shopify-shop-domain", "a.myshopify.com"),
        ("x-shopify-webhook-id", "1"),
        ("x-shopify-event-id", "2"),
        ("x-shopify-hmac-sha256", "signature"),
    ];

    fn record(target: &'static str, headers: &[(&'static str, &'static str)]) -> Record {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        Record {
            received_at_ms: 0,
            target: bytes(target),
            headers: headers.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
            body: Bytes::new(),
        }
    }

    fn of(record: &Record) -> Option<Fingerprint> {
        fingerprint(record, &record.target)
    }

    #[test]
    fn every_part_tells_webhooks_apart() {
        let plain = of(&record("/", &PLAIN)).unwrap();
        assert_eq!(of(&record("/", &PLAIN)), Some(plain));
        assert_ne!(of(&record("/other", &PLAIN)), Some(plain));
        for changed in [0, 1, 2, 4] {
            let mut headers = PLAIN;
            headers[changed].1 = "another";
            assert_ne!(of(&record("/", &headers)), Some(plain), "{changed}");
        }
        let mut named = PLAIN.to_vec();
        named.push(("x-shopify-name", "mine"));
        assert_ne!(of(&record("/", &named)), Some(plain));
    }

    #[test]
    fn half_of_it_is_found_by_the_id_alone() {
        let whole = of(&record("/", &PLAIN)).unwrap();
        assert_eq!(key_of(whole), id_key(b"1"));
        assert_ne!(id_key(b"1"), id_key(b"2"));
    }

    #[test]
    fn the_event_id_counts_where_there_is_no_webhook_id() {
        let without = [PLAIN[0], PLAIN[1], PLAIN[3], PLAIN[4]];
        assert!(of(&record("/", &without)).is_some());
        // The same text under another kind of id is another webhook.
        let other_kind = [PLAIN[0], PLAIN[1], ("x-shopify-webhook-id", "2"), PLAIN[4]];
        assert_ne!(of(&record("/", &without)), of(&record("/", &other_kind)));
    }

    #[test]
    fn nothing_is_certain_without_an_id_or_a_signature() {
        assert_eq!(of(&record("/", &[PLAIN[0], PLAIN[1], PLAIN[4]])), None);
        assert_eq!(of(&record("/", &PLAIN[..4])), None);
    }
}
