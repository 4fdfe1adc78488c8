//! `spillway archive`: lists, shows or verifies what is in an archive. It asks no Redis.

mod list;
mod range;
mod show;
mod verify;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use spillway_archive::args::ArchiveArgs;
use spillway_archive::keys::KeyRing;
use spillway_archive::{ArchiveStore, StoreError};
use spillway_process::Checker;
use spillway_process::error::chain;

use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::printable;

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
pub(crate) struct OpenArchive {
    /// The archive.
    pub store: ArchiveStore,
    /// Keys of ARCHIVE_KEY_FILE.
    pub keys: Arc<KeyRing>,
}

/// Objects and packs that a search leaves out because they cannot be read. Each is reported on standard error.
#[derive(Debug, Default)]
struct UnreadObjects {
    count: u64,
}

impl UnreadObjects {
    /// Returns `None` for an object that is damaged, or whose key is missing, and reports it. One that is gone was
    /// deleted meanwhile.
    ///
    /// # Errors
    /// Every other failure.
    fn skip<T>(&mut self, read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(StoreError::Missing(_)) => Ok(None),
            Err(error @ (StoreError::Bad(..) | StoreError::NoKey(..))) => {
                self.tell(&chain(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, problem: &str) {
        self.count += 1;
        eprintln!("spillway: {}", printable(problem.as_bytes()));
    }

    /// Checks that a search which found nothing has read everything.
    fn ensure_none(&self, told: &str) -> Result<(), Failure> {
        if self.count == 0 {
            return Ok(());
        }
        Err(Failure::Failed(format!("{told}; {} objects or packs could not be read", self.count)))
    }
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

/// Opens the archive of these settings.
pub(crate) fn open(arguments: &ArchiveArgs) -> Result<OpenArchive, Failure> {
    let mut checker = Checker::default();
    let url = arguments.url(&mut checker);
    let keys = arguments.keys(&mut checker).ring();
    let url = checker.finish(url)?.ok_or_else(|| Failure::Usage("set ARCHIVE_URL".to_owned()))?;
    Ok(OpenArchive { store: ArchiveStore::open(&url)?, keys })
}

#[cfg(test)]
mod tests {
    use spillway_archive::{BadObject, ObjectName};
    use spillway_webhook::StreamId;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_out_and_fails_a_search_that_finds_nothing() {
        let id = StreamId { ms: 1, seq: 0 };
        let name = ObjectName { cell: 1, first: id, last: id, webhooks: 1, tag: 0, generation: 0 };
        let mut unread = UnreadObjects::default();
        assert_eq!(unread.skip(Ok(7)).expect("it was read"), Some(7));
        assert!(unread.ensure_none("nothing").is_ok());
        let damaged = StoreError::Bad(Box::new(name), BadObject::NotAnObject);
        assert_eq!(unread.skip::<u8>(Err(damaged)).expect("it is left out"), None);
        let locked = StoreError::NoKey(Box::new(name), BadObject::NoKey("a".to_owned()));
        assert_eq!(unread.skip::<u8>(Err(locked)).expect("it is left out"), None);
        let failure = unread.ensure_none("nothing").map_err(|failure| failure.to_string());
        assert_eq!(failure, Err("nothing; 2 objects or packs could not be read".to_owned()));
        let away = StoreError::Unusable("away".to_owned());
        assert!(unread.skip::<u8>(Err(away)).is_err(), "the archive does not answer");
    }
}
