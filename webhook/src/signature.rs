//! Signature of a webhook: HMAC-SHA256 of the raw body with the app's client secret as the key.
//!
//! Invariant: only [`Secrets::verify`] and [`Secrets::verify_in_pieces`] build a [`Verified`], and
//! only a `Verified` can be stored. The comparison runs on the decoded 32 bytes in constant time
//! (equality of the `hmac` crate's `CtOutput`). Secrets are wiped from memory when dropped and are
//! never printed.
//! Source: Shopify, "Verify webhook deliveries".

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::received::Webhook;
use crate::shopify::Headers;

/// Base64 of 32 bytes, padded.
const ENCODED_BYTES: usize = 44;
/// Bytes hashed between two pauses. A piece takes 0.2 ms with the processor's SHA instructions and
/// 0.7 ms without.
const PIECE_BYTES: usize = 256 << 10;

/// HMAC of a body under one secret. Equality is constant-time.
type Tag = CtOutput<Hmac<Sha256>>;

/// A webhook whose signature is good. It cannot change while this is there.
#[derive(Debug, Clone, Copy)]
pub struct Verified<'a> {
    webhook: &'a Webhook,
    secret: usize,
}

/// Client secrets of one app. Any of them may have signed a webhook.
pub struct Secrets {
    keyed: Vec<Hmac<Sha256>>,
    fingerprints: Vec<String>,
}

/// A signature is missing, malformed or wrong. The sender gets the same answer for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature is missing, malformed or made with another secret")]
pub struct BadSignature;

impl<'a> Verified<'a> {
    /// Index, among the secrets, of the one that signed.
    pub fn secret(self) -> usize {
        self.secret
    }

    /// The webhook.
    pub fn webhook(self) -> &'a Webhook {
        self.webhook
    }
}

impl Secrets {
    /// Creates the set from one or more secrets, none of them empty.
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

    /// First 8 hex digits of each secret's SHA-256: they tell secrets apart without revealing them.
    pub fn fingerprints(&self) -> &[String] {
        &self.fingerprints
    }

    /// Returns the base64 signature of `body` under the first secret.
    pub fn sign(&self, body: &[u8]) -> String {
        let mut mac = self.keyed.first().expect("BUG: no secret").clone();
        mac.update(body);
        STANDARD.encode(mac.finalize().into_bytes())
    }

