//! Shopify's signature: base64 of HMAC-SHA256 over the raw body, with the client secret of the app.
//! Uses the same crates as Spillway's own check, so that the cost in the baseline is the same.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Client secret as an initialized key. It has no `Debug`, so that it is never printed.
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// Creates a key from the secret as Shopify shows it.
    pub fn new(secret: &str) -> Self {
        Self(Hmac::new_from_slice(secret.as_bytes()).expect("BUG: HMAC takes keys of any length"))
    }

    /// Returns the value of `X-Shopify-Hmac-Sha256` for a body.
    pub fn sign(&self, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(body);
        STANDARD.encode(mac.finalize().into_bytes())
    }

    /// True if the header's value is the signature of the body. Compares in constant time.
    pub fn verifies(&self, header: &[u8], body: &[u8]) -> bool {
        let mut signature = [0; 33];
        let Ok(32) = STANDARD.decode_slice(header, &mut signature) else { return false };
        let mut mac = self.0.clone();
        mac.update(body);
        mac.verify_slice(&signature[..32]).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_verifies_its_own_body_and_no_other() {
        let secret = Secret::new("hush");
        let signature = secret.sign(b"{}");
        assert!(secret.verifies(signature.as_bytes(), b"{}"));
        assert!(!secret.verifies(signature.as_bytes(), b"{ }"));
        assert!(!Secret::new("other").verifies(signature.as_bytes(), b"{}"));
        assert!(!secret.verifies(b"not base64", b"{}"));
    }

    /// Computed with `openssl dgst -sha256 -hmac hush -binary | base64`.
    #[test]
    fn the_signature_is_the_one_openssl_computes() {
        assert_eq!(Secret::new("hush").sign(b"{}"), "UFwgrGBPZilFtmKh8TqcovA78LGYb1BdWu9I4Q2oyRg=");
    }
}
