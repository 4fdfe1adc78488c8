//! `spillway archive`: lists, shows or verifies what is in an archive. It asks no Redis.

mod list;
mod range;
mod show;
mod verify;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use spillway_archive::ArchiveStore;
use spillway_archive::args::ArchiveArgs;
use spillway_archive::keys::KeyRing;
use spillway_process::Checker;

use crate::failure::Failure;
use crate::format::OutputArgs;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    archive: ArchiveArgs,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List objects, oldest first; with --shop or --topic, those that hold such webhooks
    List(list::ListArguments),
    /// Show what one object holds, or one webhook exactly as it was received
    Show(show::ShowArguments),
    /// Check every byte of the objects, and that nothing is missing between them; exits with 1 if there is a
    /// problem
    Verify {
        #[command(flatten)]
        range: range::RangeArguments,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// An archive and the keys to read it with.
struct OpenArchive {
    store: ArchiveStore,
    keys: Arc<KeyRing>,
}

/// Runs `spillway archive`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let archive = open(&arguments.archive)?;
    match arguments.action {
        Action::List(arguments) => list::run(&archive, arguments).await?,
        Action::Show(arguments) => show::run(&archive, arguments).await?,
        Action::Verify { range, output } => {
            return verify::run(&archive, &range.checked()?, output).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn open(arguments: &ArchiveArgs) -> Result<OpenArchive, Failure> {
    let mut checker = Checker::default();
    let url = arguments.url(&mut checker);
    let keys = arguments.keys(&mut checker).ring();
    let url = checker.finish(url)?.ok_or_else(|| Failure::Usage("set ARCHIVE_URL".to_owned()))?;
    Ok(OpenArchive { store: ArchiveStore::open(&url)?, keys })
}
