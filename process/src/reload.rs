//! Files that are read again: all on SIGHUP, and each one when it has changed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::file_watch::{FileWatch, LOOK_EVERY};

/// State that is read from files. With a mistake in one of them, it stays as it was.
pub trait FromFiles: Send + Sync {
    /// Files and directories from which it is read.
    fn files(&self) -> Vec<PathBuf>;

    /// Reads them again.
    fn reload(&self);
}

struct Watched {
    state: Arc<dyn FromFiles>,
    files: FileWatch,
}

impl Watched {
    fn new(state: Arc<dyn FromFiles>) -> Self {
        let files = FileWatch::new(state.files());
        Self { state, files }
    }

    fn reload(&mut self) {
        let before = self.state.files();
        self.state.reload();
        if self.state.files() != before {
            self.files = FileWatch::new(self.state.files());
        }
    }
}

/// Reads each of these again on SIGHUP, and within two looks after it has changed. The handler is
/// installed by the call, not by the first poll: a signal in between would be lost, or end the process.
///
/// # Errors
/// If no handler can be installed.
pub fn start(states: Vec<Arc<dyn FromFiles>>) -> io::Result<impl Future<Output = ()> + Send> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut watched: Vec<_> = states.into_iter().map(Watched::new).collect();
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Ok(async move {
        loop {
            let is_told = tokio::select! {
                told = hangup.recv() => match told {
                    Some(()) => true,
                    None => return,
                },
                _ = look.tick() => false,
            };
            // Thousands of files may be read.
            let looking = spawn_blocking(move || {
                for one in &mut watched {
                    if one.files.has_changed() || is_told {
                        one.reload();
                    }
                }
                watched
            });
            watched = match looking.await {
                Ok(watched) => watched,
                Err(error) => {
                    // The end of this task ends the process.
                    tracing::error!(%error, "BUG: the files could not be read again");
                    return;
                }
            };
        }
    })
}
