//! Logs: to standard error, as text or JSON, filtered by `RUST_LOG`.

use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};

use crate::log_output::LogOutput;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Crate that logs an ERROR for each alert of a client, and a WARN for a server name that is none:
/// strangers could fill the log. What fails is returned to us as well.
const LOGS_STRANGERS: &str = "rustls";

/// Starts logging for this process. A second call in one process changes nothing.
pub fn init(format: LogFormat) {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter())
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

/// Filter of `RUST_LOG`, by default of INFO. [`LOGS_STRANGERS`] is silent unless `RUST_LOG` names it.
fn filter() -> EnvFilter {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let named = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    if named.contains(LOGS_STRANGERS) {
        return filter;
    }
    let silent = format!("{LOGS_STRANGERS}=off").parse::<Directive>();
    filter.add_directive(silent.expect("BUG: a constant directive is valid"))
}
