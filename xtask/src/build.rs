//! Builds the test binaries, and learns from cargo where they are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// A program with tests, or those of one module of the stories' program.
#[derive(Debug, Clone)]
pub(crate) struct TestBinary {
    /// Name of the file or crate that holds the tests.
    pub(crate) name: String,
    /// Directory of its crate, in which cargo would run it.
    pub(crate) directory: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// Full names of the tests to run. All, if none is named.
    pub(crate) tests: Vec<String>,
}

/// Resources that a test binary needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Whole systems, which wait most of the time: the crate `stories`.
    Story,
    /// Only processor time, whenever there is some: simulations in virtual time, and the look at
    /// every file.
    Simulation,
    /// A core: unit tests and the like.
    Other,
}

/// A line of `cargo test --message-format json`.
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all programs and all tests of the workspace. Cargo's progress and errors appear on stderr.
///
/// # Errors
///
/// Returns a message if cargo or the stories' program cannot be started, or fails.
pub(crate) fn test_binaries() -> Result<Vec<TestBinary>, String> {
    let output = cargo_build()?;
    let lines = String::from_utf8_lossy(&output);
    let mut binaries = Vec::new();
    for binary in lines.lines().filter_map(test_binary) {
        if binary.kind == Kind::Story {
            binaries.extend(modules(&binary, &list(&binary)?));
        } else {
            binaries.push(binary);
        }
    }
    binaries.sort_by_key(|one| (turn(&one.name), one.name.clone()));
    Ok(binaries)
}

/// Lists the tests of a program, a line each, as the test harness does.
fn list(binary: &TestBinary) -> Result<String, String> {
    let output = Command::new(&binary.path)
        .args(["--list", "--format", "terse"])
        .output()
        .map_err(|error| format!("cannot start {}: {error}", binary.path.display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{} --list: {}", binary.path.display(), output.status))
    }
}

/// Parts of the stories' program that run as programs of their own: its modules.
fn modules(binary: &TestBinary, list: &str) -> Vec<TestBinary> {
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let (module, _) = test.split_once("::").unwrap_or(("main", test));
        modules.entry(module).or_default().push(test.to_owned());
    }
    let module =
        |(name, tests): (&str, _)| TestBinary { name: name.to_owned(), tests, ..binary.clone() };
    modules.into_iter().map(module).collect()
}

/// Builds programs and tests by one command: with several, cargo would build what they depend on once
/// for each set of features. Returns what it prints on stdout.
fn cargo_build() -> Result<Vec<u8>, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args(["build", "--locked", "--workspace", "--bins", "--tests", "--examples"])
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("cargo build: {}", output.status))
    }
}

/// Long binaries come first, and those that need the machine for themselves last, so that cores are
/// seldom idle.
fn turn(name: &str) -> u8 {
    match name {
        "console_browser" | "console_audit" | "console_cancel" | "retry_time" | "lanes"
        | "spill" | "kafka_faults" | "in_flight" | "chaos" => 0,
        "adaptive" | "big_lanes" | "fairness" | "full" | "verbs" => 2,
        _ => 1,
    }
}

fn test_binary(line: &str) -> Option<TestBinary> {
    let message: Message = serde_json::from_str(line).ok()?;
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let directory = message.manifest_path?.parent()?.to_owned();
    let target = message.target?;
    let is_test = target.kind == ["test"];
    let kind = match directory.file_name()?.to_str()? {
        "stories" if is_test => Kind::Story,
        "delivery" | "simulator" | "tidy" if is_test => Kind::Simulation,
        _ => Kind::Other,
    };
    let path = message.executable?;
    Some(TestBinary { name: target.name, path, directory, kind, tests: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn line(crate_name: &str, kind: &str, is_test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/{crate_name}/Cargo.toml",
            "target":{{"name":"lanes","kind":["{kind}"]}},"profile":{{"test":{is_test}}},
            "executable":"/w/target/debug/deps/lanes-1"}}"#
        )
        .replace('\n', " ")
    }

    #[test]
    fn modules_of_the_stories_run_by_themselves_with_each_test_named_in_full() {
        let whole = test_binary(&line("stories", "test", true)).expect("a test binary");
        let list = "big_lanes::one: test\nlanes::deep::one: test\nlanes::two: test\nmain: bench\n";
        let modules = modules(&whole, list);
        let names: Vec<_> =
            modules.iter().map(|one| (one.name.as_str(), one.tests.len())).collect();
        assert_eq!(names, [("big_lanes", 1), ("lanes", 2)]);
        assert_eq!(modules[1].tests, ["lanes::deep::one", "lanes::two"]);
    }

    #[test]
    fn kinds_are_told_apart_and_programs_left_out() {
        let kind = |crate_name, kind| {
            test_binary(&line(crate_name, kind, true)).expect("a test binary").kind
        };
        let story = test_binary(&line("stories", "test", true)).expect("a test binary");
        assert_eq!((story.name.as_str(), story.kind), ("lanes", Kind::Story));
        assert_eq!(story.directory, Path::new("/w/stories"));
        assert_eq!(kind("stories", "lib"), Kind::Other);
        assert_eq!(kind("delivery", "lib"), Kind::Other);
        assert_eq!(kind("delivery", "test"), Kind::Simulation);
        assert_eq!(kind("tidy", "test"), Kind::Simulation);
        assert_eq!(kind("queue", "test"), Kind::Other);
        assert!(test_binary(&line("downstreamer", "bin", false)).is_none());
        assert!(test_binary(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
