//! Checks settings as given, and converts them to values.
//!
//! A [`Checker`] takes every setting of a process and collects every mistake, so that an operator
//! sees all of them at once. A mistake names its key and the expected form. It never repeats a
//! secret.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use axum::http::uri::Authority;
use zeroize::Zeroizing;

/// Collects mistakes while settings are converted to values.
#[derive(Debug, Default)]
pub struct Checker {
    mistakes: Vec<String>,
}

/// All mistakes in the settings, one per line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// Parses a duration with its unit, such as `4s` or `72h`. A lone `M` is refused: it stands for months,
/// and most people mean minutes.
///
/// # Errors
/// A sentence for the person who wrote it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let mut units = text.split(|letter: char| !letter.is_alphabetic());
    if units.any(|unit| unit == "M") {
        return Err(format!(
            "{text:?} can mean minutes or months: write {} or {}",
            text.trim().replace('M', "m"),
            text.trim().replace('M', "months"),
        ));
    }
    humantime::parse_duration(text.trim())
        .map_err(|_| format!("{text:?} is not a duration with a unit, such as 4s, 500ms or 72h"))
}

impl Checker {
    /// Records a mistake in `key`.
    pub fn mistake(&mut self, key: &str, problem: impl Display) {
        self.mistakes.push(format!("{key}: {problem}"));
    }

    /// Parses a duration with its unit, such as `4s` or `72h`; `0` needs none.
    pub fn duration(&mut self, key: &str, text: &str, range: RangeInclusive<Duration>) -> Duration {
        let parsed = if text.trim() == "0" { Ok(Duration::ZERO) } else { parse_duration(text) };
        let show = |duration: &Duration| humantime::format_duration(*duration).to_string();
        match parsed {
            Ok(duration) if range.contains(&duration) => return duration,
            Ok(_) => self.mistake(
                key,
                format_args!("{text} is outside {} to {}", show(range.start()), show(range.end())),
            ),
            Err(problem) => self.mistake(key, problem),
        }
        *range.start()
    }

    /// Parses a size with its unit, such as `16MiB`; `0` needs none. A unit that some programs read
    /// as 1000 and others as 1024 is a mistake.
    pub fn size(&mut self, key: &str, text: &str, range: RangeInclusive<u64>) -> u64 {
        match parse_size(text.trim()) {
            Ok(size) if range.contains(&size) => return size,
            Ok(_) => self.mistake(
                key,
                format_args!(
                    "{text} is outside {} to {}",
                    bytesize::ByteSize(*range.start()),
                    bytesize::ByteSize(*range.end())
                ),
            ),
            Err(problem) => self.mistake(key, problem),
        }
        *range.start()
    }

