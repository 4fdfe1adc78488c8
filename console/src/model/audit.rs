//! The audit: who changed what, and who looked at personal data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Records to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditQuery {
    /// Changes by this user or token.
    #[serde(default)]
    pub actor: Option<String>,
    /// Changes by this command, such as `dead replay`.
    #[serde(default)]
    pub verb: Option<String>,
    /// Changes that began at or after this time, RFC 3339 or how long ago.
    #[serde(default)]
    pub since: Option<String>,
    /// Changes that began at or before this time, RFC 3339 or how long ago.
    #[serde(default)]
    pub until: Option<String>,
    /// Cursor of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// Most records of one page, up to 200; 50 without it.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// A page of records, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuditList {
    /// Records of this page.
    pub records: Vec<AuditLine>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// Record of one change or one look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuditLine {
    /// Id of the record.
    pub id: String,
    /// Time at which the change began, in milliseconds since the Unix epoch.
    pub began_ms: u64,
    /// User, API token or user of the machine who made it.
    pub actor: String,
    /// Way by which it was made: `cli`, `api` or `console`.
    pub way: String,
    /// Command, such as `dead replay`.
    pub verb: String,
    /// Consumer that it changed; empty if it is no consumer's.
    pub consumer: String,
    /// Webhooks that were meant, in words.
    pub filter: String,
    /// End: `done`; `ordered`, which the consumer carries out; `planned`, a replay that was begun; `stopped` or `failed`.
    /// None while it is under way, and if it was cut off.
    pub outcome: Option<String>,
    /// Number of webhooks or pauses that were done or ordered; `planned`: the most that it may become; `failed`: at least,
    /// if it is known.
    pub count: Option<u64>,
    /// Reason why it failed.
    pub failure: Option<String>,
}
