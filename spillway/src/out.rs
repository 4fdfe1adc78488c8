//! Output for people: tables, ages, sizes, and foreign text made safe for a terminal.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

/// Time between two progress messages of long work.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Reports the progress of long work on standard error, if that is a terminal. Short work reports
/// nothing.
pub(crate) struct Progress {
    said: Instant,
}

impl Progress {
    /// Starts the interval now.
    pub(crate) fn new() -> Self {
        Self { said: Instant::now() }
    }

    /// Prints `text`, unless the last message was less than an interval ago.
    pub(crate) fn tell(&mut self, text: impl FnOnce() -> String) {
        if self.said.elapsed() >= PROGRESS_EVERY && io::stderr().is_terminal() {
            self.said = Instant::now();
            eprintln!("{}", text());
        }
    }
}

/// Colour of a word, as the terminal's escape sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Colour {
    /// Nothing is wrong.
    Green,
    /// Something could be better.
    Yellow,
    /// Something does not work.
    Red,
}

/// Returns `text` in a colour, if standard output is a terminal that may show one.
pub(crate) fn coloured(text: &str, colour: Colour) -> String {
    if !may_colour(io::stdout().is_terminal(), |name| std::env::var_os(name)) {
        return text.to_owned();
    }
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// An empty `NO_COLOR` does not count (<https://no-color.org>).
fn may_colour(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_unwanted = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
    is_terminal && !is_unwanted && !is_dumb
}

/// Writes a line to standard output.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Formats rows below a header in columns as wide as needed. No line is ever broken, so `grep` and
/// `awk` work on the output.
pub(crate) fn table<R: IntoIterator<Item = String>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for row in rows {
        let cells = row.into_iter();
        let cells = cells.map(|cell| printable(cell.as_bytes()).replace(['\n', '\t'], " "));
        table.add_row(cells.collect::<Vec<String>>());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Returns a count as a number to calculate with. It is exact up to 2^53.
pub(crate) fn float(count: impl TryInto<u64>) -> f64 {
    count.try_into().map_or(f64::INFINITY, |count| count as f64)
}

/// Formats an age in its two largest units, such as `3m 12s`.
pub(crate) fn age(seconds: f64) -> String {
    let whole = Duration::from_secs(if seconds.is_finite() { seconds.max(0.0) as u64 } else { 0 });
    let text = humantime::format_duration(whole).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Time of this machine's clock in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a size such as `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).to_string()
}

/// Formats a count with its noun: `1 pack`, `2 packs`.
pub(crate) fn count(number: u64, singular: &str) -> String {
    if number == 1 { format!("1 {singular}") } else { format!("{number} {singular}s") }
}

/// Makes text safe for a terminal: a header, a body or an answer must not control the terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let harmless =
        |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_rows_stay_one_line() {
        let rows = [["a".to_owned(), "b\nc".to_owned()], ["long".to_owned(), "d".to_owned()]];
        assert_eq!(table(&["X", "YY"], rows), "X     YY\na     b c\nlong  d");
    }

    #[test]
    fn colours_are_for_terminals_whose_user_wants_them() {
        let with = |is_terminal, set: &[(&str, &str)]| {
            may_colour(is_terminal, |name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
            })
        };
        assert!(with(true, &[]) && with(true, &[("NO_COLOR", ""), ("TERM", "xterm")]));
        assert!(!with(false, &[]), "a file or a pipe");
        assert!(!with(true, &[("NO_COLOR", "1")]) && !with(true, &[("TERM", "dumb")]));
    }

    #[test]
    fn ages_are_short() {
        assert_eq!(age(0.4), "0s");
        assert_eq!(age(192.0), "3m 12s");
        assert_eq!(age(90_061.0), "1day 1h");
        assert_eq!(age(-1.0), "0s");
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(printable(b"a\x1b[2J\xff\tb\n"), "a\u{fffd}[2J\u{fffd}\tb\n");
    }
}
