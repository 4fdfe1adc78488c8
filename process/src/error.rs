//! Text of an error in a log line or a reason: with its causes, and never with a password.

use std::error::Error;

/// Joins `error` and its sources by `: `. A source that the text before it already ends with, as many
/// wrappers repeat theirs, is left out. User and password are removed from every URL in it.
pub fn chain(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !told.ends_with(&text) {
            told.push_str(": ");
            told.push_str(&text);
        }
        source = cause.source();
    }
    without_credentials(&told)
}

/// Removes user and password from every URL in `text`.
pub(crate) fn without_credentials(text: &str) -> String {
    let mut parts = text.split("://");
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        told.push_str("://");
        // A password may hold any character except white space. The last @ ends it.
        let url_end = part.find(char::is_whitespace).unwrap_or(part.len());
        let host = part[..url_end].rfind('@').map_or(0, |at| at + 1);
        told.push_str(&part[host..]);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("at a: {0}")]
    struct Repeating(#[source] std::io::Error);

    #[test]
    fn causes_are_told_and_passwords_are_not() {
        let refused = Outer(std::io::Error::other("NOAUTH"));
        assert_eq!(chain(&refused), "outer: NOAUTH");
        let repeated = Outer(std::io::Error::other(Repeating(std::io::Error::other("gone"))));
        assert_eq!(chain(&repeated), "outer: at a: gone", "and not twice");
        let url = std::io::Error::other("at redis://me:hu@s:/h@host:1/0, and unix:///x a@b");
        assert_eq!(chain(&url), "at redis://host:1/0, and unix:///x a@b");
    }
}
