//! Errors between us and Redis, one variant for each reaction of the caller.

use std::fmt::Display;
use std::io;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Reason why Redis did not do what was asked. Errors are classified by code, never by message
/// text.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueueError {
    /// There is no connection, or it broke. If a request was on its way, its outcome is unknown.
    #[error("redis is unreachable")]
    Unreachable(#[source] RedisError),
    /// Redis is up and still loads its data. Wait.
    #[error("redis is loading its data")]
    Loading,
    /// `maxmemory` is reached, or Redis cannot write to its disk. Drain the queue, or give Redis
    /// more space.
    #[error("redis is full")]
    Full(#[source] RedisError),
    /// Redis refuses our writes: it is a replica, a permission is missing, or a key has another
    /// type.
    #[error("redis refused the request")]
    Refused(#[source] RedisError),
    /// Another instance is the leader of the consumer.
    #[error("another instance is the leader of this consumer")]
    Fenced,
    /// The consumer has no cursor, or an older one: it was removed, or data was lost.
    #[error("the consumer is not registered")]
    Unregistered,
    /// Packs do not follow the last one that was restored.
    #[error("the packs do not follow the last one that redis knows of")]
    OutOfStep,
    /// Redis holds a queue only under the prefix that was the default before. It must not be left
    /// there unread.
    #[error(
        "redis holds a queue under spillway:, the default of REDIS_PREFIX before, and none under {{spillway}}:; set \
         REDIS_PREFIX=spillway:, or rename its keys as docs/upgrade.md says"
    )]
    OlderPrefix,
    /// The queue is being restored from an archive. Nothing else may begin until that is done.
    #[error(
        "the queue is being restored from an archive; wait for spillway restore-from-archive, run it again, \
         or give it up with its --abandon"
    )]
    Restoring,
    /// The queue that is to be restored holds webhooks, or lanes or replays beside it do.
    #[error(
        "the queue, lanes or replays hold webhooks: stop the receivers, run spillway restore-from-archive --abandon so \
         that consumers may start, let them deliver these, stop them, and run it again"
    )]
    NotEmpty,
    /// Redis is not as it was when the restoration was planned.
    #[error(
        "this redis is not as it was when the restoration was planned: the restoration was abandoned, a consumer was \
         added, or redis lost data; nothing was changed. Make sure that no process runs on it, look at spillway status, \
         and run spillway restore-from-archive again"
    )]
    NotPlanned,
    /// The audit holds as many records of one day as it may. No change is made without one.
    #[error(
        "the audit holds more changes of the last day than it may, and nothing is changed without a record: see with \
         spillway audit who makes so many, stop that, and try again tomorrow"
    )]
    AuditFull,
    /// A reply has an unknown form.
    #[error("redis answered in an unexpected way: {0}")]
    Unexpected(String),
}

impl QueueError {
    /// True if the same request may succeed later, over a new connection: Redis is away, full, or no master any more.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Loading | Self::Full(_) => true,
            Self::Refused(error) => {
                matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "NOREPLICAS"))
            }
            _ => false,
        }
    }

    /// Names the place that could not be reached. Any other error stays as it is.
    pub(crate) fn at(self, place: &dyn Display) -> Self {
        match self {
            Self::Unreachable(error) => {
                Self::Unreachable(io::Error::other(format!("{place}: {error}")).into())
            }
            other => other,
        }
    }
}

impl From<RedisError> for QueueError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Io | ErrorKind::Parse => Self::Unreachable(error),
            // Another node of the cluster has the keys, or will have them. A new connection finds
            // it.
            ErrorKind::Server(
                ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain,
            ) => Self::Unreachable(error),
            ErrorKind::UnexpectedReturnType => Self::Unexpected(error.to_string()),
            ErrorKind::Server(ServerErrorKind::BusyLoading) => Self::Loading,
            ErrorKind::Server(ServerErrorKind::ExecAbort) => match aborted_by(&error) {
                Some("OOM" | "MISCONF") => Self::Full(error),
                Some("LOADING") => Self::Loading,
                _ => Self::Refused(error),
            },
            ErrorKind::Extension => match error.code() {
                Some("OOM" | "MISCONF") => Self::Full(error),
                Some("FENCED") => Self::Fenced,
                Some("NOGROUP") => Self::Unregistered,
                Some("OUTOFSTEP") => Self::OutOfStep,
                Some("RESTORING") => Self::Restoring,
                Some("NOTEMPTY") => Self::NotEmpty,
                Some("NOTPLANNED") => Self::NotPlanned,
                _ => Self::Refused(error),
            },
            _ => Self::Refused(error),
        }
    }
}

/// Code of the error that EXEC met. Redis repeats it after a fixed sentence.
fn aborted_by(error: &RedisError) -> Option<&str> {
    let (_, cause) = error.detail()?.split_once("because of: ")?;
    cause.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_passes_and_a_missing_permission_does_not() {
        let of = |kind| QueueError::from(RedisError::from((ErrorKind::Server(kind), "told")));
        assert!(of(ServerErrorKind::ReadOnly).is_passing());
        assert!(of(ServerErrorKind::MasterDown).is_passing());
        assert!(of(ServerErrorKind::BusyLoading).is_passing());
        assert!(!of(ServerErrorKind::NoPerm).is_passing());
        assert!(!QueueError::Fenced.is_passing());
    }
}
