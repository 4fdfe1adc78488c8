//! The main stream after the cursor: packs, and which of their webhooks are settled.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::index::usize_of;

/// Bytes of a pack's row.
pub const PACK_BYTES: usize = 104;

/// Lanes of a pack, told apart by eight bits of their hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackLanes([u64; 4]);

impl PackLanes {
    /// Adds a lane.
    pub fn add(&mut self, lane: u64) {
        let (word, bit) = place(lane);
        self.0[word] |= bit;
    }

    /// False if the lane was not added.
    pub fn may_hold(&self, lane: u64) -> bool {
        let (word, bit) = place(lane);
        self.0[word] & bit != 0
    }
}

fn place(lane: u64) -> (usize, u64) {
    let mixed = lane.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    ((mixed >> 6) as usize, 1 << (mixed & 63))
}

/// A pack after the cursor.
#[derive(Debug)]
pub struct MainPack {
    /// Its entry.
    pub entry: StreamId,
    /// Webhooks in it.
    pub count: u32,
    /// Of these, not settled.
    pub left: u32,
    /// Lanes of those that were not settled when it was read.
    pub lanes: PackLanes,
    /// A bit for each that is settled; empty while none is.
    bits: Vec<u8>,
    /// Whether Redis holds the bits.
    pub are_bits_stored: bool,
    /// Active time from which it may move.
    pub due_at: Duration,
    /// Webhooks settled in all when one of it was last.
    pub moved_at: u64,
}

/// Distance by which the cursor moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Advance {
    /// The new cursor, if it moves.
    pub cursor: Option<StreamId>,
    /// Entries up to it.
    pub entries: u64,
    /// Webhooks in them.
    pub webhooks: u64,
}

/// Packs after the cursor, in stream order.
#[derive(Debug)]
pub struct MainStream {
    packs: VecDeque<MainPack>,
    /// Everything up to here is settled, as of the last settlement that was composed.
    pub cursor: StreamId,
    /// Everything up to here was read.
    pub read_to: StreamId,
    /// The leader before had read up to here at least.
    pub known_to: StreamId,
    /// Settled webhooks in packs after the cursor.
    pub settled_open: u64,
    /// Webhooks settled in all.
    pub settled: u64,
}

impl MainPack {
    /// Whether the webhook at `index` is settled.
    pub fn is_settled(&self, index: u32) -> bool {
        is_set(&self.bits, index)
    }

    /// A bit for each settled webhook.
    pub fn bits(&self) -> Vec<u8> {
        let mut bits = self.bits.clone();
        bits.resize(bytes_for(self.count), 0);
        bits
    }
}

impl MainStream {
    /// The stream after `cursor`, of which nothing was read, and the leader before up to `known_to`.
    pub fn new(cursor: StreamId, known_to: StreamId) -> Self {
        let packs = VecDeque::new();
        Self { packs, cursor, read_to: cursor, known_to, settled_open: 0, settled: 0 }
    }

    /// Adds the pack that was read next; `bits` are those that Redis holds, `due_at` is the active
    /// time from which it may move.
    pub fn push(&mut self, entry: StreamId, count: u32, bits: Option<Vec<u8>>, due_at: Duration) {
        self.read_to = entry;
        let are_bits_stored = bits.is_some();
        let bits = bits.unwrap_or_default();
        let settled = (0..count).filter(|index| is_set(&bits, *index)).count();
        let left = count - u32::try_from(settled).unwrap_or(count);
        self.settled_open += u64::from(count - left);
        let moved_at = self.settled;
        self.packs.push_back(MainPack {
            entry,
            count,
            left,
            lanes: PackLanes::default(),
            bits,
            are_bits_stored,
            due_at,
            moved_at,
        });
    }

    /// Packs in stream order.
    pub fn packs(&self) -> impl Iterator<Item = &MainPack> {
        self.packs.iter()
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.packs.len() * PACK_BYTES
    }

    /// The first pack.
    pub fn front(&self) -> Option<&MainPack> {
        self.packs.front()
    }

    /// The pack with this entry.
    pub fn get(&self, entry: StreamId) -> Option<&MainPack> {
        let at = self.packs.binary_search_by_key(&entry, |pack| pack.entry).ok()?;
        self.packs.get(at)
    }

    /// Packs at or after `entry`, in stream order.
    pub fn packs_from(&self, entry: StreamId) -> impl Iterator<Item = &MainPack> {
        self.packs.range(self.packs.partition_point(|pack| pack.entry < entry)..)
    }

    /// Notes that the newest pack holds something of a lane.
    pub fn holds(&mut self, lane: u64) {
        if let Some(pack) = self.packs.back_mut() {
            pack.lanes.add(lane);
        }
    }

    /// Whether a webhook lies after the cursor.
    pub fn is_after_cursor(&self, position: Position) -> bool {
        position.entry() > self.cursor
    }

    /// Settles a webhook. Returns whether it was not settled before.
    pub fn settle(&mut self, position: Position) -> bool {
        let Ok(at) = self.packs.binary_search_by_key(&position.entry(), |pack| pack.entry) else {
            return false;
        };
        let Some(pack) = self.packs.get_mut(at) else { return false };
        if pack.is_settled(position.index) || position.index >= pack.count {
            return false;
        }
        pack.bits.resize(bytes_for(pack.count), 0);
        pack.bits[usize_of(position.index) / 8] |= 1 << (position.index % 8);
        pack.left -= 1;
        self.settled += 1;
        self.settled_open += 1;
        pack.moved_at = self.settled;
        true
    }

    /// Notes that Redis holds the bits of a pack.
    pub fn bits_stored(&mut self, entry: StreamId) {
        if let Ok(at) = self.packs.binary_search_by_key(&entry, |pack| pack.entry) {
            self.packs[at].are_bits_stored = true;
        }
    }

    /// Moves the cursor over every pack that is settled whole.
    pub fn advance(&mut self, advance: &mut Advance) -> Vec<MainPack> {
        let mut passed = Vec::new();
        while self.packs.front().is_some_and(|pack| pack.left == 0) {
            passed.extend(self.pop(advance));
        }
        passed
    }

    /// Moves the cursor over the first pack, whatever is left of it.
    pub fn pop(&mut self, advance: &mut Advance) -> Option<MainPack> {
        let pack = self.packs.pop_front()?;
        self.cursor = pack.entry;
        self.settled_open -= u64::from(pack.count - pack.left);
        advance.cursor = Some(pack.entry);
        advance.entries += 1;
        advance.webhooks += u64::from(pack.count);
        Some(pack)
    }
}

/// Bytes that hold a bit for each of `count`.
pub fn bytes_for(count: u32) -> usize {
    usize_of(count).div_ceil(8)
}

/// Whether the bit at `index` is set.
pub fn is_set(bits: &[u8], index: u32) -> bool {
    bits.get(usize_of(index) / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}
