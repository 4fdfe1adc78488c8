//! Names of all keys in Redis.
//!
//! One cell is one Redis, or one hash slot of a cluster: the keys of a script are never spread over
//! slots.

/// Default prefix. Its hash tag keeps a cell in one slot of a cluster.
pub const DEFAULT_PREFIX: &str = "{spillway}:";
/// Default prefix of older versions: see [`crate::QueueError::OlderPrefix`].
const OLDER_DEFAULT_PREFIX: &str = "spillway:";

/// Builds key names under one prefix.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Sets the prefix of every name, such as `{spillway}:`.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The [`Self::cell`] key under the default prefix of older versions, if the prefix is today's
    /// default.
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

    /// Hash of webhook counts: `appended`, `trimmed`, and `through:<consumer>`, `open:<consumer>`,
    /// `lanes:<consumer>`; and `oldest:<consumer>`, a time in ms.
    pub fn counts(&self) -> String {
        format!("{}counts", self.prefix)
    }

    /// Hash: consumer → time at which its leader was last seen, in ms of Redis' clock.
    pub fn consumers(&self) -> String {
        format!("{}consumers", self.prefix)
    }

    /// Hash: consumer → shares of its shops, as described in [`crate::shares`].
    pub fn shares(&self) -> String {
        format!("{}shares", self.prefix)
    }

    /// Hash of an unfinished restoration from an archive: `plan`, `entries`, `consumers`. While it
    /// exists, no process registers.
    pub fn rebuild(&self) -> String {
        format!("{}rebuild", self.prefix)
    }

    /// Stream that an unfinished restoration from an archive fills.
    pub fn rebuild_stream(&self) -> String {
        format!("{}rebuild:in", self.prefix)
    }

    /// Prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Hash: Spillway-Id of a delivered redaction → the redaction, as described in [`crate::redactions`].
    pub fn redactions(&self) -> String {
        format!("{}redactions", self.prefix)
    }

    /// Sorted set: field of [`Keys::redactions`] → time at which it was noted, in ms of Redis' clock.
    pub fn redactions_noted(&self) -> String {
        format!("{}redactions:noted", self.prefix)
    }

    /// Stream of purges: field `r` holds a record as JSON.
    pub fn forgotten(&self) -> String {
        format!("{}forgotten", self.prefix)
    }

    /// Stream of the audit: field `r` holds a record as JSON, as described in [`crate::audit`].
    pub fn audit(&self) -> String {
        format!("{}audit", self.prefix)
    }

    /// Hash with the time for which records of the audit are kept: `ms`.
    pub fn audit_keep(&self) -> String {
        format!("{}audit:keep", self.prefix)
    }

    /// Stream of notes about webhooks that may be missing: field `g` holds one as JSON, as described in
    /// [`crate::gaps`].
    pub fn gaps(&self) -> String {
        format!("{}gaps", self.prefix)
    }

    /// Run id of the Redis that was used last.
    pub fn gaps_run(&self) -> String {
        format!("{}gaps:run", self.prefix)
    }

    /// Times in which receivers accepted webhooks, as described in [`crate::accepting`].
    pub fn gaps_accepting(&self) -> String {
        format!("{}gaps:accepting", self.prefix)
    }

    /// Hash: `<shop> <topic>` → rhythm, as described in [`crate::rhythm`].
    pub fn rhythm(&self) -> String {
        format!("{}rhythm", self.prefix)
    }

    /// Token of the purge that is at work. It expires.
    pub fn purge(&self) -> String {
        format!("{}purge", self.prefix)
    }

    /// Last day of the archive that a purge has finished, and of which purge that is. It expires.
    pub fn purge_progress(&self) -> String {
        format!("{}purge:progress", self.prefix)
    }

    /// Names of one consumer's keys.
    pub fn of(&self, consumer: &str) -> ConsumerKeys {
        ConsumerKeys { prefix: format!("{}{consumer}:", self.prefix) }
    }

    /// Hash: id of a receiver's log on disk → number of its newest pack that was restored.
    pub fn spill(&self) -> String {
        format!("{}spill", self.prefix)
    }

    /// `<log id>:<token>:<counter>` of the receiver that spills for this cell.
    pub fn spill_claim(&self) -> String {
        format!("{}spill:claim", self.prefix)
    }

    /// Prefix of the keys under which packs are set aside that cannot be decoded; the id of the entry follows.
    pub fn corrupt_prefix(&self) -> String {
        format!("{}corrupt:", self.prefix)
    }
}

