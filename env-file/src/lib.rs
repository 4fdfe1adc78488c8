//! Loads a file of settings into this process's environment, with the rules of systemd's
//! `EnvironmentFile=`.
//!
//! So a file means the same to a unit and to `--env-file`. Nothing is expanded. Quotes, backslashes
//! and comments are those of systemd.exec(5).

mod parse;

use std::path::Path;

pub use parse::{parse, EnvFile};

/// Names in a file, and its lines that were ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedFile {
    /// Names of the variables, in the order of the file.
    pub names: Vec<String>,
    /// Numbers of the lines that begin neither a setting nor a comment.
    pub ignored_lines: Vec<usize>,
}

/// Sets the variables of the file that the environment does not hold yet.
///
/// Call it before any other thread runs: a thread that reads the environment meanwhile would be a
/// race.
///
/// # Errors
/// A sentence that names the file, not its content.
pub fn load(file: &Path) -> Result<LoadedFile, String> {
    let read = |error| format!("cannot read {}: {error}", file.display());
    let text = String::from_utf8(std::fs::read(file).map_err(read)?)
        .map_err(|_| format!("cannot read {}: it is not UTF-8", file.display()))?;
    let EnvFile { settings, ignored_lines } = parse(&text);
    let is_missing = |name: &str| std::env::var_os(name).is_none();
    // The last setting of a name counts: in this order it comes first, and the name is set then.
    for (name, value) in settings.iter().rev().filter(|(name, _)| is_missing(name)) {
        std::env::set_var(name, value);
    }
    let names = settings.into_iter().map(|(name, _)| name).collect();
    Ok(LoadedFile { names, ignored_lines })
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
        let loaded = load(file.path()).unwrap();
        assert_eq!(loaded.ignored_lines, [3]);
        assert_eq!(loaded.names, ["SPILLWAY_TEST_NEW", "SPILLWAY_TEST_OLD", "SPILLWAY_TEST_NEW"]);
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
