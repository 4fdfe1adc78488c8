//! Results pages: figures as JSON and a page of Markdown, in the directory named by `RESULTS`.

use std::fs;

use serde_json::Value;

use crate::binaries::repository;

/// Writes `value` under `key` into `<name>.json` in the directory named by `RESULTS`, if it is set.
/// Other keys keep their values.
pub fn write(name: &str, key: &str, value: Value) {
    let Some(directory) = std::env::var_os("RESULTS") else { return };
    let path = repository().join(directory).join(format!("{name}.json"));
    let before = fs::read_to_string(&path).unwrap_or_default();
    let mut all: Value = serde_json::from_str(&before).unwrap_or_else(|_| serde_json::json!({}));
    all[key] = value;
    let json = serde_json::to_string_pretty(&all).expect("numbers and text");
    fs::write(&path, json + "\n").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
