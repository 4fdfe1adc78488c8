//! Reads ahead of what lets the webhooks out: replays first, then the main stream after the cursor.
//!
//! Bounded: a few packs wait in the channel to the reader's user, and while it is full nothing is
//! read. What becomes of an entry is the user's: it is handed each as it was read.

use std::time::Duration;

use spillway_queue::read::{Entry, LastRead, Reader, Replay};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::error::chain;
use spillway_webhook::StreamId;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Stored bytes asked for at a time.
const READ_BYTES: usize = 4 << 20;
/// Packs between intake and its user: a megabyte each, as a rule.
const ARRIVED_MAX: usize = 4;
/// How long a read waits for new entries, and how often replays are looked for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for an answer of Redis beside that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before Redis is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Streams that an intake reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Replays that wait at start, then the main stream, and between its entries what is replayed.
    Both,
    /// The main stream.
    Main,
    /// Replays that wait at start, and what is replayed later.
    Replays,
}

/// What intake found.
pub enum Found {
    /// An entry of the main stream, not yet decoded.
    Main(Entry),
    /// A replay, not yet decoded.
    Replay(Replay),
    /// Every replay that waited at start has been found.
    ReplaysLoaded,
    /// Everything of the main stream that was there at start has been found.
    CaughtUp,
    /// Redis came back with older data: what was read is not there any more. The last find; the
    /// user begins again from what Redis holds.
    OlderData,
}

/// Reads the streams of one drain, and hands on what `turn` makes of each find.
struct Intake<T, F> {
    redis: Redis,
    reader: Reader,
    streams: Streams,
    turn: F,
    arrived: mpsc::Sender<T>,
    main: StreamId,
    /// Newest entry of the main stream that was read, to be compared after a reconnect.
    last_read: Option<LastRead>,
    /// Newest replay that was read.
    replay: StreamId,
    are_replays_loaded: bool,
    /// Up to where the main stream went at start; `None` once that is reached.
    catches_up_at: Option<StreamId>,
}

/// Nobody takes what is found any more, or there is nothing more to find.
struct Closed;

/// Starts reading replays and what lies behind `cursor`; ends when the receiver is dropped.
pub fn start<T, F>(redis: &Redis, drain: &str, cursor: StreamId, turn: F) -> mpsc::Receiver<T>
where
    T: Send + 'static,
    F: FnMut(Found) -> T + Send + 'static,
{
    start_with(redis, drain, (Streams::Both, cursor), turn)
}

/// The same of some `streams` only, so that a user that takes no more of one goes on with the other.
pub fn start_with<T, F>(
    redis: &Redis,
    drain: &str,
    (streams, cursor): (Streams, StreamId),
    turn: F,
) -> mpsc::Receiver<T>
where
    T: Send + 'static,
    F: FnMut(Found) -> T + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(ARRIVED_MAX);
    let intake = Intake {
        redis: redis.clone(),
        reader: Reader::new(redis.clone(), drain),
        streams,
        turn,
        arrived: sender,
        main: cursor,
        last_read: None,
        replay: StreamId::ZERO,
        are_replays_loaded: false,
        catches_up_at: Some(StreamId { ms: u64::MAX, seq: 0 }),
    };
    tokio::spawn(intake.run());
    receiver
}

impl<T, F: FnMut(Found) -> T> Intake<T, F> {
    async fn run(mut self) {
        let mut connection = None;
        while !self.arrived.is_closed() {
            match self.read(&mut connection).await {
                Ok(Ok(())) => {}
                Ok(Err(Closed)) => return,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "reading the queue failed; trying again");
                    connection = None;
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
                        "redis came back with older data: beginning again from what it holds"
                    );
                    // Nothing more to find, whoever takes it.
                    self.send(Found::OlderData).await.ok();
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
        let look_again_at = Instant::now() + PATIENCE;
        if self.streams == Streams::Replays {
            tokio::select! {
                () = self.arrived.closed() => return Ok(Err(Closed)),
                () = tokio::time::sleep_until(look_again_at) => return Ok(Ok(())),
            }
        }
        self.read_main(connection, look_again_at).await
    }

    /// Reads the main stream until `look_again_at`.
    async fn read_main(
        &mut self,
        connection: &mut Connection,
        look_again_at: Instant,
    ) -> Result<Result<(), Closed>, QueueError> {
        while Instant::now() < look_again_at {
            if self.catches_up_at.is_some_and(|at| self.main >= at) {
                self.catches_up_at = None;
                if self.send(Found::CaughtUp).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
            let entries = self.reader.main_after(connection, self.main, READ_BYTES).await?;
            if entries.is_empty() {
                let patience = look_again_at.duration_since(Instant::now());
                self.reader.wait_for_main(connection, self.main, patience).await?;
            }
            if let Some(newest) = entries.last() {
                self.last_read = Some(LastRead::of(newest));
            }
            for entry in entries {
                self.main = entry.id;
                if self.send(Found::Main(entry)).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
            if self.arrived.is_closed() {
                return Ok(Err(Closed));
            }
        }
        Ok(Ok(()))
    }

    async fn holds_what_was_read(
        &mut self,
        connection: &mut Connection,
    ) -> Result<bool, QueueError> {
        match &self.last_read {
            Some(last_read) => self.reader.holds(connection, last_read).await,
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
            if found.is_empty() {
                break;
            }
            for replay in found {
                self.replay = replay.id;
                if self.send(Found::Replay(replay)).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
        }
        if !self.are_replays_loaded {
            self.are_replays_loaded = true;
            return Ok(self.send(Found::ReplaysLoaded).await);
        }
        Ok(Ok(()))
    }

    async fn send(&mut self, found: Found) -> Result<(), Closed> {
        let turned = (self.turn)(found);
        self.arrived.send(turned).await.map_err(|_| Closed)
    }
}
