//! How a command fails: what the operator is told, and the exit code.

use std::io;
use std::process::ExitCode;

use spillway_queue::QueueError;
use spillway_service::exit;
use spillway_service::settings::Mistakes;

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Flags that do not go together.
    #[error("{0}")]
    Usage(String),
    /// Settings that are wrong, a line each.
    #[error("{0}")]
    Settings(#[from] Mistakes),
    /// Redis did not do what was asked.
    #[error("{}", with_hint(.0))]
    Queue(#[from] QueueError),
    /// Standard output is closed or full.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// Anything else, in a sentence.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// The code to exit with.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => exit::USAGE,
            Self::Settings(_) => exit::CONFIG,
            Self::Queue(_) | Self::Output(_) | Self::Failed(_) => exit::FAILED,
        })
    }

    /// Whether the reader of our output went away, as `head` does: no failure of ours.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What Redis said, and what to look at. Never the URL: it may hold a password.
fn with_hint(error: &QueueError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let hint = match error {
        QueueError::Unreachable(_) => "; is it running, and is REDIS_URL right?",
        QueueError::Full(_) => "; drain it, or raise its maxmemory",
        QueueError::Loading => "; try again when it is done",
        QueueError::Refused(_)
        | QueueError::Fenced
        | QueueError::Unregistered
        | QueueError::OutOfStep
        | QueueError::OlderPrefix
        | QueueError::Unexpected(_) => "",
    };
    format!("{error}{}{hint}", cause.unwrap_or_default())
}
