//! Names of every key, in one place.
//!
//! One cell is one Redis: keys of a script are not spread over slots.

use spillway_webhook::StreamId;

/// Prefix where none is set. Its hash tag keeps a cell in one slot of a cluster.
pub const DEFAULT_PREFIX: &str = "{spillway}:";
/// What it was before: see [`crate::QueueError::OlderPrefix`].
const OLDER_DEFAULT_PREFIX: &str = "spillway:";

/// Builds key names under one prefix.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// `prefix` stands before every name, such as `{spillway}:`.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The [`Self::cell`] that a queue under the default prefix of before would have, where this is today's.
    pub(crate) fn older_cell(&self) -> Option<String> {
        (self.prefix == DEFAULT_PREFIX).then(|| format!("{OLDER_DEFAULT_PREFIX}cell"))
    }

    /// Stream of packs: field `p` holds the pack.
    pub fn stream(&self) -> String {
        format!("{}in", self.prefix)
    }

    /// Random id of this cell, 8 hex digits.
    pub fn cell(&self) -> String {
        format!("{}cell", self.prefix)
    }

    /// Hash of webhook counts: `appended`, `trimmed`, and `through:<drain>`, `open:<drain>`,
    /// `lanes:<drain>`; and `oldest:<drain>`, a time in ms.
    pub fn counts(&self) -> String {
        format!("{}counts", self.prefix)
    }

    /// Hash: drain → when its owner was last seen, in ms of Redis' clock.
    pub fn drains(&self) -> String {
        format!("{}drains", self.prefix)
    }

    /// Hash: consumer → shares of its shops, as [`crate::shares`] says.
    pub fn shares(&self) -> String {
        format!("{}shares", self.prefix)
    }

    /// `<token>:<counter>` of a drain's owner.
    pub fn owner(&self, drain: &str) -> String {
        format!("{}{drain}:owner", self.prefix)
    }

    /// Hash: stream id → bits of the settled webhooks in a pack that is not yet settled whole.
    pub fn done(&self, drain: &str) -> String {
        format!("{}{drain}:done", self.prefix)
    }

    /// Stream of dead letters that are replayed: field `p` holds a pack of one, `id` the webhook's id.
    pub fn replays(&self, drain: &str) -> String {
        format!("{}{drain}:replays", self.prefix)
    }

    /// Hash: chunk id → a chunk of a lane's webhooks.
    pub fn chunks(&self, consumer: &str) -> String {
        format!("{}{consumer}:chunks", self.prefix)
    }

    /// Hash: chunk id → bits of the settled webhooks in a chunk that is not yet settled whole.
    pub fn chunks_done(&self, consumer: &str) -> String {
        format!("{}{consumer}:chunks:done", self.prefix)
    }

    /// Hash: lane, 16 hex digits → its row as JSON.
    pub fn lanes(&self, consumer: &str) -> String {
        format!("{}{consumer}:lanes", self.prefix)
    }

    /// Hash: position of a barrier → its shop's hash, 16 hex digits.
    pub fn barriers(&self, consumer: &str) -> String {
        format!("{}{consumer}:barriers", self.prefix)
    }

    /// Hash: a resource's hash, 16 hex digits → position of the webhook that leads it.
    pub fn leads(&self, consumer: &str) -> String {
        format!("{}{consumer}:leads", self.prefix)
    }

    /// Hash: position of a webhook in the main stream → its [`StoredRetry`](spillway_webhook::StoredRetry).
    pub fn main_retries(&self, consumer: &str) -> String {
        format!("{}{consumer}:retries:main", self.prefix)
    }

    /// Hash: position of a webhook in a lane → its [`StoredRetry`](spillway_webhook::StoredRetry).
    pub fn retries(&self, consumer: &str) -> String {
        format!("{}{consumer}:retries", self.prefix)
    }

    /// Stream of dead letters.
    pub fn dead(&self, drain: &str) -> String {
        format!("{}{drain}:dead", self.prefix)
    }

    /// Bytes held by the dead letters.
    pub fn dead_bytes(&self, drain: &str) -> String {
        format!("{}{drain}:dead:bytes", self.prefix)
    }

    /// Stream of fingerprints of what was delivered lately: field `d`, 16 bytes each.
    pub fn seen(&self, drain: &str) -> String {
        format!("{}{drain}:seen", self.prefix)
    }

    /// Stream of what became of webhooks: field `h`, some bytes each.
    pub fn history(&self, drain: &str) -> String {
        format!("{}{drain}:history", self.prefix)
    }

    /// Hash of an operator's orders: `version`, `applied`, `dropped`, and `pause:<filter>` → since.
    pub fn orders(&self, drain: &str) -> String {
        format!("{}{drain}:orders", self.prefix)
    }

    /// Hash of webhooks to drop: stream id → a bit for each, and `replay:<id>`.
    pub fn dropping(&self, drain: &str) -> String {
        format!("{}{drain}:dropping", self.prefix)
    }

    /// `<token>:<number>` of the last settlement that was applied.
    pub fn settled(&self, drain: &str) -> String {
        format!("{}{drain}:settled", self.prefix)
    }

    /// Hash: id of a receiver's log on disk → number of the newest pack of it that was fed.
    pub fn spill(&self) -> String {
        format!("{}spill", self.prefix)
    }

    /// `<log id>:<token>:<counter>` of the receiver that spills for this cell.
    pub fn spill_claim(&self) -> String {
        format!("{}spill:claim", self.prefix)
    }

    /// Where the pack of an entry goes that cannot be decoded.
    pub fn corrupt(&self, entry: StreamId) -> String {
        format!("{}{entry}", self.corrupt_prefix())
    }

    /// What [`Keys::corrupt`] begins with.
    pub fn corrupt_prefix(&self) -> String {
        format!("{}corrupt:", self.prefix)
    }
}