    /// Checks the webhook's body against its signature header.
    ///
    /// It is verified only if the signature header of its family holds 32 bytes in padded standard
    /// base64 that equal the tag of the body under one of the secrets. A header given twice is
    /// ambiguous, so it counts as malformed. The body is hashed at most once for each secret, and not
    /// at all if the header is malformed.
    ///
    /// # Errors
    /// [`BadSignature`] if none of the secrets made the signature, or it is missing or malformed.
    pub fn verify<'a>(&self, webhook: &'a Webhook) -> Result<Verified<'a>, BadSignature> {
        let claimed = claimed_tag(&webhook.headers)?;
        let mut tags = self.keyed.iter().map(|keyed| tag(begin(keyed), &webhook.body));
        let secret = tags.position(|tag| tag == claimed).ok_or(BadSignature)?;
        Ok(Verified { webhook, secret })
    }

    /// Does the same as [`verify`](Self::verify) for a large body: calls `pause` between pieces of
    /// 256 KiB, so that other tasks of the same thread can run.
    ///
    /// # Errors
    /// The same.
    pub async fn verify_in_pieces<'a, P>(
        &self,
        webhook: &'a Webhook,
        pause: impl Fn() -> P,
    ) -> Result<Verified<'a>, BadSignature>
    where
        P: Future<Output = ()>,
    {
        let claimed = claimed_tag(&webhook.headers)?;
        for (secret, keyed) in self.keyed.iter().enumerate() {
            let mut mac = begin(keyed);
            let mut pieces = webhook.body.chunks(PIECE_BYTES).peekable();
            while let Some(piece) = pieces.next() {
                mac.update(piece);
                if pieces.peek().is_some() {
                    pause().await;
                }
            }
            if mac.finalize() == claimed {
                return Ok(Verified { webhook, secret });
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

/// Starts the hash of a body under one secret.
fn begin(keyed: &Hmac<Sha256>) -> Hmac<Sha256> {
    #[cfg(test)]
    tests::HASH_RUNS.set(tests::HASH_RUNS.get() + 1);
    keyed.clone()
}

fn tag(mut mac: Hmac<Sha256>, body: &[u8]) -> Tag {
    mac.update(body);
    mac.finalize()
}

/// Returns the tag that the signature header claims, if there is one such header and it is
/// well-formed.
fn claimed_tag(headers: &HeaderMap) -> Result<Tag, BadSignature> {
    let mut values = headers.get_all(headers.family().signature_name()).iter();
    let value = values.next().ok_or(BadSignature)?;
    if values.next().is_some() || value.len() != ENCODED_BYTES {
        return Err(BadSignature);
    }
    let mut decoded = [0u8; 33];
    let length = STANDARD.decode_slice(value.as_bytes(), &mut decoded);
    let claimed = &decoded[..length.map_err(|_| BadSignature)?];
    let claimed: [u8; 32] = claimed.try_into().map_err(|_| BadSignature)?;
    Ok(Tag::new(claimed.into()))
}

fn fingerprint(secret: &str) -> String {
    Sha256::digest(secret.as_bytes())[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::shopify::Family;
    use bytes::Bytes;
    use http::uri::PathAndQuery;

    const CLASSIC: &str = Family::Classic.signature_header();
    const EVENT: &str = Family::Event.signature_header();

    thread_local! {
        /// Number of body hashes that began on this thread.
        pub static HASH_RUNS: Cell<usize> = const { Cell::new(0) };
    }

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
        let webhook = webhook(b"{}", &[("x-shopify-hmac-sha256", &signature)]);
        assert_eq!(both.verify(&webhook).unwrap().secret(), 1);
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
            secrets(&["s"])
                .verify(&webhook(b"\xff\xfe", &[("shopify-hmac-sha256", &good)]))
                .is_ok()
        );
        let unpadded = good.trim_end_matches('=');
        let url_safe = good.replace('+', "-").replace('/', "_");
        let mut cases = vec![unpadded.to_owned(), String::new(), STANDARD.encode([0u8; 31])];
        if url_safe != good {
            cases.push(url_safe);
        }
        for case in &cases {
            let refused = secrets(&["s"])
                .verify(&webhook(b"\xff\xfe", &[("x-shopify-hmac-sha256", case)]))
                .is_err();
            assert!(refused, "{case}");
        }
        let twice = [("x-shopify-hmac-sha256", &*good), ("x-shopify-hmac-sha256", &*good)];
        assert!(secrets(&["s"]).verify(&webhook(b"\xff\xfe", &twice)).is_err());
    }

    #[test]
    fn secrets_are_not_printed() {
        assert!(!format!("{:?}", secrets(&["hush-hush"])).contains("hush"));
    }
    /// Returns the index of the secret that signed, and the number of body hashes.
    fn verified(
        secrets: &Secrets,
        body: &'static [u8],
        headers: &[(&'static str, &str)],
    ) -> (Option<usize>, usize) {
        let before = HASH_RUNS.get();
        let webhook = webhook(body, headers);
        let found = secrets.verify(&webhook).ok().map(Verified::secret);
        let hashed = HASH_RUNS.get() - before;
        let pause = || std::future::ready(());
        let pieces = pin!(secrets.verify_in_pieces(&webhook, pause));
        let Poll::Ready(same) = pieces.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("a pause that takes no time kept it waiting");
        };
        let same = same.ok().map(Verified::secret);
        assert_eq!(same, found, "in pieces: {headers:?}");
        assert_eq!(HASH_RUNS.get() - before, 2 * hashed, "in pieces: {headers:?}");
        (found, hashed)
    }

    #[test]
    fn a_body_is_hashed_once_for_each_secret_whatever_is_claimed() {
        let both = secrets(&["new", "old"]);
        let [new, old, guess] = ["new", "old", "guess"].map(|key| secrets(&[key]).sign(b"{}"));
        let another = secrets(&["another guess"]).sign(b"{}");
        let check = |headers: &[(&'static str, &str)]| verified(&both, b"{}", headers);
        for family in [CLASSIC, EVENT] {
            assert_eq!(check(&[(family, &new)]), (Some(0), 1));
            assert_eq!(check(&[(family, &old)]), (Some(1), 2));
            assert_eq!(check(&[(family, &guess)]), (None, 2));
            assert_eq!(check(&[(family, "not base64")]), (None, 0));
        }
        assert_eq!(check(&[]), (None, 0));
        // With both headers, the Event's decides.
        let pair = |classic: &str, event: &str| check(&[(CLASSIC, classic), (EVENT, event)]);
        assert_eq!(pair(&old, &old), (Some(1), 2));
        assert_eq!(pair(&guess, &new), (Some(0), 1));
        assert_eq!(pair("not base64", &old), (Some(1), 2));
        assert_eq!(pair(&new, &guess), (None, 2));
        assert_eq!(pair(&new, &another), (None, 2));
        assert_eq!(pair(&new, "not base64"), (None, 0));
    }

    #[test]
    fn a_large_body_is_hashed_in_pieces_with_a_pause_between_them() {
        for (bytes, pauses) in [(0, 0), (PIECE_BYTES, 0), (PIECE_BYTES + 1, 1), (1 << 20, 3)] {
            let body: &'static [u8] = vec![b'x'; bytes].leak();
            let signer = secrets(&["s"]);
            let signature = signer.sign(body);
            let paused = Cell::new(0);
            let pause = || {
                paused.set(paused.get() + 1);
                std::future::ready(())
            };
            let signed = webhook(body, &[(EVENT, &signature)]);
            let mut checked = pin!(signer.verify_in_pieces(&signed, pause));
            let checked = checked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(checked, Poll::Ready(Ok(_))), "{bytes}");
            assert_eq!(paused.get(), pauses, "{bytes}");
        }
    }
}