    /// Parses a whole number in a range.
    pub fn number<T>(&mut self, key: &str, text: &str, range: RangeInclusive<T>) -> T
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        match text.trim().parse::<T>() {
            Ok(number) if range.contains(&number) => number,
            Ok(_) | Err(_) => {
                let problem = format_args!(
                    "{text:?} is not a whole number from {} to {}",
                    range.start(),
                    range.end()
                );
                self.mistakes.push(format!("{key}: {problem}"));
                *range.start()
            }
        }
    }

    /// Parses `true` or `false`; also `1`, `yes`, `on` and `0`, `no`, `off`.
    pub fn flag(&mut self, key: &str, text: &str) -> bool {
        match text.trim() {
            "true" | "1" | "yes" | "on" => true,
            "false" | "0" | "no" | "off" => false,
            _ => {
                self.mistake(key, format_args!("{text:?} is neither true nor false"));
                false
            }
        }
    }

    /// Parses one of several words.
    pub fn choice<T: Copy>(&mut self, key: &str, text: &str, choices: &[(&str, T)]) -> T {
        let found = choices.iter().find(|(word, _)| *word == text.trim());
        if found.is_none() {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            self.mistake(key, format_args!("{text:?} is none of {}", words.join(", ")));
        }
        found.map_or(choices[0].1, |(_, value)| *value)
    }

    /// Parses an address with its port. `example` is one that suits the setting, such as
    /// `127.0.0.1:9811`.
    pub fn address(&mut self, key: &str, text: &str, example: &str) -> SocketAddr {
        text.trim().parse().unwrap_or_else(|_| {
            self.mistake(key, format_args!("{text:?} is not an address such as {example}"));
            SocketAddr::from(([127, 0, 0, 1], 0))
        })
    }

    /// Reads secrets from a value (comma separated) or from a file (one per line), never from both.
    /// If `required` is set, there must be at least one.
    pub fn secrets(
        &mut self,
        key: &str,
        value: Option<&str>,
        file: Option<&Path>,
        required: bool,
    ) -> Vec<Zeroizing<String>> {
        let secrets = match (value, file) {
            (Some(_), Some(_)) => {
                self.mistake(key, format_args!("set it or {key}_FILE, not both"));
                return Vec::new();
            }
            (Some(value), None) => split(value, ','),
            (None, Some(file)) => match read_secrets(file) {
                Ok(secrets) => secrets,
                Err(problem) => {
                    self.mistake(&format!("{key}_FILE"), problem);
                    return Vec::new();
                }
            },
            (None, None) if required => {
                self.mistake(key, format_args!("is required; set it or {key}_FILE"));
                return Vec::new();
            }
            (None, None) => return Vec::new(),
        };
        if secrets.is_empty() {
            self.mistake(key, "holds no secret");
        }
        secrets
    }

    /// Returns the value, if there was no mistake.
    ///
    /// # Errors
    /// [`Mistakes`], with every mistake.
    pub fn finish<T>(self, value: T) -> Result<T, Mistakes> {
        if self.mistakes.is_empty() { Ok(value) } else { Err(Mistakes(self.mistakes)) }
    }
}

/// Checks the port of a URL. The parser takes one above 65535 for none, and so for the default port.
///
/// # Errors
/// The form that is expected.
pub fn check_port(authority: &Authority) -> Result<(), &'static str> {
    const FORM: &str = "must have a port from 1 to 65535, or none";
    let text = authority.as_str();
    let place = text.rsplit_once('@').map_or(text, |(_, place)| place);
    let port = match place.strip_prefix(authority.host()) {
        Some("") => return Ok(()),
        Some(rest) => rest.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()),
        None => None,
    };
    port.filter(|port| *port != 0).map(|_| ()).ok_or(FORM)
}

/// Reads a size with its unit, in powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let no_size = || format!("{text:?} is not a size with a unit, such as 16MiB or 64KiB");
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_lowercase();
    let number = number.trim_end();
    if number.parse::<f64>().is_err() {
        return Err(no_size());
    }
    match unit.as_str() {
        "b" | "kib" | "mib" | "gib" | "tib" => {}
        "" if number == "0" => {}
        "k" | "kb" | "m" | "mb" | "g" | "gb" | "t" | "tb" => {
            let letter = unit[..1].to_ascii_uppercase();
            return Err(format!(
                "{text:?} is ambiguous, because programs read this unit as a power of 1000 or of 1024; \
                 write {number}{letter}iB"
            ));
        }
        _ => return Err(no_size()),
    }
    text.parse::<bytesize::ByteSize>().map(|size| size.as_u64()).map_err(|_| no_size())
}

/// Reads a file of secrets, one per line; empty lines are skipped.
///
/// # Errors
/// A sentence that names the file, not its content.
pub fn read_secrets(file: &Path) -> Result<Vec<Zeroizing<String>>, String> {
    read_lines(file, "secret")
}

/// Reads a file of secrets, one per line, and calls them `noun` if there is none.
///
/// # Errors
/// A sentence that names the file, not its content.
pub(crate) fn read_lines(file: &Path, noun: &str) -> Result<Vec<Zeroizing<String>>, String> {
    let content = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let secrets = split(&Zeroizing::new(content), '\n');
    if secrets.is_empty() {
        return Err(format!("{} holds no {noun}", file.display()));
    }
    Ok(secrets)
}

