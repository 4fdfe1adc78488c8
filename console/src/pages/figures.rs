//! Numbers as people read them.

use std::time::Duration;

use bytesize::ByteSize;

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

/// An age in its two largest units, such as `3m 12s`.
pub(super) fn age(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default().as_secs();
    let text = humantime::format_duration(Duration::from_secs(whole)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// A rate, such as `12.5 per second`; a dash if it is not known.
pub(super) fn rate(per_second: Option<f64>) -> String {
    per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1} per second"))
}

/// A size, such as `1.5 MiB`.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
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
        assert_eq!(
            (age(192.4), age(-1.0), age(f64::NAN)),
            ("3m 12s".into(), "0s".into(), "0s".into())
        );
        assert_eq!((rate(Some(12.5)), rate(None)), ("12.5 per second".into(), "–".into()));
    }
}
