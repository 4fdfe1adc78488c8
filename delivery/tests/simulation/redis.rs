//! A model of Redis: the main stream, lanes, and settlements that are applied completely or not at
//! all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use spillway_delivery::{
    ChunkFound, ChunkRead, LaneLoaded, LaneRowChange, Loaded, PackRead, PendingSettlement,
};
use spillway_webhook::position::Position;
use spillway_webhook::{StoredRetry, StreamId};

use crate::webhook::{Bytes, Exclusion, Rules, SHOPS, Scheme, Webhook, shop_hash};

/// Token of the leader and number of a settlement.
pub(crate) type Mark = (u64, u64);

/// Time of a pause that may be written as spent and is subtracted when the pause ends. A filter is
/// checked when a webhook has its turn, and times written before include the pause.
const PAUSED_MAX: Duration = Duration::from_secs(2);

/// Bytes of a retry state in the index.
const STATE_BYTES: usize = 172;

/// A chunk of a lane.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub webhooks: Vec<Webhook>,
    pub bits: Vec<u8>,
    /// True if the chunk can no longer be decoded.
    pub is_spoiled: bool,
}

/// A row of a lane.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub change: LaneRowChange,
    pub shop: u64,
    pub scheme: Scheme,
}

/// Reason why a settlement is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is another leader.
    Fenced,
    /// The settlement does not follow the last one, or its cursor is lost.
    Older,
}

/// A settlement that is under way.
#[derive(Debug)]
pub(crate) struct Letter {
    pub mark: Mark,
    pub follows: Mark,
    pub scheme: Scheme,
    pub exclusion: Exclusion,
    /// Time before which the fingerprints may be deleted.
    pub remembers_from_ms: u64,
    pub settlement: PendingSettlement<Bytes>,
}

/// Complete state of Redis.
#[derive(Debug, Clone, Default)]
pub(crate) struct Redis {
    pub main: BTreeMap<StreamId, Vec<Webhook>>,
    pub last: StreamId,
    pub cursor: StreamId,
    pub done: BTreeMap<StreamId, Vec<u8>>,
    pub rows: BTreeMap<u64, Row>,
    pub chunks: BTreeMap<(u64, u32), Chunk>,
    pub barriers: BTreeMap<Position, u64>,
    pub leads: BTreeMap<u64, Position>,
    pub retries: BTreeMap<Position, StoredRetry>,
    pub main_retries: BTreeMap<Position, StoredRetry>,
    /// Time spent on each webhook, as last written, in the main stream or in a lane.
    pub spent: BTreeMap<Position, Duration>,
    pub replays: BTreeMap<StreamId, Webhook>,
    pub dead: Vec<Webhook>,
    /// Lanes that lost a chunk, until their rows are gone.
    pub spoiled: BTreeSet<u64>,
    pub token: u64,
    pub mark: Mark,
}

pub(crate) fn is_set(bits: &[u8], index: usize) -> bool {
    bits.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}

impl Redis {
    /// Returns the state with which a leader begins.
    pub(crate) fn load(&self, scheme: Scheme) -> Loaded {
        let lanes = self.rows.values().map(|row| LaneLoaded {
            lane: row.change.lane,
            shop: row.shop,
            is_other_scheme: row.scheme != scheme,
            first_chunk: row.change.first_chunk,
            last_chunk: row.change.last_chunk,
            waiting: row.change.waiting,
            first: row.change.first,
            last: row.change.last,
            failing: row.change.failing.clone(),
            is_tripped: row.change.is_tripped,
            is_suspect: row.change.is_suspect,
        });
        Loaded {
            cursor: self.cursor,
            bits: self.done.iter().map(|(entry, bits)| (*entry, bits.clone())).collect(),
            lanes: lanes.collect(),
            barriers: self.barriers.iter().map(|(at, shop)| (*at, *shop)).collect(),
            leads: self.leads.iter().map(|(hash, at)| (*hash, *at)).collect(),
            retries: self.main_retries.iter().map(|(at, state)| (*at, *state)).collect(),
        }
    }

    /// A new leader keeps the oldest retry states of the main stream that fit into a quarter of the index.
    /// The times of all others begin again.
    pub(crate) fn forget_times(&mut self, index_bytes: usize) {
        let kept = (index_bytes / 4).div_ceil(STATE_BYTES);
        for position in self.main_retries.keys().skip(kept) {
            self.spent.remove(position);
        }
    }

    pub(crate) fn pack(&self, entry: StreamId, rules: Rules) -> Option<PackRead<Bytes>> {
        let webhooks = self.main.get(&entry)?;
        let classified = webhooks.iter().map(|webhook| webhook.classified(rules)).collect();
        Some(PackRead { entry, classified, content: Bytes::of(webhooks.clone()) })
    }

