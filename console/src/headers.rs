//! Security headers of every answer.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Scripts, styles and requests are our own, and nothing is inline. So a string of a webhook that
/// became part of a page could still run nothing and send nothing.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                          connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Headers with their values. With `no-referrer`, a browser would send `Origin: null` with our forms.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Sets the headers. No answer is stored by a cache unless its handler says so.
pub(crate) async fn secure(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Makes the browser come back by HTTPS only, for half a year. It holds for every port of the host: so not for
/// `localhost`, where other things are served too.
pub(crate) fn require_https(response: &mut Response, host: Option<&HeaderValue>) {
    let host = host.map(HeaderValue::as_bytes).unwrap_or_default();
    let name = host.split(|byte| *byte == b':').next().unwrap_or_default();
    if !name.eq_ignore_ascii_case(b"localhost") {
        let half_a_year = HeaderValue::from_static("max-age=15552000");
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, half_a_year);
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    #[tokio::test]
    async fn nothing_inline_runs_and_nothing_is_framed_or_stored() {
        let answer = secure("text".into_response()).await;
        let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
        assert_eq!(answer.headers()[X_FRAME_OPTIONS], "DENY");
        let cached = ([(CACHE_CONTROL, "public")], "text").into_response();
        assert_eq!(secure(cached).await.headers()[CACHE_CONTROL], "public");
    }

    #[test]
    fn https_is_required_except_of_localhost() {
        for (host, is_required) in
            [("console.example.com", true), ("192.0.2.1:9820", true), ("LOCALHOST:9820", false)]
        {
            let mut answer = "text".into_response();
            require_https(&mut answer, Some(&HeaderValue::from_static(host)));
            let found = answer.headers().contains_key(STRICT_TRANSPORT_SECURITY);
            assert_eq!(found, is_required, "{host}");
        }
    }
}
