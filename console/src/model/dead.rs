//! Dead letters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Dead letters to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadQuery {
    /// Consumer; the only one that delivers, or http, without it.
    #[serde(default)]
    pub consumer: Option<String>,
    /// Dead letters of this shop.
    #[serde(default)]
    pub shop: Option<String>,
    /// Dead letters of this topic, or of all topics such as `orders/*`.
    #[serde(default)]
    pub topic: Option<String>,
    /// Dead letters about this resource, such as `product/12`.
    #[serde(default)]
    pub resource: Option<String>,
    /// Dead letters for this app.
    #[serde(default)]
    pub app: Option<String>,
    /// Given up at or after this time, RFC 3339 or how long ago.
    #[serde(default)]
    pub since: Option<String>,
    /// Given up at or before this time, RFC 3339 or how long ago.
    #[serde(default)]
    pub until: Option<String>,
    /// Cursor of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// Most dead letters of one page, up to 200; 50 without it.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Question for one dead letter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LetterQuery {
    /// Consumer; the only one that delivers, or http, without it.
    #[serde(default)]
    pub consumer: Option<String>,
}

/// A page of dead letters, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeadList {
    /// Consumer whose dead letters they are.
    pub consumer: String,
    /// Number of all its dead letters, whatever the filter.
    pub total: u64,
    /// Dead letters of this page.
    pub letters: Vec<DeadSummary>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// A dead letter without its body and headers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeadSummary {
    /// Spillway-Id.
    pub spillway_id: String,
    /// Shopify's webhook id.
    pub webhook_id: String,
    /// Shop domain.
    pub shop: String,
    /// Topic.
    pub topic: String,
    /// Resource, such as `product/12`.
    pub resource: String,
    /// App; empty where a receiver serves one.
    pub app: String,
    /// Reason for giving up.
    pub reason: String,
    /// Status of the last answer, if there was one.
    pub status: Option<u16>,
    /// Delivery attempts made.
    pub attempts: u32,
    /// Time at which it was given up, in milliseconds since the Unix epoch.
    pub dead_at_ms: u64,
}
