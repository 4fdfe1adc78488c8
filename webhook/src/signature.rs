//! Who sent it: HMAC-SHA256 of the raw body under the app's client secret.
//!
//! Invariant: only [`Secrets::verify`] builds a [`Verified`], and only a `Verified` can be stored.
//! The comparison runs on the decoded 32 bytes in constant time (the `hmac` crate's
//! `verify_slice`). Secrets are wiped from memory when dropped and never printed.
//! Source: Shopify, "Verify webhook deliveries".

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::event::Webhook;

/// Where the signature stands, one name for each header family.
const SIGNATURE_HEADERS: [&str; 2] = ["x-shopify-hmac-sha256", "shopify-hmac-sha256"];
/// Base64 of 32 bytes, padded.
const ENCODED_BYTES: usize = 44;

/// A value whose body carried a valid signature.
#[derive(Debug)]
pub struct Verified<T> {
    value: T,
    secret: usize,
}

/// The client secrets of one app: any of them may have signed.
pub struct Secrets {
    keyed: Vec<Hmac<Sha256>>,
    fingerprints: Vec<String>,
}

/// Missing, malformed or wrong: the sender is told the same for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature is missing, malformed or made with another secret")]
pub struct BadSignature;

impl<T> Verified<T> {
    /// Position, among the secrets, of the one that signed.
    pub fn secret(&self) -> usize {
        self.secret
    }

    /// Reads the verified value.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// Takes the verified value out.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl Secrets {
    /// Takes one or more secrets, each not empty.
    pub fn new(secrets: &[Zeroizing<String>]) -> Self {
        let keyed = secrets
            .iter()
            .map(|secret| {
                Hmac::new_from_slice(secret.as_bytes())
                    .expect("BUG: HMAC takes a key of any length")
            })
            .collect();
        let fingerprints = secrets.iter().map(|secret| fingerprint(secret)).collect();
        Self { keyed, fingerprints }
    }

    /// First 8 hex digits of each secret's SHA-256: tells them apart without telling them.
    pub fn fingerprints(&self) -> &[String] {
        &self.fingerprints
    }

    /// Base64 signature of `body` under the first secret.
    pub fn sign(&self, body: &[u8]) -> String {
        let mut mac = self.keyed.first().expect("BUG: no secret").clone();
        mac.update(body);
        STANDARD.encode(mac.finalize().into_bytes())
    }

    /// Checks the webhook's body against its signature header.
    ///
    /// # Errors
    /// [`BadSignature`] when no header of either family holds 32 bytes in padded standard base64
    /// that one of the secrets makes of the body. A header given twice is ambiguous, so it counts
    /// as malformed.
    pub fn verify(&self, webhook: Webhook) -> Result<Verified<Webhook>, BadSignature> {
        for claimed in SIGNATURE_HEADERS.iter().filter_map(|name| claim(&webhook.headers, name)) {
            for (secret, keyed) in self.keyed.iter().enumerate() {
                let mut mac = keyed.clone();
                mac.update(&webhook.body);
                if mac.verify_slice(&claimed).is_ok() {
                    return Ok(Verified { value: webhook, secret });
                }
            }
        }
        Err(BadSignature)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("fingerprints", &self.fingerprints).finish_non_exhaustive()
    }
}

/// The 32 bytes that `name` claims, if it stands there once and well-formed.
fn claim(headers: &HeaderMap, name: &str) -> Option<[u8; 32]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() || value.len() != ENCODED_BYTES {
        return None;
    }
    let mut decoded = [0u8; 33];
    let length = STANDARD.decode_slice(value.as_bytes(), &mut decoded).ok()?;
    decoded[..length].try_into().ok()
}

fn fingerprint(secret: &str) -> String {
    Sha256::digest(secret.as_bytes())[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::uri::PathAndQuery;

    fn secrets(list: &[&str]) -> Secrets {
        let owned: Vec<_> = list.iter().map(|s| Zeroizing::new((*s).to_owned())).collect();
        Secrets::new(&owned)
    }

    fn webhook(body: &'static [u8], headers: &[(&'static str, &str)]) -> Webhook {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let body = Bytes::from_static(body);
        Webhook { received_at_ms: 0, target: PathAndQuery::from_static("/"), headers: map, body }
    }

    #[test]
    fn any_of_the_secrets_verifies_and_is_named() {
        let signature = secrets(&["old"]).sign(b"{}");
        let both = secrets(&["new", "old"]);
        let verified =
            both.verify(webhook(b"{}", &[("x-shopify-hmac-sha256", &signature)])).unwrap();
        assert_eq!(verified.secret(), 1);
        assert_eq!(both.fingerprints()[1].len(), 8);
    }

    #[test]
    fn a_known_answer_from_rfc_4231() {
        // Test case 2: key "Jefe", data "what do ya want for nothing?".
        assert_eq!(
            secrets(&["Jefe"]).sign(b"what do ya want for nothing?"),
            "W9zBRr9gdU5qBCQmCJV1x1oAPwidJzmDnexYuWTsOEM="
        );
    }

    #[test]
    fn malformed_signatures_are_refused() {
        let good = secrets(&["s"]).sign(b"\xff\xfe");
        assert!(
            secrets(&["s"]).verify(webhook(b"\xff\xfe", &[("shopify-hmac-sha256", &good)])).is_ok()
        );
        let unpadded = good.trim_end_matches('=');
        let url_safe = good.replace('+', "-").replace('/', "_");
        let mut cases = vec![unpadded.to_owned(), String::new(), STANDARD.encode([0u8; 31])];
        if url_safe != good {
            cases.push(url_safe);
        }
        for case in &cases {
            let refused = secrets(&["s"])
                .verify(webhook(b"\xff\xfe", &[("x-shopify-hmac-sha256", case)]))
                .is_err();
            assert!(refused, "{case}");
        }
        let twice = [("x-shopify-hmac-sha256", &*good), ("x-shopify-hmac-sha256", &*good)];
        assert!(secrets(&["s"]).verify(webhook(b"\xff\xfe", &twice)).is_err());
    }

    #[test]
    fn secrets_are_not_printed() {
        assert!(!format!("{:?}", secrets(&["hush-hush"])).contains("hush"));
    }
}
