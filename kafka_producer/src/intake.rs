//! What intake makes of what it finds: decoded packs, ready to be produced.

use std::sync::Arc;

use spillway_drain::intake::{self, Found};
use spillway_queue::Redis;
use spillway_queue::drains::KAFKA;
use spillway_service::error::chain;
use spillway_webhook::pack::{Corrupt, Pack};
use spillway_webhook::{StreamId, WebhookId};
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// What intake found.
pub enum Arrived {
    /// A pack of the main stream.
    Pack(StreamId, Arc<Pack>),
    /// A replayed webhook: its entry in the stream of replays, which one it is, its pack of one.
    Replayed(StreamId, WebhookId, Arc<Pack>),
    /// An entry of the main stream that can't be decoded.
    Corrupt(StreamId),
    /// A replay that can't be decoded.
    CorruptReplay(StreamId),
    /// Something that only a schedule needs to know.
    Mark,
    /// Redis came back with older data: what has arrived may not be there any more.
    OlderData,
}

/// Starts reading behind `cursor`; ends when the receiver is dropped.
pub fn start(redis: &Redis, cursor: StreamId, metrics: Arc<Metrics>) -> mpsc::Receiver<Arrived> {
    intake::start(redis, KAFKA, cursor, move |found| decode(found, &metrics))
}

fn decode(found: Found, metrics: &Metrics) -> Arrived {
    match found {
        Found::Main(entry) => match Pack::decode(&entry.pack) {
            Ok(pack) => Arrived::Pack(entry.id, Arc::new(pack)),
            Err(error) => {
                corrupt(entry.id, &error, metrics);
                Arrived::Corrupt(entry.id)
            }
        },
        Found::Replay(replay) => match Pack::decode(&replay.pack) {
            Ok(pack) if pack.count() == 1 => {
                Arrived::Replayed(replay.id, replay.webhook, Arc::new(pack))
            }
            Ok(_) => {
                let error = Corrupt::Malformed("a replay holds one webhook");
                corrupt(replay.id, &error, metrics);
                Arrived::CorruptReplay(replay.id)
            }
            Err(error) => {
                corrupt(replay.id, &error, metrics);
                Arrived::CorruptReplay(replay.id)
            }
        },
        Found::ReplaysLoaded | Found::CaughtUp => Arrived::Mark,
        Found::OlderData => Arrived::OlderData,
    }
}

fn corrupt(id: StreamId, error: &Corrupt, metrics: &Metrics) {
    metrics.corrupt.inc();
    tracing::error!(
        entry = %id,
        error = chain(error),
        "corrupt pack: set aside whole; the rest flows"
    );
}
