//! The command line: subcommands, and the sources of settings (flag, environment, env file).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use spillway_process::start::{env_files, parse_flags, read_env_files};
use spillway_process::{exit, generate, show_settings};

use crate::{
    archive, audit, cell, config, console, consumers, dead, dev, doctor, explain, forget, gaps,
    health, pause, queue, replay, restore, send, status, top,
};

/// File from which `dev` reads settings that are neither flags nor in the environment.
const DEV_ENV_FILE: &str = ".env";

/// Spillway's command for operators: inspect the queue, handle dead letters, try a cell.
#[derive(Debug, Parser)]
#[command(name = "spillway", version = spillway_process::version(), max_term_width = 100)]
struct Cli {
    /// Read settings from this file where flags and the environment set none: KEY=value lines, as
    /// systemd's EnvironmentFile= reads them; may be given several times: a later file overrides an
    /// earlier one
    #[arg(short, long = "env-file", global = true, value_name = "ENV_FILE")]
    env_files: Vec<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

/// A subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Post signed webhooks, as Shopify would
    Send(send::Arguments),
    /// Show the queue, its consumers and the number of dead letters
    Status(status::Arguments),
    /// Show which shop, topic or resource has the most waiting webhooks, and since when
    Top(top::Arguments),
    /// List, show or drop waiting webhooks
    Queue(queue::Arguments),
    /// Pause a shop, a topic, a resource, an app or a whole consumer until it is resumed (kafka and
    /// archive: whole consumer only)
    Pause(pause::PauseArguments),
    /// End a pause
    Resume(pause::ResumeArguments),
    /// Show everything that is known about one webhook: where it waits, or its outcome
    Explain(explain::Arguments),
    /// List, show, replay or drop dead letters: webhooks that were given up
    Dead(dead::Arguments),
    /// List, show or verify the objects of an archive
    Archive(archive::Arguments),
    /// Deliver again what an archive holds of a range of time; list, resume or cancel such replays
    Replay(replay::Arguments),
    /// Restore a queue whose disk was lost, as far as an archive reached
    RestoreFromArchive(restore::Arguments),
    /// Purge the data of a customer or a shop from all that the cell holds, and from its archive
    Forget(forget::Arguments),
    /// List shops and topics of which webhooks may be missing: refused, lost by Redis, or silent
    /// against their usual rhythm
    Gaps(gaps::Arguments),
    /// List who changed what, when and how many
    Audit(audit::Arguments),
    /// List, add or forget consumers; an entry is freed once every registered consumer has settled it
    Consumers(consumers::Arguments),
    /// Drain a cell before its shops move to another one
    Cell(cell::Arguments),
    /// Serve a page that shows the cell, and an API beside it
    Console(Box<console::Arguments>),
    /// Check Redis, disk, clock, consumers and the backend; show how to fix what is wrong
    Doctor(doctor::Arguments),
    /// Ask the processes of this machine or container whether they work; for a container's HEALTHCHECK
    Health(health::Arguments),
    /// Show the settings of each process, and where each comes from
    Config(config::Arguments),
    /// Start a whole cell on this machine to try it: Redis, receiver, downstreamer and a demo
    /// backend
    Dev(dev::Arguments),
}

/// Parses the command line. The error is the exit code; every message is printed by then.
pub(crate) fn parse() -> Result<Command, ExitCode> {
    if let Some(code) = generate::on_demand(Cli::command(), generate::COMMANDS) {
        return Err(code);
    }
    let inherited = show_settings::inherited();
    let command = parse_with_files()?;
    match &command {
        Command::Console(arguments) if arguments.show_settings => {
            Err(show_settings::print_subcommand(Cli::command(), "console", &inherited))
        }
        _ => Ok(command),
    }
}

/// Parses the command line, after the files of settings are read.
fn parse_with_files() -> Result<Command, ExitCode> {
    let mut first: Cli = parse_flags()?;
    let seen = env_files(std::env::args_os(), Some("-e"));
    let Some(mut files) = all_env_files(seen, std::mem::take(&mut first.env_files)) else {
        eprintln!(
            "spillway: several files of settings, and one of them among other short flags, such as -ye FILE: write \
             --env-file FILE for each"
        );
        return Err(ExitCode::from(exit::CONFIG));
    };
    if let Command::Config(arguments) = &mut first.command {
        arguments.env_files = files;
        return Ok(first.command);
    }
    let is_dev = matches!(first.command, Command::Dev(_));
    if files.is_empty() && is_dev && Path::new(DEV_ENV_FILE).is_file() {
        files.push(DEV_ENV_FILE.into());
    }
    if files.is_empty() {
        return Ok(first.command);
    }
    if let Err(problem) = read_env_files(&files) {
        eprintln!("spillway: {problem}");
        return Err(ExitCode::from(exit::CONFIG));
    }
    Ok(parse_flags::<Cli>()?.command)
}

