//! The format, as a state machine over characters. Source: systemd.exec(5), EnvironmentFile=.

/// The text of a file, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvFile {
    /// Names and values, in the order of the file. Of two with one name, the later one counts.
    pub settings: Vec<(String, String)>,
    /// Numbers of the lines that begin neither a setting nor a comment. systemd ignores them as well.
    pub ignored_lines: Vec<usize>,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    BeforeName,
    Name,
    /// After `=`, or after a closing quote.
    BeforeValue,
    Value,
    Escape,
    SingleQuoted,
    DoubleQuoted,
    DoubleQuotedEscape,
    Comment,
}

#[derive(Default)]
struct Parser {
    state: State,
    name: String,
    value: String,
    /// Length of the value without white space at its end that is to be discarded.
    kept_bytes: usize,
    lines_read: usize,
    first_line: usize,
    found: EnvFile,
}

/// Reads settings. Never fails: what is no setting is ignored and its line is noted.
pub fn parse(text: &str) -> EnvFile {
    let mut parser = Parser::default();
    for c in text.chars() {
        parser.state = parser.step(c);
        parser.lines_read += usize::from(c == '\n');
    }
    match parser.state {
        State::BeforeName | State::Comment => {}
        State::Name => parser.ignore(),
        // A quote that is still open ends with the file.
        _ => parser.finish(),
    }
    parser.found
}

impl Parser {
    fn step(&mut self, c: char) -> State {
        match (self.state, c) {
            (State::BeforeName, '#' | ';') => State::Comment,
            (State::BeforeName, ' ' | '\t' | '\n' | '\r') => State::BeforeName,
            (State::BeforeName, _) => {
                self.first_line = self.lines_read + 1;
                self.name.push(c);
                State::Name
            }
            (State::Name, '=') => State::BeforeValue,
            (State::Name, '\n' | '\r') => {
                self.ignore();
                State::BeforeName
            }
            (State::Name, _) => {
                self.name.push(c);
                State::Name
            }
            (State::BeforeValue | State::Value, '\n' | '\r') => {
                self.finish();
                State::BeforeName
            }
            (State::BeforeValue, '\'') => State::SingleQuoted,
            (State::BeforeValue, '"') => State::DoubleQuoted,
            (State::BeforeValue, ' ' | '\t') => State::BeforeValue,
            (State::BeforeValue | State::Value, '\\') => {
                self.kept_bytes = self.value.len();
                State::Escape
            }
            (State::Value, ' ' | '\t') => {
                self.value.push(c);
                State::Value
            }
            // The line goes on.
            (State::Escape, '\n' | '\r') => State::Value,
            (State::BeforeValue | State::Value | State::Escape, _) => self.keep(c, State::Value),
            (State::SingleQuoted, '\'') | (State::DoubleQuoted, '"') => State::BeforeValue,
            (State::SingleQuoted, _) => self.keep(c, State::SingleQuoted),
            (State::DoubleQuoted, '\\') => State::DoubleQuotedEscape,
            (State::DoubleQuotedEscape, '\n') => State::DoubleQuoted,
            (State::DoubleQuotedEscape, '"' | '\\' | '`' | '$') | (State::DoubleQuoted, _) => {
                self.keep(c, State::DoubleQuoted)
            }
            (State::DoubleQuotedEscape, _) => {
                self.value.push('\\');
                self.keep(c, State::DoubleQuoted)
            }
            // Also after a backslash; systemd before 254 took the next line into the comment.
            (State::Comment, '\n' | '\r') => State::BeforeName,
            (State::Comment, _) => State::Comment,
        }
    }

    fn keep(&mut self, c: char, next: State) -> State {
        self.value.push(c);
        self.kept_bytes = self.value.len();
        next
    }

    fn finish(&mut self) {
        self.value.truncate(self.kept_bytes);
        self.kept_bytes = 0;
        let value = std::mem::take(&mut self.value);
        let name = self.name.trim_end_matches([' ', '\t']);
        if is_name(name) && !value.contains('\0') {
            self.found.settings.push((name.to_owned(), value));
            self.name.clear();
        } else {
            self.ignore();
        }
    }

    fn ignore(&mut self) {
        self.found.ignored_lines.push(self.first_line);
        self.name.clear();
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty() && name.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Vec<(String, String)> {
        parse(text).settings
    }

    /// The value of `A=<text>`, with a setting after it that must not be swallowed.
    fn value(text: &str) -> String {
        let found = settings(&format!("A={text}\nB=after\n"));
        assert_eq!(found.len(), 2, "{text:?}: {found:?}");
        assert_eq!(found[1], ("B".to_owned(), "after".to_owned()), "{text:?}");
        found[0].1.clone()
    }

    #[test]
    fn values_are_read_as_systemd_exec_5_says() {
        let table = [
            ("", ""),
            ("plain", "plain"),
            // No variable is expanded.
            ("ab$cd", "ab$cd"),
            ("${HOME}$(id)`id`", "${HOME}$(id)`id`"),
            // White space around a value is discarded, within it preserved; so are quotes in it.
            (" \t a  b\tc \t\r", "a  b\tc"),
            ("it's \"so\"", "it's \"so\""),
            ("a=b=c", "a=b=c"),
            // A comment has a line of its own.
            ("a # b ; c", "a # b ; c"),
            // Unquoted, a backslash preserves what follows.
            (r"a\\b", r"a\b"),
            (r"\a\$\'\#", "a$'#"),
            (r"a\ ", "a "),
            (r"\'a'", "'a'"),
            ("a\\\nb", "ab"),
            ("a \\\n  b ", "a   b"),
            ("\\\nb", "b"),
            // Within single quotes everything stands for itself.
            (r#"'a\n$b"`# '"#, r#"a\n$b"`# "#),
            (" 'a\nb' ", "a\nb"),
            ("'a\\\nb'", "a\\\nb"),
            ("''", ""),
            // Within double quotes a backslash preserves the characters that a shell would read.
            (r#""a\"b\\c\`d\$e""#, r#"a"b\c`d$e"#),
            (r#""a\nb\'$c""#, r#"a\nb\'$c"#),
            ("\"a\\\nb\"", "ab"),
            ("\t\" a\n b \" ", " a\n b "),
            // Parts side by side are one value.
            (r#""a "'b 'c d "#, "a b c d"),
            ("a\u{a0}ü\u{a0}", "a\u{a0}ü\u{a0}"),
        ];
        for (text, expected) in table {
            assert_eq!(value(text), expected, "{text:?}");
        }
    }

    #[test]
    fn comments_and_what_is_no_setting_are_ignored() {
        let text = "# A=1\n;B=2\n\n  \t# C=3 \\\nD=4\n\tE = 5\nF\nexport G=6\n1H=7\n=8\nI=9";
        let found = parse(text);
        let expected = [("D", "4"), ("E", "5"), ("I", "9")];
        assert_eq!(
            found.settings,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(found.ignored_lines, [7, 8, 9, 10]);
        assert_eq!(parse("A=\0\nB").ignored_lines, [1, 2]);
    }

    #[test]
    fn a_line_may_end_in_any_way_and_so_may_the_file() {
        let both = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())];
        for text in ["A=1\r\nB=2\r\n", "A=1\rB=2", "A=1\nB=2\\", "A=1\nB='2", "A=1\nB=\"2"] {
            assert_eq!(settings(text), both, "{text:?}");
        }
        for text in ["", "\n", "#", "\\", "=", "'"] {
            assert!(settings(text).is_empty(), "{text:?}");
        }
    }
}
