//! Answers of refusals: one status and one code for each.
//!
//! An answer never holds details of the cause, a secret, or anything of the request.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use spillway_webhook::freshness::NotFresh;

/// Seconds after which a sender should try again.
const RETRY_AFTER_SECONDS: &str = "2";

/// Reason for which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another method than POST.
    NotPost,
    /// A `.` or `..` segment in the path.
    DotSegment,
    /// Not valid HTTP, though hyper accepts it: headers that two readers may understand
    /// differently, or a target without a path.
    Malformed,
    /// Too many bytes or connections are in flight.
    Overloaded,
    /// Redis can't be reached, is loading, or may not be trusted.
    QueueUnavailable,
    /// Redis has no memory or disk left.
    QueueFull,
    /// The webhook's shop takes too much of the queue.
    ShopQueueFull,
    /// The webhook is not stored in time, or not known to be.
    AckTimeout,
    /// The body is too long.
    TooLarge,
    /// Headers or body did not arrive in time.
    Slow,
    /// The body broke off or its framing is not valid.
    BrokenBody,
    /// The signature is missing, malformed or wrong.
    BadSignature,
    /// The secrets of the webhook's shop can't be looked up.
    SecretsUnavailable,
    /// The path and host are those of no app.
    UnknownApp,
    /// The request came from a downstreamer.
    Loop,
    /// The body does not begin as a webhook's body does.
    NotAWebhook,
    /// The topic header is missing.
    NoTopic,
    /// Headers and body are of different families, or name different events.
    HeaderMismatch,
    /// The triggered-at header breaks a rule.
    NotFresh(NotFresh),
}

impl Refusal {
    /// Status, code and sentence of the answer.
    pub fn parts(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::NotPost => (S::METHOD_NOT_ALLOWED, "not_a_webhook", "only POST is taken"),
            Self::DotSegment => (S::BAD_REQUEST, "not_a_webhook", "the path has a . or .. segment"),
            Self::Malformed => (
                S::BAD_REQUEST,
                "not_a_webhook",
                "the request is not valid HTTP, or has a header such as Spillway_App",
            ),
            Self::Overloaded => {
                (S::SERVICE_UNAVAILABLE, "overloaded", "too much is in flight; try again")
            }
            Self::QueueUnavailable => {
                (S::SERVICE_UNAVAILABLE, "queue_unavailable", "not stored; try again")
            }
            Self::QueueFull => (S::SERVICE_UNAVAILABLE, "queue_full", "not stored; try again"),
            Self::ShopQueueFull => {
                (S::SERVICE_UNAVAILABLE, "shop_queue_full", "too much of the shop waits; try again")
            }
            Self::AckTimeout => {
                (S::SERVICE_UNAVAILABLE, "queue_unavailable", "not known to be stored; try again")
            }
            Self::TooLarge => (S::PAYLOAD_TOO_LARGE, "too_large", "the body is too long"),
            Self::Slow => (S::REQUEST_TIMEOUT, "timeout", "the request did not arrive in time"),
            Self::BrokenBody => (S::BAD_REQUEST, "not_a_webhook", "the body is not valid HTTP"),
            Self::BadSignature => {
                (S::UNAUTHORIZED, "bad_signature", "the signature does not verify")
            }
            Self::SecretsUnavailable => {
                (S::SERVICE_UNAVAILABLE, "secrets_unavailable", "not verified; try again")
            }
            Self::UnknownApp => (S::NOT_FOUND, "unknown_app", "no app is at this path and host"),
            Self::Loop => {
                (S::LOOP_DETECTED, "loop_detected", "this request was already received here")
            }
            Self::NotAWebhook => {
                (S::BAD_REQUEST, "not_a_webhook", "the body is neither JSON nor XML")
            }
            Self::NoTopic => (S::BAD_REQUEST, "missing_header", "the topic header is missing"),
            Self::HeaderMismatch => {
                (S::BAD_REQUEST, "header_mismatch", "headers and body name different events")
            }
            Self::NotFresh(NotFresh::Missing) => {
                (S::BAD_REQUEST, "missing_header", "the triggered-at header is missing")
            }
            Self::NotFresh(NotFresh::Malformed) => {
                (S::BAD_REQUEST, "bad_timestamp", "triggered-at is not an RFC 3339 time")
            }
            Self::NotFresh(NotFresh::Stale) => {
                (S::BAD_REQUEST, "stale", "the webhook was triggered too long ago")
            }
            Self::NotFresh(NotFresh::FromTheFuture) => {
                (S::BAD_REQUEST, "from_the_future", "the webhook was triggered in the future")
            }
        }
    }

    /// Returns true if the refusal counts under the topic that the request names. Until the
    /// signature is checked, that topic is a stranger's claim. Then only refusals for a reason on
    /// the receiver's side count, which no stranger causes alone; all of them are 503.
    pub fn counts_under_topic(self) -> bool {
        match self {
            Self::NotPost
            | Self::DotSegment
            | Self::Malformed
            | Self::TooLarge
            | Self::Slow
            | Self::BrokenBody
            | Self::BadSignature
            | Self::UnknownApp
            // A stranger who names many shops causes it, too.
            | Self::SecretsUnavailable => false,
            Self::Overloaded
            | Self::QueueUnavailable
            | Self::QueueFull
            | Self::ShopQueueFull
            | Self::AckTimeout
            | Self::Loop
            | Self::NotAWebhook
            | Self::NoTopic
            | Self::HeaderMismatch
            | Self::NotFresh(_) => true,
        }
    }

    /// Label in the metrics, from a closed set.
    pub fn outcome(self) -> &'static str {
        match self {
            Self::NotPost => "not_post",
            Self::DotSegment => "dot_segment",
            Self::Malformed => NOT_HTTP,
            Self::AckTimeout => "ack_timeout",
            Self::BrokenBody => "broken_body",
            _ => self.parts().1,
        }
    }

    /// JSON body of the answer.
    pub fn body(self) -> String {
        let (_, code, message) = self.parts();
        format!(r#"{{"error":"{code}","message":"{message}"}}"#)
    }
}

