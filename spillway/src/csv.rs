//! Fields of comma-separated values (RFC 4180).

/// A text as one field. Names come from headers that no signature covers: a spreadsheet must not take one for a formula.
pub(crate) fn field(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    match text.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_stays_one_and_is_no_formula() {
        for (text, expected) in [
            ("dead replay", "dead replay"),
            ("a,b", "\"a,b\""),
            ("a\"b\nc", "\"a\"\"b\nc\""),
            ("=1+1", "'=1+1"),
            ("", ""),
        ] {
            assert_eq!(field(text), expected, "{text:?}");
        }
    }
}
