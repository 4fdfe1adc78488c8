//! Stops on SIGTERM or SIGINT, and reports that to the supervisor. A second signal ends the process
//! at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::supervisor;

/// 128 + SIGTERM, the code that a shell would report.
const EXIT_KILLED: i32 = 143;

/// Returns a token that the first SIGTERM or SIGINT cancels.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let cancelled = shutdown.clone();
    tokio::spawn(async move {
        either(&mut terminate, &mut interrupt).await;
        tracing::info!("stopping");
        supervisor::stopping();
        cancelled.cancel();
        either(&mut terminate, &mut interrupt).await;
        tracing::warn!("a second signal: exiting now");
        std::process::exit(EXIT_KILLED);
    });
    Ok(shutdown)
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
