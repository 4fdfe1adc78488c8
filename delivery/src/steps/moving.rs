//! Moves the front of the main stream into lanes, so that the cursor always advances.
//!
//! Only complete packs move, in stream order and at the front. Every unsettled webhook of a pack
//! goes into the next chunk of its lane, indexed or not, under way or not. While the backend is
//! stopped, packs move only if the index is full: otherwise all would be copied for nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::classified::{Classified, Content};
use crate::event::{Effect, PackRead};
use crate::settlement::ChunkWrite;
use crate::state::Core;
use crate::state::index::{LaneKey, key_of, usize_of};
use crate::state::lane::{IndexedChunk, Stored};
use crate::state::main_stream::{Advance, MainPack, MainStream, bytes_for};
use crate::state::mover::LOOK_EVERY;
use crate::state::resource::HeadState;
use crate::steps::{gate, time};

/// Rows of packs may take 1/`ROWS_PART` of the index.
const ROWS_PART: usize = 8;

/// A pack that the previous leader had read moves after 1/`AGAIN_PART` of `PARK_AFTER`, because it
/// waited under that leader, too.
const AGAIN_PART: u32 = 4;

/// A pack moves without another reason if at most 1/`LEFT_PART` of it is left. Every pack that is due
/// moves if at most 1/`LEFT_PART` of what is settled after the cursor is left there, and that is at least
/// [`SETTLED_MIN`]: a shop that is slow would keep in Redis what is settled of all others.
const LEFT_PART: u32 = 4;

const SETTLED_MIN: u64 = 4096;

/// Time between two checks while the first pack is in memory and a webhook of it waits for its turn
/// or is under way.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Requests the front of the main stream, if it may have to move.
pub(crate) fn look_at_front<C: Content>(core: &mut Core<C>) -> Option<Effect<C>> {
    let now = core.session.now.at;
    if core.mover.requested.is_some()
        || !core.mover.at_hand.is_empty()
        || now < core.mover.due
        || !may_move_at_all(core)
    {
        return None;
    }
    let entries: Vec<_> = core
        .queue
        .main
        .packs()
        .take_while(|pack| pack.left == 0 || is_due(core, pack))
        .filter(|pack| pack.left > 0)
        .take(core.config.tuning.moved_packs)
        .map(|pack| pack.entry)
        .collect();
    if entries.is_empty() {
        core.mover.due = now + LOOK_EVERY;
        return None;
    }
    core.mover.requested = entries.first().copied();
    Some(Effect::ReadFront(entries))
}

fn may_move_at_all<C: Content>(core: &Core<C>) -> bool {
    core.session.may_move
        && core.session.are_replays_loaded
        && !core.session.is_stopping
        && (!core.backend.is_stopped() || core.session.is_index_full)
}

/// Active time from which a pack that is read now may move.
pub(crate) fn moves_at<C: Content>(core: &Core<C>, entry: StreamId) -> Duration {
    let park_after = core.config.park_after;
    let was_read = entry <= core.queue.main.known_to;
    let after = if was_read { park_after / AGAIN_PART } else { park_after };
    time::active(core).saturating_add(after)
}

fn is_due<C: Content>(core: &Core<C>, pack: &MainPack) -> bool {
    are_rows_many(core) || time::active(core) >= pack.due_at
}

fn are_rows_many<C: Content>(core: &Core<C>) -> bool {
    core.queue.main.bytes() > core.config.index_bytes / ROWS_PART
}

/// True if at least four fifths of all after the cursor are settled.
fn is_little_left(main: &MainStream) -> bool {
    let settled = main.settled_after_cursor;
    settled >= SETTLED_MIN && main.left <= settled / u64::from(LEFT_PART)
}

/// Moves the first pack, if it may move, and returns it.
pub(crate) fn move_next<C: Content>(core: &mut Core<C>, advance: &mut Advance) -> Option<MainPack> {
    while core.mover.at_hand.front().is_some_and(|pack| pack.entry <= core.queue.main.cursor) {
        core.mover.at_hand.pop_front();
    }
    let pack = core.mover.at_hand.front()?;
    let front = core.queue.main.front()?;
    let now = core.session.now.at;
    if front.entry != pack.entry || usize_of(front.count) != pack.classified.len() {
        core.mover.at_hand.clear();
        core.mover.due = now + LOOK_EVERY;
        return None;
    }
    if now < core.mover.due {
        return None;
    }
    if !may_move(core, front, &pack.classified) {
        core.mover.due = now + AGAIN_AFTER;
        return None;
    }
    // One chunk may get the whole pack and must be decodable again, so the true sizes count.
    let left = (0..front.count).filter(|index| !front.is_settled(*index));
    let share: usize = left.map(|index| pack.content.record_bytes(index)).sum();
    let most = core.config.tuning.moved_bytes;
    if core.ledger.draft.chunk_of.len() >= core.config.tuning.settlements.lanes {
        return None;
    }
    let moved_bytes = &mut core.ledger.draft.moved_bytes;
    if *moved_bytes > 0 && *moved_bytes + share > most {
        return None;
    }
    *moved_bytes += share.max(1);
    let pack = core.mover.at_hand.pop_front()?;
    let front = core.queue.main.pop(advance)?;
    move_pack(core, &front, pack);
    Some(front)
}

