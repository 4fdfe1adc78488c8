//! Chooses which bytes are read next, and takes those that arrive.

use spillway_webhook::pack::RAW_BYTES_TARGET;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::event::{Effect, PackRead, ReadAgain};
use crate::pack_key::PackKey;
use crate::state::Core;
use crate::state::index::ResourceKey;
use crate::state::lane::Lane;
use crate::state::main_stream::MainPack;
use crate::state::reading::{
    BUDGET_MAX, LARGE_LOAD, LEAST_COST, PACK_COST, PLUCKED_BYTES, READS_MAX, READS_PER_SECOND, load,
};
use crate::state::resource::HeadState;
use crate::steps::gate;
use crate::turn::Turn;

/// Deliveries that add one read to the budget.
const DELIVERIES_PER_READ: f64 = 48.0;

/// Raw bytes of a small chunk. A chunk with few webhooks may be the rest of a large one.
const SMALL_BYTES: u32 = 128 << 10;

/// Highest load of the reads ahead of their turn: three packs.
const FRONT_READS_MAX: u32 = 3 * LARGE_LOAD;

const _: () = assert!(FRONT_READS_MAX < READS_MAX, "reads on demand are never kept out");

/// A pack is not kept in memory if nothing of it was settled while `STUCK_AFTER` other webhooks
/// were, and at most 1/`STUCK_PART` of it is left. The rest waits for a retry.
const STUCK_AFTER: u64 = 8192;

const STUCK_PART: u32 = 16;

/// Packs with unsettled webhooks that are examined for the front.
const FRONT_LOOKED_AT: usize = 512;

/// Packs at the front of the stream that are kept in memory.
const FRONT_MAX: usize = 256;

/// These packs may take 1/`FRONT_PART` of the cache.
const FRONT_PART: usize = 2;

/// Reason for a restart of the leader.
const GONE: &str = "a pack that waits is not in redis any more";

/// Returns the bytes for a turn and the index of the webhook in them, if they are in memory.
pub(crate) fn at_hand<C: Content>(
    core: &mut Core<C>,
    turn: Turn,
    position: Position,
    key: PackKey,
    index: u32,
) -> Option<(C, u32)> {
    // Another webhook of the resource may have become the one to send since the read.
    let plucked = core.reading.forget(turn.resource).filter(|(own, _)| *own == position);
    let found = match plucked {
        Some((_, plucked)) => (plucked, 0),
        None => (core.reading.cache.get(key)?, index),
    };
    core.reading.budget += 1.0 / DELIVERIES_PER_READ;
    Some(found)
}

/// Makes a turn wait for its bytes.
pub(crate) fn starve<C: Content>(core: &mut Core<C>, turn: Turn, key: PackKey) {
    core.queue.place_by_head(turn.resource, core.session.now.at);
    if let Some(shop) = core.queue.shops.get_mut(turn.shop) {
        shop.is_starved = true;
    }
    let waiting = core.reading.waiting.entry(key).or_default();
    if waiting.is_empty() && !core.reading.under_way.contains_key(&key) {
        core.reading.wanted.push_back(key);
    }
    waiting.push(turn);
}

/// Starts the reads that are due.
pub(crate) fn begin_reads<C: Content>(core: &mut Core<C>) -> Vec<Effect<C>> {
    let mut effects = Vec::new();
    if core.session.is_stopping {
        return effects;
    }
    if core.reading.is_front_new && core.reading.load < FRONT_READS_MAX {
        read_ahead(core, &mut effects);
    }
    if core.reading.plucked_bytes >= PLUCKED_BYTES {
        forget_blocked(core);
    }
    let now = core.session.now.at;
    let reading = &mut core.reading;
    let since = now.saturating_sub(std::mem::replace(&mut reading.earned_at, now));
    reading.budget += since.as_secs_f64() * READS_PER_SECOND;
    reading.budget = reading.budget.min(BUDGET_MAX);
    // Bytes that were read on demand are sent before more are read, while any attempt is under
    // way.
    let has_room = reading.plucked_bytes < PLUCKED_BYTES || core.attempts.len() == 0;
    while has_room && core.reading.budget >= LEAST_COST && core.reading.load < READS_MAX {
        let Some(wanted) = core.reading.wanted.pop_front() else { break };
        if is_wanted(core, wanted) {
            core.reading.budget -= least_cost(wanted);
            let load = load_of(core, wanted);
            core.reading.begin(wanted, load, false);
            effects.push(Effect::Read(wanted));
        } else {
            feed(core, wanted);
        }
    }
    effects
}

/// Cost of a read in addition to its bytes.
fn least_cost(key: PackKey) -> f64 {
    match key {
        PackKey::Main(_) => PACK_COST,
        PackKey::Chunk(..) | PackKey::Replay(_) => LEAST_COST,
    }
}

