//! Fills windows from Redis.
//!
//! The rest of a lane is read from its chunks first, then from the main stream. If the window was
//! cut or the pack was moved during a read, the data is read again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::classified::{Classified, Content, raw_bytes};
use crate::event::{ChunkFound, ChunkRead, Effect, PackRead};
use crate::pack_key::PackKey;
use crate::state::Core;
use crate::state::index::{IndexEntry, LaneKey};
use crate::state::lane::{IndexedChunk, Pending, Rest, WindowRead};
use crate::state::ledger::WebhookPlace;
use crate::state::main_stream::{bytes_for, is_set};
use crate::steps::time::About;
use crate::steps::{arrive, barriers, cut, finish, gate, read, retries, time, unread};
use crate::turn::Blocked;

/// Lanes whose windows are checked at each event: of those with few webhooks in chunks, and of
/// those with many.
const FEW_LOOKS_MAX: usize = 64;

const MANY_LOOKS_MAX: usize = 16;

/// Lanes of each kind that are checked in addition for each millisecond since the last event, up to
/// [`LOOKS_FOR`]. So thousands that have to wait delay no other for long, however few events there are.
const LOOKS_A_MS: usize = 40;

const LOOKS_FOR: Duration = Duration::from_millis(50);

/// Most lanes of each kind for which the main stream is searched in vain, because it may be long.
const SEARCHES_MAX: usize = 8;

/// Reason for a restart of the leader.
const CHUNK_GONE: &str = "a chunk that waits can't be read any more";

/// Requests more of the lanes whose windows are low.
pub(crate) fn refill_windows<C: Content>(core: &mut Core<C>) -> Vec<Effect<C>> {
    let mut effects = Vec::new();
    if core.session.is_stopping {
        return effects;
    }
    unread::choose_lane(core);
    let low = cut::low(core);
    let mut searches = [SEARCHES_MAX; 2];
    // It does not wait for the others, because it holds room that others need.
    if let Some(key) = core.queue.unread.reading
        && core.queue.lanes.get(key).is_some_and(|lane| lane.reading.is_none())
        && cut::must_know_more(core, key)
    {
        let read = read_window(core, key, &mut searches[0]);
        core.queue.unread.reads += u32::from(read.is_some());
        effects.extend(read);
    }
    let since = core.reading.chunks.looks_after(core.session.now.at).min(LOOKS_FOR);
    let more = LOOKS_A_MS * usize::try_from(since.as_millis()).unwrap_or_default();
    let [many, few] = core.queue.lanes.to_refill.each_ref().map(VecDeque::len);
    let many = many.min(MANY_LOOKS_MAX + more);
    let few = few.min(FEW_LOOKS_MAX + more);
    // Either has its turn before the other: without room, one read is under way at a time.
    let is_few_first = core.session.now.at.as_millis() % 2 == 1;
    let [first, second] = if is_few_first { [few, many] } else { [many, few] };
    for is_second in (0..first).map(|_| false).chain((0..second).map(|_| true)) {
        let has_few = is_second != is_few_first;
        if !core.reading.chunks.may_begin(has_few) {
            continue;
        }
        let Some(key) = core.queue.lanes.next_listed(has_few) else { continue };
        let Some(lane) = core.queue.lanes.get(key) else { continue };
        let is_low = lane.window.count <= low || lane.ready.is_empty();
        if lane.reading.is_some() || lane.rest.is_none() || !is_low {
            continue;
        }
        // The rest may contain webhooks to drop.
        let is_paused = !core.controls.has_drops()
            && gate::shop_gate(core, lane.shop) == Err(Blocked::ShopPaused);
        let has_time = lane.rest.as_ref().is_none_or(|rest| rest.refill_at <= core.session.now.at);
        let is_blocked = core.backend.is_stopped() || gate::is_blocked(core, lane);
        let has_room = cut::may_fill(core, lane, is_blocked);
        let waits = lane.window.count > 0 && (is_paused || !has_time || !has_room);
        let is_awaited = core.queue.unread.reading == Some(key);
        let must_wait = is_paused || !(has_time || is_awaited) || !cut::must_know_more(core, key);
        if !is_paused && has_time && !is_blocked && !cut::has_room(core, false) {
            cut::note_refill_due(core);
        }
        if waits && must_wait {
            core.queue.lanes.list(key);
            continue;
        }
        effects.extend(read_window(core, key, &mut searches[usize::from(has_few)]));
    }
    effects
}

