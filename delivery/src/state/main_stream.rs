//! The main stream after the cursor: its packs, and the settled webhooks of each pack.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::state::index::usize_of;

/// Bytes of a pack's row.
pub(crate) const PACK_BYTES: usize = 104;

/// Set of the lanes of a pack, by eight bits of each lane's hash. Two lanes may share a bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PackLanes([u64; 4]);

impl PackLanes {
    /// Adds a lane.
    pub(crate) fn add(&mut self, lane: u64) {
        let (word, bit) = place(lane);
        self.0[word] |= bit;
    }

    /// True if the lane may have been added; false if it was not.
    pub(crate) fn may_hold(&self, lane: u64) -> bool {
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
pub(crate) struct MainPack {
    /// Stream entry of the pack.
    pub entry: StreamId,
    /// Number of webhooks in the pack.
    pub count: u32,
    /// Number of webhooks that are not settled.
    pub left: u32,
    /// Lanes of the webhooks that were not settled when the pack was read.
    pub lanes: PackLanes,
    /// One bit per webhook, set when it is settled. Empty while none is settled.
    bits: Vec<u8>,
    /// True if Redis holds the bits.
    pub are_bits_stored: bool,
    /// Active time from which the pack may move into lanes.
    pub due_at: Duration,
    /// Value of [`MainStream::settled`] when a webhook of this pack was last settled.
    pub moved_at: u64,
}

/// Distance by which the cursor moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Advance {
    /// New cursor; `None` if it does not move.
    pub cursor: Option<StreamId>,
    /// Number of entries that the cursor passes.
    pub entries: u64,
    /// Number of webhooks in these entries.
    pub webhooks: u64,
}

/// Packs after the cursor, in stream order.
#[derive(Debug)]
pub(crate) struct MainStream {
    packs: VecDeque<MainPack>,
    /// Cursor as of the last composed settlement: everything up to it is settled, or was moved into
    /// chunks.
    pub cursor: StreamId,
    /// Last entry that was read.
    pub read_to: StreamId,
    /// Entry up to which at least the previous leader had read.
    pub known_to: StreamId,
    /// Number of settled webhooks in packs after the cursor.
    pub settled_after_cursor: u64,
    /// Number of webhooks in these packs that are not settled.
    pub left: u64,
    /// Number of webhooks that this leader has settled in the main stream.
    pub settled: u64,
}

impl MainPack {
    /// True if the webhook at `index` is settled.
    pub(crate) fn is_settled(&self, index: u32) -> bool {
        is_set(&self.bits, index)
    }

    /// Returns one bit per webhook, set for each settled one.
    pub(crate) fn bits(&self) -> Vec<u8> {
        let mut bits = self.bits.clone();
        bits.resize(bytes_for(self.count), 0);
        bits
    }
}

impl MainStream {
    /// Creates a stream after `cursor` of which nothing was read. The previous leader had read up
    /// to `known_to`.
    pub(crate) fn new(cursor: StreamId, known_to: StreamId) -> Self {
        let packs = VecDeque::new();
        Self {
            packs,
            cursor,
            read_to: cursor,
            known_to,
            settled_after_cursor: 0,
            left: 0,
            settled: 0,
        }
    }

    /// Adds the pack that was read next. `bits` are the bits that Redis holds. `due_at` is the
    /// active time from which the pack may move.
    pub(crate) fn push(
        &mut self,
        entry: StreamId,
        count: u32,
        bits: Option<Vec<u8>>,
        due_at: Duration,
    ) {
        self.read_to = entry;
        let are_bits_stored = bits.is_some();
        let bits = bits.unwrap_or_default();
        let settled = (0..count).filter(|index| is_set(&bits, *index)).count();
        let left = count - u32::try_from(settled).unwrap_or(count);
        self.settled_after_cursor += u64::from(count - left);
        self.left += u64::from(left);
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
    pub(crate) fn packs(&self) -> impl Iterator<Item = &MainPack> {
        self.packs.iter()
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.packs.len() * PACK_BYTES
    }

    /// The oldest pack.
    pub(crate) fn front(&self) -> Option<&MainPack> {
        self.packs.front()
    }

    /// The pack with this entry.
    pub(crate) fn get(&self, entry: StreamId) -> Option<&MainPack> {
        let at = self.packs.binary_search_by_key(&entry, |pack| pack.entry).ok()?;
        self.packs.get(at)
    }

    /// Packs at or after `entry`, in stream order.
    pub(crate) fn packs_from(&self, entry: StreamId) -> impl Iterator<Item = &MainPack> {
        self.packs.range(self.packs.partition_point(|pack| pack.entry < entry)..)
    }

    /// Notes that the newest pack holds a webhook of a lane.
    pub(crate) fn holds(&mut self, lane: u64) {
        if let Some(pack) = self.packs.back_mut() {
            pack.lanes.add(lane);
        }
    }

    /// True if a webhook lies after the cursor.
    pub(crate) fn is_after_cursor(&self, position: Position) -> bool {
        position.entry() > self.cursor
    }

    /// Settles a webhook. Returns true if it was not settled before.
    pub(crate) fn settle(&mut self, position: Position) -> bool {
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
        self.left -= 1;
        self.settled += 1;
        self.settled_after_cursor += 1;
        pack.moved_at = self.settled;
        true
    }

    /// Notes that Redis holds the bits of a pack.
    pub(crate) fn bits_stored(&mut self, entry: StreamId) {
        if let Ok(at) = self.packs.binary_search_by_key(&entry, |pack| pack.entry) {
            self.packs[at].are_bits_stored = true;
        }
    }

    /// Moves the cursor over the first pack if it is completely settled. Returns the pack.
    pub(crate) fn pass(&mut self, advance: &mut Advance) -> Option<MainPack> {
        self.packs.front().filter(|pack| pack.left == 0)?;
        self.pop(advance)
    }

    /// Moves the cursor over the first pack, even if webhooks of it are not settled.
    pub(crate) fn pop(&mut self, advance: &mut Advance) -> Option<MainPack> {
        let pack = self.packs.pop_front()?;
        self.cursor = pack.entry;
        self.settled_after_cursor -= u64::from(pack.count - pack.left);
        self.left -= u64::from(pack.left);
        advance.cursor = Some(pack.entry);
        advance.entries += 1;
        advance.webhooks += u64::from(pack.count);
        Some(pack)
    }
}

/// Number of bytes that hold one bit for each of `count` webhooks.
pub(crate) fn bytes_for(count: u32) -> usize {
    usize_of(count).div_ceil(8)
}

/// True if the bit at `index` is set.
pub(crate) fn is_set(bits: &[u8], index: u32) -> bool {
    bits.get(usize_of(index) / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_and_what_is_settled_is_counted_up_to_the_cursor() {
        let at = |ms| StreamId { ms, seq: 0 };
        let mut stream = MainStream::new(StreamId::default(), StreamId::default());
        stream.push(at(1), 3, None, Duration::ZERO);
        stream.push(at(2), 2, Some(vec![0b10]), Duration::ZERO);
        assert_eq!((stream.left, stream.settled_after_cursor), (4, 1));
        assert!(stream.settle(Position::new(at(1), 2)) && !stream.settle(Position::new(at(1), 2)));
        assert_eq!((stream.left, stream.settled_after_cursor), (3, 2));
        stream.pop(&mut Advance::default());
        assert_eq!((stream.left, stream.settled_after_cursor), (1, 1));
        stream.pop(&mut Advance::default());
        assert_eq!((stream.left, stream.settled_after_cursor), (0, 0));
    }
}