fn load_of<C: Content>(core: &Core<C>, key: PackKey) -> u32 {
    let count = match key {
        PackKey::Main(entry) => core.queue.main.get(entry).map(|pack| pack.count),
        PackKey::Chunk(lane, number) => {
            let lane = core.queue.lanes.by_hash(lane).and_then(|key| core.queue.lanes.get(key));
            let chunk = lane.and_then(|lane| lane.stored.as_ref()?.chunk(number));
            let small = chunk.filter(|chunk| chunk.bytes <= SMALL_BYTES);
            small.map(|chunk| u32::try_from(chunk.positions.len()).unwrap_or(u32::MAX))
        }
        PackKey::Replay(_) => None,
    };
    count.map_or(LARGE_LOAD, load)
}

/// Drops bytes whose webhook cannot be sent now. They would leave no room for those that can.
fn forget_blocked<C: Content>(core: &mut Core<C>) {
    let blocked = core.reading.plucked.keys().copied().filter(|resource| {
        let lane = core.queue.index.lane(*resource).and_then(|lane| core.queue.lanes.get(lane));
        let is_ready = core.queue.index.state(*resource) == Some(HeadState::Ready);
        let may_flow =
            |lane: &Lane| !gate::is_blocked(core, lane) && gate::shop_gate(core, lane.shop).is_ok();
        !is_ready || !lane.is_some_and(may_flow)
    });
    let blocked: Vec<ResourceKey> = blocked.collect();
    for resource in blocked {
        core.reading.forget(resource);
    }
}

/// True if a turn waits for bytes that still lie there and can be read.
fn is_wanted<C: Content>(core: &Core<C>, key: PackKey) -> bool {
    let waiting = core.reading.waiting.get(&key).into_iter().flatten();
    let mut keys =
        waiting.filter_map(|turn| core.queue.locate(core.queue.index.lead(turn.resource)?));
    !core.reading.under_way.contains_key(&key)
        && !is_being_written(core, key)
        && keys.any(|(wanted, _)| wanted == key)
}

fn is_being_written<C: Content>(core: &Core<C>, key: PackKey) -> bool {
    let PackKey::Chunk(lane, number) = key else { return false };
    let lane = core.queue.lanes.by_hash(lane).and_then(|lane| core.queue.lanes.get(lane));
    let stored = lane.and_then(|lane| lane.stored.as_ref());
    stored.is_some_and(|stored| stored.pending == Some(number))
}

/// Gives turns to the shops that waited for a pack.
fn feed<C: Content>(core: &mut Core<C>, key: PackKey) -> Vec<Turn> {
    let waiting = core.reading.waiting.remove(&key).unwrap_or_default();
    waiting.iter().for_each(|turn| core.queue.shops.feed(turn.shop));
    waiting
}

/// Takes bytes that were read. A chunk is taken only if it has the positions that this leader
/// knows. Redis may have come back with another chunk of the same number.
pub(crate) fn read_again<C: Content>(
    core: &mut Core<C>,
    key: PackKey,
    found: Option<ReadAgain<C>>,
) -> Option<Effect<C>> {
    let found = found.filter(|found| match key {
        PackKey::Main(_) | PackKey::Replay(_) => true,
        PackKey::Chunk(lane, number) => {
            let lane = core.queue.lanes.by_hash(lane).and_then(|key| core.queue.lanes.get(key));
            let known = lane.and_then(|lane| lane.positions(number));
            known == Some(&found.positions[..])
        }
    });
    pack_read(core, key, found.map(|found| found.content))
}

fn pack_read<C: Content>(
    core: &mut Core<C>,
    key: PackKey,
    content: Option<C>,
) -> Option<Effect<C>> {
    // A turn may wait for a pack of the front that was being read in any case.
    let is_ahead = core.reading.ended(key) || !core.reading.waiting.contains_key(&key);
    let Some(content) = content else {
        let gone = is_pack_needed(core, key).then(|| gone(core)).flatten();
        feed(core, key);
        return gone;
    };
    if !is_ahead {
        let usual = RAW_BYTES_TARGET as f64;
        core.reading.budget -= content.raw_bytes() as f64 / usual;
    }
    for turn in feed(core, key) {
        let Some(node) = core.queue.index.lead(turn.resource) else { continue };
        if let Some((wanted, index)) = core.queue.locate(node)
            && wanted == key
        {
            let plucked = content.pluck(index);
            core.reading.forget(turn.resource);
            core.reading.plucked_bytes += plucked.raw_bytes();
            let position = core.queue.index.node(node).position;
            core.reading.plucked.insert(turn.resource, (position, plucked));
        }
    }
    if !is_held(core, key) {
        return None;
    }
    if is_ahead {
        // If a large pack displaced another one, nothing more is read ahead for now.
        core.reading.is_front_new = !core.reading.cache.need(key, content);
    } else {
        core.reading.cache.pass(key, content);
    }
    None
}

