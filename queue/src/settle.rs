//! Settles webhooks: the last step of each, once, and only after the next system confirmed it, it
//! became a dead letter, or an operator dropped it.
//!
//! Invariant: one [`Settlement`] is applied completely or not at all, by the consumer's leader
//! only, and not twice: when it is sent again after a lost reply, it changes nothing.

use rand::RngExt;
use redis::{Script, ScriptInvocation};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::lane::{self, LaneChanges};

/// Maximum size of the dead letters in one settlement, by [`Dead::size_bytes`]. It bounds the
/// request and the time for which its script blocks Redis. A larger dead letter gets its own
/// settlement.
pub const DEAD_BYTES_MAX: u64 = 8 << 20;

/// Everything that a consumer has finished since its last settlement.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    /// Entries over which the cursor moves. `None`: the cursor stays.
    pub passed: Option<PassedEntries>,
    /// Webhooks settled in packs after the cursor.
    pub settled_after_cursor: u64,
    /// Entries to set aside, each under its own key.
    pub corrupt: CorruptEntries,
    /// Packs after the cursor, with one bit for each settled webhook.
    pub bits: Vec<(StreamId, Vec<u8>)>,
    /// Packs whose bits, settled or to be dropped, are no longer needed.
    pub whole: Vec<StreamId>,
    /// Replays that are settled, by their ids in the stream of replays.
    pub replays: Vec<StreamId>,
    /// Webhooks to dead-letter.
    pub dead: Vec<Dead>,
    /// Records of settled webhooks to keep for a time.
    pub remembered: Remembered,
    /// Progress with the operator's controls.
    pub controls: ControlsProgress,
    /// Changes of the lanes and of the webhooks that wait in them.
    pub lanes: LaneChanges,
}

/// Entries of the main stream between the old cursor and the new one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassedEntries {
    /// The new cursor: every webhook up to it is settled or lies in a chunk. It is the id of an entry
    /// that was read. If the stream does not hold that entry, the settlement is refused.
    pub cursor: StreamId,
    /// Number of these entries.
    pub entries: u64,
    /// Webhooks in them.
    pub webhooks: u64,
}

/// Entries that cannot be decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorruptEntries {
    /// Entries of the main stream.
    pub packs: Vec<StreamId>,
    /// Entries of the stream of replays.
    pub replays: Vec<StreamId>,
}

/// Records that are kept of settled webhooks for a time.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// Fingerprints of delivered webhooks, by which duplicates are found.
    pub seen: Vec<Fingerprint>,
    /// Outcomes, as records of [`crate::history`].
    pub history: Vec<u8>,
    /// Before this time, in milliseconds since the Unix epoch, fingerprints and history may be
    /// forgotten.
    pub from_ms: u64,
}

/// Progress of a consumer with its operator's controls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControlsProgress {
    /// Controls up to this version are known. If there are newer ones, the names in a pack that the
    /// cursor reaches are kept: some of its webhooks may have moved into a lane.
    pub known: u64,
    /// Controls up to this version are carried out. `None`: no more than before.
    pub done: Option<u64>,
    /// Number of webhooks in this settlement that were dropped by order.
    pub dropped: u64,
}

/// A webhook that is given up, exactly as it was received, and the reason.
#[derive(Debug, Clone)]
pub struct Dead {
    /// A pack of one webhook.
    pub pack: Vec<u8>,
    /// Id of the webhook.
    pub webhook: WebhookId,
    /// Shop domain, topic, resource and Shopify's webhook id, for filters.
    pub labels: [String; 4],
    /// Reason for giving up, from a closed set.
    pub reason: &'static str,
    /// Status of the last answer; 0 if there was none.
    pub status: u16,
    /// Delivery attempts made.
    pub attempts: u32,
    /// First KB of the last answer.
    pub answer: Vec<u8>,
}

impl Dead {
    /// Approximate size in Redis, in bytes.
    pub fn size_bytes(&self) -> u64 {
        let labels: usize = self.labels.iter().map(String::len).sum();
        (self.pack.len() + labels + self.answer.len() + 32) as u64
    }
}

/// Applies settlements, one after the other.
pub struct Settler {
    redis: Redis,
    consumer: String,
    token: String,
    number: u64,
    /// Mark of the last settlement that is known to be applied. The next one names it.
    previous: Option<String>,
    script: Script,
}

