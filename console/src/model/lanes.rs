//! Lanes: webhooks of one shop and kind that wait outside the main stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lanes to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneQuery {
    /// Consumer; the only one that delivers, or http, without it.
    #[serde(default)]
    pub consumer: Option<String>,
    /// Lanes of this shop.
    #[serde(default)]
    pub shop: Option<String>,
    /// Cursor of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// Most lanes of one page, up to 200; 50 without it.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// A page of lanes, those with most waiting webhooks first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LaneList {
    /// Consumer whose lanes they are.
    pub consumer: String,
    /// Number of all its lanes, whatever the filter.
    pub total: u64,
    /// Webhooks in its lanes: in all of them, or in those of the shop that was asked for.
    pub waiting: u64,
    /// Time at which the lanes were read, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Lanes of this page.
    pub lanes: Vec<LaneSummary>,
    /// Pauses in force.
    pub pauses: Vec<super::overview::PauseOverview>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// A lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LaneSummary {
    /// Id of the lane.
    pub lane: String,
    /// Shop domain.
    pub shop: String,
    /// Kind of resource, such as `product`.
    pub kind: String,
    /// Webhooks that wait in it.
    pub waiting: u64,
    /// Time at which the oldest was accepted, in milliseconds since the Unix epoch.
    pub oldest_ms: u64,
    /// Reason for waiting, in words: paused, circuit breaker open, timed out, retried.
    pub reason: String,
    /// True while its circuit breaker is open.
    pub is_tripped: bool,
}
