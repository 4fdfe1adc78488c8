//! Runs a process from the command line to its exit: parse, check, log, run, exit.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tokio_util::sync::CancellationToken;

use crate::process_args::ProcessArgs;
use crate::setting_names::meant_by;
use crate::settings::{Checker, Mistakes};
use crate::{exit, generate, show_settings, shutdown, telemetry};

/// Settings as given on the command line and in the environment.
pub trait ServerArgs: Parser {
    /// The settings after the check.
    type Checked: Send + 'static;

    /// Returns the settings that every process has.
    fn common(&self) -> &ProcessArgs;

    /// Checks every setting and records each mistake.
    fn check(&self, checker: &mut Checker) -> Self::Checked;

    /// Returns the threads that run the tasks of the process.
    fn threads(_: &Self::Checked) -> TaskThreads {
        TaskThreads::Cores
    }
}

/// Cores up to which one thread has as large a part of a cell's machine as its tasks can use.
const FEW_CORES: usize = 4;

/// Threads that run the tasks of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskThreads {
    /// One for each core.
    Cores,
    /// The main thread alone: no task wakes another thread.
    One,
    /// One on a machine of few cores, otherwise one for each core.
    Auto,
}

impl TaskThreads {
    fn are_many(self) -> bool {
        match self {
            Self::Cores => true,
            Self::One => false,
            Self::Auto => {
                std::thread::available_parallelism().is_ok_and(|cores| cores.get() > FEW_CORES)
            }
        }
    }
}

/// Redis or Kafka was absent at start, and the settings require an exit then.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// A setting that turned out to be wrong when it was used, such as a directory that is in use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(pub String);

/// Runs a process from its settings to its exit code.
pub fn start<W, R, F>(run: R) -> ExitCode
where
    W: ServerArgs,
    R: FnOnce(W::Checked, CancellationToken) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    if let Some(code) = generate::on_demand(W::command(), generate::ADMINISTRATION) {
        return code;
    }
    let inherited = show_settings::inherited();
    let written = match parse::<W>() {
        Ok(written) => written,
        Err(code) => return code,
    };
    if written.common().show_settings {
        return show_settings::print(W::command(), &inherited);
    }
    let checked = match check(&written) {
        Ok(checked) => checked,
        Err(mistakes) => {
            print_error(&mistakes);
            return ExitCode::from(exit::CONFIG);
        }
    };
    if written.common().check {
        println!("the settings are good");
        return ExitCode::SUCCESS;
    }
    telemetry::init(written.common().check(&mut Checker::default()).log_format);
    let threads = W::threads(&checked);
    match block_on(run, checked, threads) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Unavailable>() => {
            print_error(&format_args!("{error:#}"));
            ExitCode::from(exit::UNAVAILABLE)
        }
        Err(error) if error.is::<Misconfigured>() => {
            print_error(&format_args!("{error:#}"));
            ExitCode::from(exit::CONFIG)
        }
        Err(error) => {
            print_error(&format_args!("{error:#}"));
            ExitCode::from(exit::FAILED)
        }
    }
}

/// Writes to standard error. `eprintln!` panics if standard error cannot be written; this keeps the
/// exit code.
fn print_error(error: &dyn Display) {
    writeln!(std::io::stderr(), "{error}").ok();
}

/// Reads the files that `--env-file` names, then flags and environment. The error is the exit code,
/// after the problem was printed.
fn parse<W: ServerArgs>() -> Result<W, ExitCode> {
    let files = env_files(std::env::args_os(), None);
    if let Err(problem) = read_env_files(&files) {
        print_error(&format_args!("--env-file: {problem}"));
        return Err(ExitCode::from(exit::CONFIG));
    }
    parse_flags()
}

/// Parses flags and environment. The error is the exit code, after the message was printed.
///
/// # Errors
/// Also after `--help` and `--version`, with the code for success.
pub fn parse_flags<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let code = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
            _ => exit::USAGE,
        };
        // If standard output is closed, nothing can be done.
        error.print().ok();
        ExitCode::from(code)
    })
}