impl Settlement {
    /// True if there is nothing to record.
    pub fn is_empty(&self) -> bool {
        self.passed.is_none()
            && self.corrupt.packs.is_empty()
            && self.corrupt.replays.is_empty()
            && self.bits.is_empty()
            && self.whole.is_empty()
            && self.replays.is_empty()
            && self.dead.is_empty()
            && self.remembered.seen.is_empty()
            && self.controls.done.is_none()
            && self.lanes.is_empty()
    }
}

impl Settler {
    /// Creates a settler for `consumer` under the leader's `token`. `previous` is the mark that was
    /// valid when the consumer's progress was read,
    /// [`ConsumerProgress::mark`](crate::read::ConsumerProgress::mark).
    pub fn new(redis: Redis, consumer: &str, token: &str, previous: Option<String>) -> Self {
        let script = Script::new(include_str!("lua/settle.lua"));
        // Not from 0: an instance that lost the lease and took it again has the same token. Its
        // first settlement must not look like a repeat of the first one before.
        let number = rand::rng().random::<u32>().into();
        let consumer = consumer.to_owned();
        let token = token.to_owned();
        Self { redis, consumer, token, number, previous, script }
    }

    /// Begins the next settlement. Until then, [`Settler::apply`] repeats the current one.
    pub fn begin(&mut self) {
        self.number += 1;
    }

    /// Applies the current settlement. It is safe to repeat after an error.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when another instance is the leader. [`QueueError::Unregistered`]
    /// when the cursor is missing, when the last settlement in Redis is not the one before this, or
    /// when the entry of the new cursor is missing. Moved webhooks or dead letters may be lost then
    /// too, so the consumer must start again from what Redis holds. Nothing was changed in either
    /// case.
    pub async fn apply(
        &mut self,
        connection: &mut Connection,
        settlement: &Settlement,
    ) -> Result<(), QueueError> {
        let mut call = self.script.prepare_invoke();
        self.arguments(&mut call, settlement);
        let () = call.invoke_async(connection).await?;
        self.previous = Some(format!("{}:{}", self.token, self.number));
        Ok(())
    }

    fn arguments(&self, call: &mut ScriptInvocation<'_>, settlement: &Settlement) {
        let keys = &self.redis.keys;
        let consumer = &self.consumer;
        let own = keys.of(consumer);
        call.key(keys.stream()).key(keys.counts()).key(own.leader()).key(own.done());
        call.key(own.replays()).key(own.dead());
        call.key(own.dead_bytes()).key(own.settled()).key(own.seen());
        call.key(own.history()).key(own.controls()).key(own.dropping());
        lane::add_keys(call, &own);
        call.arg(&self.token).arg(self.number).arg(consumer).arg(keys.corrupt_prefix());
        let Settlement { passed, remembered, controls, .. } = settlement;
        let cursor = passed.map(|passed| passed.cursor.to_string()).unwrap_or_default();
        let PassedEntries { entries, webhooks, .. } = passed.unwrap_or_default();
        call.arg(cursor).arg(entries).arg(webhooks).arg(settlement.settled_after_cursor);
        call.arg(self.previous.as_deref().unwrap_or_default());
        let seen: Vec<u8> = remembered.seen.iter().flat_map(|one| one.to_le_bytes()).collect();
        call.arg(seen).arg(remembered.from_ms).arg(&remembered.history[..]);
        let done = controls.done.map(|version| version.to_string()).unwrap_or_default();
        call.arg(controls.dropped).arg(done).arg(controls.known);
        call.arg(settlement.lanes.waiting).arg(settlement.lanes.oldest_ms);
        lists(call, settlement);
    }
}

fn lists(call: &mut ScriptInvocation<'_>, settlement: &Settlement) {
    ids(call, &settlement.corrupt.packs);
    ids(call, &settlement.corrupt.replays);
    call.arg(settlement.bits.len());
    for (id, bits) in &settlement.bits {
        call.arg(id.to_string()).arg(&bits[..]);
    }
    ids(call, &settlement.whole);
    ids(call, &settlement.replays);
    call.arg(settlement.dead.len());
    for dead in &settlement.dead {
        call.arg(&dead.pack[..]).arg(dead.webhook.to_string());
        for label in &dead.labels {
            call.arg(label);
        }
        call.arg(dead.reason).arg(dead.status).arg(dead.attempts).arg(&dead.answer[..]);
    }
    settlement.lanes.add_to(call);
}

fn ids(call: &mut ScriptInvocation<'_>, ids: &[StreamId]) {
    call.arg(ids.len());
    for id in ids {
        call.arg(id.to_string());
    }
}