/// Outcome of a request that is not valid HTTP or has too large a header block. Mostly hyper
/// answers it, with 400, 414 or 431 and no body.
pub const NOT_HTTP: &str = "not_http";

/// Labels of all outcomes, the most frequent first.
pub const OUTCOMES: [&str; 23] = [
    "accepted",
    "ignored",
    NOT_HTTP,
    "not_post",
    "dot_segment",
    "overloaded",
    "queue_unavailable",
    "queue_full",
    "shop_queue_full",
    "ack_timeout",
    "too_large",
    "timeout",
    "broken_body",
    "bad_signature",
    "secrets_unavailable",
    "unknown_app",
    "loop_detected",
    "not_a_webhook",
    "missing_header",
    "header_mismatch",
    "bad_timestamp",
    "stale",
    "from_the_future",
];

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, _, _) = self.parts();
        let mut response = (status, self.body()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        response
    }
}

/// Whole HTTP/1.1 answer for a connection without a request that hyper could answer.
pub fn raw_answer(refusal: Refusal) -> String {
    let (status, _, _) = refusal.parts();
    let body = refusal.body();
    let retry = if status == StatusCode::SERVICE_UNAVAILABLE {
        format!("retry-after: {RETRY_AFTER_SECONDS}\r\n")
    } else {
        String::new()
    };
    format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{retry}\
         connection: close\r\n\r\n{body}",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        body.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_in_the_closed_set() {
        for refusal in [
            Refusal::NotPost,
            Refusal::DotSegment,
            Refusal::Malformed,
            Refusal::Overloaded,
            Refusal::QueueUnavailable,
            Refusal::QueueFull,
            Refusal::ShopQueueFull,
            Refusal::AckTimeout,
            Refusal::TooLarge,
            Refusal::Slow,
            Refusal::BrokenBody,
            Refusal::BadSignature,
            Refusal::SecretsUnavailable,
            Refusal::UnknownApp,
            Refusal::Loop,
            Refusal::NotAWebhook,
            Refusal::NoTopic,
            Refusal::HeaderMismatch,
            Refusal::NotFresh(NotFresh::Missing),
            Refusal::NotFresh(NotFresh::Malformed),
            Refusal::NotFresh(NotFresh::Stale),
            Refusal::NotFresh(NotFresh::FromTheFuture),
        ] {
            assert!(OUTCOMES.contains(&refusal.outcome()), "{refusal:?}");
            assert!(raw_answer(refusal).contains(refusal.parts().1));
            let (status, code, _) = refusal.parts();
            let row = row(refusal.outcome());
            assert!(row.contains(status.as_str()) && row.contains(code), "{refusal:?}: {row}");
        }
    }

    /// The row of an outcome in the table of answers.
    fn row(outcome: &str) -> String {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring.md");
        let page = std::fs::read_to_string(page).expect("read docs/monitoring.md");
        let start = format!("| `{outcome}` |");
        let mut lines = page.lines();
        lines.find(|line| line.starts_with(&start)).unwrap_or_default().to_owned()
    }

    #[test]
    fn the_table_of_answers_has_every_outcome() {
        for outcome in OUTCOMES {
            assert!(!row(outcome).is_empty(), "docs/monitoring.md has no row for {outcome}");
        }
    }
}
