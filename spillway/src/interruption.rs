//! Ctrl-C and SIGTERM during a command whose change has an end to record. The command stops, records the end, and then ends by
//! the same signal: a shell goes on with its script if a program has caught Ctrl-C and exits.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};
use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// Code of a process that ended by a signal, as a shell reports it, without the number of the signal.
const EXIT_BY_SIGNAL: i32 = 128;

/// Signals that a command catches, from its first change on.
pub(crate) struct Interruption {
    /// Cancelled by the first signal.
    pub stop: CancellationToken,
    caught: Arc<OnceLock<SignalKind>>,
}

impl Interruption {
    /// Catches SIGINT and SIGTERM. The second one ends the process at once.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("cannot handle signals: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let stop = CancellationToken::new();
        let caught = Arc::new(OnceLock::new());
        let own = Self { stop: stop.clone(), caught: caught.clone() };
        tokio::spawn(async move {
            caught.set(next(&mut terminate, &mut interrupt).await).ok();
            stop.cancel();
            end_by(next(&mut terminate, &mut interrupt).await);
        });
        Ok(own)
    }

    /// Returns the result of the command. After a signal, reports it, and ends the process by that signal.
    pub(crate) fn finish(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        let Some(caught) = self.caught.get() else { return result };
        if let Err(failure) = result
            && !failure.is_closed_output()
        {
            eprintln!("spillway: {failure}");
        }
        end_by(*caught)
    }
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> SignalKind {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    }
}

/// Ends this process by a signal that it has caught. A shell that takes the place of this program in the same process
/// catches none, and sends it to itself.
fn end_by(kind: SignalKind) -> ! {
    let number = kind.as_raw_value();
    let code = EXIT_BY_SIGNAL + number;
    let script = format!("kill -{number} $$; exit {code}");
    // It returns only if there is no shell, as in a container.
    drop(Command::new("/bin/sh").arg("-c").arg(script).exec());
    process::exit(code)
}
