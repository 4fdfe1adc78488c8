//! Version of all binaries: that of the workspace, and the commit.

use std::sync::LazyLock;

/// Version of the workspace.
pub const PACKAGE: &str = env!("CARGO_PKG_VERSION");

/// Commit that was built, as `SPILLWAY_REVISION` named it then.
pub const REVISION: &str = match option_env!("SPILLWAY_REVISION") {
    Some(revision) if !revision.is_empty() => revision,
    _ => "unknown",
};

/// Version and commit, such as `0.1.0 (abcdef123456)`.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{PACKAGE} ({REVISION})"));
    &TEXT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_its_commit() {
        assert!(version().starts_with(PACKAGE), "{}", version());
        assert!(version().ends_with(&format!(" ({REVISION})")), "{}", version());
        assert!(!version().ends_with("()"), "{}", version());
    }
}
