//! Errors of the API as `application/problem+json` (RFC 9457).

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

/// Media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// A request that failed, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProblemDetails {
    /// Code for programs, such as `not_found`. It never changes its meaning.
    pub code: String,
    /// The status in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Sentence about what happened and what to do, for people.
    pub detail: String,
}

impl ProblemDetails {
    /// The request is not understood.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// The caller is not known.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// The caller lacks a permission, or the request comes from another site.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// There is no such thing.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// The state has changed since the caller looked: the number that was typed, for example.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    /// Redis or a process can't be asked now.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    /// A problem with a status and a code.
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error").to_owned();
        Self { code: code.to_owned(), title, status: status.as_u16(), detail: detail.into() }
    }

    /// HTTP status of the answer.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self).expect("BUG: a problem is JSON");
        let media_type = HeaderValue::from_static(MEDIA_TYPE);
        (self.status(), [(CONTENT_TYPE, media_type)], body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_problem_is_json_with_its_status() {
        let answer = ProblemDetails::not_found("no dead letter 7").into_response();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
        assert_eq!(answer.headers()[CONTENT_TYPE], MEDIA_TYPE);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value["code"], "not_found");
        assert_eq!((&value["title"], &value["status"]), (&"Not Found".into(), &404.into()));
    }
}
