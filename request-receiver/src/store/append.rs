//! One append to the queue: its time limits, and what is known when it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_process::clock::wall_clock_ms;
use spillway_process::error::chain;
use spillway_queue::append::{AppendError, Appender, Fence};
use spillway_queue::{QueueError, Redis};
use spillway_webhook::StreamId;
use tokio::time::{Instant, sleep, timeout};

use crate::batch::Outlived;
use crate::gaps::GapLog;
use crate::store::looks::{QueueHealth, RedisLooks};
use crate::store::running::{ListedAppend, RunningAppends};

/// Looks at Redis that were answered, of one a second, before an unanswered append is given up.
/// Redis runs one command after the other. So by then this connection is dead, not Redis slow.
const LOOKS_MAX: u64 = 10;
/// Least time before that, plus time for the bytes of the pack: a large one may be slow to send.
const DEAD_AFTER: Duration = Duration::from_secs(10);
const SLOWEST_BYTES_PER_S: usize = 16 << 10;
/// Time between checks for that.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same for an append that others wait for. Two answered looks are enough, of which the first may have
/// been sent before the append, and time for the bytes at a usual speed.
const PRESSED_LOOKS: u64 = 2;
const PRESSED_LOOK_EVERY: Duration = Duration::from_millis(50);
const USUAL_BYTES_PER_S: usize = 1 << 20;

/// Outcome of an append; `None` if it was not sent.
type AppendOutcome = Option<Result<StreamId, AppendError>>;

/// Appends of one shard, one after the other. The connection is made again when Redis was away.
pub struct ShardAppender {
    redis: Redis,
    view: Arc<AppenderView>,
    /// `None` while an append is under way, or after one that hung.
    appender: Option<Appender>,
    generation: u64,
}

/// State of Redis, of the gaps and of other appends, as appends see and change it.
pub struct AppenderView {
    looks: Arc<RedisLooks>,
    gaps: Arc<GapLog>,
    running: Arc<RunningAppends>,
    /// Time for closing lost appends, and for reading the end of the stream on a new connection.
    run_within: Duration,
}

/// Append under way, which owns its connection.
pub struct RunningAppend {
    outcome: Pin<Box<dyn Future<Output = (Appender, AppendOutcome)> + Send>>,
    listed: ListedAppend,
    pack_bytes: usize,
}

/// Outcome of an append.
#[derive(Debug)]
pub enum AppendEnd {
    /// The pack is in the queue, in this entry.
    Stored(StreamId),
    /// The pack was not sent, because its batch had outlived a sender by then.
    Unsent,
    /// The pack is certainly not in the queue.
    Refused(AppendError),
    /// The pack may be in the queue.
    Unknown {
        /// Reason for which that is not known.
        error: AppendError,
        /// True if the pack may still get there.
        may_arrive: bool,
    },
}

impl ShardAppender {
    /// Appender without a connection yet. It connects with the first append.
    pub fn new(redis: Redis, view: Arc<AppenderView>) -> Self {
        Self { redis, view, appender: None, generation: 0 }
    }

    /// Starts to append a pack of `count` webhooks. A connection from before the watch's newest one is
    /// not used: it would break with the pack on it, and leave its outcome unknown. Nothing is sent if
    /// the batch has outlived a sender before it could be sent.
    pub fn start(&mut self, pack: &[u8], count: u32, outlived: Outlived) -> RunningAppend {
        let new = || Appender::new(self.redis.clone());
        let mut appender = self.appender.take().unwrap_or_else(new);
        let generation = self.view.looks.generation();
        let view = self.view.clone();
        if std::mem::replace(&mut self.generation, generation) != generation {
            appender.disconnect();
        }
        let append = appender.prepare(pack, count);
        let listed = ListedAppend::new(view.running.clone(), outlived);
        let state = listed.state.clone();
        RunningAppend {
            listed,
            pack_bytes: pack.len(),
            outcome: Box::pin(async move {
                let outcome = match view.prepare(&mut appender).await {
                    Err(error) => Some(Err(AppendError::NotStored(error))),
                    Ok(()) => {
                        // Listed before it is checked for the last time: others see who is answered
                        // later.
                        view.running.list(&state, appender.fence());
                        let is_late = state.outlived.is_set();
                        if is_late { None } else { Some(appender.send(append).await) }
                    }
                };
                (appender, outcome)
            }),
        }
    }

    /// Returns the connection for the next append.
    pub fn put_back(&mut self, appender: Appender) {
        self.appender = Some(appender);
    }
}

impl AppenderView {
    /// A view of these. A new connection that does not show the end of the stream within `run_within` is given up.
    pub fn new(
        looks: Arc<RedisLooks>,
        gaps: Arc<GapLog>,
        running: Arc<RunningAppends>,
        run_within: Duration,
    ) -> Arc<Self> {
        Arc::new(Self { looks, gaps, running, run_within })
    }

