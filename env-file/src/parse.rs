//! Parser of the file format: a state machine over characters. Source: systemd.exec(5),
//! EnvironmentFile=.

/// Parsed content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvFile {
    /// Names and values, in the order of the file. If a name occurs twice, the later value counts.
    pub settings: Vec<(String, String)>,
    /// Numbers of the lines that begin neither a setting nor a comment. systemd also ignores them.
    pub ignored_lines: Vec<usize>,
}

#[derive(Clone, Copy, Default)]
enum ParserState {
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
    state: ParserState,
    name: String,
    value: String,
    /// Length of the value without the white space at its end, which is discarded.
    kept_bytes: usize,
    lines_read: usize,
    first_line: usize,
    found: EnvFile,
}

/// Parses settings. Never fails: other lines are ignored, and their numbers are returned.
pub fn parse(text: &str) -> EnvFile {
    let mut parser = Parser::default();
    for c in text.chars() {
        parser.state = parser.step(c);
        parser.lines_read += usize::from(c == '\n');
    }
    match parser.state {
        ParserState::BeforeName | ParserState::Comment => {}
        ParserState::Name => parser.ignore(),
        // A quote that is still open ends with the file.
        _ => parser.finish(),
    }
    parser.found
}

impl Parser {
    fn step(&mut self, c: char) -> ParserState {
        match (self.state, c) {
            (ParserState::BeforeName, '#' | ';') => ParserState::Comment,
            (ParserState::BeforeName, ' ' | '\t' | '\n' | '\r') => ParserState::BeforeName,
            (ParserState::BeforeName, _) => {
                self.first_line = self.lines_read + 1;
                self.name.push(c);
                ParserState::Name
            }
            (ParserState::Name, '=') => ParserState::BeforeValue,
            (ParserState::Name, '\n' | '\r') => {
                self.ignore();
                ParserState::BeforeName
            }
            (ParserState::Name, _) => {
                self.name.push(c);
                ParserState::Name
            }
            (ParserState::BeforeValue | ParserState::Value, '\n' | '\r') => {
                self.finish();
                ParserState::BeforeName
            }
            (ParserState::BeforeValue, '\'') => ParserState::SingleQuoted,
            (ParserState::BeforeValue, '"') => ParserState::DoubleQuoted,
            (ParserState::BeforeValue, ' ' | '\t') => ParserState::BeforeValue,
            (ParserState::BeforeValue | ParserState::Value, '\\') => {
                self.kept_bytes = self.value.len();
                ParserState::Escape
            }
            (ParserState::Value, ' ' | '\t') => {
                self.value.push(c);
                ParserState::Value
            }
            // The line continues.
            (ParserState::Escape, '\n' | '\r') => ParserState::Value,
            (ParserState::BeforeValue | ParserState::Value | ParserState::Escape, _) => {
                self.keep(c, ParserState::Value)
            }
            (ParserState::SingleQuoted, '\'') | (ParserState::DoubleQuoted, '"') => {
                ParserState::BeforeValue
            }
            (ParserState::SingleQuoted, _) => self.keep(c, ParserState::SingleQuoted),
            (ParserState::DoubleQuoted, '\\') => ParserState::DoubleQuotedEscape,
            (ParserState::DoubleQuotedEscape, '\n') => ParserState::DoubleQuoted,
            (ParserState::DoubleQuotedEscape, '"' | '\\' | '`' | '$')
            | (ParserState::DoubleQuoted, _) => self.keep(c, ParserState::DoubleQuoted),
            (ParserState::DoubleQuotedEscape, _) => {
                self.value.push('\\');
                self.keep(c, ParserState::DoubleQuoted)
            }
            // A comment also ends after a backslash. systemd before 254 took the next line as part
            // of it.
            (ParserState::Comment, '\n' | '\r') => ParserState::BeforeName,
            (ParserState::Comment, _) => ParserState::Comment,
        }
    }

    fn keep(&mut self, c: char, next: ParserState) -> ParserState {
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

    /// Returns the value of `A=<text>`, and checks that a setting after it is kept.
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
            // White space around a value is discarded. Within it, white space and quotes are kept.
            (" \t a  b\tc \t\r", "a  b\tc"),
            ("it's \"so\"", "it's \"so\""),
            ("a=b=c", "a=b=c"),
            // A comment needs its own line.
            ("a # b ; c", "a # b ; c"),
            // Unquoted, a backslash preserves what follows.
            (r"a\\b", r"a\b"),
            (r"\a\$\'\#", "a$'#"),
            (r"a\ ", "a "),
            (r"\'a'", "'a'"),
            ("a\\\nb", "ab"),
            ("a \\\n  b ", "a   b"),
            ("\\\nb", "b"),
            // Within single quotes, every character stands for itself.
            (r#"'a\n$b"`# '"#, r#"a\n$b"`# "#),
            (" 'a\nb' ", "a\nb"),
            ("'a\\\nb'", "a\\\nb"),
            ("''", ""),
            // Within double quotes, a backslash escapes only the characters that are special to a
            // shell.
            (r#""a\"b\\c\`d\$e""#, r#"a"b\c`d$e"#),
            (r#""a\nb\'$c""#, r#"a\nb\'$c"#),
            ("\"a\\\nb\"", "ab"),
            ("\t\" a\n b \" ", " a\n b "),
            // Adjacent parts are one value.
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
