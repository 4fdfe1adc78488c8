//! Moves the front of the main stream into lanes, so that the cursor always advances.
//!
//! Only complete packs move, in stream order and at the front. Every unsettled webhook of a pack
//! goes into the next chunk of its lane, indexed or not, under way or not. Nothing moves while the
//! backend is stopped, because then everything would be copied for nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::event::{Effect, PackRead};
use crate::index::{LaneKey, key_of, usize_of};
use crate::lane::{IndexedChunk, Stored};
use crate::main_stream::{Advance, MainPack, bytes_for};
use crate::mover::LOOK_EVERY;
use crate::resource::HeadState;
use crate::settlement::ChunkWrite;
use crate::sorted::{Content, Sorted};

/// Rows of packs may take 1/`ROWS_PART` of the index.
const ROWS_PART: usize = 8;

/// A pack that the previous leader had read moves after 1/`AGAIN_PART` of `PARK_AFTER`, because it
/// waited under that leader, too.
const AGAIN_PART: u32 = 4;

/// A pack moves without another reason if at most 1/`LEFT_PART` of it is left.
const LEFT_PART: u32 = 4;

/// Time between two checks while the first pack is in memory and a webhook of it waits for its turn
/// or is under way.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

impl<C: Content> Core<C> {
    /// Requests the front of the main stream, if it may have to move.
    pub(crate) fn look_at_front(&mut self) -> Option<Effect<C>> {
        let now = self.session.now.at;
        if self.mover.requested.is_some()
            || !self.mover.at_hand.is_empty()
            || now < self.mover.due
            || !self.may_move_at_all()
        {
            return None;
        }
        let entries: Vec<_> = self
            .queue
            .main
            .packs()
            .take_while(|pack| pack.left == 0 || self.is_due(pack))
            .filter(|pack| pack.left > 0)
            .take(self.config.tuning.moved_packs)
            .map(|pack| pack.entry)
            .collect();
        if entries.is_empty() {
            self.mover.due = now + LOOK_EVERY;
            return None;
        }
        self.mover.requested = entries.first().copied();
        Some(Effect::ReadFront(entries))
    }

    fn may_move_at_all(&self) -> bool {
        self.session.may_move
            && self.session.are_replays_loaded
            && !self.session.is_stopping
            && !self.backend.is_stopped()
    }

    /// Active time from which a pack that is read now may move.
    pub(crate) fn moves_at(&self, entry: StreamId) -> Duration {
        let park_after = self.config.park_after;
        let was_read = entry <= self.queue.main.known_to;
        let after = if was_read { park_after / AGAIN_PART } else { park_after };
        self.active().saturating_add(after)
    }

    fn is_due(&self, pack: &MainPack) -> bool {
        self.are_rows_many() || self.active() >= pack.due_at
    }

    fn are_rows_many(&self) -> bool {
        self.queue.main.bytes() > self.config.index_bytes / ROWS_PART
    }

    /// Moves the first pack, if it may move, and returns it.
    pub(crate) fn move_next(&mut self, advance: &mut Advance) -> Option<MainPack> {
        while self.mover.at_hand.front().is_some_and(|pack| pack.entry <= self.queue.main.cursor) {
            self.mover.at_hand.pop_front();
        }
        let pack = self.mover.at_hand.front()?;
        let front = self.queue.main.front()?;
        let now = self.session.now.at;
        if front.entry != pack.entry || usize_of(front.count) != pack.sorted.len() {
            self.mover.at_hand.clear();
            self.mover.due = now + LOOK_EVERY;
            return None;
        }
        if now < self.mover.due {
            return None;
        }
        if !self.may_move(front, &pack.sorted) {
            self.mover.due = now + AGAIN_AFTER;
            return None;
        }
        // One chunk may get the whole pack and must be decodable again, so the true sizes count.
        let left = (0..front.count).filter(|index| !front.is_settled(*index));
        let share: usize = left.map(|index| pack.content.record_bytes(index)).sum();
        let most = self.config.tuning.moved_bytes;
        if self.ledger.draft.chunk_of.len() >= self.config.tuning.settled_lanes {
            return None;
        }
        let moved_bytes = &mut self.ledger.draft.moved_bytes;
        if *moved_bytes > 0 && *moved_bytes + share > most {
            return None;
        }
        *moved_bytes += share.max(1);
        let pack = self.mover.at_hand.pop_front()?;
        let front = self.queue.main.pop(advance)?;
        self.move_pack(&front, pack);
        Some(front)
    }

    /// True if the first pack may move: little is left of it, or its lanes and shops block all that
    /// is left, or there are too many packs.
    fn may_move(&self, front: &MainPack, sorted: &[Sorted]) -> bool {
        // Dropped webhooks are settled in their pack before it moves.
        let is_dropping = !self.ledger.dropped.is_empty();
        if !self.may_move_at_all() || is_dropping || !self.is_due(front) {
            return false;
        }
        self.are_rows_many()
            || front.left <= front.count / LEFT_PART
            || (0..).zip(sorted).all(|(index, sorted)| {
                front.is_settled(index) || self.is_stuck(Position::new(front.entry, index), sorted)
            })
    }

