//! An order to drop, and how far the consumer has carried it out. The consumer counts all that it drops, of each
//! order: if other orders come between, the count says nothing about this one.

use std::time::Duration;

use spillway_queue::controls::{self, CarriedOut};
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::out::Progress;
use crate::walk::Waiting;

/// Time without progress of the consumer after which the command stops watching.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An order to drop that was given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderedDrop {
    /// Version of the order.
    pub version: u64,
    /// Number of webhooks.
    pub webhooks: u64,
    /// Progress of the consumer with its orders before it.
    pub before: CarriedOut,
    /// True if no other order to drop was under way.
    pub is_alone: bool,
}

/// Progress of an order to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DropProgress {
    /// Number of webhooks dropped; 0 if it is not known.
    pub dropped: u64,
    /// False if the consumer carried out other orders too: it counts them together.
    pub is_exact: bool,
}

/// Watches the consumer's totals until an order is carried out, or makes no progress.
struct DropWatch {
    order: OrderedDrop,
    last: CarriedOut,
    moved_at: Instant,
}

impl DropWatch {
    fn new(order: OrderedDrop, now: Instant) -> Self {
        Self { order, last: order.before, moved_at: now }
    }

    /// Progress by the consumer's totals, which count what anybody ordered.
    fn progress(&self, totals: CarriedOut) -> DropProgress {
        let all = totals.dropped.saturating_sub(self.order.before.dropped);
        let is_alone = self.order.is_alone && totals.ordered <= self.order.version;
        let dropped = if is_alone { all.min(self.order.webhooks) } else { 0 };
        DropProgress { dropped, is_exact: is_alone || all == 0 }
    }

    /// Takes a look at the totals into account. Returns the progress that is final. Some webhooks may have been delivered
    /// since they were counted; so the end of the order counts, not their number. Progress of other orders is none.
    fn on_totals(&mut self, totals: CarriedOut, now: Instant) -> Option<DropProgress> {
        let progress = self.progress(totals);
        let has_moved = (totals.version, totals.dropped) != (self.last.version, self.last.dropped);
        if progress.is_exact && has_moved {
            self.moved_at = now;
        }
        self.last = totals;
        let is_over = progress.dropped >= self.order.webhooks
            || totals.version >= self.order.version
            || now.duration_since(self.moved_at) > PATIENCE;
        is_over.then_some(progress)
    }
}

/// Returns the progress when the consumer finished or stopped making progress.
pub(crate) async fn watch(
    waiting: &mut Waiting,
    order: OrderedDrop,
) -> Result<DropProgress, Failure> {
    let redis = waiting.redis.clone();
    let consumer = waiting.consumer.clone();
    let mut watch = DropWatch::new(order, Instant::now());
    let mut progress = Progress::new();
    loop {
        let totals = controls::carried_out(&redis, waiting.connection(), &consumer).await?;
        if let Some(last) = watch.on_totals(totals, Instant::now()) {
            return Ok(last);
        }
        let so_far = watch.progress(totals).dropped;
        progress.tell(|| format!("dropped {so_far} of {}", order.webhooks));
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An order of five webhooks, version 3, after others that dropped ten.
    fn order(is_alone: bool) -> OrderedDrop {
        let before = totals(2, 10, 2);
        OrderedDrop { version: 3, webhooks: 5, before, is_alone }
    }

    fn totals(version: u64, dropped: u64, ordered: u64) -> CarriedOut {
        CarriedOut { version, dropped, ordered }
    }

    fn exact(dropped: u64) -> Option<DropProgress> {
        Some(DropProgress { dropped, is_exact: true })
    }

    #[test]
    fn an_order_is_done_when_all_are_dropped_or_it_is_carried_out() {
        for (seen, expected) in [
            (totals(2, 10, 3), None),
            (totals(2, 14, 3), None),
            (totals(2, 15, 3), exact(5)),
            // One was delivered since it was counted.
            (totals(3, 14, 3), exact(4)),
            (totals(3, 10, 3), exact(0)),
        ] {
            let mut watch = DropWatch::new(order(true), Instant::now());
            assert_eq!(watch.on_totals(seen, Instant::now()), expected, "{seen:?}");
        }
    }

    #[test]
    fn drops_of_another_order_are_not_taken_for_its_own() {
        let unknown = Some(DropProgress { dropped: 0, is_exact: false });
        for (is_alone, seen, expected) in [
            // A later order dropped as many.
            (true, totals(2, 15, 4), None),
            (true, totals(4, 15, 4), unknown),
            // An earlier one was not carried out yet.
            (false, totals(2, 15, 3), None),
            (false, totals(3, 15, 3), unknown),
            // Nobody's webhooks were dropped.
            (false, totals(3, 10, 3), exact(0)),
            (true, totals(4, 10, 4), exact(0)),
        ] {
            let mut watch = DropWatch::new(order(is_alone), Instant::now());
            assert_eq!(watch.on_totals(seen, Instant::now()), expected, "{is_alone} {seen:?}");
        }
    }

    #[test]
    fn progress_of_other_orders_does_not_keep_it_waiting() {
        let start = Instant::now();
        let mut watch = DropWatch::new(order(false), start);
        let looks = (1..=10).map(|second| {
            watch.on_totals(totals(2, 10 + second, 3), start + Duration::from_secs(second))
        });
        let over = looks.flatten().next().expect("its patience ends");
        assert!(!over.is_exact);
    }
}
