//! Runs a process from the command line to its exit: parse, check, log, run, exit.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
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
    match block_on(run, checked) {
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

/// Reads the file that `--env-file` names, then flags and environment. The error is the exit code,
/// after the problem was printed.
fn parse<W: ServerArgs>() -> Result<W, ExitCode> {
    if let Some(file) = env_file(std::env::args_os())
        && let Err(problem) = read_env_file(Path::new(&file))
    {
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

/// Sets the variables of the file that the environment does not hold yet, and warns of mistyped
/// settings. Call it before any other thread runs.
///
/// # Errors
/// A sentence that names the file, not its content.
pub fn read_env_file(file: &Path) -> Result<(), String> {
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

fn block_on<C, R, F>(run: R, checked: C) -> anyhow::Result<()>
where
    R: FnOnce(C, CancellationToken) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let shutdown = shutdown::on_signal()?;
        run(checked, shutdown).await
    });
    // Tasks that still run had their time. Waiting for them would only delay the exit.
    runtime.shutdown_background();
    ended
}

/// Returns the value of `--env-file`, which is needed before the flags are parsed.
fn env_file(mut arguments: impl Iterator<Item = OsString>) -> Option<OsString> {
    while let Some(argument) = arguments.next() {
        if argument == "--env-file" {
            return arguments.next();
        }
        if let Some(file) = argument.as_bytes().strip_prefix(b"--env-file=") {
            return Some(OsStr::from_bytes(file).to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_env_file_is_found_before_the_flags_are_parsed() {
        let found = |list: &[&str]| env_file(list.iter().map(OsString::from));
        assert_eq!(found(&["x", "--env-file", "a"]), Some("a".into()));
        assert_eq!(found(&["x", "--env-file=b", "--c"]), Some("b".into()));
        assert_eq!(found(&["x"]), None);
        // An argument that is not UTF-8 must not stop the search.
        let bytes = OsString::from_vec(b"\xff".to_vec());
        assert_eq!(env_file([bytes, "--env-file=a".into()].into_iter()), Some("a".into()));
    }
}