/// Requests the next part of a lane, unless too much is being read. `searches` is the number of
/// searches of the main stream that are left.
fn read_window<C: Content>(
    core: &mut Core<C>,
    key: LaneKey,
    searches: &mut usize,
) -> Option<Effect<C>> {
    let lane = core.queue.lanes.get(key)?;
    let rest = **lane.rest.as_ref()?;
    let hash = lane.hash;
    let has_few = lane.has_few();
    let effect = match lane.next_chunk() {
        // The lane is listed again when the chunk is written.
        Err(Pending) => return None,
        Ok(Some(first)) => {
            let stored = lane.stored.as_ref()?;
            if !core.reading.chunks.may_begin(has_few) {
                core.queue.lanes.list(key);
                return None;
            }
            let end = stored.pending.unwrap_or(stored.next).min(stored.next);
            let is_straddling = stored.unread_from > first;
            let count = if is_straddling || !cut::has_room(core, gate::is_blocked(core, lane)) {
                1
            } else {
                core.config.tuning.chunks_at_once.min(end - first)
            };
            Effect::ReadChunks { lane: hash, first, count }
        }
        Ok(None) if *searches == 0 || core.reading.are_rests_full() => {
            core.queue.lanes.list(key);
            return None;
        }
        Ok(None) => match next_of_rest(core, hash, &rest) {
            // One read serves all lanes that need this pack next.
            Some(entry) if core.reading.rests.contains(&entry) => {
                *searches -= 1;
                core.queue.lanes.list(key);
                return None;
            }
            Some(entry) => Effect::ReadRest { lane: hash, entry },
            None => {
                if !write_off(core, key) {
                    return Some(Effect::Restart(CHUNK_GONE));
                }
                window_grew(core, key, rest.last);
                return None;
            }
        },
    };
    let reading = match effect {
        Effect::ReadChunks { first, count, .. } => {
            core.reading.chunks.begin(has_few, count);
            WindowRead::Chunks { first, count, has_few }
        }
        _ => WindowRead::Rest,
    };
    if let Effect::ReadRest { entry, .. } = effect {
        core.reading.rests.insert(entry);
    }
    core.queue.lanes.get_mut(key)?.reading = Some(reading);
    Some(effect)
}

/// The next pack of the main stream that may hold webhooks of a lane's rest.
fn next_of_rest<C: Content>(core: &Core<C>, lane: u64, rest: &Rest) -> Option<StreamId> {
    let from = rest.after.entry().max(core.queue.main.cursor);
    // The rest of a partly indexed pack comes before the next pack.
    let is_read_whole = |entry| entry == from && rest.after.index == u32::MAX;
    let packs = core.queue.main.packs_from(from);
    let mut packs = packs.take_while(|pack| pack.entry <= rest.last.entry());
    let next =
        packs.find(|pack| pack.left > 0 && pack.lanes.may_hold(lane) && !is_read_whole(pack.entry));
    next.map(|pack| pack.entry)
}

pub(crate) fn chunks_read<C: Content>(
    core: &mut Core<C>,
    lane: u64,
    chunks: Vec<ChunkFound<C>>,
) -> Option<Effect<C>> {
    let (key, read) = window_read(core, lane)?;
    let WindowRead::Chunks { first, count, has_few } = read else { return None };
    core.reading.chunks.end(has_few, count);
    if core.session.is_stopping {
        return None;
    }
    for (number, chunk) in (first..).zip(chunks) {
        let is_corrupt = matches!(chunk, ChunkFound::Corrupt);
        if let ChunkFound::Read(chunk) = chunk {
            core.reading.chunks.note_bytes(chunk.content.raw_bytes());
            chunk_read(core, key, chunk);
        } else if !pass_over(core, key, number, is_corrupt) {
            return Some(Effect::Restart(CHUNK_GONE));
        }
    }
    if !write_off(core, key) {
        return Some(Effect::Restart(CHUNK_GONE));
    }
    core.queue.lanes.list(key);
    cut::make_room(core);
    None
}