    /// True if a webhook is blocked rather than waiting for its turn.
    fn is_stuck(&self, position: Position, sorted: &Sorted) -> bool {
        let Some(lane) = self.queue.lanes.by_hash(sorted.lane) else { return true };
        let Some(lane) = self.queue.lanes.get(lane) else { return true };
        if !lane.is_indexed_up_to(position) || self.is_blocked(lane) {
            return true;
        }
        let resource = self.queue.index.by_hash(sorted.resource);
        let state = resource.and_then(|resource| self.queue.index.state(resource));
        matches!(
            state,
            Some(HeadState::Retrying | HeadState::Held | HeadState::Paused | HeadState::Unread)
        )
    }

    /// Writes all unsettled webhooks of a pack into the chunks of their lanes.
    fn move_pack(&mut self, front: &MainPack, pack: PackRead<C>) {
        let mut by_lane: BTreeMap<LaneKey, (Vec<Position>, usize)> = BTreeMap::new();
        for (index, sorted) in (0..front.count).zip(&pack.sorted) {
            if front.is_settled(index) {
                continue;
            }
            let shop = self.queue.shops.intern(sorted.shop);
            let lane = self.queue.lane(sorted.lane, shop);
            let position = Position::new(front.entry, index);
            let (positions, bytes) = by_lane.entry(lane).or_default();
            positions.push(position);
            *bytes += pack.content.record_bytes(index);
            self.move_row(lane, position, sorted.shop);
        }
        for (lane, (positions, bytes)) in by_lane {
            self.ledger.draft.settling.lanes.insert(lane);
            if let Some(lane) = self.queue.lanes.get(lane) {
                let unread = positions.iter().filter(|position| !lane.is_indexed_up_to(**position));
                self.ledger.draft.unread.extend(unread);
            }
            self.write_chunk(lane, positions, u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        self.ledger.draft.settlement.lanes.moved.insert(front.entry, pack.content);
    }

    /// Writes the retry state and the barrier of a webhook that moves.
    fn move_row(&mut self, lane: LaneKey, position: Position, shop: u64) {
        if let Some(state) = self.queue.retries.move_to_lane(position) {
            let stored = self.stored_now(lane, &state);
            let settlement = &mut self.ledger.draft.settlement;
            settlement.lanes.retries.written.push((position, stored));
            settlement.main.retries.deleted.extend(state.is_stored.then_some(position));
            self.ledger.retries.remove(&position);
        }
        let barriers = self.queue.shops.by_hash(shop).and_then(|key| self.queue.shops.get(key));
        let barriers = barriers.and_then(|shop| shop.barriers.as_ref());
        if barriers.is_some_and(|barriers| barriers.positions.contains(&position))
            && self.queue.stored_barriers.insert(position)
        {
            self.ledger.draft.settlement.lanes.barriers.written.push((position, shop));
        }
    }

    /// Adds webhooks of `bytes` raw bytes to the chunk of a lane that this settlement writes.
    fn write_chunk(&mut self, key: LaneKey, positions: Vec<Position>, bytes: u32) {
        let (Some(first), Some(last)) = (positions.first().copied(), positions.last().copied())
        else {
            return;
        };
        let count = key_of(positions.len());
        self.queue.lanes.add_waiting(u64::from(count));
        let free = self.queue.lanes.first_number();
        let Some(lane) = self.queue.lanes.get_mut(key) else { return };
        let hash = lane.hash;
        let is_indexed = lane.is_indexed_up_to(first);
        let stored = lane.stored.get_or_insert_with(|| Box::new(Stored::new(first, free)));
        stored.waiting += u64::from(count);
        stored.last = last;
        stored.is_changed = true;
        let (number, is_new) = match stored.pending {
            Some(number) => (number, false),
            None => (stored.next, true),
        };
        stored.next = number + 1;
        stored.pending = Some(number);
        let draft = &mut self.ledger.draft;
        let chunks = &mut draft.settlement.lanes.chunks.written;
        let new = ChunkWrite { lane: hash, number, positions: Vec::new() };
        let at = *draft.chunk_of.entry(hash).or_insert(chunks.len());
        if at == chunks.len() {
            chunks.push(new);
        }
        chunks[at].positions.extend(positions.iter().copied());
        let row = stored.chunk_mut(number);
        if let Some(row) = row {
            row.left += count;
            row.bytes = row.bytes.saturating_add(bytes);
            row.positions.extend(positions);
            let total = key_of(row.positions.len());
            row.bits.resize(bytes_for(total), 0);
            self.queue.lanes.grew(count);
        } else if is_new && is_indexed {
            let bits = vec![0; bytes_for(count)];
            self.queue
                .lanes
                .add_chunk(key, IndexedChunk { number, positions, bits, left: count, bytes });
        }
    }
}
