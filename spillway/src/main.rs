//! The operators' command. Most subcommands have a file of their own. [`cli`] parses the arguments;
//! [`failure`] defines messages and exit codes.

mod archive;
mod audit;
mod audited;
mod cell;
mod cli;
mod config;
mod consent;
mod console;
mod consumers;
mod csv;
mod dead;
mod dev;
mod doctor;
mod explain;
mod failure;
mod filter;
mod forget;
mod format;
mod gaps;
mod health;
mod http;
mod interruption;
mod out;
mod pause;
mod place;
mod programs;
mod queue;
mod replay;
mod restore;
mod secret;
mod send;
mod socket;
mod status;
#[cfg(test)]
mod testing;
mod top;
mod walk;
mod webhook_text;

use std::process::ExitCode;

use cli::Command;
use failure::Failure;

fn main() -> ExitCode {
    let command = match cli::parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    match run(command) {
        Ok(code) => code,
        Err(failure) if failure.is_closed_output() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("spillway: {failure}");
            failure.exit_code()
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all();
    if matches!(command, Command::Console(_)) {
        runtime.max_blocking_threads(console::BLOCKING_MAX);
    }
    let runtime = runtime
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start the runtime: {error}")))?;
    let ended = runtime.block_on(async {
        match command {
            Command::Send(arguments) => send::run(arguments).await,
            Command::Status(arguments) => status::run(arguments).await,
            Command::Top(arguments) => top::run(arguments).await,
            Command::Queue(arguments) => queue::run(arguments).await,
            Command::Pause(arguments) => pause::pause(arguments).await,
            Command::Resume(arguments) => pause::resume(arguments).await,
            Command::Explain(arguments) => explain::run(arguments).await,
            Command::Archive(arguments) => archive::run(arguments).await,
            Command::Replay(arguments) => replay::run(arguments).await,
            Command::Dead(arguments) => dead::run(arguments).await,
            Command::RestoreFromArchive(arguments) => restore::run(arguments).await,
            Command::Forget(arguments) => forget::run(arguments).await,
            Command::Gaps(arguments) => gaps::run(arguments).await,
            Command::Audit(arguments) => audit::run(arguments).await,
            Command::Consumers(arguments) => consumers::run(arguments).await,
            Command::Cell(arguments) => cell::run(arguments).await,
            Command::Console(arguments) => console::run(*arguments).await,
            Command::Doctor(arguments) => doctor::run(arguments).await,
            Command::Health(arguments) => health::run(arguments).await,
            Command::Config(arguments) => config::run(arguments).await,
            Command::Dev(arguments) => dev::run(arguments).await,
        }
    });
    runtime.shutdown_background();
    ended
}