    /// Ends lost appends, which this one must not overtake, and connects.
    async fn prepare(&self, appender: &mut Appender) -> Result<(), QueueError> {
        for lost in self.running.lost() {
            // Another shard may have ended it meanwhile.
            if lost.is_lost()
                && let Some(fence) = lost.fence.get()
            {
                let reason = "a lost append could not be ended in time";
                let late = |_| QueueError::Unexpected(reason.to_owned());
                let connections = timeout(self.run_within, fence.close()).await.map_err(late)??;
                tracing::debug!(connections, "a lost append was ended");
            }
            self.running.ended(&lost);
        }
        self.connect(appender).await
    }

    /// Connects, unless there is a connection. A shard may be the first to connect to a
    /// Redis that has just lost data: that would not show any more after its append.
    async fn connect(&self, appender: &mut Appender) -> Result<(), QueueError> {
        let stored_ms = self.looks.stored().ms();
        let is_new = appender.connect().await?;
        if is_new && stored_ms > 0 {
            let read = timeout(self.run_within, appender.read_run()).await;
            // No pack was sent: that is certain, and not to be confused with an append that hangs.
            let Ok(read) = read else {
                appender.disconnect();
                let reason = "the end of the stream could not be read in time".to_owned();
                return Err(QueueError::Unexpected(reason));
            };
            match read {
                Ok(run) => {
                    self.gaps.losses().on_stream_end(stored_ms, run.newest.ms, wall_clock_ms());
                }
                Err(error @ QueueError::Unreachable(_)) => {
                    appender.disconnect();
                    return Err(error);
                }
                // It may append all the same.
                Err(error) => {
                    tracing::debug!(error = chain(&error), "the end of the stream is not known");
                }
            }
        }
        Ok(())
    }
}

impl RunningAppend {
    /// Waits for the end, for at most `time`, or until another shard has waited for long.
    pub async fn within(&mut self, time: Duration) -> Option<(Appender, AppendEnd)> {
        let late = sleep(time);
        let (appender, outcome) = tokio::select! {
            biased;
            ended = &mut self.outcome => ended,
            () = late => return None,
            () = self.listed.state.pressed.notified() => return None,
        };
        Some((appender, AppendEnd::of(outcome)))
    }

    /// Place of this append among the running ones. It is to be ended with the append.
    pub fn into_listed(self) -> ListedAppend {
        self.listed
    }

    /// Notes that there was no answer for so long that other batches go into the log.
    pub fn hangs(&self) {
        self.listed.hangs();
    }

    /// Waits for the end, for as long as the connection may live. A dead connection is closed from
    /// Redis' side, so that its append does not take effect after later ones.
    pub async fn end(mut self, looks: &RedisLooks) -> (AppendEnd, ListedAppend) {
        let (began, answered_before) = (Instant::now(), looks.answered());
        let time_at = |bytes_per_s| Duration::from_secs((self.pack_bytes / bytes_per_s) as u64);
        let dead_at = began + DEAD_AFTER + time_at(SLOWEST_BYTES_PER_S);
        let pressed_until = began + time_at(USUAL_BYTES_PER_S);
        loop {
            let is_pressed = self.listed.state.is_pressed();
            let every = if is_pressed { PRESSED_LOOK_EVERY } else { LOOK_EVERY };
            tokio::select! {
                biased;
                (_, outcome) = &mut self.outcome => {
                    return (AppendEnd::of(outcome), self.listed);
                }
                () = sleep(every) => if is_pressed { looks.look_soon() },
                () = self.listed.state.pressed.notified() => continue,
            }
            let answered = looks.answered() - answered_before;
            let (enough, until) =
                if is_pressed { (PRESSED_LOOKS, pressed_until) } else { (LOOKS_MAX, dead_at) };
            if answered >= enough && Instant::now() >= until {
                break;
            }
        }
        let Self { outcome, listed, .. } = self;
        drop(outcome);
        if let Some(fence) = listed.state.fence.get() {
            close(fence).await;
        }
        let reason = "no answer, while others had theirs".to_owned();
        let error = AppendError::Unknown(QueueError::Unexpected(reason));
        (AppendEnd::Unknown { error, may_arrive: false }, listed)
    }
}