    pub(crate) fn chunk(&self, lane: u64, number: u32, rules: Rules) -> ChunkFound<Bytes> {
        let Some(chunk) = self.chunks.get(&(lane, number)) else { return ChunkFound::Missing };
        if chunk.is_spoiled {
            return ChunkFound::Corrupt;
        }
        let webhooks = chunk.webhooks.iter();
        let records: Vec<_> = webhooks.map(|one| (one.position, one.classified(rules))).collect();
        let retries = records.iter().filter_map(|(position, _)| {
            self.retries.get(position).map(|state| (*position, *state))
        });
        ChunkFound::Read(ChunkRead {
            number,
            retries: retries.collect(),
            records,
            bits: chunk.bits.clone(),
            content: Bytes::of(chunk.webhooks.clone()),
        })
    }

    /// Loses a chunk: it can no longer be decoded, or does not exist. Returns its webhooks.
    pub(crate) fn spoil(&mut self, key: (u64, u32), is_deleted: bool) -> Vec<Position> {
        let Some(chunk) = self.chunks.get_mut(&key).filter(|chunk| !chunk.is_spoiled) else {
            return Vec::new();
        };
        chunk.is_spoiled = true;
        let lost = open(&chunk.webhooks, &chunk.bits).collect();
        self.spoiled.insert(key.0);
        if is_deleted {
            self.chunks.remove(&key);
        }
        lost
    }

    /// Applies a settlement. Returns true if it was not applied before.
    pub(crate) fn apply(&mut self, letter: &Letter) -> Result<bool, Refused> {
        if letter.mark.0 != self.token {
            return Err(Refused::Fenced);
        }
        if letter.mark == self.mark {
            return Ok(false);
        }
        // A cursor is an entry that was read. If it is missing, Redis lost it.
        let is_lost = |cursor| cursor > self.cursor && !self.main.contains_key(&cursor);
        if letter.follows != self.mark || letter.settlement.main.cursor.is_some_and(is_lost) {
            return Err(Refused::Older);
        }
        self.mark = letter.mark;
        let settlement = &letter.settlement;
        for (entry, bits) in &settlement.main.bits {
            self.done.insert(*entry, bits.clone());
        }
        self.apply_lanes(letter);
        if let Some(cursor) = settlement.main.cursor {
            self.cursor = self.cursor.max(cursor);
            let after = self.main.split_off(&StreamId { ms: cursor.ms, seq: cursor.seq + 1 });
            let passed = std::mem::replace(&mut self.main, after);
            let webhooks: usize = passed.values().map(Vec::len).sum();
            let said = (settlement.main.entries_passed, settlement.main.webhooks_passed);
            assert_eq!(said, (passed.len() as u64, webhooks as u64), "what the cursor passes");
        }
        self.done.retain(|entry, _| !settlement.main.whole.contains(entry));
        self.replays.retain(|id, _| !settlement.replays.settled.contains(id));
        self.dead.extend(settlement.dead.iter().map(|letter| {
            let webhook = letter.content.0[letter.record_index as usize];
            assert_eq!(webhook.position, letter.position, "bytes of a dead letter");
            webhook
        }));
        Ok(true)
    }

    fn apply_lanes(&mut self, letter: &Letter) {
        let lanes = &letter.settlement.lanes;
        let packs = &lanes.moved;
        for write in &lanes.chunks.written {
            let webhooks: Vec<Webhook> =
                write.positions.iter().map(|at| packs[&at.entry()].0[at.index as usize]).collect();
            let first = webhooks.first().expect("a chunk holds something");
            let shop = shop_hash(first.shop);
            let empty = Chunk { webhooks: Vec::new(), bits: Vec::new(), is_spoiled: false };
            let key = (write.lane, write.number);
            assert!(!self.chunks.contains_key(&key), "chunk {key:?} is written twice");
            self.chunks.entry(key).or_insert(empty).webhooks.extend(&webhooks);
            if let Some(row) = lanes.rows.written.iter().find(|row| row.lane == write.lane) {
                let row = Row { change: row.clone(), shop, scheme: letter.scheme };
                self.rows.entry(write.lane).or_insert(row);
            }
        }
        for (lane, number, bits) in &lanes.chunk_bits {
            let chunk = self.chunks.get_mut(&(*lane, *number));
            chunk.expect("bits are of a chunk that is there").bits = bits.clone();
        }
        for key in &lanes.corrupt {
            let chunk = self.chunks.remove(key);
            assert!(chunk.is_none_or(|chunk| chunk.is_spoiled), "chunk {key:?} is not corrupt");
        }
        self.chunks.retain(|key, _| !lanes.chunks.deleted.contains(key));
        for change in &lanes.rows.written {
            let row = self.rows.get_mut(&change.lane).expect("a row is of a lane with chunks");
            row.change = change.clone();
        }
        self.rows.retain(|lane, _| !lanes.rows.deleted.contains(lane));
        self.barriers.extend(lanes.barriers.written.iter().copied());
        self.barriers.retain(|position, _| !lanes.barriers.deleted.contains(position));
        self.leads.extend(lanes.leads.written.iter().copied());
        self.leads.retain(|hash, _| !lanes.leads.deleted.contains(hash));
        let main = (&mut self.main_retries, &letter.settlement.main.retries);
        for (held, changes) in [main, (&mut self.retries, &lanes.retries)] {
            for (position, state) in &changes.written {
                held.insert(*position, *state);
                let spent = state.spent;
                let before = self.spent.insert(*position, spent).unwrap_or_default();
                assert!(
                    spent + PAUSED_MAX >= before,
                    "{position}: {spent:?} spent on retries after {before:?}"
                );
            }
            held.retain(|position, _| !changes.deleted.contains(position));
        }
        if lanes.waiting == 0 {
            self.retries.clear();
        }
        self.spoiled.retain(|lane| self.rows.contains_key(lane));
    }