/// Builds the names of one consumer's keys.
#[derive(Debug, Clone)]
pub struct ConsumerKeys {
    prefix: String,
}

impl ConsumerKeys {
    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// `<token>:<counter>` of the leader.
    pub fn leader(&self) -> String {
        self.named("leader")
    }

    /// Hash of the leader's process, for an operator: `token`, `host`, `pid`, `state`.
    pub fn instance(&self) -> String {
        self.named("instance")
    }

    /// Hash: stream id → bits of the settled webhooks in a pack that is not yet completely settled.
    pub fn done(&self) -> String {
        self.named("done")
    }

    /// Stream of webhooks that are replayed: field `p` holds a pack of one webhook, `id` the webhook's id;
    /// of archived ones `replay` and `shop`, too.
    pub fn replays(&self) -> String {
        self.named("replays")
    }

    /// Hash: id of a replay of archived webhooks → start in ms.
    pub fn replay_records(&self) -> String {
        self.named("replay")
    }

    /// Hash: record of one replay, as described in [`crate::replay`].
    pub fn replay_record(&self, id: &str) -> String {
        format!("{}:{id}", self.replay_records())
    }

    /// Hash: shop whose webhooks a replay feeds later → position of the next one.
    pub fn replay_left(&self, id: &str) -> String {
        self.named(&format!("replay-left:{id}"))
    }

    /// Hash: chunk id → a chunk of a lane's webhooks.
    pub fn chunks(&self) -> String {
        self.named("chunks")
    }

    /// Hash: chunk id → bits of the settled webhooks in a chunk that is not yet completely settled.
    pub fn chunks_done(&self) -> String {
        self.named("chunks:done")
    }

    /// Hash: lane, as 16 hex digits → row of the lane, as JSON.
    pub fn lanes(&self) -> String {
        self.named("lanes")
    }

    /// Hash: position of a barrier → hash of its shop, as 16 hex digits.
    pub fn barriers(&self) -> String {
        self.named("barriers")
    }

    /// Hash: hash of a resource, as 16 hex digits → position of the webhook that leads it.
    pub fn leads(&self) -> String {
        self.named("leads")
    }

    /// Hash: position of a webhook in the main stream → its
    /// [`StoredRetry`](spillway_webhook::StoredRetry).
    pub fn main_retries(&self) -> String {
        self.named("retries:main")
    }

    /// Hash: position of a webhook in a lane → its [`StoredRetry`](spillway_webhook::StoredRetry).
    pub fn retries(&self) -> String {
        self.named("retries")
    }

    /// Stream of dead letters.
    pub fn dead(&self) -> String {
        self.named("dead")
    }

    /// Bytes held by the dead letters.
    pub fn dead_bytes(&self) -> String {
        self.named("dead:bytes")
    }

    /// Deduplication window: stream of fingerprints of webhooks delivered lately. Field `d` holds
    /// 16 bytes for each.
    pub fn seen(&self) -> String {
        self.named("seen")
    }

    /// Stream of the outcomes of webhooks: field `h` holds records of [`crate::history`].
    pub fn history(&self) -> String {
        self.named("history")
    }

    /// Hash of an operator's controls: `version`, `applied`, `dropped`, and `pause:<filter>` → start
    /// in ms.
    pub fn controls(&self) -> String {
        self.named("controls")
    }

    /// Hash of webhooks to drop: stream id → one bit for each webhook, and `replay:<id>`.
    pub fn dropping(&self) -> String {
        self.named("dropping")
    }

    /// `<token>:<number>` of the last settlement that was applied.
    pub fn settled(&self) -> String {
        self.named("settled")
    }
}
