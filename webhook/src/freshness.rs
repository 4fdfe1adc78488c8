//! Freshness: checks that the triggered-at header lies inside the accepted window.
//!
//! The header is not signed, so this bounds staleness; it does not stop a replay. Compliance topics
//! are exempt: refusing one would break a legal duty.

use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The accepted window around now.
#[derive(Debug, Clone, Copy)]
pub struct FreshnessWindow {
    /// Maximum age of a webhook.
    pub age_max: Duration,
    /// Maximum time that a webhook may lie ahead of our clock.
    pub skew_max: Duration,
    /// True if a webhook without the header is refused.
    pub required: bool,
}

/// Reason why a triggered-at header was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotFresh {
    /// The header is missing and `required` is set.
    #[error("the triggered-at header is missing")]
    Missing,
    /// Not RFC 3339.
    #[error("the triggered-at header is not an RFC 3339 time")]
    Malformed,
    /// Older than `age_max`.
    #[error("the webhook was triggered too long ago")]
    Stale,
    /// Further ahead than `skew_max`.
    #[error("the webhook was triggered in the future")]
    FromTheFuture,
}

/// Checks a triggered-at header (RFC 3339, any offset, up to nanoseconds) against `now_ms`
/// (milliseconds since the Unix epoch).
///
/// # Errors
/// [`NotFresh`] names the rule that it broke.
pub fn check(
    triggered_at: Option<&[u8]>,
    now_ms: u64,
    window: &FreshnessWindow,
) -> Result<(), NotFresh> {
    let Some(text) = triggered_at else {
        return if window.required { Err(NotFresh::Missing) } else { Ok(()) };
    };
    let triggered_ms = millis(text).ok_or(NotFresh::Malformed)?;
    let now_ms = i128::from(now_ms);
    if now_ms - triggered_ms > window.age_max.as_millis().cast_signed() {
        return Err(NotFresh::Stale);
    }
    if triggered_ms - now_ms > window.skew_max.as_millis().cast_signed() {
        return Err(NotFresh::FromTheFuture);
    }
    Ok(())
}

/// An RFC 3339 time as milliseconds since the Unix epoch, rounded down.
pub fn millis(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    Some(time.unix_timestamp_nanos().div_euclid(1_000_000))
}

/// Formats milliseconds since the Unix epoch as RFC 3339 in UTC, with three digits after the point, so that the texts
/// sort as the times do. A time out of the format's range is returned as a number.
pub fn rfc3339(millis: u64) -> String {
    let text =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis / 1_000) * 1_000_000_000)
            .ok()
            .and_then(|second| second.format(&Rfc3339).ok());
    match text.as_deref().and_then(|second| second.strip_suffix('Z')) {
        Some(second) => format!("{second}.{:03}Z", millis % 1_000),
        None => millis.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_767_268_800_000; // 2026-01-01T12:00:00Z
    const WINDOW: FreshnessWindow = FreshnessWindow {
        age_max: Duration::from_secs(72 * 3600),
        skew_max: Duration::from_secs(3600),
        required: true,
    };

    fn check_at_noon(text: &str, expected: Result<(), NotFresh>) {
        assert_eq!(check(Some(text.as_bytes()), NOON, &WINDOW), expected, "{text}");
    }

    #[test]
    fn the_window_is_kept_to_the_millisecond() {
        check_at_noon("2026-01-01T12:00:00Z", Ok(()));
        check_at_noon("2026-01-01T11:59:59.123456789Z", Ok(()));
        check_at_noon("2026-01-01T14:00:00+02:00", Ok(()));
        check_at_noon("2025-12-29T12:00:00.000Z", Ok(()));
        check_at_noon("2025-12-29T11:59:59.999Z", Err(NotFresh::Stale));
        check_at_noon("2026-01-01T13:00:00.000Z", Ok(()));
        check_at_noon("2026-01-01T13:00:00.001Z", Err(NotFresh::FromTheFuture));
    }

    #[test]
    fn what_is_not_rfc_3339_is_refused() {
        for text in ["", "yesterday", "1767268800", "2026-01-01", "2026-01-01T12:00:00"] {
            check_at_noon(text, Err(NotFresh::Malformed));
        }
        assert_eq!(check(Some(b"\xff"), NOON, &WINDOW), Err(NotFresh::Malformed));
    }

    #[test]
    fn a_missing_header_is_refused_only_where_required() {
        assert_eq!(check(None, NOON, &WINDOW), Err(NotFresh::Missing));
        assert_eq!(check(None, NOON, &FreshnessWindow { required: false, ..WINDOW }), Ok(()));
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        assert_eq!(millis(rfc3339(NOON + 7).as_bytes()), Some(i128::from(NOON) + 7));
    }

    #[test]
    fn times_have_three_digits_after_the_point() {
        for (after, text) in [(0, "00.000"), (7, "00.007"), (560, "00.560"), (59_999, "59.999")] {
            assert_eq!(rfc3339(NOON + after), format!("2026-01-01T12:00:{text}Z"));
        }
        assert_eq!(rfc3339(u64::MAX), u64::MAX.to_string());
    }
}
