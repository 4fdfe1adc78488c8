//! A file of settings, read as systemd reads `EnvironmentFile=`, into this process's environment.
//!
//! One file then means the same to a unit and to `--env-file`: nothing is expanded, and quotes,
//! backslashes and comments are those of systemd.exec(5).

mod parse;

use std::path::Path;

pub use parse::{parse, EnvFile};

/// Sets what the file sets and the environment does not yet. Returns the numbers of the lines that were
/// ignored because they begin neither a setting nor a comment.
///
/// Call it before any thread runs: reading the environment meanwhile would be a race.
///
/// # Errors
/// A sentence that names the file, not its content.
pub fn load(file: &Path) -> Result<Vec<usize>, String> {
    let read = |error| format!("cannot read {}: {error}", file.display());
    let text = String::from_utf8(std::fs::read(file).map_err(read)?)
        .map_err(|_| format!("cannot read {}: it is not UTF-8", file.display()))?;
    let EnvFile { settings, ignored_lines } = parse(&text);
    let is_missing = |name: &str| std::env::var_os(name).is_none();
    // The last one counts: whoever comes first in this order is no longer missing.
    for (name, value) in settings.iter().rev().filter(|(name, _)| is_missing(name)) {
        std::env::set_var(name, value);
    }
    Ok(ignored_lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_sets_what_the_environment_does_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text =
            "SPILLWAY_TEST_NEW=a\nSPILLWAY_TEST_OLD=file\nno setting\nSPILLWAY_TEST_NEW=ab$cd\n";
        std::fs::write(file.path(), text).unwrap();
        std::env::set_var("SPILLWAY_TEST_OLD", "environment");
        assert_eq!(load(file.path()), Ok(vec![3]));
        assert_eq!(std::env::var("SPILLWAY_TEST_OLD").unwrap(), "environment");
        assert_eq!(std::env::var("SPILLWAY_TEST_NEW").unwrap(), "ab$cd");
    }

    #[test]
    fn a_file_that_can_not_be_read_is_named_and_not_repeated() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"SECRET=hush\xff\n").unwrap();
        let told = load(file.path()).unwrap_err();
        assert!(told.contains("UTF-8") && !told.contains("hush"), "{told}");
        assert!(load(Path::new("/nonexistent")).unwrap_err().contains("/nonexistent"));
    }
}
