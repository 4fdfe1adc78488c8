//! Decodes what is read ahead into packs that are ready to be produced.

use std::sync::Arc;

use spillway_consumer::intake::{self, IntakeEvent};
use spillway_process::error::chain;
use spillway_queue::Redis;
use spillway_webhook::pack::{Corrupt, Pack};
use spillway_webhook::{StreamId, WebhookId};
use tokio::sync::mpsc;

use crate::metrics::ProducerMetrics;

/// Item that was read ahead.
pub(crate) enum Arrived {
    /// A pack of the main stream.
    Pack(StreamId, Arc<Pack>),
    /// A replayed webhook: its entry in the stream of replays, its id, its pack of one.
    Replayed(StreamId, WebhookId, Arc<Pack>),
    /// An entry of the main stream that can't be decoded.
    Corrupt(StreamId),
    /// A replay that can't be decoded.
    CorruptReplay(StreamId),
    /// A mark that only a scheduler needs.
    Mark,
    /// Redis came back with older data. What has arrived may not exist any more.
    OlderData,
}

/// Starts reading after `cursor`. Ends when the receiver is dropped.
pub(crate) fn start(
    redis: &Redis,
    consumer: &str,
    cursor: StreamId,
    metrics: Arc<ProducerMetrics>,
) -> mpsc::Receiver<Arrived> {
    intake::start(redis, consumer, cursor, move |found| decode(found, &metrics))
}

fn decode(found: IntakeEvent, metrics: &ProducerMetrics) -> Arrived {
    match found {
        IntakeEvent::Main(entry) => match Pack::decode(&entry.pack) {
            Ok(pack) => Arrived::Pack(entry.id, Arc::new(pack)),
            Err(error) => {
                corrupt(entry.id, &error, metrics);
                Arrived::Corrupt(entry.id)
            }
        },
        IntakeEvent::Replay(replay) => match Pack::decode(&replay.pack) {
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
        IntakeEvent::ReplaysLoaded | IntakeEvent::CaughtUp => Arrived::Mark,
        IntakeEvent::OlderData => Arrived::OlderData,
    }
}

fn corrupt(id: StreamId, error: &Corrupt, metrics: &ProducerMetrics) {
    metrics.corrupt.inc();
    tracing::error!(
        entry = %id,
        error = chain(error),
        "corrupt pack: stored under corrupt:; delivery continues"
    );
}
