//! Reads ahead of the consumer: the replays, the main stream after the cursor, or the one before the
//! other.
//!
//! Memory is bounded: a few packs wait in the channel to the consumer, and while it is full nothing
//! is read. The consumer receives each entry as it was read, and decides everything else.

use std::time::Duration;

use spillway_process::error::chain;
use spillway_process::failure_log::FailureLog;
use spillway_queue::read::{Entry, LastRead, Replay, StreamNews, StreamReader};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::StreamId;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Stored bytes that one read asks for.
const READ_BYTES: usize = 4 << 20;
/// Packs between intake and the consumer. A pack is usually a megabyte.
const ARRIVED_MAX: usize = 4;
/// Mean stored bytes of the packs of a read from which packs are large. After large packs, the next ones are
/// read by their number: a read in bytes is a script, which costs Redis most where packs are large.
const LARGE_BYTES: usize = 16 << 10;
/// Most packs of such a read. They may be larger than those before, so they are few.
const LARGE_AT_ONCE: usize = 4;
/// Most packs with which waiting for new entries ends. They may be of any size, too.
const NEW_AT_ONCE: usize = 4;
/// Time from the begin of one wait for new entries to the next. What is appended meanwhile is read
/// together: each read costs Redis and the consumer about as much for a few packs as for one.
const GATHER: Duration = Duration::from_millis(2);
/// Time for which a read waits for new entries.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks for replays while the main stream never ends. Each look is one short script.
const REPLAYS_EVERY: Duration = Duration::from_millis(50);
/// Additional time for Redis' answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const _: () =
    assert!(PATIENCE.as_millis() < ANSWER_TIMEOUT.as_millis(), "a blocking read ends by itself");
/// Pause before Redis is asked again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Streams that an intake reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Replays that wait at start, then the main stream, and later replays between its entries.
    Both,
    /// The main stream.
    Main,
    /// Replays that wait at start, and later ones.
    Replays,
}

/// Result of reading.
pub enum IntakeEvent {
    /// An entry of the main stream, not yet decoded.
    Main(Entry),
    /// A replay, not yet decoded.
    Replay(Replay),
    /// All replays that waited at start have been handed over.
    ReplaysLoaded,
    /// All entries of the main stream that existed at start have been handed over.
    CaughtUp,
    /// Redis came back with older data: entries or replays that were read are gone. This is the last result.
    /// The consumer starts again from what Redis holds.
    OlderData,
}

/// Reads the streams of one consumer, converts each result with `convert`, and hands it over.
struct Intake<T, F> {
    redis: Redis,
    reader: StreamReader,
    streams: Streams,
    convert: F,
    arrived: mpsc::Sender<T>,
    main: StreamId,
    /// Newest entry of the main stream that was read. It is compared after a reconnect.
    last_read: Option<LastRead>,
    /// Id of the newest replay that was read.
    replay: StreamId,
    /// The same replay. It is compared after a reconnect, too.
    last_replay: Option<LastRead>,
    are_replays_loaded: bool,
    /// Id of the last main entry at start; `None` once it is reached.
    catches_up_at: Option<StreamId>,
    pace: ReadPace,
}

/// Pace of the reads of the main stream.
struct ReadPace {
    /// Number of packs to read, if those before were large.
    large_at_once: Option<usize>,
    /// True if the last read may have left entries.
    is_more_there: bool,
    /// Time at which the last wait for new entries began.
    waited_at: Option<Instant>,
}

/// The receiver was dropped, or there is nothing more to read.
struct Closed;

/// Starts reading replays and the main stream after `cursor`. Ends when the receiver is dropped.
pub fn start<T, F>(redis: &Redis, consumer: &str, cursor: StreamId, convert: F) -> mpsc::Receiver<T>
where
    T: Send + 'static,
    F: FnMut(IntakeEvent) -> T + Send + 'static,
{
    start_with(redis, consumer, (Streams::Both, cursor), convert)
}

