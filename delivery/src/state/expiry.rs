//! Expiry: dead letters without a last attempt, for lanes that get few attempts.
//!
//! When no delivery of a lane has succeeded for `RETRY_FOR`, each webhook accepted before that time
//! is given up with its next failed attempt. A lane that hangs, or whose backend requests long
//! pauses, gets few attempts. It would fill faster than webhooks are given up. Therefore webhooks
//! that are overdue for a while expire as soon as their bytes are in memory. Probes continue
//! meanwhile, and a success ends the expiry. A replay does not expire, because the operator expects
//! an attempt.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use crate::state::index::LaneKey;

/// Reason of a dead letter without a last attempt.
pub(crate) const EXPIRED: &str = "expired";

/// Lanes in which webhooks expire.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    pub lanes: BTreeSet<LaneKey>,
    /// Lane of the last turn. Lanes take turns in a circle.
    last: LaneKey,
    pub looks_at: Duration,
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
