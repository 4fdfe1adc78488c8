//! Numbers and times as people read them.

use std::time::{Duration, UNIX_EPOCH};

use bytesize::ByteSize;
use maud::{Markup, html};

/// Last second of the year 9999, in milliseconds since the Unix epoch. Later times have no such text.
const LAST_MS: u64 = 253_402_300_799_000;

/// A count with its thousands apart, such as `1,234,567`.
pub(super) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun, such as `1 dead letter` or `1,234 dead letters`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{} {noun}{end}", thousands(count))
}

/// An age in its two largest units, such as `3m 12s`.
pub(super) fn age(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default().as_secs();
    let text = humantime::format_duration(Duration::from_secs(whole)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Age at `now_ms` of something that began; a dash if nothing did.
pub(super) fn age_since(began_ms: Option<u64>, now_ms: u64) -> String {
    let since = |began_ms| Duration::from_millis(now_ms.saturating_sub(began_ms));
    began_ms.map_or_else(|| "–".to_owned(), |began_ms| age(since(began_ms).as_secs_f64()))
}

/// A number per second, such as `12.5`; a dash if it is not known.
pub(super) fn rate(per_second: Option<f64>) -> String {
    per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}"))
}

/// A size, such as `1.5 MiB`.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// A value of a series with its unit.
pub(super) fn value(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else { return "–".to_owned() };
    match unit {
        "per_second" => format!("{value:.1}/s"),
        "seconds" if value < 1.0 => format!("{:.0} ms", value * 1000.0),
        "seconds" if value < 60.0 => format!("{value:.1} s"),
        "seconds" => age(value),
        "bytes" if value >= 1_048_576.0 => format!("{:.1} MiB", value / 1_048_576.0),
        "bytes" => format!("{:.1} KiB", value / 1024.0),
        _ => format!("{value:.0}"),
    }
}

/// A time in UTC; a dash for the time 0, which stands for none.
pub(super) fn moment(at_ms: u64) -> Markup {
    if at_ms == 0 {
        return html! { "–" };
    }
    let at = UNIX_EPOCH + Duration::from_millis(at_ms.min(LAST_MS));
    let exact = humantime::format_rfc3339_seconds(at).to_string();
    let (day, time) = exact.split_once('T').unwrap_or((exact.as_str(), ""));
    html! { time datetime=(exact) { (day) " " (time.trim_end_matches('Z')) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        for (count, expected) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")]
        {
            assert_eq!(thousands(count), expected);
        }
        assert_eq!(counted(1, "lane"), "1 lane");
        assert_eq!(counted(2_000, "lane"), "2,000 lanes");
        assert_eq!(age(192.4), "3m 12s");
        assert_eq!(age(-1.0), "0s");
        assert_eq!(age(f64::NAN), "0s");
        assert_eq!(age_since(Some(1_000), 62_000), "1m 1s");
        assert_eq!(age_since(None, 62_000), "–");
        assert_eq!(rate(Some(12.5)), "12.5");
        assert_eq!(rate(None), "–");
    }

    #[test]
    fn values_have_their_unit() {
        assert_eq!(value(Some(0.0123), "seconds"), "12 ms");
        assert_eq!(value(Some(75.0), "seconds"), "1m 15s");
        assert_eq!(value(Some(3.0 * 1_048_576.0), "bytes"), "3.0 MiB");
        assert_eq!(value(Some(12.0), "count"), "12");
        assert_eq!(value(Some(f64::NAN), "count"), "–");
        assert_eq!(value(None, "per_second"), "–");
    }

    #[test]
    fn times_are_in_utc_and_never_fail() {
        let text = moment(1_767_268_800_000).into_string();
        assert_eq!(text, r#"<time datetime="2026-01-01T12:00:00Z">2026-01-01 12:00:00</time>"#);
        assert_eq!(moment(0).into_string(), "–");
        assert!(moment(u64::MAX).into_string().contains("9999-12-31"));
    }
}
