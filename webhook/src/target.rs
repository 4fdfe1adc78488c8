//! Check of request targets, and patterns of their paths. Any path is passed on, except one that a
//! backend might resolve to a path other than the one written.
//!
//! A `.` or `..` segment is refused however it is spelt: `%2e` is a dot to most backends, and
//! `%2f`, `\` and `%5c` are separators to some. Everything else stays byte for byte, so the path is
//! never normalised here.

/// Path of a target: the part before `?`.
pub fn path_of(target: &[u8]) -> &[u8] {
    target.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// True for a path such as `/hooks`, or for the pattern of all paths with a prefix, such as
/// `/hooks/*`.
pub fn is_path_pattern(text: &str) -> bool {
    let path = text.strip_suffix('*').unwrap_or(text);
    path.starts_with('/') && !path.contains(['*', '?', '#', ' '])
}

/// True if `pattern` matches `path`.
pub fn is_path_match(pattern: &str, path: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix.as_bytes()),
        None => path == pattern.as_bytes(),
    }
}

/// True if the path of `target` has a `.` or `..` segment, encoded or not.
pub fn has_dot_segment(target: &[u8]) -> bool {
    let path = path_of(target);
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
    fn a_pattern_means_a_path_or_a_prefix() {
        assert!(is_path_match("/hooks", b"/hooks") && !is_path_match("/hooks", b"/hooks/"));
        assert!(is_path_match("/hooks/*", b"/hooks/a") && !is_path_match("/hooks/*", b"/hooks"));
        assert!(is_path_match("/*", b"/"));
        assert_eq!(path_of(b"/hooks?shop=1?2"), b"/hooks");
        for good in ["/", "/*", "/hooks", "/hooks/*", "/a*"] {
            assert!(is_path_pattern(good), "{good}");
        }
        for bad in ["", "*", "hooks", "/a*/b", "/a?b", "/a#b", "/a b", "/**"] {
            assert!(!is_path_pattern(bad), "{bad}");
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
