//! What can go wrong between us and Redis, by what the caller does next.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why Redis did not do what was asked. Classified by error code, never by message text.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueueError {
    /// No connection, or it broke: whether a request that was under way took effect is unknown.
    #[error("redis is unreachable")]
    Unreachable(#[source] RedisError),
    /// Redis is up and still reads its data: wait.
    #[error("redis is loading its data")]
    Loading,
    /// `maxmemory` is reached, or Redis cannot write to its disk: drain, or give it more.
    #[error("redis is full")]
    Full(#[source] RedisError),
    /// Redis takes no writes from us: a replica, a missing permission, another key type.
    #[error("redis refused the request")]
    Refused(#[source] RedisError),
    /// Another instance owns the drain.
    #[error("another instance owns this drain")]
    Fenced,
    /// The cursor of this drain is gone: it was forgotten, or the data was lost.
    #[error("the drain is not registered")]
    Unregistered,
    /// Spilled packs that do not follow the last one that was fed.
    #[error("the spilled packs do not follow the last one that redis knows of")]
    OutOfStep,
    /// Only a queue under the prefix that was the default before is there: it must not be left behind.
    #[error(
        "redis holds a queue under spillway:, the default of REDIS_PREFIX before, and none under {{spillway}}:; set \
         REDIS_PREFIX=spillway:, or rename its keys as docs/upgrade.md says"
    )]
    OlderPrefix,
    /// A reply of a shape we do not know.
    #[error("redis answered in an unexpected way: {0}")]
    Unexpected(String),
}

impl From<RedisError> for QueueError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Io | ErrorKind::Parse => Self::Unreachable(error),
            // Another node of the cluster has the keys, or will have them: whoever connects again finds it.
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
                _ => Self::Refused(error),
            },
            _ => Self::Refused(error),
        }
    }
}

/// The code of the error that EXEC itself met: it is repeated behind a fixed sentence.
fn aborted_by(error: &RedisError) -> Option<&str> {
    let (_, cause) = error.detail()?.split_once("because of: ")?;
    cause.split(' ').next()
}
