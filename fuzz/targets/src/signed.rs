//! Inserts signatures into requests, so that some mutated requests pass the signature check.
//! `%SIGN%` is replaced by the signature of the body after it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Client secret of the receiver under test.
pub const SECRET: &str = "hush";

const PLACE: &[u8] = b"%SIGN%";

/// Returns the request with every placeholder replaced.
pub fn filled(data: &[u8]) -> Vec<u8> {
    let (mut request, mut rest) = (Vec::with_capacity(data.len() + 64), data);
    while let Some(at) = find(rest, PLACE) {
        request.extend_from_slice(&rest[..at]);
        rest = &rest[at + PLACE.len()..];
        let head_end = find(rest, b"\r\n\r\n").map_or(rest.len(), |end| end + 4);
        let head = [&request[..], &rest[..head_end]].concat().to_ascii_lowercase();
        let body = body(&head, &rest[head_end..]);
        request.extend_from_slice(sign(&body).as_bytes());
    }
    request.extend_from_slice(rest);
    request
}

/// base64(HMAC-SHA256(secret, body)).
pub fn sign(body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes());
    let mut mac = mac.expect("a key of any length will do");
    mac.update(body);
    STANDARD.encode(mac.finalize().into_bytes())
}

/// Returns the body that a lower-case head announces, if it does so plainly.
fn body(head: &[u8], rest: &[u8]) -> Vec<u8> {
    if find(head, b"transfer-encoding: chunked").is_some() {
        return unchunked(rest);
    }
    let length = last(head, b"content-length: ").and_then(|value| {
        let end = find(value, b"\r\n")?;
        std::str::from_utf8(&value[..end]).ok()?.parse().ok()
    });
    rest[..length.unwrap_or(rest.len()).min(rest.len())].to_vec()
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = find(rest, b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok()).unwrap_or(0);
        let chunk = rest[end + 2..].get(..size).unwrap_or_default();
        body.extend_from_slice(chunk);
        rest = rest[end + 2..].get(size + 2..).unwrap_or_default();
        if chunk.is_empty() {
            break;
        }
    }
    body
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn last<'a>(haystack: &'a [u8], needle: &[u8]) -> Option<&'a [u8]> {
    let at = haystack.windows(needle.len()).rposition(|window| window == needle)?;
    Some(&haystack[at + needle.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_of_the_body_behind_it() {
        let signature = sign(b"{}");
        for (request, expected) in [
            ("A: %SIGN%\r\nContent-Length: 2\r\n\r\n{}x", 1),
            ("Transfer-Encoding: chunked\r\nA: %SIGN%\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 1),
            ("A: %SIGN%\r\n\r\n{}", 1),
            ("A: %SIGN%\r\n\r\n{}}", 0),
        ] {
            let filled = String::from_utf8(filled(request.as_bytes())).unwrap();
            assert_eq!(filled.matches(&signature).count(), expected, "{filled}");
        }
    }
}
