//! A webhook as Shopify sends it, and methods to make it invalid in every way.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The client secret of every test cell that does not choose its own.
pub const SECRET: &str = "hush-this-is-the-secret-of-the-tests";

/// The header that carries the signature, in the older family.
pub const SIGNATURE: &str = "X-Shopify-Hmac-Sha256";

/// A request to send.
#[derive(Clone, Debug)]
pub struct Webhook {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Webhook {
    /// A signed `products/update` webhook with the header order of a real delivery.
    pub fn product(product: u64, webhook_id: &str, body: Vec<u8>) -> Self {
        let signature = sign(SECRET, &body);
        let mut webhook = Self::bare(body);
        let product = product.to_string();
        for (name, value) in [
            ("User-Agent", "Shopify-Captain-Hook"),
            ("Accept", "*/*"),
            ("Accept-Encoding", "gzip;q=1.0,deflate;q=0.6,identity;q=0.3"),
            ("Content-Type", "application/json"),
            ("X-Shopify-API-Version", "2026-10"),
            (SIGNATURE, signature.as_str()),
            ("X-Shopify-Product-Id", product.as_str()),
            ("X-Shopify-Shop-Domain", "story.myshopify.com"),
            ("X-Shopify-Topic", "products/update"),
            ("X-Shopify-Triggered-At", now().as_str()),
            ("X-Shopify-Webhook-Id", webhook_id),
        ] {
            webhook = webhook.header(name, value);
        }
        webhook
    }

    /// A `products/update` webhook for tests that do not depend on its content.
    pub fn any() -> Self {
        let product = rand::random_range(1..1_000_000_000_u64);
        let id = format!("{:032x}", rand::random::<u128>());
        Self::product(product, &id, format!("{{\"id\":{product}}}").into_bytes())
    }

    /// A `POST /webhooks` with a body and no additional headers.
    pub fn bare(body: Vec<u8>) -> Self {
        let (method, target) = ("POST".to_owned(), "/webhooks".to_owned());
        Self { method, target, headers: Vec::new(), body }
    }

    /// Adds a header line at the end.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Removes all lines of a header.
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }

    /// Replaces a header with one value.
    pub fn with(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.without(name).header(name, value)
    }

    /// Replaces path and query.
    pub fn to(mut self, target: &str) -> Self {
        target.clone_into(&mut self.target);
        self
    }

    /// Replaces the method.
    pub fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.method);
        self
    }

    /// Replaces the topic.
    pub fn topic(self, topic: &str) -> Self {
        self.with("X-Shopify-Topic", topic)
    }

    /// Replaces the body and signs it with the usual secret.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.signed_with(SECRET)
    }

    /// Signs the body with this secret.
    pub fn signed_with(self, secret: &str) -> Self {
        let signature = sign(secret, &self.body);
        self.with(SIGNATURE, signature)
    }

    /// Replaces the prefix `from` of every header name by `to`.
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        for (name, _) in &mut self.headers {
            if let Some(rest) = name.strip_prefix(from) {
                *name = format!("{to}{rest}");
            }
        }
        self
    }

    /// Header lines.
    pub fn headers(&self) -> &[(String, Vec<u8>)] {
        &self.headers
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Body.
    pub fn payload(&self) -> &[u8] {
        &self.body
    }

    /// Encodes the request with a Content-Length.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.head(self.body.len());
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Encodes only the head, for a body of `length` bytes.
    pub fn head(&self, length: usize) -> Vec<u8> {
        self.head_with(&format!("Content-Length: {length}"))
    }

    /// Encodes the request in chunks of at most `size` bytes.
    pub fn encode_chunked(&self, size: usize) -> Vec<u8> {
        let mut bytes = self.head_with("Transfer-Encoding: chunked");
        for chunk in self.body.chunks(size) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        bytes
    }

    /// Encodes only the head, with these lines about the body's length.
    pub fn head_with(&self, framing: &str) -> Vec<u8> {
        let Self { method, target, .. } = self;
        let mut head =
            format!("{method} {target} HTTP/1.1\r\nHost: hooks.example\r\n").into_bytes();
        head.extend_from_slice(format!("{framing}\r\n").as_bytes());
        for (name, value) in &self.headers {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        head
    }
}

/// Returns base64(HMAC-SHA256(secret, body)).
pub fn sign(secret: &str, body: &[u8]) -> String {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any key length will do");
    mac.update(body);
    STANDARD.encode(mac.finalize().into_bytes())
}

/// The current time in RFC 3339 with nanoseconds.
pub fn now() -> String {
    rfc3339(OffsetDateTime::now_utc())
}

/// A time in RFC 3339.
pub fn rfc3339(moment: OffsetDateTime) -> String {
    moment.format(&Rfc3339).expect("RFC 3339 has room for this year")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_one_openssl_computes() {
        // printf '{"id":1}' | openssl dgst -sha256 -hmac secret -binary | base64
        assert_eq!(sign("secret", b"{\"id\":1}"), OPENSSL);
    }

    const OPENSSL: &str = "A971iWIMgT8Zj9A9eWfikrFj7wQ16/Qwcc4OlRl2PLc=";

    #[test]
    fn chunks_carry_the_body_and_end() {
        let request = Webhook::bare(b"{\"a\":1}".to_vec()).encode_chunked(4);
        let text = String::from_utf8(request).unwrap();
        assert!(text.ends_with("\r\n\r\n4\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\n\r\n"), "{text}");
    }
}
