//! All state of a leader.

pub(crate) mod attempts;
pub(crate) mod backend;
pub(crate) mod backoff;
pub(crate) mod breaker;
pub(crate) mod cache;
pub(crate) mod chunk_reads;
pub(crate) mod controls;
pub(crate) mod expiry;
pub(crate) mod fairness;
pub(crate) mod folded;
pub(crate) mod index;
pub(crate) mod lane;
pub(crate) mod lane_clock;
pub(crate) mod lanes;
pub(crate) mod last_delivered;
pub(crate) mod ledger;
pub(crate) mod main_stream;
pub(crate) mod mover;
pub(crate) mod pauses;
pub(crate) mod proven;
pub(crate) mod queue_view;
pub(crate) mod reading;
pub(crate) mod ready;
pub(crate) mod refusals;
pub(crate) mod resource;
pub(crate) mod retry;
pub(crate) mod seen;
pub(crate) mod shop;
pub(crate) mod suspects;

use std::time::Duration;

use spillway_limiter::Limiter;

use crate::classified::Content;
use crate::config::Config;
use crate::event::Now;
use crate::state::attempts::Attempts;
use crate::state::backend::BackendHealth;
use crate::state::controls::ControlState;
use crate::state::ledger::Ledger;
use crate::state::mover::Mover;
use crate::state::queue_view::QueueView;
use crate::state::reading::Reading;
use crate::status::Counts;
use crate::turn::Turn;

/// Time, lease and phase of the leader.
#[derive(Debug, Default)]
pub(crate) struct LeaderSession {
    pub now: Now,
    /// Attempts may begin before this time.
    pub lease_until: Duration,
    pub dead_room: u64,
    pub may_move: bool,
    /// True once all replays that existed at start have arrived, or as many as fit.
    pub are_replays_loaded: bool,
    pub is_stopping: bool,
    /// True if the index had no room at the last check.
    pub is_index_full: bool,
    /// Set while a lane that could be sent waits for room to be read.
    pub is_refill_due: bool,
    /// Time until which such lanes count as waiting.
    pub refill_due_until: Duration,
    /// State of the random number generator.
    pub chance: u64,
    /// Earliest estimate of the leader's start on Redis' clock, in milliseconds since the Unix
    /// epoch.
    pub began_ms: Option<u64>,
    pub looks: ScanTimes,
}

impl LeaderSession {
    /// Returns a pseudorandom number, uniform in [0, 1).
    pub(crate) fn chance(&mut self) -> f64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let top = u32::try_from(mixed(self.chance) >> 32).unwrap_or(0);
        f64::from(top) / (f64::from(u32::MAX) + 1.0)
    }
}

/// Times of the next periodic scans.
#[derive(Debug, Default)]
pub(crate) struct ScanTimes {
    /// Scan of the lanes for windows to cut.
    pub cut_at: Duration,
    /// The same while the index is not full.
    pub unfilled_at: Duration,
    /// Scan of the lanes for windows in which most webhooks wait for retries.
    pub stuck_at: Duration,
    /// Scan of the attempts for slow ones.
    pub slow_at: Duration,
    /// Scan of the lanes for leads of a previous leader.
    pub leads_at: Duration,
    /// Scan of the turns for lanes that have not failed, and the number of their probes since the
    /// last probe of a lane that failed.
    pub unfailed_at: Duration,
    pub unfailed_probes: u32,
    /// Scan of the turns for lanes of which the previous leader left nothing behind.
    pub fresh_at: Duration,
    /// Scan of the resources that wait for their recorded lead.
    pub unread_at: Duration,
    /// Scan of the lanes for the oldest webhook, and the time at which it was accepted, in
    /// milliseconds since the Unix epoch.
    pub oldest_at: Duration,
    pub oldest_ms: u64,
    /// Scan of the index for names of dropped webhooks that are settled.
    pub names_at: Duration,
}

/// All state of a leader.
pub struct Core<C: Content> {
    pub(crate) config: Config,
    pub(crate) session: LeaderSession,
    pub(crate) queue: QueueView,
    pub(crate) reading: Reading<C>,
    pub(crate) mover: Mover<C>,
    pub(crate) attempts: Attempts,
    pub(crate) backend: BackendHealth,
    pub(crate) limiter: Limiter,
    pub(crate) ledger: Ledger<C>,
    pub(crate) controls: ControlState<C::Filter>,
    /// A turn that waits for a slot.
    pub(crate) waiting_turn: Option<Turn>,
    pub(crate) counts: Counts,
}

/// Returns a pseudorandom number that depends only on `number`: the last step of SplitMix64.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
