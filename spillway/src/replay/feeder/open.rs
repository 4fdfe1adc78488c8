//! Replays that are not settled, by shop.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use spillway_webhook::StreamId;

/// Time for which no replay of a shop is settled, after which the shop does not hold others up. A delivery that
/// succeeds takes less.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Replays that are not settled.
#[derive(Debug, Default)]
pub(super) struct OpenReplays {
    shops: HashMap<String, OpenOfShop>,
    count: usize,
    /// As of the last look.
    stuck: HashSet<String>,
    /// Number of those that are not of stuck shops.
    moving: usize,
}

/// Replays of one shop.
#[derive(Debug, Default)]
struct OpenOfShop {
    /// Ids of those that were fed.
    fed: BTreeSet<StreamId>,
    /// Time at which one was settled last, or the first one was fed.
    moved: Duration,
    /// Those of the step that is not written yet. They have no id.
    in_step: usize,
}

impl OpenReplays {
    /// Replays that are open since `now` at the latest.
    pub(super) fn new(open: Vec<(StreamId, String)>, now: Duration) -> Self {
        let mut replays = Self { count: open.len(), ..Self::default() };
        for (id, shop) in open {
            let open = replays.shops.entry(shop).or_default();
            open.fed.insert(id);
            open.moved = now;
        }
        replays.look(now);
        replays
    }

    /// Number of replays of a shop.
    pub(super) fn of(&self, shop: &str) -> usize {
        self.shops.get(shop).map_or(0, |open| open.fed.len() + open.in_step)
    }

    /// Number of all replays.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Number of those that are not of stuck shops.
    pub(super) fn moving(&self) -> usize {
        self.moving
    }

    /// True if no replay of a shop was settled for long, as of the last look.
    pub(super) fn is_stuck(&self, shop: &str) -> bool {
        self.stuck.contains(shop)
    }

    /// Ids of those that are written.
    pub(super) fn ids(&self) -> impl Iterator<Item = StreamId> {
        self.shops.values().flat_map(|open| open.fed.iter().copied())
    }

    /// Looks at the time.
    pub(super) fn look(&mut self, now: Duration) {
        let is_stuck = |open: &OpenOfShop| {
            !open.fed.is_empty() && now.saturating_sub(open.moved) > STUCK_AFTER
        };
        let stuck = self.shops.iter().filter(|(_, open)| is_stuck(open));
        self.stuck = stuck.map(|(shop, _)| shop.clone()).collect();
        let of_stuck: usize = self.stuck.iter().map(|shop| self.of(shop)).sum();
        self.moving = self.count - of_stuck;
    }

    /// Adds a replay to the step.
    pub(super) fn add(&mut self, shop: &str) {
        self.shops.entry(shop.to_owned()).or_default().in_step += 1;
        self.count += 1;
        self.moving += 1;
    }

    /// Notes that a replay of the step was written.
    pub(super) fn on_written(&mut self, shop: String, id: StreamId, now: Duration) {
        let open = self.shops.entry(shop).or_default();
        debug_assert!(open.in_step > 0, "what is written was in the step");
        open.in_step = open.in_step.saturating_sub(1);
        if open.fed.is_empty() {
            open.moved = now;
        }
        open.fed.insert(id);
    }

    /// Forgets those that are written and not among `unsettled`.
    pub(super) fn on_unsettled(&mut self, unsettled: &HashSet<StreamId>, now: Duration) {
        let count = &mut self.count;
        self.shops.retain(|_, open| {
            let before = open.fed.len();
            open.fed.retain(|id| unsettled.contains(id));
            if open.fed.len() < before {
                open.moved = now;
            }
            *count -= before - open.fed.len();
            !open.fed.is_empty() || open.in_step > 0
        });
    }
}