fn split(text: &str, separator: char) -> Vec<Zeroizing<String>> {
    text.split(separator)
        .map(str::trim)
        .filter(|secret| !secret.is_empty())
        .map(|secret| Zeroizing::new(secret.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_told_at_once_and_no_secret_with_them() {
        let mut checker = Checker::default();
        let second = Duration::from_secs(1);
        checker.duration("A", "4", second..=2 * second);
        checker.duration("B", "4s", second..=2 * second);
        checker.size("C", "16", 0..=1);
        checker.size("D", "16MiB", 0..=1);
        checker.number("E", "x", 1..=3u16);
        checker.flag("F", "maybe");
        checker.choice("G", "xml", &[("text", 1), ("json", 2)]);
        checker.address("H", "localhost", "0.0.0.0:8443");
        checker.secrets("I", Some("hush"), Some(Path::new("/x")), true);
        checker.secrets("J", None, None, true);
        let told = checker.finish(()).unwrap_err().to_string();
        assert_eq!(told.lines().count(), 10, "{told}");
        assert!(!told.contains("hush"));
        assert!(told.contains("1s to 2s"), "{told}");
        assert!(told.contains("is not an address such as 0.0.0.0:8443"), "{told}");
    }

    #[test]
    fn a_port_that_is_none_is_not_taken_for_the_default_one() {
        for good in ["a", "a:1", "a:65535", "[::1]", "[::1]:80", "u:p@a:80", "u@a"] {
            let authority: Authority = good.parse().unwrap();
            assert_eq!(check_port(&authority), Ok(()), "{good}");
        }
        for bad in ["a:0", "a:65536", "127.0.0.1:99999", "[::1]:99999", "u:p@a:70000"] {
            let parsed = bad.parse::<Authority>();
            assert!(parsed.is_err() || parsed.is_ok_and(|one| check_port(&one).is_err()), "{bad}");
        }
    }

    #[test]
    fn good_settings_become_values() {
        let mut checker = Checker::default();
        let hours = Duration::from_secs(3600);
        assert_eq!(checker.duration("A", "72h", hours..=100 * hours), 72 * hours);
        assert_eq!(checker.duration("A", "0", Duration::ZERO..=hours), Duration::ZERO);
        assert_eq!(checker.size("B", "16MiB", 0..=1 << 30), 16 << 20);
        assert_eq!(checker.size("B", "0", 0..=1 << 30), 0);
        assert_eq!(checker.number("C", " 7 ", 1..=9u32), 7);
        assert!(checker.flag("D", "true"));
        let secrets = checker.secrets("E", Some("new, old,"), None, true);
        assert_eq!(secrets.iter().map(|s| s.as_str()).collect::<Vec<_>>(), ["new", "old"]);
        assert_eq!(checker.finish(1), Ok(1));
    }

    #[test]
    fn a_size_has_one_meaning() {
        for (text, bytes) in [
            ("0", 0),
            ("512B", 512),
            ("64KiB", 64 << 10),
            ("16mib", 16 << 20),
            ("1.5 GiB", 3 << 29),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (text, right) in [
            ("16m", "16MiB"),
            ("16MB", "16MiB"),
            ("1gb", "1GiB"),
            ("2 G", "2GiB"),
            ("64kB", "64KiB"),
            ("1TB", "1TiB"),
        ] {
            let problem = parse_size(text).unwrap_err();
            assert!(problem.ends_with(&format!("write {right}")), "{problem}");
        }
        for text in ["", "16", "MiB", "-1MiB", "16Mi", "16 apples", "1,5GiB", "infB"] {
            assert!(parse_size(text).unwrap_err().contains("is not a size"), "{text}");
        }
    }

    #[test]
    fn secrets_are_read_from_a_file_a_line_each() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\n\n two \n").unwrap();
        let secrets = read_secrets(file.path()).unwrap();
        assert_eq!(secrets.iter().map(|s| s.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        std::fs::write(file.path(), "\n").unwrap();
        assert!(read_secrets(file.path()).is_err());
        assert!(read_secrets(Path::new("/nonexistent")).is_err());
    }
}
