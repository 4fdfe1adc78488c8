//! Signal handling: the first signal stops the cell in order; a second one kills what still runs.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// Tokens that the signals cancel.
#[derive(Debug)]
pub(super) struct Signals {
    /// Cancelled to stop in order.
    pub stop: CancellationToken,
    /// Cancelled to kill at once.
    pub kill: CancellationToken,
}

impl Signals {
    /// Listens for SIGTERM, SIGINT and SIGHUP (a closed terminal).
    pub(super) fn listen() -> Result<Self, Failure> {
        let failed = |error| Failure::Failed(format!("cannot listen for signals: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
        let signals = Self { stop: CancellationToken::new(), kill: CancellationToken::new() };
        let stop = signals.stop.clone();
        let kill = signals.kill.clone();
        tokio::spawn(async move {
            any(&mut terminate, &mut interrupt, &mut hangup).await;
            stop.cancel();
            any(&mut terminate, &mut interrupt, &mut hangup).await;
            kill.cancel();
        });
        Ok(signals)
    }
}

async fn any(terminate: &mut Signal, interrupt: &mut Signal, hangup: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
    }
}
