//! Judges outcomes of attempts. Pure: an outcome in, a verdict out.

use std::fmt;
use std::time::{Duration, SystemTime};

use spillway_delivery::{Scope, Verdict};
use spillway_limiter::Signal;

use crate::content::Evidence;
use crate::settings::DownstreamerSettings;

/// Outcome of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The backend answered.
    Answered {
        /// Status code.
        status: u16,
        /// Value of `Retry-After`.
        retry_after: Option<String>,
        /// Scope that `Spillway-Pause` names.
        pauses: Option<Scope>,
    },
    /// No whole answer in time.
    TimedOut,
    /// No connection could be made. The webhook is not the cause.
    Unconnected,
    /// The lease was lost before anything was sent. The backend saw no attempt.
    LeaseLost,
    /// The connection broke before the whole answer.
    Broken,
    /// The payload of a stub could not be fetched. The backend was sent nothing.
    Unfetched,
    /// No request can be made of the webhook. For example, its path is too long with the base
    /// URL's.
    Unsendable,
}

/// Judges an outcome at the present time, by these settings.
pub fn judge(outcome: &AttemptOutcome, settings: &DownstreamerSettings) -> Verdict {
    judge_at(outcome, &settings.dead_statuses, settings.backoff.longest, SystemTime::now())
}

/// Judges an outcome at `now`. An answer with one of `dead_statuses` makes a dead letter at once.
/// `pause_max` limits a Retry-After.
pub fn judge_at(
    outcome: &AttemptOutcome,
    dead_statuses: &[u16],
    pause_max: Duration,
    now: SystemTime,
) -> Verdict {
    let failed = Verdict::Retry { pause: Duration::ZERO, scope: None, is_refusal: false };
    let (status, retry_after, pauses) = match outcome {
        AttemptOutcome::Answered { status, retry_after, pauses } => {
            (*status, retry_after.as_deref(), *pauses)
        }
        AttemptOutcome::TimedOut | AttemptOutcome::Unconnected | AttemptOutcome::Broken => {
            return failed;
        }
        // As if the backend had asked for a pause of this resource alone: it says nothing about the
        // backend, and nothing about the other webhooks of the lane.
        AttemptOutcome::Unfetched => {
            let scope = Some(Scope::Resource);
            return Verdict::Retry { pause: Duration::ZERO, scope, is_refusal: false };
        }
        AttemptOutcome::LeaseLost => return Verdict::NotSent,
        AttemptOutcome::Unsendable => {
            return Verdict::Dead { reason: "unsendable", is_refusal: false };
        }
    };
    if (200..300).contains(&status) {
        return Verdict::Delivered;
    }
    if dead_statuses.contains(&status) {
        return Verdict::Dead { reason: "status", is_refusal: true };
    }
    let asked = retry_after.and_then(|text| parse_retry_after(text, now));
    let scope = pauses.filter(|_| matches!(status, 429 | 503));
    let is_refusal = !matches!(status, 408 | 425 | 429 | 500..=599);
    Verdict::Retry { pause: asked.unwrap_or_default().min(pause_max), scope, is_refusal }
}

/// Signal of an outcome to the concurrency limiter and the circuit breaker.
pub fn signal(outcome: &AttemptOutcome, verdict: Verdict) -> Signal {
    let status = match outcome {
        AttemptOutcome::Answered { status, .. } => *status,
        AttemptOutcome::TimedOut => return Signal::TimedOut,
        AttemptOutcome::Unconnected | AttemptOutcome::Broken => return Signal::Broken,
        AttemptOutcome::Unsendable | AttemptOutcome::LeaseLost | AttemptOutcome::Unfetched => {
            return Signal::Failed;
        }
    };
    let asked = match verdict {
        Verdict::Retry { pause, .. } => (!pause.is_zero()).then_some(pause),
        Verdict::Delivered | Verdict::Dead { .. } | Verdict::NotSent => None,
    };
    match status {
        429 | 503 if outcome.is_narrow_pause() => Signal::Failed,
        429 => Signal::Overloaded { retry_after: asked },
        503 => Signal::Unavailable { retry_after: asked },
        408 | 425 | 500..=599 => Signal::Failed,
        _ => Signal::Done,
    }
}

