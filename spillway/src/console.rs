//! `spillway console`: a page that shows the cell, and an API beside it.
//!
//! This part joins routes with Redis; all that knows no Redis is the crate `spillway-console`. The path of a
//! request ends in a handler of [`api`] (JSON) or [`views`] (pages). Both call the functions by which the
//! command's own verbs find out and change things. [`overview`] reads the cell once for all who watch.

mod account;
mod api;
mod ask;
mod extract;
mod files;
mod history;
mod jobs;
mod links;
mod live;
mod overview;
mod probes;
mod problem;
mod routes;
mod settings;
mod state;
mod views;

use std::process::ExitCode;
use std::sync::Arc;

use axum::Extension;
use clap::Args;
use spillway_console::serve::ConsoleListener;
use spillway_console::unread::UnreadFiles;
use spillway_process::{Background, Checker, metrics, reload, shutdown, supervisor, telemetry};
use tokio::net::TcpListener;

use crate::failure::Failure;
use crate::out::line;
use account::AccountCommand;
use history::HistoryArgs;
use settings::{ConsoleArgs, ConsoleSettings};
use state::Console;

/// Threads for work that blocks. Half of them are never taken by work that waits for others: see [`links::apart`]. With
/// the threads of the cores, they are fewer than `TasksMax` of the unit.
pub(crate) const BLOCKING_MAX: usize = 2 * links::APART_MAX;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    serve: ConsoleArgs,

    #[command(flatten)]
    history: HistoryArgs,

    /// Check the settings and the files that they name, and exit: 0 if they are good, 78 if not
    #[arg(long)]
    check: bool,

    /// Print the settings in force and exit, one per line: name, origin (flag, environment, env file,
    /// default) and value, separated by tabs. Secrets are hidden, and nothing is checked
    #[arg(long)]
    pub(crate) show_settings: bool,

    #[command(subcommand)]
    account: Option<AccountCommand>,
}

/// Serves until SIGTERM or SIGINT; with a subcommand, edits the users or tokens.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { serve, history, check, account, .. } = arguments;
    if let Some(command) = account {
        let (users, tokens) = serve.account_files();
        account::run(command, users, tokens)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut checker = Checker::default();
    let prometheus = history.prometheus(&mut checker);
    let settings = serve.check(checker)?;
    if check {
        ensure_read(&settings.unread)?;
        line("the settings are good")?;
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init(settings.log_format);
    let failed = |error: std::io::Error| Failure::Failed(format!("cannot start: {error}"));
    let stop = shutdown::on_signal().map_err(failed)?;
    let background = Background::start().map_err(failed)?;
    settings.unread.log();
    let ConsoleSettings { place, listen, gate, desk, tls, files, unread, proxies, .. } = settings;
    let tcp = TcpListener::bind(listen).await.map_err(|error| {
        Failure::Failed(format!(
            "CONSOLE_LISTEN: cannot listen on {listen}: {error}; set another address"
        ))
    })?;
    let registry = metrics::registry("console");
    background.spawn("reloading files", reload::start(files, &registry).map_err(failed)?);
    let console = Console::new(place, stop.clone(), history).with_prometheus(prometheus);
    let console = Arc::new(console);
    let looking = console.clone();
    background.spawn("looking at the cell", async move { looking.observe().await });
    let mut router = routes::table().into_router(&gate).with_state(console.clone());
    if let Some(desk) = desk {
        router = router.layer(Extension(desk));
    }
    let router = unread.guard(router);
    tracing::info!(address = %listen, version = spillway_process::version(), "the console listens");
    supervisor::ready();
    let serving = async {
        ConsoleListener { tcp, tls, proxies }.serve(router, stop.clone()).await;
        console.jobs.wait_for_ends().await;
    };
    let ended = background.supervise(&stop, serving).await;
    ended.map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses files with a mistake. A console that serves goes on without them, and answers 503.
fn ensure_read(unread: &UnreadFiles) -> Result<(), Failure> {
    let mut checker = Checker::default();
    for (setting, problem) in unread.problems() {
        checker.mistake(setting, problem);
    }
    Ok(checker.finish(())?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_file_may_be_named_before_or_after_what_is_done_with_it() {
        let add = ["user", "add", "mia", "--role", "support", "--personal"];
        let file = ["--users-file", "users"];
        for words in [[&add[..], &file].concat(), [&file[..], &add].concat()] {
            let parsed = Command::try_parse_from([&["x"][..], &words].concat());
            let arguments = parsed.expect("good words").arguments;
            assert_eq!(arguments.serve.account_files(), (Some(Path::new("users")), None));
            assert!(matches!(arguments.account, Some(AccountCommand::User(_))));
        }
        assert!(Command::try_parse_from(["x", "user", "add", "mia", "--role", "root"]).is_err());
        assert!(Command::try_parse_from(["x", "user", "add", "mia"]).is_err());
        for (words, expected) in
            [(["x", "--check"], (true, false)), (["x", "--show-settings"], (false, true))]
        {
            let arguments = Command::try_parse_from(words).expect("good words").arguments;
            assert_eq!((arguments.check, arguments.show_settings), expected);
        }
        let served = Command::try_parse_from(["x"]).expect("no words at all");
        assert!(served.arguments.account.is_none());
    }

    #[test]
    fn a_check_refuses_files_that_a_running_console_goes_on_without() {
        let unread = UnreadFiles::default();
        assert!(ensure_read(&unread).is_ok());
        unread.insert("CONSOLE_USERS_FILE", "cannot read it".to_owned());
        let told = ensure_read(&unread).expect_err("a mistake").to_string();
        assert!(told.contains("CONSOLE_USERS_FILE") && told.contains("cannot read it"), "{told}");
    }
}
