//! What intake makes of what it finds: decoded packs, each webhook sorted.
//!
//! A pack that can't be decoded is handed on as such; it never stops the stream.

use std::hash::RandomState;
use std::sync::Arc;

use spillway_drain::intake::{self, Found};
use spillway_queue::Redis;
use spillway_queue::read::{Entry, Parked};
use spillway_service::error::chain;
use spillway_webhook::pack::{Corrupt, Pack};
use spillway_webhook::{StreamId, WebhookId};
use tokio::sync::mpsc;

use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::sort::{Sorted, Sorter};

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
    /// Redis came back with older data: what has arrived may not be there any more.
    OlderData,
}

/// Decodes and sorts what was found.
struct Decoder {
    sorter: Sorter,
    metrics: Arc<Metrics>,
}

/// Starts reading behind `cursor`; ends when the receiver is dropped.
pub fn start(
    redis: &Redis,
    drain: &str,
    cursor: StreamId,
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    hasher: RandomState,
) -> mpsc::Receiver<Arrived> {
    let decoder = Decoder { sorter: Sorter::new(settings, metrics.clone(), hasher), metrics };
    intake::start(redis, drain, cursor, move |found| decoder.decode(found))
}

impl Decoder {
    fn decode(&self, found: Found) -> Arrived {
        match found {
            Found::Main(entry) => self.main(&entry),
            Found::Parked(parked) => self.parked(parked),
            Found::ParkedLoaded => Arrived::ParkedLoaded,
            Found::CaughtUp => Arrived::CaughtUp,
            Found::OlderData => Arrived::OlderData,
        }
    }

    fn main(&self, entry: &Entry) -> Arrived {
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

    fn parked(&self, parked: Parked) -> Arrived {
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