/// Sets the variables of the files that the environment does not hold yet, and warns of mistyped
/// settings. A later file overrides an earlier one, as with systemd. Call it before any other thread
/// runs.
///
/// # Errors
/// A sentence that names the file, not its content.
pub fn read_env_files(files: &[PathBuf]) -> Result<(), String> {
    // A name that is set stays, so the last file comes first.
    files.iter().rev().try_for_each(|file| read_env_file(file))
}

fn read_env_file(file: &Path) -> Result<(), String> {
    let loaded = spillway_env_file::load(file)?;
    let file = file.display();
    for line in loaded.ignored_lines {
        // Only the number is printed: the line may hold a secret.
        print_error(&format_args!(
            "{file}, line {line}: not of the form KEY=value; ignored, as systemd does"
        ));
    }
    for name in loaded.names {
        if let Some(meant) = meant_by(&name) {
            print_error(&format_args!("WARN {file}: {name} is no setting; did you mean {meant}?"));
        }
    }
    Ok(())
}

fn check<W: ServerArgs>(written: &W) -> Result<W::Checked, Mistakes> {
    let mut checker = Checker::default();
    let checked = written.check(&mut checker);
    checker.finish(checked)
}

fn block_on<C, R, F>(run: R, checked: C, threads: TaskThreads) -> anyhow::Result<()>
where
    R: FnOnce(C, CancellationToken) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    let mut builder = if threads.are_many() {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build()?;
    let ended = runtime.block_on(async {
        let shutdown = shutdown::on_signal()?;
        run(checked, shutdown).await
    });
    // Tasks that still run had their time. Waiting for them would only delay the exit.
    runtime.shutdown_background();
    ended
}

/// Returns the values of `--env-file`, and of its short form, in their order. They are needed before
/// the flags are parsed.
pub fn env_files(
    mut arguments: impl Iterator<Item = OsString>,
    short: Option<&str>,
) -> Vec<PathBuf> {
    let mut files = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            break;
        }
        if argument == "--env-file" || short.is_some_and(|short| argument == short) {
            files.extend(arguments.next().map(PathBuf::from));
            continue;
        }
        let bytes = argument.as_bytes();
        let after_short = || {
            let value = bytes.strip_prefix(short?.as_bytes())?;
            Some(value.strip_prefix(b"=").unwrap_or(value))
        };
        let value = bytes.strip_prefix(b"--env-file=").or_else(after_short);
        files.extend(value.map(|file| PathBuf::from(OsStr::from_bytes(file))));
    }
    files
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn env_files_are_found_before_the_flags_are_parsed() {
        let found = |list: &[&str]| env_files(list.iter().map(OsString::from), Some("-e"));
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(found(&["x", "--env-file", "a"]), paths(&["a"]));
        assert_eq!(found(&["x", "--env-file=b", "--c"]), paths(&["b"]));
        assert_eq!(
            found(&["x", "-e", "a", "-y", "--env-file", "b", "-ec", "-e=d"]),
            paths(&["a", "b", "c", "d"])
        );
        assert_eq!(found(&["x", "--", "--env-file", "a"]), paths(&[]));
        assert_eq!(found(&["x"]), paths(&[]));
        // Without a short form, there is none.
        assert_eq!(env_files(["-e", "a"].map(OsString::from).into_iter(), None), paths(&[]));
        // An argument that is not UTF-8 must not stop the search.
        let bytes = OsString::from_vec(b"\xff".to_vec());
        assert_eq!(env_files([bytes, "--env-file=a".into()].into_iter(), None), paths(&["a"]));
    }

    #[test]
    fn a_later_env_file_overrides_an_earlier_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = [
            file("one", "SPILLWAY_TEST_FIRST=one\nSPILLWAY_TEST_BOTH=one\n"),
            file("two", "SPILLWAY_TEST_BOTH=two\n"),
        ];
        read_env_files(&files).unwrap();
        assert_eq!(std::env::var("SPILLWAY_TEST_FIRST").unwrap(), "one");
        assert_eq!(std::env::var("SPILLWAY_TEST_BOTH").unwrap(), "two");
        let absent = [directory.path().join("absent"), files[1].clone()];
        assert!(read_env_files(&absent).unwrap_err().contains("absent"));
    }
}
