//! Tags of answers of the API: a client that has an answer already receives no second one.

use std::fmt::Write as _;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::problem::ProblemDetails;

/// Largest answer: one webhook with its body, as JSON.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes of the hash that a tag has.
const TAG_BYTES: usize = 12;

/// Tags the answer of a route, or says that the client has it.
pub(crate) async fn tag(request: Request, next: Next) -> Response {
    let known = request.headers().get(IF_NONE_MATCH).cloned();
    let response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(body) = to_bytes(body, ANSWER_BYTES_MAX).await else {
        let told = "the answer is too large: ask for a smaller page";
        return ProblemDetails::unavailable(told).into_response();
    };
    let tag = tag_of(&body);
    let is_known = known.is_some_and(|known| has_tag(&known, &tag));
    let value = HeaderValue::from_str(&tag).expect("BUG: a tag is ASCII");
    head.headers.insert(ETAG, value);
    if !is_known {
        return Response::from_parts(head, Body::from(body));
    }
    head.status = StatusCode::NOT_MODIFIED;
    head.headers.remove(CONTENT_TYPE);
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, Body::empty())
}

fn tag_of(body: &[u8]) -> String {
    let mut tag = "W/\"".to_owned();
    for byte in &Sha256::digest(body)[..TAG_BYTES] {
        write!(tag, "{byte:02x}").expect("BUG: a String takes everything");
    }
    tag.push('"');
    tag
}

/// True if a list of tags has this one. A client may leave out that it is weak.
fn has_tag(list: &HeaderValue, tag: &str) -> bool {
    let strong = tag.trim_start_matches("W/");
    let list = list.to_str().unwrap_or_default();
    list.split(',').any(|one| one.trim() == "*" || one.trim().trim_start_matches("W/") == strong)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(known: Option<&str>) -> Response {
        let router = Router::new().route("/", get(|| async { "answer" })).layer(from_fn(tag));
        let mut request = Request::get("/");
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        let request = request.body(Body::empty()).expect("a request");
        router.oneshot(request).await.expect("an answer")
    }

    #[tokio::test]
    async fn an_answer_that_the_client_has_is_not_sent_again() {
        let first = ask(None).await;
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[ETAG].to_str().expect("ASCII").to_owned();
        assert!(tag.starts_with("W/\""), "{tag}");
        let again = ask(Some(&tag)).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(again.headers()[ETAG], tag.as_str());
        let body = to_bytes(again.into_body(), 9).await.expect("a body");
        assert!(body.is_empty());
        assert_eq!(ask(Some("W/\"other\"")).await.status(), StatusCode::OK);
        let several = format!("\"other\", {}", tag.trim_start_matches("W/"));
        assert_eq!(ask(Some(&several)).await.status(), StatusCode::NOT_MODIFIED);
    }
}