/// Skips a chunk that cannot be read. If this leader has read some of it before, the leader
/// restarts instead, and the next leader skips it. A missing chunk may have been settled.
/// Returns true if the lane continues.
fn pass_over<C: Content>(core: &mut Core<C>, key: LaneKey, number: u32, is_corrupt: bool) -> bool {
    let Some(lane) = core.queue.lanes.get_mut(key) else { return true };
    let hash = lane.hash;
    if lane.next_chunk() != Ok(Some(number)) {
        return true;
    }
    let Some(stored) = lane.stored.as_mut() else { return true };
    if stored.chunk(number).is_some() {
        return false;
    }
    stored.misses_own |= !is_corrupt && number >= stored.loaded_to;
    stored.unread_from = number + 1;
    stored.is_changed = true;
    if is_corrupt {
        core.counts.chunks_corrupt += 1;
        core.ledger.draft.settlement.lanes.corrupt.push((hash, number));
        core.ledger.draft.settling.lanes.insert(key);
    }
    true
}

/// Corrects the lane's count once every chunk was read or skipped: webhooks that are counted in
/// the row but lie in no chunk are lost. If this leader wrote the missing chunk, it may have
/// been read from an older Redis, so the next leader reads again. Returns true if the lane
/// continues.
fn write_off<C: Content>(core: &mut Core<C>, key: LaneKey) -> bool {
    let lane = core.queue.lanes.get(key);
    let misses_own = lane.and_then(|lane| lane.stored.as_ref()).is_some_and(|it| it.misses_own);
    let lost = core.queue.lanes.write_off(key);
    if lost > 0 && misses_own {
        return false;
    }
    if lost > 0 {
        if let Some(lane) = core.queue.lanes.get(key) {
            core.queue.shops.settled(lane.shop, lost);
        }
        core.counts.lost += lost;
        core.ledger.draft.settling.lanes.insert(key);
        core.ledger.changed.push(key);
    }
    true
}

fn chunk_read<C: Content>(core: &mut Core<C>, key: LaneKey, read: ChunkRead<C>) {
    let ChunkRead { number, records, bits, retries, content } = read;
    let lane = core.queue.lanes.get(key);
    if lane.is_none_or(|lane| lane.next_chunk() != Ok(Some(number))) {
        // The window was cut during the read.
        return;
    }
    for (position, stored) in retries {
        if is_rest(core, key, position) && core.queue.retries.get(position).is_none() {
            let mut state = retries::state_found(core, stored, false);
            // The time for retries also ran while the webhooks were not indexed.
            let index = records.iter().position(|(at, _)| *at == position);
            let index = index.and_then(|index| u32::try_from(index).ok());
            let about = index.map_or(About::Shop, |index| About::Bytes(&content, index, position));
            let active = time::active(core);
            state.go_on(time::time_of(core, key, about, state.since, active), active);
            core.queue.retries.insert(position, state);
        }
    }
    let hash = core.queue.lanes.get(key).map_or(0, |lane| lane.hash);
    note_chunk(core, key, number, &records, (bits, raw_bytes(&content)));
    core.reading.cache.pass(PackKey::Chunk(hash, number), content);
    let Some(last) = records.last().map(|(position, _)| *position) else { return };
    for (index, (position, classified)) in (0..).zip(records) {
        let lane = core.queue.lanes.get(key);
        let stored = lane.and_then(|lane| lane.stored.as_ref());
        let chunk = stored
            .and_then(|stored| stored.chunks.iter().rev().find(|chunk| chunk.number == number));
        if chunk.is_some_and(|chunk| !is_set(&chunk.bits, index)) {
            fill(core, key, position, classified);
        }
    }
    window_grew(core, key, last);
}

/// True if a webhook of a lane is not indexed.
fn is_rest<C: Content>(core: &Core<C>, key: LaneKey, position: Position) -> bool {
    let rest = core.queue.lanes.get(key).and_then(|lane| lane.rest.as_ref());
    rest.is_some_and(|rest| position > rest.after)
}

/// Adds the row of a chunk of which at least some webhooks are indexed.
fn note_chunk<C: Content>(
    core: &mut Core<C>,
    key: LaneKey,
    number: u32,
    records: &[(Position, Classified)],
    (mut bits, bytes): (Vec<u8>, u32),
) {
    let stored = core.queue.lanes.get_mut(key).and_then(|lane| lane.stored.as_mut());
    if stored.is_none_or(|stored| stored.chunk(number).is_some()) {
        return;
    }
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    bits.resize(bytes_for(count), 0);
    let left = (0..count).filter(|index| !is_set(&bits, *index)).count();
    let positions = records.iter().map(|(position, _)| *position).collect();
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    core.queue.lanes.add_chunk(key, IndexedChunk { number, positions, bits, left, bytes });
    if left == 0 {
        // The chunk is completely settled. A crash occurred before it was deleted.
        core.queue.lanes.drop_chunk(key, number);
        finish::delete_chunk(core, key, number);
    }
}