/// Restarts the leader because needed bytes are missing. A settlement, even one under way,
/// cannot have removed them. Bytes that it settles or moves are no longer needed once it is
/// composed.
pub(crate) fn gone<C: Content>(core: &Core<C>) -> Option<Effect<C>> {
    (!core.session.is_stopping).then_some(Effect::Restart(GONE))
}

/// Takes packs from the front, up to the first missing one. Another read finds out whether the
/// first is gone, because nothing else may request bytes of blocked webhooks.
pub(crate) fn front_arrived<C: Content>(
    core: &mut Core<C>,
    packs: Vec<PackRead<C>>,
) -> Option<Effect<C>> {
    let is_missing = packs.is_empty();
    let entry = core.mover.front_read(packs, core.session.now.at)?;
    let key = PackKey::Main(entry);
    let is_asked = is_missing && is_held(core, key) && !core.reading.under_way.contains_key(&key);
    is_asked.then(|| {
        let load = load_of(core, key);
        core.reading.begin(key, load, false);
        Effect::Read(key)
    })
}

/// True if a webhook of a pack is not settled, as far as is known.
fn is_held<C: Content>(core: &Core<C>, key: PackKey) -> bool {
    match key {
        PackKey::Main(entry) => core.queue.main.get(entry).is_some_and(|pack| pack.left > 0),
        PackKey::Chunk(lane, _) => core.queue.lanes.by_hash(lane).is_some(),
        PackKey::Replay(_) => false,
    }
}

fn is_pack_needed<C: Content>(core: &Core<C>, key: PackKey) -> bool {
    match key {
        PackKey::Main(entry) => core.queue.main.get(entry).is_some_and(|pack| pack.left > 0),
        PackKey::Chunk(..) | PackKey::Replay(_) => is_wanted(core, key),
    }
}

/// Keeps the front of the stream in memory.
fn read_ahead<C: Content>(core: &mut Core<C>, effects: &mut Vec<Effect<C>>) {
    core.reading.is_front_new = false;
    let mut bytes = 0;
    let mut added = 0;
    let mut missing = Vec::new();
    let settled = core.queue.main.settled;
    let is_needed = |pack: &&MainPack| {
        let is_stuck = settled - pack.moved_at > STUCK_AFTER;
        pack.left > if is_stuck { pack.count / STUCK_PART } else { 0 }
    };
    let left = core.queue.main.packs().filter(|pack| pack.left > 0).take(FRONT_LOOKED_AT);
    for pack in left.filter(is_needed).take(FRONT_MAX) {
        let key = PackKey::Main(pack.entry);
        match core.reading.cache.holds(key) {
            Some(held) => bytes += held,
            None if !core.reading.under_way.contains_key(&key) => {
                added += load(pack.count);
                missing.push((key, load(pack.count)));
            }
            None => {}
        }
        if bytes >= core.config.tuning.cache_bytes / FRONT_PART
            || added + core.reading.load >= FRONT_READS_MAX
        {
            break;
        }
    }
    for (key, load) in missing {
        core.reading.begin(key, load, true);
        effects.push(Effect::Read(key));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::event::Loaded;
    use crate::steps::sample::{self, NoContent, at};

    #[test]
    fn a_pack_of_the_front_is_kept_although_a_turn_waits_for_it() {
        for is_front in [true, false] {
            let mut core = sample::core(1_000_000, Loaded::default());
            let entry = at(20).entry();
            core.queue.main.push(entry, 2, None, Duration::ZERO);
            let [lane, _] = sample::lanes(&mut core);
            let resource = sample::add(&mut core, lane, 7, at(20), false);
            let shop = core.queue.lanes.get(lane).expect("lane").shop;
            let key = PackKey::Main(entry);
            let (turn, budget) = (Turn { shop, lane, resource }, core.reading.budget);
            core.reading.is_front_new = is_front;
            if !is_front {
                starve(&mut core, turn, key);
            }
            assert_eq!(begin_reads(&mut core).len(), 1, "it is read once");
            if is_front {
                starve(&mut core, turn, key);
            }
            assert!(core.reading.wanted.is_empty(), "it is being read");
            assert!(pack_read(&mut core, key, Some(NoContent)).is_none());
            assert_eq!(core.reading.cache.is_needed(key), is_front);
            assert!(core.reading.plucked.contains_key(&resource), "its turn can go on");
            assert!(core.reading.waiting.is_empty() && core.reading.load == 0);
            assert_eq!(core.reading.budget == budget, is_front, "the front costs no budget");
        }
    }
}
