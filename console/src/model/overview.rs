//! State of a cell at a glance.

use schemars::JsonSchema;
use serde::Serialize;

/// State of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct CellOverview {
    /// Time of this state by Redis' clock, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The queue.
    pub queue: QueueOverview,
    /// All registered consumers.
    pub consumers: Vec<ConsumerOverview>,
    /// Processes that answer at their admin addresses, or did so, and the receiver in any case.
    pub processes: Vec<ProcessOverview>,
}

/// Consumers of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ConsumerList {
    /// All registered consumers.
    pub consumers: Vec<ConsumerOverview>,
}

/// Facts that a process tells of itself, as far as it answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ProcessOverview {
    /// Name of the process, such as `downstreamer`.
    pub name: String,
    /// State of the process, as seen from the console.
    pub state: ProcessState,
    /// Median time from the first byte received to the delivery, of the last seconds.
    pub p50_seconds: Option<f64>,
    /// 99th percentile of that time.
    pub p99_seconds: Option<f64>,
    /// Deliveries under way.
    pub concurrency: Option<f64>,
    /// Deliveries that may be under way at once.
    pub concurrency_limit: Option<f64>,
    /// Lanes of which nothing is sent.
    pub lanes_blocked: Option<f64>,
    /// Webhooks in the overflow log of a receiver.
    pub spilled: Option<f64>,
}

/// State of a process, as seen from the console.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Answers at its admin address.
    Answers,
    /// Answered once, and does not any more.
    Away,
    /// Never answered: it does not run, or the console has another address of it.
    #[default]
    NotSeen,
}

/// State of the queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct QueueOverview {
    /// Number of webhooks ever accepted.
    pub accepted: u64,
    /// Webhooks accepted per second, since the last look.
    pub accepted_per_second: Option<f64>,
    /// Webhooks not yet freed.
    pub webhooks: u64,
    /// Packs not yet freed.
    pub packs: u64,
    /// Memory that Redis uses.
    pub memory_bytes: u64,
    /// Redis' `maxmemory`, if there is one.
    pub memory_limit_bytes: Option<u64>,
}

/// State of one consumer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ConsumerOverview {
    /// Name of the consumer.
    pub name: String,
    /// Answer of its leader's `/readyz` in one line; `no leader` without one.
    pub state: String,
    /// True if its leader was seen lately.
    pub has_live_leader: bool,
    /// Webhooks that it has not settled, including those outside the main stream.
    pub waiting: u64,
    /// Age of the oldest webhook that waits.
    pub oldest_age_seconds: Option<f64>,
    /// Webhooks that wait outside the main stream: in lanes, or to be replayed.
    pub in_lanes: u64,
    /// Webhooks settled, of all that were ever accepted.
    pub settled: u64,
    /// Webhooks settled per second, since the last look.
    pub settled_per_second: Option<f64>,
    /// Number of its dead letters.
    pub dead_letters: u64,
    /// Pauses in force.
    pub pauses: Vec<PauseOverview>,
}

/// A pause that an operator ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PauseOverview {
    /// Webhooks that are paused, in words.
    pub filter: String,
    /// Time of the order, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

impl QueueOverview {
    /// Percentage of Redis' memory that is in use, if it has a limit.
    pub fn percent_full(&self) -> Option<u64> {
        self.memory_limit_bytes.map(|limit| self.memory_bytes.saturating_mul(100) / limit.max(1))
    }
}
