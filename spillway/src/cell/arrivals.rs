//! Watches for new webhooks of some shops. The main stream is the only place that has the shop of a webhook, and
//! consumers remove what they settled, so it is followed at once. A webhook that is removed before it was read is missed:
//! the counts show how many.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_queue::read::StreamReader;
use spillway_queue::{QueueError, Redis};
use spillway_webhook::StreamId;
use spillway_webhook::pack::Pack;
use spillway_webhook::shopify::Headers;
use tokio::task::JoinHandle;

/// Response timeout of Redis, longer than it is asked to wait.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for which Redis waits for an entry.
const WAIT: Duration = Duration::from_secs(1);
/// Bytes read at a time.
const PAGE_BYTES: usize = 4 << 20;

/// Counts of what was read.
#[derive(Debug, Default)]
struct ArrivalCounts {
    seen: AtomicU64,
    meant: AtomicU64,
    /// Shops of those that were meant.
    met: Mutex<BTreeSet<String>>,
}

/// A watch for new webhooks. It ends with this value, or when Redis fails.
pub(super) struct ShopArrivals {
    counts: Arc<ArrivalCounts>,
    task: JoinHandle<Result<(), QueueError>>,
    /// Webhooks that were ever accepted when the watch began.
    accepted: u64,
    meant: u64,
}

impl ShopArrivals {
    /// Begins to watch after the entry `after`, up to which about `accepted` webhooks were ever accepted.
    pub(super) fn start(
        redis: Redis,
        shops: Arc<BTreeSet<String>>,
        after: StreamId,
        accepted: u64,
    ) -> Self {
        let counts = Arc::new(ArrivalCounts::default());
        let task = tokio::spawn(follow(redis, shops, after, counts.clone()));
        Self { counts, task, accepted, meant: 0 }
    }

    /// Webhooks of the shops that were read since the last call.
    pub(super) fn take(&mut self) -> u64 {
        let meant = self.counts.meant.load(Ordering::Relaxed);
        meant - std::mem::replace(&mut self.meant, meant)
    }

    /// Shops of which webhooks were read so far.
    pub(super) fn shops_met(&self) -> BTreeSet<String> {
        self.counts.met.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if the watch has ended, or missed too much of the webhooks of which `accepted` were accepted by now.
    pub(super) fn is_blind(&self, accepted: u64) -> bool {
        let stored = accepted.saturating_sub(self.accepted);
        self.task.is_finished() || misses_much(stored, self.counts.seen.load(Ordering::Relaxed))
    }
}

impl Drop for ShopArrivals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// True if more than a tenth was missed. Some of the last ones are always still on their way.
fn misses_much(stored: u64, seen: u64) -> bool {
    const ON_THEIR_WAY: u64 = 1_000;
    stored.saturating_sub(seen) > stored / 10 + ON_THEIR_WAY
}

async fn follow(
    redis: Redis,
    shops: Arc<BTreeSet<String>>,
    mut after: StreamId,
    counts: Arc<ArrivalCounts>,
) -> Result<(), QueueError> {
    let mut connection = redis.connect(Some(PATIENCE)).await?;
    // The main stream is that of all consumers.
    let reader = StreamReader::new(redis, "");
    loop {
        reader.wait_for(&mut connection, Some(after), None, (1, WAIT)).await?;
        loop {
            let page = reader.main_after(&mut connection, after, PAGE_BYTES).await?;
            let Some(last) = page.last() else { break };
            after = last.id;
            page.iter().for_each(|entry| counts.add(&entry.pack, &shops));
        }
    }
}

impl ArrivalCounts {
    /// Adds the webhooks of a pack. The consumers report one that cannot be decoded.
    fn add(&self, pack: &[u8], shops: &BTreeSet<String>) {
        let Ok(pack) = Pack::decode(pack) else { return };
        let shop = |index: u32| {
            let view = pack.view(index);
            String::from_utf8_lossy(view.shop().unwrap_or_default()).to_ascii_lowercase()
        };
        let meant = (0..pack.count()).map(shop).filter(|shop| shops.contains(shop));
        let meant: Vec<String> = meant.collect();
        let webhooks = u64::try_from(meant.len()).unwrap_or(u64::MAX);
        self.meant.fetch_add(webhooks, Ordering::Relaxed);
        self.met.lock().unwrap_or_else(PoisonError::into_inner).extend(meant);
        self.seen.fetch_add(pack.count().into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SHOP, customer_pack};

    #[test]
    fn webhooks_of_the_shops_are_counted_apart() {
        let pack = customer_pack("customers/update", 12);
        for (shop, meant) in [(SHOP, 1_u64), ("b.example", 0)] {
            let counts = ArrivalCounts::default();
            counts.add(&pack, &BTreeSet::from([shop.to_owned()]));
            counts.add(b"no pack", &BTreeSet::from([shop.to_owned()]));
            assert_eq!(counts.meant.load(Ordering::Relaxed), meant);
            assert_eq!(counts.seen.load(Ordering::Relaxed), 1);
            let met = counts.met.lock().expect("no panic").len();
            assert_eq!(met, usize::try_from(meant).expect("few"));
        }
    }

    #[test]
    fn some_may_be_on_their_way_and_many_may_not_be_missed() {
        assert!(!misses_much(0, 0) && !misses_much(900, 0) && !misses_much(100_000, 90_000));
        assert!(misses_much(100_000, 88_000) && misses_much(2_000, 0));
        assert!(!misses_much(5, 9), "packs of before the count");
    }
}
