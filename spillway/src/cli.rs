//! The command line: which subcommand, and where settings come from (flag, environment, env file).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use spillway_service::start::{parse_flags, read_env_file};
use spillway_service::{exit, generate};

use crate::{dead, dev, doctor, drains, explain, pause, queue, send, status, top};

/// Where `dev` finds settings that are neither flags nor in the environment.
const DEV_ENV_FILE: &str = ".env";

/// Spillway's command for operators: look into the queue, mend what was given up, try a cell.
#[derive(Debug, Parser)]
#[command(name = "spillway", version, max_term_width = 100)]
struct Cli {
    /// Read settings from this file where flags and the environment set none: KEY=value lines, as
    /// systemd's EnvironmentFile= reads them
    #[arg(long, global = true)]
    env_file: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Post signed webhooks, as Shopify would
    Send(send::Arguments),
    /// Show the queue, who drains it and what was given up
    Status(status::Arguments),
    /// Show which shop, topic or resource has most waiting, and since when
    Top(top::Arguments),
    /// List, show or drop what waits
    Queue(queue::Arguments),
    /// Let a shop, a topic, a resource or all of a drain wait, until it is resumed (kafka: only all)
    Pause(pause::Arguments),
    /// End a pause
    Resume(pause::ResumeArguments),
    /// Tell all that is known of one webhook: where it waits, or what became of it
    Explain(explain::Arguments),
    /// List, show, replay or drop dead letters: webhooks that were given up
    Dead(dead::Arguments),
    /// List, add or forget drains: who has to be past an entry before it is freed
    Drains(drains::Arguments),
    /// Check Redis, disk, clock, drains and the backend; say how to mend what is wrong
    Doctor(doctor::Arguments),
    /// Start a whole cell here to try it: Redis, receiver, downstreamer and a demo backend
    Dev(dev::Arguments),
}

/// Parses the command line. The error is the exit code, after everything has been said.
pub fn parse() -> Result<Command, ExitCode> {
    if let Some(code) = generate::on_demand(Cli::command(), generate::COMMANDS) {
        return Err(code);
    }
    let first: Cli = parse_flags()?;
    let file = match (&first.env_file, &first.command) {
        (Some(file), _) => file.clone(),
        (None, Command::Dev(_)) if Path::new(DEV_ENV_FILE).is_file() => DEV_ENV_FILE.into(),
        (None, _) => return Ok(first.command),
    };
    if let Err(problem) = read_env_file(&file) {
        eprintln!("spillway: {problem}");
        return Err(ExitCode::from(exit::CONFIG));
    }
    Ok(parse_flags::<Cli>()?.command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_flags_contradict_each_other_nowhere() {
        Cli::command().debug_assert();
    }
}
