//! Settles: the last step of a webhook, once, and only for what the next system confirmed.
//!
//! Invariant: one [`Settlement`] is applied whole or not at all, by the drain's owner only, and not
//! twice: sent again after a lost reply it changes nothing.

use rand::RngExt;
use redis::{Script, ScriptInvocation};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::lane::{self, LaneChanges};

/// Bytes of dead letters in one settlement, by [`Dead::size_bytes`]: bounds its request and the time
/// its script holds Redis. One that is larger goes by itself.
pub const DEAD_BYTES_MAX: u64 = 8 << 20;

/// Everything a drain is done with since its last settlement.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    /// Entries that the cursor passes. `None`: it stays.
    pub passed: Option<Passed>,
    /// Webhooks settled in packs behind the cursor.
    pub open: u64,
    /// Entries to set aside, each under a key of its own.
    pub corrupt: CorruptEntries,
    /// Packs behind the cursor, with a bit for each settled webhook.
    pub bits: Vec<(StreamId, Vec<u8>)>,
    /// Packs whose bits, settled or to be dropped, are not needed any more.
    pub whole: Vec<StreamId>,
    /// Replays that are settled, by their ids in the stream of replays.
    pub replays: Vec<StreamId>,
    /// Webhooks to dead-letter.
    pub dead: Vec<Dead>,
    /// Records of what became of webhooks.
    pub remembered: Remembered,
    /// Progress with the operator's orders.
    pub orders: OrdersProgress,
    /// Changes of the lanes and of what waits in them.
    pub lanes: LaneChanges,
}

/// Entries of the main stream between the old cursor and the new one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// The new cursor: every entry up to it is settled. It is the id of an entry that was read; if
    /// that is not in the stream, the settlement is refused.
    pub cursor: StreamId,
    /// Number of these entries.
    pub entries: u64,
    /// Webhooks in them.
    pub webhooks: u64,
}

/// Entries that can't be decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorruptEntries {
    /// Those of the main stream.
    pub packs: Vec<StreamId>,
    /// Those of the stream of replays.
    pub replays: Vec<StreamId>,
}

/// Records that are kept of settled webhooks for a time.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// Fingerprints of what was delivered, so that a duplicate is known.
    pub seen: Vec<Fingerprint>,
    /// Outcomes, as records of [`crate::history`].
    pub history: Vec<u8>,
    /// Before this time, in milliseconds since the Unix epoch, fingerprints and history may be
    /// forgotten.
    pub from_ms: u64,
}

/// Progress of a drain with its operator's orders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrdersProgress {
    /// Orders up to this version are known. Names of a pack that is passed are kept while there are
    /// newer ones: something of it may have moved into a lane.
    pub known: u64,
    /// Orders up to this version are carried out; `None`: no more than before.
    pub done: Option<u64>,
    /// Webhooks that were dropped by order, of those that are settled here.
    pub dropped: u64,
}

/// A webhook that is given up, exactly as it was received, and why.
#[derive(Debug, Clone)]
pub struct Dead {
    /// A pack of one.
    pub pack: Vec<u8>,
    /// Which webhook it is.
    pub webhook: WebhookId,
    /// Shop domain, topic, resource and Shopify's webhook id, for filters.
    pub labels: [String; 4],
    /// Why, from a closed set.
    pub reason: &'static str,
    /// The last answer's status, 0 if there was none.
    pub status: u16,
    /// Deliveries tried.
    pub attempts: u32,
    /// The first KB of the last answer.
    pub answer: Vec<u8>,
}

impl Dead {
    /// About what it takes in Redis, in bytes.
    pub fn size_bytes(&self) -> u64 {
        let labels: usize = self.labels.iter().map(String::len).sum();
        (self.pack.len() + labels + self.answer.len() + 32) as u64
    }
}

/// Applies settlements, one after the other.
pub struct Settler {
    redis: Redis,
    drain: String,
    token: String,
    number: u64,
    /// Mark of the last one that is known to be applied: the next names it.
    previous: Option<String>,
    script: Script,
}

impl Settlement {
    /// Whether there is nothing to record.
    pub fn is_empty(&self) -> bool {
        self.passed.is_none()
            && self.corrupt.packs.is_empty()
            && self.corrupt.replays.is_empty()
            && self.bits.is_empty()
            && self.whole.is_empty()
            && self.replays.is_empty()
            && self.dead.is_empty()
            && self.remembered.seen.is_empty()
            && self.orders.done.is_none()
            && self.lanes.is_empty()
    }
}

impl Settler {
    /// Settles for `drain` under the owner's `token`. `previous` is the mark that stood when the
    /// drain's progress was read, [`Progress::mark`](crate::read::Progress::mark).
    pub fn new(redis: Redis, drain: &str, token: &str, previous: Option<String>) -> Self {
        let script = Script::new(include_str!("lua/settle.lua"));
        // Not from 0: an instance that lost the drain and took it again has the same token, and its
        // first settlement must not look like a repeat of the first one before.
        let number = rand::rng().random::<u32>().into();
        let (drain, token) = (drain.to_owned(), token.to_owned());
        Self { redis, drain, token, number, previous, script }
    }

    /// Begins the next settlement. Until then, [`Settler::apply`] repeats the current one.
    pub fn begin(&mut self) {
        self.number += 1;
    }

    /// Applies the current settlement; safe to repeat after an error.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when another instance owns the drain, [`QueueError::Unregistered`]
    /// when Redis lost its cursor, or when another settlement stands there than the one before this
    /// one, or the entry of the new cursor is gone: what was moved or dead-lettered may be gone too,
    /// so the drain must begin again from what Redis holds. Nothing was changed in either case.
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
        let (keys, drain) = (&self.redis.keys, &self.drain);
        call.key(keys.stream()).key(keys.counts()).key(keys.owner(drain)).key(keys.done(drain));
        call.key(keys.replays(drain)).key(keys.dead(drain));
        call.key(keys.dead_bytes(drain)).key(keys.settled(drain)).key(keys.seen(drain));
        call.key(keys.history(drain)).key(keys.orders(drain)).key(keys.dropping(drain));
        lane::add_keys(call, keys, drain);
        call.arg(&self.token).arg(self.number).arg(drain).arg(keys.corrupt_prefix());
        let Settlement { passed, remembered, orders, .. } = settlement;
        let cursor = passed.map(|passed| passed.cursor.to_string()).unwrap_or_default();
        let Passed { entries, webhooks, .. } = passed.unwrap_or_default();
        call.arg(cursor).arg(entries).arg(webhooks).arg(settlement.open);
        call.arg(self.previous.as_deref().unwrap_or_default());
        let seen: Vec<u8> = remembered.seen.iter().flat_map(|one| one.to_le_bytes()).collect();
        call.arg(seen).arg(remembered.from_ms).arg(&remembered.history[..]);
        let done = orders.done.map(|version| version.to_string()).unwrap_or_default();
        call.arg(orders.dropped).arg(done).arg(orders.known);
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
