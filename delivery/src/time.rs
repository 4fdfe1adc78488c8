//! Active time: it counts towards retries, and stands still while the backend is stopped.
//!
//! Moments are on the clock of the leader's beginning: it goes on evenly whatever is done to the machine's.

use std::time::Duration;

use spillway_webhook::Spans;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::index::LaneKey;
use crate::lane_clock::Accepted;
use crate::sorted::Content;

impl<C: Content> Core<C> {
    /// Time that counts towards retries.
    pub(crate) fn active(&self) -> Duration {
        self.backend.active(self.session.now.at)
    }

    /// What that time was at a moment, given in milliseconds since the Unix epoch; zero before this leader.
    fn active_when(&self, ms: u64) -> Duration {
        let moment = Duration::from_millis(ms.saturating_sub(self.began_ms()));
        self.backend.active_at(moment, self.session.now.at)
    }

    /// When a webhook was accepted.
    pub(crate) fn accepted(&self, position: Position) -> Accepted {
        let ms = position.ms;
        Accepted { ms, active: self.active_when(ms), is_before: ms < self.began_ms() }
    }

    /// Time of a lane's retries since a moment, as far as this leader lived then.
    pub(crate) fn time_since(&self, lane: LaneKey, ms: u64) -> Duration {
        let (from, to) = (self.active_when(ms), self.retry_clock(lane));
        self.queue.lanes.get(lane).map_or(Duration::ZERO, |lane| lane.clock.unpaused(from, to))
    }

    /// The first moment with so much active time, in milliseconds since the Unix epoch.
    pub(crate) fn ms_of(&self, active: Duration) -> u64 {
        self.ms_at(self.backend.moment_of(active))
    }

    /// A moment in milliseconds since the Unix epoch, rounded up.
    fn ms_at(&self, moment: Duration) -> u64 {
        let ms = moment.as_nanos().div_ceil(1_000_000);
        self.began_ms().saturating_add(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    fn began_ms(&self) -> u64 {
        self.session.began_ms.unwrap_or_default()
    }

    /// When a lane failed, for the next leader.
    pub(crate) fn failing_spans(&self, key: LaneKey) -> Spans {
        let clock = self.retry_clock(key);
        let pieces = |from, to| {
            let pieces = self.backend.pieces(from, to).into_iter();
            pieces.map(|(moment, time)| (self.ms_at(moment), time)).collect()
        };
        self.queue.lanes.get(key).map(|lane| lane.clock.spans(clock, pieces)).unwrap_or_default()
    }
}
