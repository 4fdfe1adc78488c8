//! Files that are read again: all on SIGHUP, and each one when it has changed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use prometheus::{IntGauge, Registry};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::file_watch::{FileWatch, LOOK_EVERY};
use crate::metrics::register;

/// State that is read from files. With a mistake in one of them, it stays as it was.
pub trait FromFiles: Send + Sync {
    /// Files and directories from which it is read.
    fn files(&self) -> Vec<PathBuf>;

    /// Reads them again, and logs the outcome. Returns false if a mistake leaves the old state in force.
    fn reload(&self) -> bool;

    /// True if they were never read, because of a mistake at the start.
    fn is_unread(&self) -> bool {
        false
    }
}

/// Looks from a read that failed to the next: a minute. The mistake may not lie in a file that is watched,
/// and may go away by itself.
const LOOKS_AFTER_FAILURE: u32 = 12;

struct Watched {
    state: Arc<dyn FromFiles>,
    files: FileWatch,
    has_failed: bool,
    /// Looks since the last read.
    looks: u32,
}

impl Watched {
    fn new(state: Arc<dyn FromFiles>) -> Self {
        let files = FileWatch::new(state.files());
        let has_failed = state.is_unread();
        Self { state, files, has_failed, looks: 0 }
    }

    /// Reads the files again if they have changed, or if `is_due`, or after a failure.
    fn look(&mut self, is_due: bool) {
        self.looks += 1;
        let is_retried = self.has_failed && self.looks >= LOOKS_AFTER_FAILURE;
        if !self.files.notice_change() && !is_due && !is_retried {
            return;
        }
        self.looks = 0;
        if is_due {
            // Whatever was changed up to here is read now, and not once more at the next look.
            self.files.set_changing(false);
        }
        let before = self.state.files();
        self.has_failed = !self.state.reload();
        if self.state.files() != before {
            self.files = FileWatch::new(self.state.files());
            // One of them may have changed since it was read.
            self.files.set_changing(true);
        }
    }
}

/// Reads each of these again on SIGHUP, and within two looks after it has changed. The handler is
/// installed by the call, not by the first poll: a signal in between would be lost, or end the process.
///
/// # Errors
/// If no handler can be installed.
pub fn start(
    states: Vec<Arc<dyn FromFiles>>,
    registry: &Registry,
) -> io::Result<impl Future<Output = ()> + Send + use<>> {
    let failed = register(registry, &failed_gauge());
    let mut hangup = signal(SignalKind::hangup())?;
    let mut watched: Vec<_> = states.into_iter().map(Watched::new).collect();
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Ok(async move {
        loop {
            let is_due = tokio::select! {
                told = hangup.recv() => match told {
                    Some(()) => true,
                    None => return,
                },
                _ = look.tick() => false,
            };
            // Thousands of files may be read.
            let looking = spawn_blocking(move || {
                watched.iter_mut().for_each(|one| one.look(is_due));
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
            let count = watched.iter().filter(|one| one.has_failed).count();
            failed.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    })
}

fn failed_gauge() -> IntGauge {
    let help = "Settings whose files could not be read again: what was read before is in force.";
    IntGauge::new("spillway_reload_failed", help).expect("BUG: a constant name is valid")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A file that must hold a number, and may name another file.
    struct Number {
        file: PathBuf,
        value: AtomicU32,
        reloads: AtomicU32,
    }

    impl FromFiles for Number {
        fn files(&self) -> Vec<PathBuf> {
            // With an odd value it is read from two files.
            let has_second = self.value.load(Ordering::Relaxed) % 2 == 1;
            let second = has_second.then(|| self.file.with_extension("second"));
            std::iter::once(self.file.clone()).chain(second).collect()
        }

        fn reload(&self) -> bool {
            self.reloads.fetch_add(1, Ordering::Relaxed);
            let text = std::fs::read_to_string(&self.file).unwrap_or_default();
            let read = text.trim().parse::<u32>().ok();
            read.inspect(|value| self.value.store(*value, Ordering::Relaxed)).is_some()
        }
    }

    /// Was never read, and can be read from now on.
    #[derive(Default)]
    struct Late(AtomicU32);

    impl FromFiles for Late {
        fn files(&self) -> Vec<PathBuf> {
            Vec::new()
        }

        fn reload(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            true
        }

        fn is_unread(&self) -> bool {
            self.0.load(Ordering::Relaxed) == 0
        }
    }

    #[test]
    fn what_was_never_read_is_a_failure_and_read_without_a_change() {
        let late = Arc::new(Late::default());
        let mut watched = Watched::new(late.clone());
        assert!(watched.has_failed);
        (0..3 * LOOKS_AFTER_FAILURE).for_each(|_| watched.look(false));
        assert_eq!((late.0.load(Ordering::Relaxed), watched.has_failed), (1, false));
    }

    #[test]
    fn a_changed_file_is_read_once_and_one_with_a_mistake_is_a_failure_until_the_next() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("number");
        std::fs::write(&file, "2").expect("write");
        let value = AtomicU32::new(2);
        let number = Arc::new(Number { file: file.clone(), value, reloads: AtomicU32::new(0) });
        let mut watched = Watched::new(number.clone());
        let reloads = || number.reloads.load(Ordering::Relaxed);
        watched.look(false);
        assert_eq!(reloads(), 0);
        std::fs::write(&file, "22").expect("write");
        watched.look(true);
        (0..4).for_each(|_| watched.look(false));
        assert_eq!((reloads(), watched.has_failed), (1, false));
        std::fs::write(&file, "many").expect("write");
        (0..4).for_each(|_| watched.look(false));
        assert_eq!((reloads(), watched.has_failed), (2, true));
        assert_eq!(number.value.load(Ordering::Relaxed), 22, "the old one stays");
        // The mistake may be in what is not watched.
        (0..2 * LOOKS_AFTER_FAILURE).for_each(|_| watched.look(false));
        assert_eq!((reloads(), watched.has_failed), (4, true));
        std::fs::write(&file, "13").expect("write");
        (0..4).for_each(|_| watched.look(false));
        // Its files are others now: it is read once more.
        assert_eq!((reloads(), watched.has_failed), (6, false));
        std::fs::write(file.with_extension("second"), "").expect("write");
        (0..2 * LOOKS_AFTER_FAILURE).for_each(|_| watched.look(false));
        assert_eq!(reloads(), 7);
    }
}
