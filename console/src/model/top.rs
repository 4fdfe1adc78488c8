//! Shops, topics and resources with the most waiting webhooks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Question for the largest groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TopQuery {
    /// Consumer; the only one that delivers, or http, without it.
    #[serde(default)]
    pub consumer: Option<String>,
    /// Group to count by.
    #[serde(default)]
    pub by: TopGroup,
    /// Webhooks of this shop.
    #[serde(default)]
    pub shop: Option<String>,
    /// Most groups, up to 200; 20 without it.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Group to count by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TopGroup {
    /// Shop domains.
    #[default]
    Shop,
    /// Topics.
    Topic,
    /// Resources.
    Resource,
}

/// Largest groups, the largest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TopList {
    /// Consumer for which they wait.
    pub consumer: String,
    /// Time of the count, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// True if everything was counted; false if the numbers are estimates of a sample.
    pub is_exact: bool,
    /// Webhooks that wait: all of them, or those of the shop that was asked for.
    pub waiting: u64,
    /// Time at which the oldest of them was accepted, in milliseconds since the Unix epoch, as far as they were read.
    pub oldest_ms: Option<u64>,
    /// The groups.
    pub rows: Vec<TopRow>,
}

/// A group of waiting webhooks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TopRow {
    /// Name of the shop, topic or resource.
    pub name: String,
    /// Shop of a resource. Each shop has its own `product/12`.
    pub shop: Option<String>,
    /// Webhooks that wait.
    pub waiting: u64,
    /// Margin of error of `waiting`.
    pub off_by: u64,
    /// Time at which the oldest was accepted, in milliseconds since the Unix epoch.
    pub oldest_ms: u64,
    /// Pauses that hold it, in words.
    pub paused_by: Vec<String>,
}