pub(crate) fn rest_read<C: Content>(
    core: &mut Core<C>,
    lane: u64,
    entry: StreamId,
    pack: Option<PackRead<C>>,
) -> Option<Effect<C>> {
    core.reading.rests.remove(&entry);
    let (key, _) = window_read(core, lane)?;
    core.queue.lanes.list(key);
    if !is_next_of_rest(core, lane, entry) {
        return None;
    }
    let Some(PackRead { classified, content, .. }) = pack else { return read::gone(core) };
    core.reading.cache.pass(PackKey::Main(entry), content);
    let mut lanes = others_next(core, entry, &classified);
    lanes.insert(lane, key);
    for (index, classified) in (0..).zip(classified) {
        let is_settled = core.queue.main.get(entry).is_none_or(|pack| pack.is_settled(index));
        if let Some(key) = lanes.get(&classified.lane)
            && !is_settled
        {
            fill(core, *key, Position::new(entry, index), classified);
        }
    }
    for key in lanes.into_values() {
        window_grew(core, key, Position::new(entry, u32::MAX));
    }
    cut::make_room(core);
    None
}

/// True if a pack is the next one that a lane needs.
fn is_next_of_rest<C: Content>(core: &Core<C>, lane: u64, entry: StreamId) -> bool {
    let key = core.queue.lanes.by_hash(lane);
    let rest = key.and_then(|key| core.queue.lanes.get(key)?.rest.as_deref());
    entry > core.queue.main.cursor
        && rest.is_some_and(|rest| next_of_rest(core, lane, rest) == Some(entry))
}

/// Other lanes that need this pack next for their rests. Without room, only those of which
/// nothing is indexed, because they are read in any case.
fn others_next<C: Content>(
    core: &Core<C>,
    entry: StreamId,
    classified: &[Classified],
) -> BTreeMap<u64, LaneKey> {
    let has_room = cut::has_room(core, false);
    let hashes: BTreeSet<u64> = classified.iter().map(|classified| classified.lane).collect();
    let next = hashes.into_iter().filter_map(|hash| {
        let key = core.queue.lanes.by_hash(hash)?;
        let lane = core.queue.lanes.get(key).filter(|lane| lane.reading.is_none())?;
        let rest = lane.rest.as_ref().filter(|_| has_room || lane.window.count == 0)?;
        let is_next =
            lane.next_chunk() == Ok(None) && next_of_rest(core, hash, rest) == Some(entry);
        is_next.then_some((hash, key))
    });
    next.collect()
}

fn window_read<C: Content>(core: &mut Core<C>, lane: u64) -> Option<(LaneKey, WindowRead)> {
    let key = core.queue.lanes.by_hash(lane)?;
    let read = core.queue.lanes.get_mut(key)?.reading.take()?;
    Some((key, read))
}

/// Indexes a webhook of a lane's rest, unless it is indexed already, excluded or to be dropped.
fn fill<C: Content>(core: &mut Core<C>, key: LaneKey, position: Position, classified: Classified) {
    let Some(lane) = core.queue.lanes.get(key) else { return };
    if lane.rest.as_ref().is_none_or(|rest| position <= rest.after) {
        return;
    }
    let place = WebhookPlace { lane: key, position, replay: None };
    if classified.is_excluded {
        // It moved into the lane under another filter.
        finish::exclude_webhook(core, place);
        arrive::lead_dropped(core, classified.resource, position);
        return;
    }
    if core.controls.drops(position, None) {
        finish::drop_webhook(core, place);
        arrive::lead_dropped(core, classified.resource, position);
        return;
    }
    core.queue.expiry.stubs.arrived(position, classified.expires_at_ms);
    arrive::index_webhook(core, key, &IndexEntry { position, classified, replay: None });
}

/// Notes that everything of a lane up to `after` is indexed.
fn window_grew<C: Content>(core: &mut Core<C>, key: LaneKey, after: Position) {
    let Some(lane) = core.queue.lanes.get_mut(key) else { return };
    lane.extend(after);
    let shop = lane.shop;
    barriers::release_held(core, shop);
    arrive::release_unread(core);
    barriers::forget_if_empty(core, key);
}
