//! Changes that are ordered, and the jobs that make them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Dead letters that one request may choose by their ids. More are selected by a filter.
pub const CHOSEN_MAX: usize = 200;

/// Webhooks that a change is meant for. An empty selection means all, and needs `all`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookSelection {
    /// Webhooks of this shop.
    #[serde(default)]
    pub shop: Option<String>,
    /// Webhooks of this topic; `orders/*` matches every topic that begins with `orders/`.
    #[serde(default)]
    pub topic: Option<String>,
    /// Webhooks about this resource, such as `product/12`.
    #[serde(default)]
    pub resource: Option<String>,
    /// Webhooks for this app.
    #[serde(default)]
    pub app: Option<String>,
    /// Webhook with this Shopify webhook id or Spillway-Id.
    #[serde(default)]
    pub webhook_id: Option<String>,
    /// Dead letters with these Spillway-Ids, at most 200. For dead letters only.
    #[serde(default)]
    #[schemars(length(min = 1, max = 200))]
    pub ids: Option<Vec<String>>,
    /// Given up at or after this time, RFC 3339 or how long ago. For dead letters only.
    #[serde(default)]
    pub since: Option<String>,
    /// Given up at or before this time, RFC 3339 or how long ago. For dead letters only.
    #[serde(default)]
    pub until: Option<String>,
    /// All webhooks of the consumer, where nothing else is given.
    #[serde(default)]
    pub all: bool,
}

/// Order of a change. Without `expected`, it is a dry run: a job counts, and changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// Webhooks that are meant.
    #[serde(default)]
    pub selection: WebhookSelection,
    /// Number that a dry run counted. If it is another one by now, the answer is `conflict`, or the job
    /// fails where counting takes longer. Nothing is changed then.
    #[serde(default)]
    pub expected: Option<u64>,
    /// Digest that the dry run returned. With it, the same webhooks have to match, not only as many.
    #[serde(default)]
    pub digest: Option<String>,
    /// Number per second; as fast as they are taken without it. For replays only.
    #[serde(default)]
    pub rate: Option<u32>,
    /// Also those of compliance topics, which are a legal duty. For drops, by an admin only.
    #[serde(default)]
    pub force: bool,
}

/// Order to replay what the archive holds of a range of time. Without `expected`, it is a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchiveReplayRequest {
    /// Stored at or after this time, RFC 3339 or how long ago. With `expected`, RFC 3339 only.
    pub since: String,
    /// Stored at or before this time, RFC 3339 or how long ago; now without it. With `expected`, RFC 3339 only, and
    /// needed.
    #[serde(default)]
    pub until: Option<String>,
    /// Webhooks that are meant. Its own times stay empty.
    #[serde(default)]
    pub selection: WebhookSelection,
    /// Number that a dry run counted. If it is another one by now, nothing is changed.
    #[serde(default)]
    pub expected: Option<u64>,
    /// Digest that the dry run returned. With it, the same range and objects have to match, not only as many.
    #[serde(default)]
    pub digest: Option<String>,
    /// Number per second; as fast as they are taken without it.
    #[serde(default)]
    pub rate: Option<u32>,
}

/// Order to pause or to resume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Webhooks that are meant.
    pub selection: WebhookSelection,
    /// Only the pause of the whole consumer, where the selection is empty; `all` ends every pause.
    #[serde(default)]
    pub whole: bool,
}

/// Result of an order to pause or to resume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PauseChange {
    /// Pauses that began or ended, in words.
    pub changed: Vec<String>,
}

/// A job: a count, a replay or a drop that takes some time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct JobStatus {
    /// Number of the job.
    pub id: u64,
    /// Command, such as `dead replay`.
    pub verb: String,
    /// Consumer that it changes.
    pub consumer: String,
    /// Webhooks that are meant, in words.
    pub filter: String,
    /// Caller who ordered it.
    pub actor: String,
    /// Phase of the job.
    pub phase: JobPhase,
    /// Webhooks counted or changed so far.
    pub done: u64,
    /// Webhooks whose drop is ordered and not carried out yet: under way, or the consumer has not come to them.
    pub not_yet: u64,
    /// False if it is not known how many of these are carried out: another order to the same consumer came between.
    pub is_exact: bool,
    /// Webhooks that match, once they are counted.
    pub total: Option<u64>,
    /// Digest of what matches, once it is counted. It is the same as long as the same webhooks match.
    pub digest: Option<String>,
    /// Webhooks of compliance topics, which are kept.
    pub kept: u64,
}

/// Jobs of the console, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct JobList {
    /// The jobs, as far as they are kept.
    pub jobs: Vec<JobStatus>,
}

/// Phase of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// Matching webhooks are counted.
    Counting,
    /// End of a dry run: nothing was changed.
    Counted,
    /// Wait until this time, in milliseconds since the Unix epoch. The job can be undone until then.
    Waiting(u64),
    /// Wait for a turn: only some jobs change something at once. The job can be undone, and counts again if the wait is long.
    Queued,
    /// Undone before it began: nothing was changed.
    Undone,
    /// Webhooks are being changed. A replay can be cancelled, by undo too.
    Running,
    /// Cancelled while it was running: what was changed by then stays so.
    Cancelled,
    /// Complete.
    Done,
    /// Failed for this reason. A part of it may have been made.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_the_bound_of_the_code() {
        let schema = schemars::schema_for!(WebhookSelection);
        let ids = &schema.as_value()["properties"]["ids"];
        assert_eq!(ids["minItems"], 1, "{ids}");
        assert_eq!(ids["maxItems"], CHOSEN_MAX, "{ids}");
    }
}
