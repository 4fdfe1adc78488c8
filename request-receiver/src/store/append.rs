//! One append to the queue: how long it may take, and what is known when it ends.

use std::pin::Pin;
use std::time::Duration;

use spillway_queue::append::{AppendError, Appender, Fence};
use spillway_queue::{QueueError, Redis};
use spillway_service::error::chain;
use spillway_webhook::StreamId;
use tokio::time::{Instant, sleep, timeout};

use crate::store::looks::{Looks, QueueHealth};

/// Looks at Redis, of one a second, that were answered while an append was not: Redis runs one
/// command after the other, so by then it is this connection that is dead, not Redis that is slow.
const LOOKS_MAX: u64 = 10;
/// And at least so long, with so many bytes of its pack each second: a large one may be slow to send.
const DEAD_AFTER: Duration = Duration::from_secs(10);
const SLOWEST_BYTES_PER_S: usize = 16 << 10;
/// Time between looks at that.
const LOOK_EVERY: Duration = Duration::from_secs(1);

type Outcome = Result<StreamId, AppendError>;

/// Appends of one shard: one after the other, on a connection that is made again when Redis was away.
pub struct ShardAppender {
    redis: Redis,
    /// None while an append is under way, or after one that hung.
    appender: Option<Appender>,
    generation: u64,
}

/// An append under way, which owns its connection.
pub struct RunningAppend {
    outcome: Pin<Box<dyn Future<Output = (Appender, Outcome)> + Send>>,
    fence: Fence,
    pack_bytes: usize,
}

/// End of an append.
#[derive(Debug)]
pub enum AppendEnd {
    /// The pack is in the queue.
    Stored,
    /// The pack is not in the queue, for certain.
    Refused(AppendError),
    /// The pack may be in the queue.
    Unknown {
        /// Why that is not known.
        error: AppendError,
        /// Whether it may still get there.
        may_arrive: bool,
    },
}

impl ShardAppender {
    /// Connects with the first append.
    pub fn new(redis: Redis) -> Self {
        Self { redis, appender: None, generation: 0 }
    }

    /// Starts to append a pack of `count` webhooks. A connection that is older than `generation` is not
    /// used: it would break with the pack on it, and leave its outcome unknown.
    pub fn start(&mut self, pack: &[u8], count: u32, generation: u64) -> RunningAppend {
        let new = || Appender::new(self.redis.clone());
        let mut appender = self.appender.take().unwrap_or_else(new);
        if std::mem::replace(&mut self.generation, generation) != generation {
            appender.disconnect();
        }
        let append = appender.prepare(pack, count);
        RunningAppend {
            fence: appender.fence(),
            pack_bytes: pack.len(),
            outcome: Box::pin(async move {
                let outcome = appender.send(append).await;
                (appender, outcome)
            }),
        }
    }

    /// Takes the connection back for the next append.
    pub fn put_back(&mut self, appender: Appender) {
        self.appender = Some(appender);
    }
}

impl RunningAppend {
    /// Waits for the end, for at most `time`.
    pub async fn within(&mut self, time: Duration) -> Option<(Appender, AppendEnd)> {
        let (appender, outcome) = timeout(time, &mut self.outcome).await.ok()?;
        Some((appender, AppendEnd::of(outcome)))
    }

    /// Waits for the end, for as long as the connection may live. One that is dead is closed from Redis'
    /// side: the append does not take effect behind those after it.
    pub async fn end(mut self, looks: &Looks) -> AppendEnd {
        let answered_before = looks.answered();
        let slowest = Duration::from_secs((self.pack_bytes / SLOWEST_BYTES_PER_S) as u64);
        let dead_at = Instant::now() + DEAD_AFTER + slowest;
        loop {
            tokio::select! {
                biased;
                (_, outcome) = &mut self.outcome => return AppendEnd::of(outcome),
                () = sleep(LOOK_EVERY) => {
                    let answered = looks.answered() - answered_before;
                    if answered >= LOOKS_MAX && Instant::now() >= dead_at {
                        break;
                    }
                }
            }
        }
        drop(self.outcome);
        close(&self.fence).await;
        let reason = "no answer, while others had theirs".to_owned();
        let error = AppendError::Unknown(QueueError::Unexpected(reason));
        AppendEnd::Unknown { error, may_arrive: false }
    }
}

/// Ends the connection of an append that was given up. Returns only then, or where Redis forbids it.
async fn close(fence: &Fence) {
    loop {
        match fence.close().await {
            Ok(connections) => {
                tracing::warn!(connections, "an append without an answer was given up");
                return;
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "a connection cannot be ended now");
                sleep(LOOK_EVERY).await;
            }
        }
    }
}

impl AppendEnd {
    fn of(outcome: Outcome) -> Self {
        match outcome {
            Ok(_) => Self::Stored,
            Err(error @ AppendError::NotStored(_)) => Self::Refused(error),
            Err(error @ AppendError::Unknown(_)) => Self::Unknown { error, may_arrive: true },
        }
    }

    /// The error, unless it is stored.
    pub fn error(&self) -> Option<&AppendError> {
        match self {
            Self::Stored => None,
            Self::Refused(error) | Self::Unknown { error, .. } => Some(error),
        }
    }

    /// What it says of the queue.
    pub fn health(&self) -> QueueHealth {
        match self {
            Self::Stored => QueueHealth::Usable,
            Self::Refused(AppendError::NotStored(QueueError::Full(_))) => QueueHealth::Full,
            Self::Refused(_) | Self::Unknown { .. } => QueueHealth::Unavailable,
        }
    }
}
