//! Check of request targets. Any path is passed on, except one that a backend might resolve to a
//! path other than the one written.
//!
//! A `.` or `..` segment is refused however it is spelt: `%2e` is a dot to most backends, and
//! `%2f`, `\` and `%5c` are separators to some. Everything else stays byte for byte, so the path is
//! never normalised here.

/// True if the path of `target` (the part before `?`) has a `.` or `..` segment, encoded or not.
pub fn has_dot_segment(target: &[u8]) -> bool {
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    if !path.iter().any(|byte| matches!(byte, b'.' | b'%' | b'\\')) {
        return false;
    }
    decode(path)
        .split(|byte| matches!(byte, b'/' | b'\\'))
        .any(|part| part == b"." || part == b"..")
}

/// Percent-decodes dots, slashes and backslashes only: nothing else can make a dot segment.
fn decode(path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        let escape = rest.get(..3).map(<[u8]>::to_ascii_lowercase);
        let (byte, after) = match escape.as_deref() {
            Some(b"%2e") => (b'.', &rest[3..]),
            Some(b"%2f") => (b'/', &rest[3..]),
            Some(b"%5c") => (b'\\', &rest[3..]),
            _ => (*first, after),
        };
        decoded.push(byte);
        rest = after;
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_segment_is_seen_however_it_is_spelt() {
        for target in [
            "/..",
            "/.",
            "/a/../b",
            "/a/./b",
            "/a/%2e%2e/b",
            "/%2E./x",
            "/.%2e",
            "/a%2f..%2fb",
            "/a\\..\\b",
            "/a%5C..",
            "/a/..?q",
        ] {
            assert!(has_dot_segment(target.as_bytes()), "{target}");
        }
    }

    #[test]
    fn odd_but_legal_targets_pass() {
        for target in [
            "/",
            "//",
            "/a.b",
            "/...",
            "/caf%C3%A9",
            "/x?",
            "/x?../..",
            "/%2",
            "/%",
            "/.well-known/a",
        ] {
            assert!(!has_dot_segment(target.as_bytes()), "{target}");
        }
    }
}