/// Files that were given, out of those that a look at the arguments saw and those that the parser kept. The parser drops
/// those before the subcommand if there are others after it; the look misses those in a cluster of short flags. `None`
/// if both may have missed one.
fn all_env_files(seen: Vec<PathBuf>, parsed: Vec<PathBuf>) -> Option<Vec<PathBuf>> {
    if is_within(&parsed, &seen) {
        return Some(seen);
    }
    is_within(&seen, &parsed).then_some(parsed)
}

/// True if all of `part` are in `whole`, in this order.
fn is_within(part: &[PathBuf], whole: &[PathBuf]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|one| rest.any(|other| other == one))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory;
    use spillway_process::setting_names::SETTING_NAMES;

    use super::{Cli, all_env_files};

    /// Flags with a name of their own: the secret that signs a test webhook, and the processes that are asked.
    const SHORTER: [&str; 5] =
        ["secret", "secret-file", "receiver", "downstreamer", "kafka-producer"];

    /// Variables of a command and its subcommands.
    fn variables(command: &clap::Command, found: &mut Vec<String>) {
        let own = command.get_arguments().filter_map(|argument| argument.get_env());
        found.extend(own.map(|name| name.to_string_lossy().into_owned()));
        command.get_subcommands().for_each(|command| variables(command, found));
    }

    #[test]
    fn every_variable_is_in_the_list_of_settings() {
        let mut found = Vec::new();
        variables(&Cli::command(), &mut found);
        assert!(found.len() > 10);
        for name in found {
            assert!(SETTING_NAMES.contains(&name.as_str()), "{name}");
        }
    }

    /// Flags of a command and its subcommands whose name is not that of their variable.
    fn misnamed(command: &clap::Command, found: &mut Vec<String>) {
        for argument in command.get_arguments() {
            let Some(variable) = argument.get_env() else { continue };
            let expected = variable.to_string_lossy().to_lowercase().replace('_', "-");
            let flag = argument.get_long().unwrap_or_default();
            // `spillway console --listen` is CONSOLE_LISTEN.
            let own = expected.strip_prefix(&format!("{}-", command.get_name()));
            if flag != expected && own != Some(flag) && !SHORTER.contains(&flag) {
                found.push(format!("{}: --{flag}: {expected}", command.get_name()));
            }
        }
        command.get_subcommands().for_each(|command| misnamed(command, found));
    }

    #[test]
    fn a_flag_has_the_name_of_its_variable() {
        let mut found = Vec::new();
        misnamed(&Cli::command(), &mut found);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn env_files_may_be_repeated() {
        use clap::Parser;
        let cli = Cli::try_parse_from(["spillway", "status", "-e", "a", "--env-file=b"]);
        let files = cli.expect("good flags").env_files;
        assert_eq!(files, ["a", "b"].map(std::path::PathBuf::from));
    }

    #[test]
    fn no_env_file_is_dropped_silently() {
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let all = |seen: &[&str], parsed: &[&str]| all_env_files(paths(seen), paths(parsed));
        // `-e a status -e b`: the parser keeps the last one.
        assert_eq!(all(&["a", "b"], &["b"]), Some(paths(&["a", "b"])));
        assert_eq!(all(&["a"], &["a"]), Some(paths(&["a"])));
        assert_eq!(all(&[], &[]), Some(Vec::new()));
        // `forget -ye a`, and `forget -e a -ye b`: the parser has them all.
        assert_eq!(all(&[], &["a"]), Some(paths(&["a"])));
        assert_eq!(all(&["a"], &["a", "b"]), Some(paths(&["a", "b"])));
        // `-e a -e b forget -ye c`, and `-e a forget -e b -ye c`: nobody has them all.
        assert_eq!(all(&["a", "b"], &["c"]), None);
        assert_eq!(all(&["a", "b"], &["b", "c"]), None);
    }

    #[test]
    fn the_flags_contradict_each_other_nowhere() {
        Cli::command().debug_assert();
    }
}
