//! Reads ahead of delivery: what was parked first, then the main stream behind the cursor.
//!
//! Bounded: a few packs wait in the channel to the index, and while the index is full nothing is
//! read. A pack that can't be decoded is handed on as such; it never stops the stream.

use std::sync::Arc;
use std::time::Duration;

use spillway_queue::read::{Entry, Parked, Reader};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::error::chain;
use spillway_webhook::pack::{Corrupt, Pack};
use spillway_webhook::{StreamId, WebhookId};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::sort::{Sorted, Sorter};

/// Stored bytes asked for at a time.
const READ_BYTES: usize = 4 << 20;
/// Packs between intake and index: a megabyte each, as a rule.
const ARRIVED_MAX: usize = 4;
/// How long a read waits for new entries, and how often replays are looked for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for an answer of Redis beside that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before Redis is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(200);

/// What intake found.
pub enum Arrived {
    /// A parked webhook.
    Parked {
        /// Its entry in the parked stream.
        parked: Parked,
        /// What it is to the schedule.
        sorted: Sorted,
        /// Its pack of one.
        pack: Arc<Pack>,
    },
    /// Everything that was parked at start has arrived.
    ParkedLoaded,
    /// Everything of the main stream that was there at start has arrived.
    CaughtUp,
    /// A pack of the main stream.
    Pack {
        /// Its entry.
        id: StreamId,
        /// What each webhook is to the schedule.
        sorted: Vec<Sorted>,
        /// Its webhooks.
        pack: Arc<Pack>,
    },
    /// An entry of the main stream that can't be decoded.
    Corrupt(StreamId),
    /// A parked entry that can't be decoded.
    CorruptParked(StreamId),
}

/// Reads the streams of the drain.
pub struct Intake {
    redis: Redis,
    reader: Reader,
    sorter: Sorter,
    metrics: Arc<Metrics>,
    arrived: mpsc::Sender<Arrived>,
    main: StreamId,
    parked: StreamId,
    is_parked_loaded: bool,
    /// Up to where the main stream went at start; `None` once that is reached.
    catches_up_at: Option<StreamId>,
}

/// The index is gone, and intake with it.
struct Closed;

impl Intake {
    /// Starts reading behind `cursor`; ends when the receiver is dropped.
    pub fn start(
        redis: &Redis,
        drain: &str,
        cursor: StreamId,
        settings: Arc<Settings>,
        metrics: Arc<Metrics>,
    ) -> mpsc::Receiver<Arrived> {
        let (sender, receiver) = mpsc::channel(ARRIVED_MAX);
        let intake = Self {
            redis: redis.clone(),
            reader: Reader::new(redis.clone(), drain),
            sorter: Sorter::new(settings, metrics.clone()),
            metrics,
            arrived: sender,
            main: cursor,
            parked: StreamId::ZERO,
            is_parked_loaded: false,
            catches_up_at: Some(StreamId { ms: u64::MAX, seq: 0 }),
        };
        tokio::spawn(intake.run());
        receiver
    }

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
            None => connection.insert(self.redis.connect(Some(PATIENCE + ANSWER_TIMEOUT)).await?),
        };
        if self.catches_up_at.is_some_and(|at| at.ms == u64::MAX) {
            self.catches_up_at = Some(self.reader.last(connection).await?);
        }
        if self.read_parked(connection).await?.is_err() {
            return Ok(Err(Closed));
        }
        let look_again_at = Instant::now() + PATIENCE;
        while Instant::now() < look_again_at {
            if self.catches_up_at.is_some_and(|at| self.main >= at) {
                self.catches_up_at = None;
                if self.arrived.send(Arrived::CaughtUp).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
            let entries = self.reader.main_after(connection, self.main, READ_BYTES).await?;
            if entries.is_empty() {
                let patience = look_again_at.duration_since(Instant::now());
                self.reader.wait_for_main(connection, self.main, patience).await?;
            }
            for entry in entries {
                self.main = entry.id;
                let arrived = self.decode(&entry);
                if self.arrived.send(arrived).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
            if self.arrived.is_closed() {
                return Ok(Err(Closed));
            }
        }
        Ok(Ok(()))
    }

    /// All of them at start; later only those that an operator replays, since the others are this
    /// owner's own.
    async fn read_parked(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Result<(), Closed>, QueueError> {
        loop {
            let found = self.reader.parked_after(connection, self.parked, READ_BYTES).await?;
            if found.is_empty() {
                break;
            }
            for parked in found {
                self.parked = parked.id;
                if self.is_parked_loaded && !parked.replayed {
                    continue;
                }
                let arrived = self.decode_parked(parked);
                if self.arrived.send(arrived).await.is_err() {
                    return Ok(Err(Closed));
                }
            }
        }
        if !self.is_parked_loaded {
            self.is_parked_loaded = true;
            return Ok(self.arrived.send(Arrived::ParkedLoaded).await.map_err(|_| Closed));
        }
        Ok(Ok(()))
    }

    fn decode(&self, entry: &Entry) -> Arrived {
        let id = entry.id;
        match Pack::decode(&entry.pack) {
            Ok(pack) => {
                let sorted = (0..pack.count())
                    .map(|index| self.sorter.sort(&pack.record(index), id, index, false))
                    .collect();
                Arrived::Pack { id, sorted, pack: Arc::new(pack) }
            }
            Err(error) => {
                self.corrupt(id, &error);
                Arrived::Corrupt(id)
            }
        }
    }

    fn decode_parked(&self, parked: Parked) -> Arrived {
        match Pack::decode(&parked.pack) {
            Ok(pack) if pack.count() == 1 => {
                let WebhookId { entry, index, .. } = parked.webhook;
                let sorted = self.sorter.sort(&pack.record(0), entry, index, parked.replayed);
                Arrived::Parked { sorted, pack: Arc::new(pack), parked }
            }
            Ok(_) => {
                self.corrupt(parked.id, &Corrupt::Malformed("a parked pack holds one webhook"));
                Arrived::CorruptParked(parked.id)
            }
            Err(error) => {
                self.corrupt(parked.id, &error);
                Arrived::CorruptParked(parked.id)
            }
        }
    }

    fn corrupt(&self, id: StreamId, error: &Corrupt) {
        self.metrics.corrupt.inc();
        tracing::error!(entry = %id, error = chain(error), "corrupt pack: set aside whole; the rest flows");
    }
}
