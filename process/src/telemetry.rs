//! Logs: to standard error, as text or JSON, filtered by `RUST_LOG`.

use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::log_output::LogOutput;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging for this process. A second call in one process changes nothing.
pub fn init(format: LogFormat) {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Mutex::new(LogOutput::new(std::io::stderr())))
        // A line that cannot be written is lost: reporting that on stderr would panic.
        .log_internal_errors(false);
    let started = match format {
        LogFormat::Text => subscriber.with_ansi(false).try_init(),
        LogFormat::Json => subscriber.json().try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logging was already started");
    }
}