/// Closes the connection of an append that was given up. Returns once it is closed, or where Redis
/// forbids to close it.
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
    fn of(outcome: AppendOutcome) -> Self {
        match outcome {
            None => Self::Unsent,
            Some(Ok(entry)) => Self::Stored(entry),
            Some(Err(error @ AppendError::NotStored(_))) => Self::Refused(error),
            Some(Err(error @ AppendError::Unknown(_))) => Self::Unknown { error, may_arrive: true },
        }
    }

    /// True if the pack can't get into the queue any more.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Unknown { may_arrive: true, .. })
    }

    /// Error of the append, unless the pack is stored.
    pub fn error(&self) -> Option<&AppendError> {
        match self {
            Self::Stored(_) | Self::Unsent => None,
            Self::Refused(error) | Self::Unknown { error, .. } => Some(error),
        }
    }

    /// Health of the queue that follows from the outcome.
    pub fn health(&self) -> QueueHealth {
        match self {
            Self::Stored(_) | Self::Unsent => QueueHealth::Usable,
            Self::Refused(AppendError::NotStored(QueueError::Full(_))) => QueueHealth::Full,
            Self::Refused(_) | Self::Unknown { .. } => QueueHealth::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::store::gate::Gate;

    /// A Redis that begins to answer after `delay`, and never answers a script. Returns what was sent to it.
    fn slow_redis(socket: &Path, delay: Duration) -> JoinHandle<String> {
        let listener = UnixListener::bind(socket).expect("bind a socket");
        thread::spawn(move || {
            let (mut connection, _) = listener.accept().expect("a connection");
            thread::sleep(delay);
            let mut sent = String::new();
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = connection.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]);
                sent.push_str(&text);
                if sent.contains("EVALSHA") {
                    continue;
                }
                let is_command = |line: &&str| line.len() > 1 && line.starts_with('*');
                let commands = text.lines().filter(is_command).count();
                connection.write_all("+OK\r\n".repeat(commands).as_bytes()).ok();
            }
            sent
        })
    }

    /// A view after the confirmation of an entry of this time; 0: of none.
    fn view(stored_ms: u64) -> Arc<AppenderView> {
        let looks = RedisLooks::new(Gate::new(false, Duration::from_secs(3)));
        looks.stored().on_confirmed(stored_ms);
        let running = RunningAppends::new(false);
        AppenderView::new(looks, Arc::default(), running, Duration::from_millis(100))
    }

    /// Appends to a Redis that needs 200 ms for a connection. A sender is answered after `answered`.
    /// Returns the end, what was sent, and whether it is lost.
    async fn appended(stored_ms: u64, answered: Duration) -> (AppendEnd, String, bool) {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("redis.sock");
        let fake = slow_redis(&socket, Duration::from_millis(200));
        let url = format!("unix://{}", socket.display());
        let redis = Redis::new(&url, "{spillway}:").expect("a good URL");
        let view = view(stored_ms);
        let mut appender = ShardAppender::new(redis, view.clone());
        let outlived = Outlived::default();
        let mut append = appender.start(b"pack", 1, outlived.clone());
        tokio::spawn({
            let outlived = outlived.clone();
            async move {
                sleep(answered).await;
                outlived.set(true);
            }
        });
        let ended = append.within(Duration::from_secs(60)).await;
        let (connection, end) = ended.expect("it ends");
        append.into_listed().end(end.is_final());
        drop(appender);
        drop(connection);
        // The connection is closed by a task of this runtime.
        let sent = tokio::task::spawn_blocking(|| fake.join().expect("no panic")).await;
        outlived.set(true);
        assert!(view.running.outlived().is_empty(), "nobody waits for it");
        (end, sent.expect("it is read"), !view.running.lost().is_empty())
    }

    #[tokio::test]
    async fn nothing_is_sent_for_senders_that_were_answered_while_it_connected() {
        let (end, sent, is_lost) = appended(0, Duration::from_millis(100)).await;
        assert!(matches!(end, AppendEnd::Unsent) && !is_lost, "{end:?}");
        assert!(sent.contains("SETNAME") && !sent.contains("XADD"), "{sent}");
    }

    #[tokio::test]
    async fn a_slow_connection_is_used_while_senders_wait() {
        let (end, sent, is_lost) = appended(0, Duration::from_secs(60)).await;
        assert!(sent.contains("XADD"), "{sent}");
        assert!(matches!(end, AppendEnd::Unknown { may_arrive: true, .. }), "{end:?}");
        assert!(is_lost, "the next append ends its connection");
    }

    #[tokio::test]
    async fn a_pack_is_certainly_not_stored_if_the_script_before_it_hangs() {
        let (end, sent, _) = appended(1_767_268_800_000, Duration::from_secs(60)).await;
        assert!(matches!(end, AppendEnd::Refused(AppendError::NotStored(_))), "{end:?}");
        assert_eq!(end.health(), QueueHealth::Unavailable);
        assert!(sent.contains("EVALSHA") && !sent.contains("XADD"), "{sent}");
    }
}