/// True if the first pack may move: little is left of it or after the cursor, or its lanes and shops
/// block all that is left, or there are too many packs.
fn may_move<C: Content>(core: &Core<C>, front: &MainPack, classified: &[Classified]) -> bool {
    // Dropped webhooks are settled in their pack before it moves.
    let is_dropping = !core.ledger.undelivered.dropped.is_empty();
    if !may_move_at_all(core) || is_dropping || !is_due(core, front) {
        return false;
    }
    are_rows_many(core)
        || is_little_left(&core.queue.main)
        || front.left <= front.count / LEFT_PART
        || (0..).zip(classified).all(|(index, classified)| {
            front.is_settled(index) || is_stuck(core, Position::new(front.entry, index), classified)
        })
}

/// True if a webhook is blocked rather than waiting for its turn.
fn is_stuck<C: Content>(core: &Core<C>, position: Position, classified: &Classified) -> bool {
    let Some(lane) = core.queue.lanes.by_hash(classified.lane) else { return true };
    let Some(lane) = core.queue.lanes.get(lane) else { return true };
    if !lane.is_indexed_up_to(position) || gate::is_blocked(core, lane) {
        return true;
    }
    let resource = core.queue.index.by_hash(classified.resource);
    let state = resource.and_then(|resource| core.queue.index.state(resource));
    matches!(
        state,
        Some(HeadState::Retrying | HeadState::Held | HeadState::Paused | HeadState::Unread)
    )
}

/// Writes all unsettled webhooks of a pack into the chunks of their lanes.
fn move_pack<C: Content>(core: &mut Core<C>, front: &MainPack, pack: PackRead<C>) {
    let mut by_lane: BTreeMap<LaneKey, (Vec<Position>, usize)> = BTreeMap::new();
    for (index, classified) in (0..front.count).zip(&pack.classified) {
        if front.is_settled(index) {
            continue;
        }
        let shop = core.queue.shops.intern(classified.shop);
        let lane = core.queue.lane(classified.lane, shop);
        let position = Position::new(front.entry, index);
        let (positions, bytes) = by_lane.entry(lane).or_default();
        positions.push(position);
        *bytes += pack.content.record_bytes(index);
        move_row(core, lane, position, classified.shop);
    }
    for (lane, (positions, bytes)) in by_lane {
        core.ledger.draft.settling.lanes.insert(lane);
        if let Some(lane) = core.queue.lanes.get(lane) {
            let unread = positions.iter().filter(|position| !lane.is_indexed_up_to(**position));
            core.ledger.draft.unread.extend(unread);
        }
        write_chunk(core, lane, positions, u32::try_from(bytes).unwrap_or(u32::MAX));
    }
    core.ledger.draft.settlement.lanes.moved.insert(front.entry, pack.content);
}

/// Writes the retry state and the barrier of a webhook that moves.
fn move_row<C: Content>(core: &mut Core<C>, lane: LaneKey, position: Position, shop: u64) {
    if let Some(state) = core.queue.retries.move_to_lane(position) {
        let stored = time::stored_now(core, lane, &state);
        let settlement = &mut core.ledger.draft.settlement;
        settlement.lanes.retries.written.push((position, stored));
        settlement.main.retries.deleted.extend(state.is_stored.then_some(position));
        core.ledger.retries.remove(&position);
    }
    let barriers = core.queue.shops.by_hash(shop).and_then(|key| core.queue.shops.get(key));
    let barriers = barriers.and_then(|shop| shop.barriers.as_ref());
    if barriers.is_some_and(|barriers| barriers.positions.contains(&position))
        && core.queue.stored_barriers.insert(position)
    {
        core.ledger.draft.settlement.lanes.barriers.written.push((position, shop));
    }
}

/// Adds webhooks of `bytes` raw bytes to the chunk of a lane that this settlement writes.
fn write_chunk<C: Content>(core: &mut Core<C>, key: LaneKey, positions: Vec<Position>, bytes: u32) {
    let (Some(first), Some(last)) = (positions.first().copied(), positions.last().copied()) else {
        return;
    };
    let count = key_of(positions.len());
    core.queue.lanes.add_waiting(u64::from(count));
    let free = core.queue.lanes.numbers.for_new_lane();
    let Some(lane) = core.queue.lanes.get_mut(key) else { return };
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
    let draft = &mut core.ledger.draft;
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
        core.queue.lanes.grew(count);
    } else if is_new && is_indexed {
        let bits = vec![0; bytes_for(count)];
        core.queue
            .lanes
            .add_chunk(key, IndexedChunk { number, positions, bits, left: count, bytes });
    }
}