    /// All unsettled webhooks, in the main stream and in lanes.
    pub(crate) fn unsettled(&self) -> Result<BTreeSet<Position>, String> {
        let mut all = BTreeSet::new();
        let none = Vec::new();
        for (entry, webhooks) in &self.main {
            let bits = self.done.get(entry).unwrap_or(&none);
            all.extend(open(webhooks, bits));
        }
        let sound = self.chunks.iter().filter(|(_, chunk)| !chunk.is_spoiled);
        for ((lane, number), chunk) in sound {
            for position in open(&chunk.webhooks, &chunk.bits) {
                if !all.insert(position) {
                    return Err(format!("{position} lies twice, also in chunk {lane:x}:{number}"));
                }
            }
        }
        Ok(all)
    }

    /// Number of unsettled webhooks of each shop in lanes, and in the main stream after `from` up
    /// to `to`. A leader settles those of the main stream that its filter excludes when it reads them.
    pub(crate) fn waiting(
        &self,
        has_lanes: bool,
        (from, to): (StreamId, StreamId),
        exclusion: Exclusion,
    ) -> [u64; SHOPS as usize] {
        let mut waiting = [0; SHOPS as usize];
        let none = Vec::new();
        let main = self.main.range(from.next()..).take_while(|(entry, _)| **entry <= to);
        let main = main.map(|(at, all)| (all, self.done.get(at).unwrap_or(&none), exclusion));
        let chunks = self.chunks.values().filter(|_| has_lanes);
        let chunks = chunks.map(|chunk| (&chunk.webhooks, &chunk.bits, Exclusion::default()));
        for (webhooks, bits, exclusion) in main.chain(chunks) {
            for (index, webhook) in webhooks.iter().enumerate() {
                let waits = !is_set(bits, index) && !exclusion.excludes(webhook);
                waiting[usize::from(webhook.shop)] += u64::from(waits);
            }
        }
        waiting
    }

    /// Checks that rows and chunks agree, and that each retry state belongs to an unsettled
    /// webhook.
    pub(crate) fn check(&self) -> Result<(), String> {
        let none = Vec::new();
        for position in self.main_retries.keys() {
            let is_there = self.main.contains_key(&position.entry());
            let bits = self.done.get(&position.entry()).unwrap_or(&none);
            if !is_there || is_set(bits, position.index as usize) {
                return Err(format!("{position} is settled or moved, and has a retry state"));
            }
        }
        let mut waiting: BTreeMap<u64, u64> = BTreeMap::new();
        for ((lane, number), chunk) in &self.chunks {
            let Some(row) = self.rows.get(lane) else {
                return Err(format!("chunk {lane:x}:{number} has no row"));
            };
            if !(row.change.first_chunk..=row.change.last_chunk).contains(number) {
                return Err(format!("chunk {lane:x}:{number} is not in {:?}", row.change));
            }
            if !chunk.is_spoiled {
                let left = open(&chunk.webhooks, &chunk.bits).count() as u64;
                *waiting.entry(*lane).or_default() += left;
            }
            let last = chunk.webhooks.last().map(|webhook| webhook.position);
            if last > Some(row.change.last) {
                return Err(format!("chunk {lane:x}:{number} ends after its row {:?}", row.change));
            }
        }
        for (lane, row) in &self.rows {
            let counted = waiting.get(lane).copied().unwrap_or(0);
            let may_miss = self.spoiled.contains(lane) && row.change.waiting > counted;
            if !may_miss && (counted == 0 || counted != row.change.waiting) {
                return Err(format!("{counted} wait in lane {lane:x}, its row: {:?}", row.change));
            }
        }
        Ok(())
    }

    /// Describes data of lanes that should have been deleted.
    pub(crate) fn remains(&self) -> Option<String> {
        let is_clean = self.rows.is_empty()
            && self.chunks.is_empty()
            && self.barriers.is_empty()
            && self.leads.is_empty()
            && self.retries.is_empty()
            && self.main_retries.is_empty()
            && self.done.is_empty()
            && self.replays.is_empty();
        (!is_clean).then(|| {
            format!(
                "rows {:?} chunks {:?} barriers {:?} leads {:?} retries {:?}, {:?} done {:?} replays {:?}",
                self.rows.keys(),
                self.chunks.keys(),
                self.barriers,
                self.leads,
                self.retries,
                self.main_retries,
                self.done,
                self.replays.keys()
            )
        })
    }
}

fn open<'a>(webhooks: &'a [Webhook], bits: &'a [u8]) -> impl Iterator<Item = Position> + 'a {
    let open = webhooks.iter().enumerate().filter(move |(index, _)| !is_set(bits, *index));
    open.map(|(_, webhook)| webhook.position)
}
