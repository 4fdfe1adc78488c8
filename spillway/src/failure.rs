//! Failures of a command: the message for the operator, and the exit code.

use std::io;
use std::process::ExitCode;

use spillway_archive::StoreError;
use spillway_process::error::chain;
use spillway_process::exit;
use spillway_process::settings::Mistakes;
use spillway_queue::QueueError;

use crate::socket::Denial;

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Flags that are missing or contradict each other.
    #[error("{0}")]
    Usage(String),
    /// Invalid settings, one per line.
    #[error("{0}")]
    Settings(#[from] Mistakes),
    /// This user may not open the socket of Redis.
    #[error("{0}")]
    Denied(Denial),
    /// Redis failed or refused a command.
    #[error("{}", with_hint(.0))]
    Queue(#[from] QueueError),
    /// The archive failed or refused a request.
    #[error("{}", chain(.0))]
    Archive(#[from] StoreError),
    /// Standard output is closed or full.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// Any other failure, as a sentence.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// Exit code of the failure.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => exit::USAGE,
            Self::Settings(_) => exit::CONFIG,
            Self::Denied(_) => exit::UNAVAILABLE,
            Self::Queue(error) => of_queue(error),
            Self::Archive(error) => of_archive(error),
            Self::Output(_) | Self::Failed(_) => exit::FAILED,
        })
    }

    /// True if the reader of our output went away, as `head` does. That is not a failure.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Exit code of an error of Redis: a script may try again later if Redis is not there.
fn of_queue(error: &QueueError) -> u8 {
    match error {
        QueueError::Unreachable(_) | QueueError::Loading => exit::UNAVAILABLE,
        QueueError::Full(_)
        | QueueError::Refused(_)
        | QueueError::Fenced
        | QueueError::Unregistered
        | QueueError::OutOfStep
        | QueueError::OlderPrefix
        | QueueError::Restoring
        | QueueError::NotEmpty
        | QueueError::NotPlanned
        | QueueError::AuditFull
        | QueueError::Unexpected(_) => exit::FAILED,
    }
}

/// Exit code of an error of the archive.
fn of_archive(error: &StoreError) -> u8 {
    match error {
        StoreError::Unavailable(_) | StoreError::Denied(_) => exit::UNAVAILABLE,
        StoreError::Unusable(_) => exit::CONFIG,
        StoreError::Missing(_) | StoreError::Bad(..) | StoreError::NoKey(..) => exit::FAILED,
    }
}

/// The error of Redis and a hint. It never contains the URL, which may hold a password.
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
        | QueueError::Restoring
        | QueueError::NotEmpty
        | QueueError::NotPlanned
        | QueueError::AuditFull
        | QueueError::Unexpected(_) => "",
    };
    format!("{error}{}{hint}", cause.unwrap_or_default())
}