/// Starts reading some `streams` only, so that a consumer that stops one of them can continue the
/// other.
pub fn start_with<T, F>(
    redis: &Redis,
    consumer: &str,
    (streams, cursor): (Streams, StreamId),
    convert: F,
) -> mpsc::Receiver<T>
where
    T: Send + 'static,
    F: FnMut(IntakeEvent) -> T + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(ARRIVED_MAX);
    let intake = Intake {
        redis: redis.clone(),
        reader: StreamReader::new(redis.clone(), consumer),
        streams,
        convert,
        arrived: sender,
        main: cursor,
        last_read: None,
        replay: StreamId::ZERO,
        last_replay: None,
        are_replays_loaded: false,
        catches_up_at: Some(StreamId { ms: u64::MAX, seq: 0 }),
        pace: ReadPace { large_at_once: None, is_more_there: true, waited_at: None },
    };
    tokio::spawn(intake.run());
    receiver
}

impl<T, F: FnMut(IntakeEvent) -> T> Intake<T, F> {
    async fn run(mut self) {
        let mut connection = None;
        let mut failures = FailureLog::default();
        while !self.arrived.is_closed() {
            match self.read(&mut connection).await {
                Ok(Ok(())) => {
                    if failures.on_success() {
                        tracing::info!(streams = ?self.streams, "the queue is read again");
                    }
                }
                Ok(Err(Closed)) => return,
                Err(error) => {
                    if let Some(failures) = failures.on_failure(Instant::now()) {
                        tracing::warn!(
                            error = chain(&error),
                            failures,
                            streams = ?self.streams,
                            "reading the queue failed; trying again"
                        );
                    }
                    connection = None;
                    // The answer may have been too large to arrive in time. Then packs are read by
                    // their bytes.
                    self.pace.large_at_once = None;
                    self.pace.is_more_there = true;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn read(
        &mut self,
        connection: &mut Option<Connection>,
    ) -> Result<Result<(), Closed>, QueueError> {
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let mut fresh = self.redis.connect(Some(PATIENCE + ANSWER_TIMEOUT)).await?;
                if !self.holds_what_was_read(&mut fresh).await? {
                    tracing::error!(
                        read_up_to = %self.main,
                        replays_read_up_to = %self.replay,
                        "redis came back with older data: beginning again from what it holds"
                    );
                    // There is nothing more to read, even if the receiver is gone.
                    self.send(IntakeEvent::OlderData).await.ok();
                    return Ok(Err(Closed));
                }
                connection.insert(fresh)
            }
        };
        if self.catches_up_at.is_some_and(|at| at.ms == u64::MAX) {
            self.catches_up_at = Some(self.reader.last(connection).await?);
        }
        if self.streams != Streams::Main && self.read_replays(connection).await?.is_err() {
            return Ok(Err(Closed));
        }
        match self.streams {
            Streams::Replays => self.wait_for_replay(connection).await,
            Streams::Main => self.read_main(connection, Instant::now() + PATIENCE).await,
            Streams::Both => self.read_main(connection, Instant::now() + REPLAYS_EVERY).await,
        }
    }

    /// Waits for the next replay. All that came before are handed over, so this does not end at once again and
    /// again.
    async fn wait_for_replay(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Result<(), Closed>, QueueError> {
        let waits = self.reader.wait_for(connection, None, Some(self.replay), (1, PATIENCE));
        tokio::select! {
            () = self.arrived.closed() => Ok(Err(Closed)),
            waited = waits => waited.map(|_| Ok(())),
        }
    }

    /// Reads the main stream until `look_again_at`. While it has nothing, waits for its next entry, or for the next
    /// replay if both are read.
    async fn read_main(
        &mut self,
        connection: &mut Connection,
        look_again_at: Instant,
    ) -> Result<Result<(), Closed>, QueueError> {
        while Instant::now() < look_again_at {
            if self.catches_up_at.is_some_and(|at| self.main >= at) {
                self.catches_up_at = None;
                if self.send(IntakeEvent::CaughtUp).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
            let StreamNews { main: entries, is_replay } = self.main_entries(connection).await?;
            if let Some(newest) = entries.last() {
                self.pace.large_at_once =
                    large_at_once(entries.iter().map(|entry| entry.pack.len()));
                self.last_read = Some(LastRead::of(newest));
            }
            for entry in entries {
                self.main = entry.id;
                if self.send(IntakeEvent::Main(entry)).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
            if self.arrived.is_closed() {
                return Ok(Err(Closed));
            }
            if is_replay {
                break;
            }
        }
        Ok(Ok(()))
    }

    /// Reads the next main entries. If the last read left none, waits for new ones, or for the next replay if both
    /// are read.
    async fn main_entries(
        &mut self,
        connection: &mut Connection,
    ) -> Result<StreamNews, QueueError> {
        if self.pace.is_more_there {
            let main = match self.pace.large_at_once {
                Some(count) => self.reader.main_next(connection, self.main, count).await?,
                None => self.reader.main_after(connection, self.main, READ_BYTES).await?,
            };
            self.pace.is_more_there = !main.is_empty();
            return Ok(StreamNews { main, is_replay: false });
        }
        if let Some(at) = self.pace.waited_at {
            tokio::time::sleep_until(at + GATHER).await;
        }
        self.pace.waited_at = Some(Instant::now());
        let replay = (self.streams == Streams::Both).then_some(self.replay);
        let count = self.pace.large_at_once.unwrap_or(NEW_AT_ONCE);
        let waiting = (count, PATIENCE);
        let news = self.reader.wait_for(connection, Some(self.main), replay, waiting).await?;
        self.pace.is_more_there = news.main.len() >= count;
        Ok(news)
    }

    async fn holds_what_was_read(
        &mut self,
        connection: &mut Connection,
    ) -> Result<bool, QueueError> {
        if let Some(last_read) = &self.last_read
            && !self.reader.holds(connection, last_read).await?
        {
            return Ok(false);
        }
        match &self.last_replay {
            Some(last_replay) => self.reader.holds_replay(connection, last_replay).await,
            None => Ok(true),
        }
    }

    /// Reads all replays that were not read before.
    async fn read_replays(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Result<(), Closed>, QueueError> {
        loop {
            let found = self.reader.replays_after(connection, self.replay, READ_BYTES).await?;
            let Some(newest) = found.last() else { break };
            self.last_replay = Some(LastRead::of_replay(newest));
            for replay in found {
                self.replay = replay.id;
                if self.send(IntakeEvent::Replay(replay)).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
        }
        if !self.are_replays_loaded {
            self.are_replays_loaded = true;
            return Ok(self.send(IntakeEvent::ReplaysLoaded).await);
        }
        Ok(Ok(()))
    }

    async fn send(&mut self, found: IntakeEvent) -> Result<(), Closed> {
        let converted = (self.convert)(found);
        self.arrived.send(converted).await.map_err(|_| Closed)
    }
}

/// Number of packs to read next, if those before were large: as many as the largest of them would fill a read with.
/// `None` if they were small, and are read by their bytes.
fn large_at_once(packs: impl Iterator<Item = usize> + Clone) -> Option<usize> {
    let largest = packs.clone().max()?;
    let is_large = packs.clone().sum::<usize>() >= LARGE_BYTES * packs.count();
    is_large.then(|| (READ_BYTES / largest).clamp(1, LARGE_AT_ONCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packs_are_read_by_a_number_that_the_largest_allows() {
        let next = |sizes: &[usize]| large_at_once(sizes.iter().copied());
        assert_eq!(next(&[]), None);
        assert_eq!(next(&[LARGE_BYTES - 1]), None);
        assert_eq!(next(&[100, 100, 2 * LARGE_BYTES]), None);
        assert_eq!(next(&[LARGE_BYTES]), Some(LARGE_AT_ONCE));
        assert_eq!(next(&[100, 2 * LARGE_BYTES]), Some(LARGE_AT_ONCE));
        assert_eq!(next(&[LARGE_BYTES, READ_BYTES / 3]), Some(3));
        assert_eq!(next(&[READ_BYTES / 2]), Some(2));
        assert_eq!(next(&[LARGE_BYTES, 10 * READ_BYTES]), Some(1), "none is skipped");
    }
}
