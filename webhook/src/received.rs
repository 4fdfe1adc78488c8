//! A webhook as it was received, and the choice of headers to keep.
//!
//! Every header that describes the webhook is kept. Left out are the headers of the connection (RFC
//! 9110, section 7.6.1), those of the body's framing, and any `Spillway-*` header, which only a
//! downstreamer may set. The receiver alone sets [`APP_HEADER`], which is kept.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName};
use http::uri::PathAndQuery;

use crate::shopify::CLASSIC_PREFIX;

/// One webhook, not yet stored. The method is always POST, so it is not carried.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// Wall clock at the first byte of the request, in milliseconds since the Unix epoch.
    pub received_at_ms: u64,
    /// Path and query, byte for byte.
    pub target: PathAndQuery,
    /// Every header of the request.
    pub headers: HeaderMap,
    /// The raw body.
    pub body: Bytes,
}

/// Prefix of the headers that only Spillway sets.
pub const OWN_HEADER_PREFIX: &str = "spillway-";

/// Header with the name of the app that a webhook is for, where a receiver serves several.
pub const APP_HEADER: HeaderName = HeaderName::from_static(APP_HEADER_NAME);

/// Name of [`APP_HEADER`].
pub const APP_HEADER_NAME: &str = "spillway-app";

/// Longest name of an app or of a consumer.
const NAME_BYTES_MAX: usize = 64;

/// True for the name of an app or of a consumer: 1 to 64 letters, digits, `-`, `_` or `.`.
pub fn is_plain_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_letter)
}

/// True if `name` describes the connection or the framing rather than the webhook.
pub fn is_connection_bound(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::CONNECTION
            | header::TE
            | header::TRAILER
            | header::TRANSFER_ENCODING
            | header::CONTENT_LENGTH
            | header::UPGRADE
            | header::EXPECT
            | header::PROXY_AUTHENTICATE
            | header::PROXY_AUTHORIZATION
    ) || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

impl Webhook {
    /// The headers to keep, in the order received: repeated ones stay repeated, in their order.
    pub fn kept_headers(&self) -> impl Iterator<Item = (&HeaderName, &[u8])> {
        let named_by_connection = connection_tokens(&self.headers);
        self.headers
            .iter()
            .filter(move |(name, _)| {
                let text = name.as_str();
                if text.starts_with(OWN_HEADER_PREFIX) {
                    return **name == APP_HEADER;
                }
                // Most headers are Shopify's, and none of them is bound to the connection.
                let is_bound = !text.starts_with(CLASSIC_PREFIX) && is_connection_bound(name);
                !is_bound && !named_by_connection.iter().any(|token| token == text)
            })
            .map(|(name, value)| (name, value.as_bytes()))
    }
}

/// Names listed in `Connection`, in lower case: those headers are hop-by-hop too. `close` and
/// `keep-alive` are left out, since they name no header that needs this check.
fn connection_tokens(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| {
            !token.eq_ignore_ascii_case("keep-alive") && !token.eq_ignore_ascii_case("close")
        })
        .map(str::to_ascii_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(pairs: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        let webhook = Webhook {
            received_at_ms: 0,
            target: PathAndQuery::from_static("/"),
            headers,
            body: Bytes::new(),
        };
        webhook.kept_headers().map(|(n, v)| format!("{n}={}", String::from_utf8_lossy(v))).collect()
    }

    #[test]
    fn repeated_headers_are_kept_in_their_order() {
        assert_eq!(kept(&[("a", "1"), ("a", "2"), ("b", "")]), ["a=1", "a=2", "b="]);
    }

    #[test]
    fn what_belongs_to_the_connection_is_left_out() {
        let pairs = [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("content-length", "4"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("host", "shop.example"),
        ];
        assert_eq!(kept(&pairs), ["host=shop.example"]);
    }

    #[test]
    fn our_own_headers_are_never_taken_from_outside() {
        assert_eq!(kept(&[("spillway-attempt", "9"), ("x-spillway", "fine")]), ["x-spillway=fine"]);
        let named =
            [("connection", "spillway-app, x-own"), ("spillway-app", "one"), ("x-own", "1")];
        assert_eq!(kept(&named), ["spillway-app=one"]);
    }
}
