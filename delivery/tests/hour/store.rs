//! Data in Redis: the main stream and the lanes.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use spillway_delivery::{
    ChunkFound, ChunkRead, LaneLoaded, LaneRowChange, Loaded, PackKey, PackRead, PendingSettlement,
    ReadAgain,
};
use spillway_webhook::position::Position;
use spillway_webhook::{StoredRetry, StreamId};

use crate::load::{Webhook, Webhooks};

/// Webhooks of a chunk, and one bit per webhook, set when it is settled.
type Chunk = (Rc<Vec<Webhook>>, Vec<u8>);

#[derive(Default)]
pub(crate) struct Store {
    pub main: BTreeMap<StreamId, Rc<Vec<Webhook>>>,
    cursor: StreamId,
    bits: HashMap<StreamId, Vec<u8>>,
    chunks: HashMap<(u64, u32), Chunk>,
    rows: BTreeMap<u64, LaneRowChange>,
    retries: BTreeMap<Position, StoredRetry>,
    main_retries: BTreeMap<Position, StoredRetry>,
}

impl Store {
    /// State with which a leader begins.
    pub(crate) fn load(&self) -> Loaded {
        let lanes = self.rows.values().map(|row| LaneLoaded {
            lane: row.lane,
            shop: row.lane,
            is_other_scheme: false,
            first_chunk: row.first_chunk,
            last_chunk: row.last_chunk,
            waiting: row.waiting,
            first: row.first,
            last: row.last,
            failing: row.failing.clone(),
            is_tripped: row.is_tripped,
            is_suspect: row.is_suspect,
        });
        Loaded {
            cursor: self.cursor,
            bits: self.bits.clone(),
            lanes: lanes.collect(),
            retries: self.main_retries.iter().map(|(at, state)| (*at, *state)).collect(),
            ..Loaded::default()
        }
    }

    /// Entry after which a leader begins to read.
    pub(crate) fn cursor(&self) -> StreamId {
        self.cursor
    }

    /// The first pack after an entry.
    pub(crate) fn pack_after(&self, entry: StreamId) -> Option<PackRead<Webhooks>> {
        let (entry, webhooks) = self.main.range(entry.next()..).next()?;
        Some(pack(*entry, webhooks))
    }

    pub(crate) fn pack(&self, entry: StreamId) -> Option<PackRead<Webhooks>> {
        self.main.get(&entry).map(|webhooks| pack(entry, webhooks))
    }

    pub(crate) fn chunk(&self, lane: u64, number: u32) -> ChunkFound<Webhooks> {
        let Some((webhooks, bits)) = self.chunks.get(&(lane, number)) else {
            return ChunkFound::Missing;
        };
        let retries = webhooks
            .iter()
            .filter_map(|webhook| Some((webhook.position, *self.retries.get(&webhook.position)?)));
        ChunkFound::Read(ChunkRead {
            number,
            records: webhooks.iter().map(|one| (one.position, one.classified())).collect(),
            bits: bits.clone(),
            retries: retries.collect(),
            content: Webhooks(webhooks.clone()),
        })
    }

    /// Returns a pack or chunk that is read again.
    pub(crate) fn again(&self, key: PackKey) -> Option<ReadAgain<Webhooks>> {
        match key {
            PackKey::Main(entry) => {
                let content = Webhooks(self.main.get(&entry)?.clone());
                Some(ReadAgain { content, positions: Vec::new() })
            }
            PackKey::Chunk(lane, number) => {
                let (webhooks, _) = self.chunks.get(&(lane, number))?;
                let positions = webhooks.iter().map(|webhook| webhook.position).collect();
                Some(ReadAgain { content: Webhooks(webhooks.clone()), positions })
            }
            PackKey::Replay(_) => None,
        }
    }

    /// Applies a settlement.
    pub(crate) fn apply(&mut self, settlement: &PendingSettlement<Webhooks>) {
        let lanes = &settlement.lanes;
        for write in &lanes.chunks.written {
            let of = |at: &Position| lanes.moved[&at.entry()].0[at.index as usize];
            let webhooks = Rc::new(write.positions.iter().map(of).collect());
            let before = self.chunks.insert((write.lane, write.number), (webhooks, Vec::new()));
            assert!(before.is_none(), "chunk {} of {} is written twice", write.number, write.lane);
        }
        for (lane, number, bits) in &lanes.chunk_bits {
            let chunk = self.chunks.get_mut(&(*lane, *number));
            chunk.expect("bits are of a chunk that is there").1.clone_from(bits);
        }
        for key in &lanes.chunks.deleted {
            self.chunks.remove(key);
        }
        self.rows.extend(lanes.rows.written.iter().map(|row| (row.lane, row.clone())));
        for lane in &lanes.rows.deleted {
            self.rows.remove(lane);
        }
        let main = (&mut self.main_retries, &settlement.main.retries);
        for (held, changes) in [main, (&mut self.retries, &lanes.retries)] {
            held.extend(changes.written.iter().copied());
            for position in &changes.deleted {
                held.remove(position);
            }
        }
        self.bits.extend(settlement.main.bits.iter().cloned());
        for entry in &settlement.main.whole {
            self.bits.remove(entry);
        }
        if let Some(cursor) = settlement.main.cursor {
            self.cursor = self.cursor.max(cursor);
            self.main = self.main.split_off(&self.cursor.next());
        }
    }

    /// True if the main stream and the lanes are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.main.is_empty()
            && self.bits.is_empty()
            && self.chunks.is_empty()
            && self.rows.is_empty()
            && self.retries.is_empty()
            && self.main_retries.is_empty()
    }
}

fn pack(entry: StreamId, webhooks: &Rc<Vec<Webhook>>) -> PackRead<Webhooks> {
    PackRead {
        entry,
        classified: webhooks.iter().map(Webhook::classified).collect(),
        content: Webhooks(webhooks.clone()),
    }
}
