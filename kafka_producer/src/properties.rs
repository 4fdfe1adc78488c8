//! Settings in Java's properties format, as `java.util.Properties.load` reads it: `key=value`,
//! `key: value` or `key value`. `#` and `!` begin a comment. A `\` at the end of a line continues
//! it with the next. `\t`, `\n`, `\r`, `\f` and `\u` with four hexadecimal digits are escapes.

/// Keys and values in the order of the file.
pub(crate) type Properties = Vec<(String, String)>;

/// Parses the whole text of a file.
///
/// # Errors
/// The number of the first line that is not valid. Never its content, which may be a secret.
pub(crate) fn parse(text: &str) -> Result<Properties, usize> {
    let mut properties = Properties::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let first = line.trim_start();
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = first.to_owned();
        while ends_in_continuation(&logical) {
            logical.pop();
            let Some((_, next)) = lines.next() else { break };
            logical.push_str(next.trim_start());
        }
        properties.push(pair(&logical).ok_or(number + 1)?);
    }
    Ok(properties)
}

/// Returns true if the number of backslashes at the end is odd: then the last one is not escaped
/// itself.
fn ends_in_continuation(line: &str) -> bool {
    let backslashes = line.bytes().rev().take_while(|byte| *byte == b'\\').count();
    backslashes % 2 == 1
}

fn pair(line: &str) -> Option<(String, String)> {
    let end = key_end(line);
    let rest = line[end..].trim_start();
    let value = rest.strip_prefix(['=', ':']).map_or(rest, str::trim_start);
    Some((unescape(&line[..end])?, unescape(value.trim_end())?)).filter(|(key, _)| !key.is_empty())
}

/// Index of the end of the key: the first white space, `=` or `:` that is not escaped.
fn key_end(line: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in line.char_indices() {
        if !is_escaped && (c.is_whitespace() || matches!(c, '=' | ':')) {
            return at;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    line.len()
}

fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        plain.push(match chars.next()? {
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'f' => '\u{c}',
            'u' => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4)?;
                char::from_u32(code)?
            }
            other => other,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn check(text: &str, expected: &[(&str, &str)]) {
        let parsed = parse(text).unwrap();
        let pairs: Vec<_> = parsed.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, expected, "{text:?}");
    }

    #[test]
    fn the_forms_of_java_are_read() {
        check("a=1\nb: 2\n c   3 \nd", &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "")]);
        check("# x=1\n! y=2\n\n  \nz=#3", &[("z", "#3")]);
        check("a=1,\\\n   2,\\\n   3\nb=4", &[("a", "1,2,3"), ("b", "4")]);
        check("path=C:\\\\temp\\\\\nb=1", &[("path", "C:\\temp\\"), ("b", "1")]);
        check("k\\=e\\:y=v=a:l", &[("k=e:y", "v=a:l")]);
        check("t=\\t\\u00e9\\n", &[("t", "\té\n")]);
        check("a = =b\r\n", &[("a", "=b")]);
    }

    #[test]
    fn what_is_not_is_told_by_its_line() {
        assert_eq!(parse("a=1\n\n=2"), Err(3));
        assert_eq!(parse("a=\\u00g0"), Err(1));
        assert_eq!(parse("a=\\u12"), Err(1));
        assert_eq!(parse("a=x\\"), Ok(vec![("a".to_owned(), "x".to_owned())]));
    }
}
