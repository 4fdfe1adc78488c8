//! Gaps: shops and topics of which webhooks may be missing, for the app's own reconciliation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Question for gaps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GapQuery {
    /// Gaps that end at or after this time, RFC 3339 or how long ago; a day ago without it.
    #[serde(default)]
    pub since: Option<String>,
    /// Gaps of this shop.
    #[serde(default)]
    pub shop: Option<String>,
    /// Cursor of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// Most gaps of one page, up to 200; 50 without it.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// A page of gaps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GapList {
    /// Gaps of this page.
    pub gaps: Vec<GapLine>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// A gap: between these times, webhooks of this shop and topic may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GapLine {
    /// Shop domain; empty if any shop may be concerned.
    pub shop: String,
    /// Topic; empty if any topic may be concerned.
    pub topic: String,
    /// Begin, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// End, in milliseconds since the Unix epoch.
    pub to_ms: u64,
    /// Cause.
    pub cause: GapCause,
}

/// Cause of a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// Webhooks were refused.
    Refused,
    /// Webhooks that were accepted may be lost: a Redis failed over, or was restored.
    Lost,
    /// Nothing came for much longer than usual.
    Silent,
    /// No receiver accepted webhooks.
    Down,
}
