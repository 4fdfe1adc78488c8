//! No type of the core grows beyond what one reads at a glance.

use std::fs;
use std::path::Path;

const FIELDS_MAX: usize = 12;

/// Names of the structs in a source text with more fields than that, and how many they have.
fn large(source: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let Some((_, name)) = line.split_once("struct ").filter(|_| line.ends_with('{')) else {
            continue;
        };
        let fields = lines.by_ref().take_while(|line| *line != "}").filter(|line| {
            let is_comment = line.trim_start().starts_with(['/', '#']);
            // One level deep: a field, and not the rest of its type.
            line.starts_with("    ")
                && !line.starts_with("     ")
                && !is_comment
                && line.contains(": ")
        });
        let count = fields.count();
        if count > FIELDS_MAX {
            found.push((name.to_owned(), count));
        }
    }
    found
}

/// Checks all sources in a directory; returns how many there are.
fn check(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).expect("it can be listed");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    let checked = paths.map(|path| {
        if path.is_dir() {
            return check(&path);
        }
        let source = fs::read_to_string(&path).expect("it can be read");
        assert_eq!(large(&source), [], "{}", path.display());
        1
    });
    checked.sum()
}

#[test]
fn no_struct_of_the_core_has_more_than_twelve_fields() {
    let files = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(files > 30, "{files}");
}

#[test]
fn thirteen_fields_are_seen() {
    let fields: String =
        (0..13).map(|number| format!("    /// One.\n    a{number}: u8,\n")).collect();
    assert_eq!(large(&format!("pub struct Large {{\n{fields}}}\n")), [("Large {".to_owned(), 13)]);
}
