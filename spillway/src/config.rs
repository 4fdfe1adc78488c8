//! `spillway config`: the settings of each process, as it would start with them now. Each process
//! prints its own (`--show-settings`). The console is a subcommand of this program.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::json;
use spillway_process::Checker;
use tokio::process::Command;

use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{line, printable, table};
use crate::programs::beside_us;

const CONSOLE: &str = "console";
const PROCESSES: [&str; 5] =
    ["request-receiver", "downstreamer", "kafka_producer", "archiver", CONSOLE];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,

    /// Files that each process reads itself, so that it knows what comes from there.
    #[arg(skip)]
    pub env_files: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the settings in force, each with its origin: environment, env file or default. Secrets
    /// are hidden. A process that runs has those of its start
    Show {
        /// Process to show; default: all that are installed
        #[arg(value_parser = PossibleValuesParser::new(PROCESSES))]
        process: Vec<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// A setting as its process prints it.
#[derive(Debug, PartialEq, Eq)]
struct ShownSetting {
    name: String,
    origin: String,
    value: String,
}

/// Runs `spillway config`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { action: Action::Show { process, output }, env_files } = arguments;
    let mut is_first = true;
    let mut warned = HashSet::new();
    for (name, program) in programs(process)? {
        let (settings, warnings) = ask(&name, &program, &env_files).await?;
        // All of them read the same files.
        for warning in warnings.lines() {
            if warned.insert(warning.to_owned()) {
                eprintln!("{warning}");
            }
        }
        if output.is_json() {
            settings.iter().try_for_each(|setting| line(setting.json(&name)))?;
            continue;
        }
        let gap = if is_first { "" } else { "\n" };
        is_first = false;
        let rows = settings.into_iter().map(ShownSetting::cells);
        line(format_args!("{gap}{name}\n\n{}", table(&["SETTING", "ORIGIN", "VALUE"], rows)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Names and paths of the named processes, else of all that are installed.
fn programs(named: Vec<String>) -> Result<Vec<(String, PathBuf)>, Failure> {
    let is_named = !named.is_empty();
    let names = if is_named { named } else { PROCESSES.map(str::to_owned).to_vec() };
    let mut found = Vec::new();
    for name in names {
        let program = beside_us(if name == CONSOLE { "spillway" } else { &name })?;
        match program.is_file() {
            true => found.push((name, program)),
            false if is_named => {
                return Err(Failure::Failed(format!("{} is missing", program.display())));
            }
            false => {}
        }
    }
    Ok(found)
}

/// Settings of a process, and its warnings about the files.
async fn ask(
    name: &str,
    program: &Path,
    env_files: &[PathBuf],
) -> Result<(Vec<ShownSetting>, String), Failure> {
    let mut command = Command::new(program);
    if name == CONSOLE {
        command.arg(CONSOLE);
    }
    command.arg("--show-settings").kill_on_drop(true);
    for file in env_files {
        command.arg("--env-file").arg(file);
    }
    let output = command.output().await;
    let output = output
        .map_err(|error| Failure::Failed(format!("cannot start {}: {error}", program.display())))?;
    let errors = printable(&output.stderr);
    if !output.status.success() {
        let mut checker = Checker::default();
        checker.mistake(name, errors.trim_end());
        return Ok(checker.finish((Vec::new(), String::new()))?);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok((text.lines().filter_map(ShownSetting::parse).collect(), errors))
}

impl ShownSetting {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        Some(Self { name: parts.next()?, origin: parts.next()?, value: parts.next()? })
    }

    fn json(&self, process: &str) -> serde_json::Value {
        let Self { name, origin, value } = self;
        let value = (origin != "not set").then_some(value);
        json!({ "process": process, "setting": name, "origin": origin, "value": value })
    }

    fn cells(self) -> [String; 3] {
        [self.name, self.origin, self.value]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_from_its_line() {
        let setting = ShownSetting::parse("MAX_BODY\tenv file\t16MiB").unwrap();
        let expected = json!({
            "process": "x", "setting": "MAX_BODY", "origin": "env file", "value": "16MiB",
        });
        assert_eq!(setting.json("x"), expected);
        let none = ShownSetting::parse("SPILL_DIR\tnot set\t").unwrap();
        assert!(none.json("x")["value"].is_null());
        assert_eq!(ShownSetting::parse("nonsense"), None);
    }
}
