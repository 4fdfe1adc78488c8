//! Decodes and classifies what is read ahead. A pack that can't be decoded is passed on as corrupt,
//! and the stream continues.

use std::sync::Arc;

use spillway_consumer::intake::{self, IntakeEvent, Streams};
use spillway_delivery::{Event, PackRead, ReplayRead};
use spillway_process::error::chain;
use spillway_queue::Redis;
use spillway_queue::read::{Entry, Replay};
use spillway_webhook::pack::{Corrupt, Pack};
use spillway_webhook::{Position, StreamId};
use tokio::sync::mpsc;

use crate::classify::Classifier;
use crate::content::PackBytes;
use crate::metrics::DownstreamerMetrics;

/// Channels of what is read ahead. There are two, so that replays without room do not stop the
/// reading of the main stream.
pub(crate) struct Arrivals {
    /// Packs after the cursor.
    pub packs: mpsc::Receiver<Event<PackBytes>>,
    /// Replays.
    pub replays: mpsc::Receiver<Event<PackBytes>>,
}

/// Decodes and classifies what was read.
#[derive(Clone)]
struct Decoder {
    classifier: Classifier,
    metrics: Arc<DownstreamerMetrics>,
}

/// Starts reading replays, and the main stream after `cursor`. Ends when the receivers are dropped.
pub(crate) fn start(
    redis: &Redis,
    consumer: &str,
    cursor: StreamId,
    classifier: Classifier,
    metrics: Arc<DownstreamerMetrics>,
) -> Arrivals {
    let decoder = Decoder { classifier, metrics };
    let start = |streams| {
        let decoder = decoder.clone();
        let decode = move |found| decoder.decode(found);
        intake::start_with(redis, consumer, (streams, cursor), decode)
    };
    Arrivals { packs: start(Streams::Main), replays: start(Streams::Replays) }
}

impl Decoder {
    fn decode(&self, found: IntakeEvent) -> Event<PackBytes> {
        match found {
            IntakeEvent::Main(entry) => self.main(&entry),
            IntakeEvent::Replay(replay) => self.replay(&replay),
            IntakeEvent::ReplaysLoaded => Event::ReplaysLoaded,
            IntakeEvent::CaughtUp => Event::Tick,
            IntakeEvent::OlderData => Event::OlderData,
        }
    }

    fn main(&self, entry: &Entry) -> Event<PackBytes> {
        match decode_pack(&self.classifier, entry.id, &entry.pack, true) {
            Ok(pack) => Event::Pack(pack),
            Err(error) => {
                self.corrupt(entry.id, &error);
                Event::Corrupt(entry.id)
            }
        }
    }

    fn replay(&self, replay: &Replay) -> Event<PackBytes> {
        match Pack::decode(&replay.pack) {
            Ok(pack) if pack.count() == 1 => {
                let position = Position::new(replay.webhook.entry, replay.webhook.index);
                let classified = self.classifier.classify(&pack.view(0), position, false);
                let content = PackBytes(Arc::new(pack));
                Event::Replay(ReplayRead { id: replay.id, position, classified, content })
            }
            Ok(_) => {
                self.corrupt(replay.id, &Corrupt::Malformed("a replay holds one webhook"));
                Event::CorruptReplay(replay.id)
            }
            Err(error) => {
                self.corrupt(replay.id, &error);
                Event::CorruptReplay(replay.id)
            }
        }
    }

    fn corrupt(&self, id: StreamId, error: &Corrupt) {
        self.metrics.corrupt.inc();
        tracing::error!(entry = %id, error = chain(error), "corrupt pack: stored under corrupt:; delivery continues");
    }
}

/// Decodes a pack of the main stream and classifies its webhooks.
///
/// # Errors
/// [`Corrupt`] if it can't be decoded.
pub(crate) fn decode_pack(
    classifier: &Classifier,
    entry: StreamId,
    bytes: &[u8],
    is_news: bool,
) -> Result<PackRead<PackBytes>, Corrupt> {
    let pack = Pack::decode(bytes)?;
    let classified = (0..pack.count())
        .map(|index| classifier.classify(&pack.view(index), Position::new(entry, index), is_news))
        .collect();
    Ok(PackRead { entry, classified, content: PackBytes(Arc::new(pack)) })
}
