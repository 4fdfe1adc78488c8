//! Files of the repository, as git lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::facts::Facts;

/// Crates that are shipped, by directory.
pub const PRODUCT: [&str; 16] = [
    "webhook",
    "queue",
    "env-file",
    "process",
    "spill",
    "limiter",
    "delivery",
    "consumer",
    "trace",
    "request-receiver",
    "downstreamer",
    "kafka_producer",
    "archive",
    "archiver",
    "console",
    "spillway",
];

/// One Rust source file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path from the repository's root, such as `queue/src/lib.rs`.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// Counts and names, without tests.
    pub facts: Facts,
}

impl Source {
    /// Directory of the crate, such as `queue`.
    #[must_use]
    pub fn crate_name(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    /// Name of the module, such as `store::gate`; empty for the root of a crate.
    #[must_use]
    pub fn module(&self) -> String {
        let (_, inside) = self.path.split_once("/src/").unwrap_or_default();
        let name = inside.trim_end_matches(".rs").replace('/', "::");
        if matches!(&*name, "lib" | "main") { String::new() } else { name }
    }
}

/// Root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in it").to_owned()
}

/// Paths of all files that git tracks, or would add.
///
/// # Panics
///
/// If git can't be run.
#[must_use]
pub fn tracked() -> Vec<String> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(arguments).current_dir(repository()).output();
    let listed = listed.expect("git is missing; install it with: apt-get install git");
    assert!(listed.status.success(), "not a git repository: {}", repository().display());
    let listed = String::from_utf8(listed.stdout).expect("names are text");
    let is_there = |file: &&str| !file.is_empty() && repository().join(file).exists();
    listed.split('\0').filter(is_there).map(str::to_owned).collect()
}

/// Bytes of these files of the repository.
#[must_use]
pub fn bytes_of(files: &[String]) -> u64 {
    let size = |file: &String| repository().join(file).metadata().map_or(0, |about| about.len());
    files.iter().map(size).sum()
}

/// Files that are compiled for tests only.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/simulation")
}

/// Product sources under `CRATE/src` of the given crates, in the order of their paths.
///
/// # Panics
///
/// If a file can't be read or is not Rust.
#[must_use]
pub fn sources(crates: &[&str]) -> Vec<Source> {
    let is_wanted = |path: &String| {
        path.ends_with(".rs")
            && !is_test(path)
            && crates.iter().any(|name| path.starts_with(&format!("{name}/src/")))
    };
    let mut paths: Vec<String> = tracked().into_iter().filter(is_wanted).collect();
    paths.sort();
    let read = |path: String| {
        let text = fs::read_to_string(repository().join(&path)).expect("a source can be read");
        let facts = Facts::new(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        Source { path, text, facts }
    };
    paths.into_iter().map(read).collect()
}