/// Evidence for a dead letter.
pub fn evidence(outcome: &AttemptOutcome, answer: Vec<u8>) -> Evidence {
    let status = match outcome {
        AttemptOutcome::Answered { status, .. } => *status,
        AttemptOutcome::TimedOut
        | AttemptOutcome::Unconnected
        | AttemptOutcome::LeaseLost
        | AttemptOutcome::Broken
        | AttemptOutcome::Unfetched
        | AttemptOutcome::Unsendable => 0,
    };
    Evidence { status, answer }
}

/// The way in which the backend did not accept an attempt, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAccepted {
    /// Answer with this status.
    Status(u16),
    /// No whole answer.
    NoAnswer(&'static str),
}

impl fmt::Display for NotAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::NoAnswer(problem) => f.write_str(problem),
        }
    }
}

/// The way in which the backend did not accept an attempt. `None` for one that it accepted, and for one
/// that says nothing about the backend.
pub fn failure_of(outcome: &AttemptOutcome) -> Option<NotAccepted> {
    match outcome {
        AttemptOutcome::Answered { status: 200..=299, .. }
        | AttemptOutcome::LeaseLost
        | AttemptOutcome::Unfetched
        | AttemptOutcome::Unsendable => None,
        AttemptOutcome::Answered { status, .. } => Some(NotAccepted::Status(*status)),
        AttemptOutcome::TimedOut => Some(NotAccepted::NoAnswer("no whole answer in time")),
        AttemptOutcome::Unconnected => Some(NotAccepted::NoAnswer("no connection")),
        AttemptOutcome::Broken => Some(NotAccepted::NoAnswer("the connection broke")),
    }
}

/// Label of an attempt in the metrics.
pub fn result_label(outcome: &AttemptOutcome, verdict: Verdict) -> &'static str {
    match (verdict, outcome) {
        (Verdict::Delivered, _) => "delivered",
        (Verdict::Dead { .. }, _) => "dead",
        (Verdict::Retry { .. }, AttemptOutcome::TimedOut) => "timeout",
        (Verdict::Retry { is_refusal: true, .. }, _) => "refused",
        (Verdict::Retry { .. } | Verdict::NotSent, _) => "failed",
    }
}

impl AttemptOutcome {
    /// Returns true if the backend asked for a pause of one resource or shop. It works, and the
    /// answer means nothing for the others.
    pub fn is_narrow_pause(&self) -> bool {
        matches!(
            self,
            Self::Answered { status: 429 | 503, pauses: Some(Scope::Resource | Scope::Shop), .. }
        )
    }
}

/// Scope that `Spillway-Pause` names. `None` for any other text.
pub fn parse_scope(text: &str) -> Option<Scope> {
    match text.trim() {
        "resource" => Some(Scope::Resource),
        "shop" => Some(Scope::Shop),
        "all" => Some(Scope::All),
        _ => None,
    }
}

