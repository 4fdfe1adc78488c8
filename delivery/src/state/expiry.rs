//! Expiry: dead letters without a last attempt, for lanes that get few attempts.
//!
//! When no delivery of a lane has succeeded for `RETRY_FOR`, each webhook accepted before that time
//! is given up with its next failed attempt. A lane that hangs, or whose backend requests long
//! pauses, gets few attempts. It would fill faster than webhooks are given up. Therefore webhooks
//! that are overdue for a while expire as soon as their bytes are in memory. Probes continue
//! meanwhile, and a success ends the expiry. A replay does not expire, because the operator expects
//! an attempt.
//!
//! Also: when the payloads of waiting stubs expire. Nothing is decided by that; it is shown.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::state::index::LaneKey;

/// Reason of a dead letter without a last attempt.
pub(crate) const EXPIRED: &str = "expired";

/// Most stubs whose times are kept: 3 MiB.
const STUBS_MAX: usize = 65_536;

/// Time before the end of a payload from which its stub counts as expiring. An operator can still
/// do something in an hour.
const STUB_EXPIRES_SOON: Duration = Duration::from_secs(3600);

/// Lanes in which webhooks expire.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// Stubs that wait.
    pub stubs: WaitingStubs,
    pub lanes: BTreeSet<LaneKey>,
    /// Lane of the last turn. Lanes take turns in a circle.
    last: LaneKey,
    pub looks_at: Duration,
}

/// Times at which the payloads of waiting stubs expire, in milliseconds since the Unix epoch.
#[derive(Debug, Default)]
pub(crate) struct WaitingStubs(HashMap<Position, u64>);

impl WaitingStubs {
    /// Adds a webhook that waits, if it is a stub.
    pub(crate) fn arrived(&mut self, position: Position, expires_at_ms: Option<u64>) {
        if let Some(expires_at_ms) = expires_at_ms
            && self.0.len() < STUBS_MAX
        {
            self.0.insert(position, expires_at_ms);
        }
    }

    /// Removes a webhook that is settled.
    pub(crate) fn settled(&mut self, position: Position) {
        if !self.0.is_empty() {
            self.0.remove(&position);
        }
    }

    /// Number of stubs whose payload has expired at `now_ms`, or will soon.
    pub(crate) fn expiring(&self, now_ms: u64) -> usize {
        let soon = u64::try_from(STUB_EXPIRES_SOON.as_millis()).unwrap_or(u64::MAX);
        let until = now_ms.saturating_add(soon);
        self.0.values().filter(|expires_at_ms| **expires_at_ms <= until).count()
    }
}

impl Expiry {
    /// Time of the next scan, if there is anything to expire.
    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        (!self.lanes.is_empty()).then_some(self.looks_at)
    }

    pub(crate) fn next(&mut self) -> Option<LaneKey> {
        let mut after = self.lanes.range((Bound::Excluded(self.last), Bound::Unbounded));
        self.last = after.next().or_else(|| self.lanes.first()).copied()?;
        Some(self.last)
    }
}