/// Parses seconds, or an HTTP date (RFC 9110, section 10.2.3). A date that has passed gives a pause
/// of zero.
fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is longer than any pause that is honoured.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: [u16; 7] = [400, 410, 413, 414, 415, 422, 431];
    const LONGEST: Duration = Duration::from_secs(600);

    fn noon() -> SystemTime {
        httpdate::parse_http_date("Thu, 01 Jan 2026 12:00:00 GMT").unwrap()
    }

    fn check(status: u16, retry_after: Option<&str>, expected: Verdict) {
        let retry_after_text = retry_after.map(str::to_owned);
        let outcome =
            AttemptOutcome::Answered { status, retry_after: retry_after_text, pauses: None };
        assert_eq!(
            judge_at(&outcome, &DEAD, LONGEST, noon()),
            expected,
            "{status} {retry_after:?}"
        );
    }

    fn retry(seconds: u64, is_refusal: bool) -> Verdict {
        Verdict::Retry { pause: Duration::from_secs(seconds), scope: None, is_refusal }
    }

    #[test]
    fn the_table_of_answers() {
        for status in [200, 201, 202, 204, 299] {
            check(status, None, Verdict::Delivered);
        }
        for status in DEAD {
            check(status, Some("5"), Verdict::Dead { reason: "status", is_refusal: true });
        }
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            check(status, None, retry(0, false));
        }
        for status in [301, 302, 307, 401, 403, 404, 405, 409, 451] {
            check(status, None, retry(0, true));
        }
        let failed = retry(0, false);
        for outcome in
            [AttemptOutcome::TimedOut, AttemptOutcome::Unconnected, AttemptOutcome::Broken]
        {
            assert_eq!(judge_at(&outcome, &DEAD, LONGEST, noon()), failed);
        }
        let unsendable = Verdict::Dead { reason: "unsendable", is_refusal: false };
        assert_eq!(judge_at(&AttemptOutcome::Unsendable, &DEAD, LONGEST, noon()), unsendable);
        assert_eq!(judge_at(&AttemptOutcome::LeaseLost, &DEAD, LONGEST, noon()), Verdict::NotSent);
    }

    #[test]
    fn what_the_backend_did_not_accept_is_named() {
        let answered =
            |status| AttemptOutcome::Answered { status, retry_after: None, pauses: None };
        let text = |outcome: &AttemptOutcome| failure_of(outcome).map(|how| how.to_string());
        assert_eq!(text(&answered(422)).as_deref(), Some("status 422"));
        assert_eq!(text(&answered(302)).as_deref(), Some("status 302"));
        assert_eq!(text(&AttemptOutcome::Unconnected).as_deref(), Some("no connection"));
        for outcome in [answered(204), AttemptOutcome::LeaseLost, AttemptOutcome::Unfetched] {
            assert_eq!(text(&outcome), None, "{outcome:?}");
        }
    }

    #[test]
    fn a_payload_that_is_not_fetched_concerns_its_own_resource_alone() {
        let outcome = AttemptOutcome::Unfetched;
        let verdict = judge_at(&outcome, &DEAD, LONGEST, noon());
        let scope = Some(Scope::Resource);
        let pause = Duration::ZERO;
        assert_eq!(verdict, Verdict::Retry { pause, scope, is_refusal: false });
        assert_eq!(signal(&outcome, verdict), Signal::Failed);
        let evidence = evidence(&outcome, b"a.example: answered 503".to_vec());
        assert_eq!((evidence.status, &evidence.answer[..9]), (0, &b"a.example"[..]));
    }

    #[test]
    fn a_pause_is_as_wide_as_the_answer_says() {
        for (status, pauses, expected) in [
            (429, Some(Scope::Shop), Some(Scope::Shop)),
            (503, Some(Scope::Resource), Some(Scope::Resource)),
            (429, None, None),
            (503, Some(Scope::All), Some(Scope::All)),
            (500, Some(Scope::All), None),
        ] {
            let outcome =
                AttemptOutcome::Answered { status, retry_after: Some("3".into()), pauses };
            let verdict = judge_at(&outcome, &DEAD, LONGEST, noon());
            let pause = Duration::from_secs(3);
            assert_eq!(verdict, Verdict::Retry { pause, scope: expected, is_refusal: false });
            let is_narrow = matches!(expected, Some(Scope::Resource | Scope::Shop));
            assert_eq!(outcome.is_narrow_pause(), is_narrow);
            let is_felt = !matches!(signal(&outcome, verdict), Signal::Failed);
            assert_eq!(is_felt, status != 500 && !is_narrow, "{outcome:?}");
        }
        assert_eq!(parse_scope(" shop "), Some(Scope::Shop));
        assert_eq!(parse_scope("shops"), None);
    }

    #[test]
    fn retry_after_is_honoured_and_bounded() {
        check(429, Some("5"), retry(5, false));
        check(503, Some(" 7 "), retry(7, false));
        check(503, Some("Thu, 01 Jan 2026 12:00:30 GMT"), retry(30, false));
        check(503, Some("Thu, 01 Jan 2026 11:00:00 GMT"), retry(0, false));
        check(503, Some("86400"), retry(600, false));
        check(500, Some("9"), retry(9, false));
        check(404, Some("9"), retry(9, true));
        for text in ["4294967296", "99999999999999999999"] {
            check(503, Some(text), retry(600, false));
        }
        for text in ["", "soon", "-1", "+1", "1.5"] {
            check(503, Some(text), retry(0, false));
        }
    }
}
