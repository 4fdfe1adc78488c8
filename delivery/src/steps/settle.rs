//! Composes a settlement: final outcomes, packs that move into lanes, and the cursor. One is under way at
//! a time.

use std::collections::BTreeSet;
use std::time::Duration;

use spillway_webhook::Spans;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::config::{AtOnce, SettlementBounds};
use crate::event::Effect;
use crate::pack_key::PackKey;
use crate::settlement::{LaneRowChange, Outcome, SettledRecord};
use crate::state::Core;
use crate::state::expiry::EXPIRED;
use crate::state::index::{LaneKey, NodeKey};
use crate::state::ledger::{Draft, Finished, HeadEnd, UndeliveredPlaces, WebhookPlace};
use crate::state::main_stream::{Advance, MainPack};
use crate::state::seen::given_up;
use crate::steps::{apply_controls, cut, finish, moving, time};

/// Bytes of dead letters in one settlement.
const DEAD_BYTES_MAX: u64 = 8 << 20;

/// Time between two scans for the oldest webhook in a lane.
const OLDEST_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time between two scans for leads of a previous leader. A scan goes through every lane.
const LEADS_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Rows of lanes in one settlement.
const ROWS_MAX: usize = 256;

/// Retry states in one settlement.
const RETRIES_MAX: usize = 4096;

/// A settlement begins at once if 1/`UNSETTLED_PART` of the deliveries that may wait for it do so. The
/// rest may wait while it is under way.
const UNSETTLED_PART: usize = 2;

/// Begins the next settlement if there is something to settle, none is under way, and it need not
/// gather more.
pub(crate) fn begin_settlement<C: Content>(core: &mut Core<C>) -> Option<Effect<C>> {
    if core.ledger.settling.is_some() || gathers_more(core) {
        return None;
    }
    settle_finished(core);
    settle_undelivered(core);
    tidy_leads(core);
    record_leads(core);
    advance(core);
    settle_packs(core);
    settle_rows(core);
    apply_controls::tidy_controls(core);
    if core.ledger.draft.settlement.is_empty() {
        return None;
    }
    let Draft { mut settlement, settling, .. } = std::mem::take(&mut core.ledger.draft);
    settlement.main.settled_after_cursor = core.queue.main.settled_after_cursor;
    settlement.lanes.waiting = core.queue.lanes.waiting();
    settlement.lanes.oldest_ms = oldest_in_lanes(core);
    let of_lanes = Some(settlement.lanes.oldest_ms).filter(|_| settlement.lanes.waiting > 0);
    let of_main = core.queue.main.cursor.ms;
    core.ledger.seen.set_oldest(of_lanes.map_or(of_main, |oldest| oldest.min(of_main)));
    core.ledger.settling = Some(settling);
    let (now, bounds) = (core.session.now.at, core.config.tuning.settlements);
    core.ledger.draft.due_at = now + bounds.every;
    core.ledger.draft.due_in_calm_at = now + bounds.every_calm;
    core.ledger.draft.is_awaited = !core.ledger.finished.is_empty();
    Some(Effect::Settle(Box::new(settlement)))
}

/// True if the next settlement waits for more webhooks. It does so for a short time after the last
/// one began, and only while this holds nothing up: nothing follows what has ended, or other turns
/// wait for slots or bytes, or more attempts are under way than have ended. While something follows,
/// the time is shorter.
fn gathers_more<C: Content>(core: &Core<C>) -> bool {
    let ledger = &core.ledger;
    let now = core.session.now.at;
    let is_awaited = is_awaited(core);
    if ledger.gathers_until(now, is_awaited).is_none() || core.session.is_stopping {
        return false;
    }
    let UndeliveredPlaces { dropped, excluded } = &ledger.undelivered;
    let is_pressing = !ledger.new_leads.is_empty()
        || !dropped.is_empty()
        || !excluded.is_empty()
        || (!core.mover.at_hand.is_empty() && now >= core.mover.due);
    let finished = ledger.finished.len();
    let is_busy = core.waiting_turn.is_some()
        || !core.reading.waiting.is_empty()
        || finished < core.attempts.len();
    let is_large = finished >= core.config.tuning.unsettled / UNSETTLED_PART;
    !is_pressing && !is_large && (is_busy || !is_awaited)
}

/// True if webhooks wait for the next settlement: of a resource whose head it settles, of a shop with a
/// barrier, or for room.
pub(crate) fn is_awaited<C: Content>(core: &Core<C>) -> bool {
    core.ledger.draft.is_awaited || core.queue.barriers > 0 || !cut::has_room(core, true)
}

/// Time at which the oldest webhook in a chunk was accepted, as far as is known; 0 if none
/// waits. Updated once per second, because a scan goes through every lane.
fn oldest_in_lanes<C: Content>(core: &mut Core<C>) -> u64 {
    if core.queue.lanes.waiting() == 0 {
        core.session.looks.oldest_ms = 0;
        return 0;
    }
    let now = core.session.now.at;
    if now >= core.session.looks.oldest_at || core.session.looks.oldest_ms == 0 {
        core.session.looks.oldest_at = now + OLDEST_LOOK_EVERY;
        let index = &core.queue.index;
        let stored = core.queue.lanes.iter().filter(|(_, lane)| lane.stored.is_some());
        let oldest = stored.filter_map(|(_, lane)| {
            let first = lane.stored.as_ref().map(|stored| stored.first);
            index.nodes.front(&lane.window).or(first)
        });
        core.session.looks.oldest_ms = oldest.map(|position| position.ms).min().unwrap_or(0);
    }
    core.session.looks.oldest_ms
}

/// Adds the heads that have ended, with all webhooks that they stand for.
fn settle_finished<C: Content>(core: &mut Core<C>) {
    let most = core.config.tuning.settlements.webhooks;
    let finished = std::mem::take(&mut core.ledger.finished);
    let mut left = finished.into_iter();
    for one in left.by_ref() {
        let run = core.queue.index.run(one.resource);
        settle_run(core, &one, &run);
        let Draft { settlement, settling, .. } = &mut core.ledger.draft;
        settling.heads.push(one.resource);
        settling.nodes.extend(run);
        if let HeadEnd::Dead(letter, bytes) = one.end {
            settling.dead_bytes += bytes;
            let has_expired = letter.reason == EXPIRED;
            settling.expired += usize::from(has_expired);
            core.ledger.expired -= usize::from(has_expired);
            settlement.dead.push(*letter);
        }
        if settling.nodes.len() >= most
            || settling.dead_bytes >= DEAD_BYTES_MAX
            || settling.lanes.len() >= core.config.tuning.settlements.lanes
        {
            break;
        }
    }
    core.ledger.finished = left.collect();
}

fn settle_run<C: Content>(core: &mut Core<C>, one: &Finished<C>, run: &[NodeKey]) {
    let outcome = match one.end {
        HeadEnd::Delivered => Outcome::Delivered,
        HeadEnd::Duplicate => Outcome::Duplicate,
        HeadEnd::Suppressed => Outcome::Suppressed,
        HeadEnd::Stale => Outcome::Stale,
        HeadEnd::Dead(..) => Outcome::Dead,
    };
    let hash = core.queue.index.resource(one.resource).map_or(0, |resource| resource.hash);
    let is_replay = run.first().is_some_and(|node| core.queue.index.replay(*node).is_some());
    if !is_replay && core.queue.leads.remove(&hash).is_some() {
        core.ledger.draft.settlement.lanes.leads.deleted.push(hash);
    }
    if outcome == Outcome::Delivered {
        let delivered = one.update.map(|update| (hash, update));
        core.ledger.draft.settling.delivered.extend(delivered);
    }
    for node in run {
        let is_lead = run.last() == Some(node);
        let (position, lane, is_coalesced) = {
            let node = core.queue.index.node(*node);
            (node.position, node.lane, node.coalesces != 0)
        };
        let kept = core.queue.index.nodes.fingerprint(*node);
        let replay = core.queue.index.replay(*node);
        let fingerprint = if is_lead { one.fingerprint } else { kept };
        let remembered = match outcome {
            _ if replay.is_some() || !core.ledger.seen.is_on() => None,
            // A late copy of an update that was dropped shows an old state.
            Outcome::Delivered | Outcome::Suppressed | Outcome::Stale => fingerprint,
            Outcome::Dead if is_coalesced => fingerprint.map(given_up),
            _ => None,
        };
        let Draft { settlement, settling, .. } = &mut core.ledger.draft;
        settling.seen.extend(remembered);
        settlement.records.push(SettledRecord {
            position,
            outcome: if is_lead { outcome } else { Outcome::Coalesced },
            fingerprint,
            attempts: if is_lead { one.attempts } else { 0 },
            remembered,
        });
        settle_one(core, WebhookPlace { lane, position, replay });
    }
}

/// Adds webhooks that are dropped, and those in lanes that the filter excludes.
fn settle_undelivered<C: Content>(core: &mut Core<C>) {
    let SettlementBounds { webhooks, lanes, .. } = core.config.tuning.settlements;
    let most = lanes + core.ledger.draft.settling.lanes.len();
    for _ in 0..webhooks {
        if core.ledger.draft.settling.lanes.len() >= most {
            break;
        }
        let UndeliveredPlaces { dropped, excluded } = &mut core.ledger.undelivered;
        let dropped = dropped.pop_front();
        let is_dropped = dropped.is_some();
        let Some(one) = dropped.or_else(|| excluded.pop_front()) else { break };
        if let Some(lane) = core.queue.lanes.get_mut(one.lane) {
            lane.dropping -= 1;
        }
        settle_one(core, one);
        if is_dropped {
            core.ledger.draft.settlement.controls.dropped += 1;
            core.counts.undelivered.dropped += 1;
        }
    }
}

/// Marks one webhook as settled in its pack, chunk or replay.
fn settle_one<C: Content>(core: &mut Core<C>, one: WebhookPlace) {
    let WebhookPlace { lane, position, replay } = one;
    let Draft { settlement, settling, packs, chunks, .. } = &mut core.ledger.draft;
    settling.lanes.insert(lane);
    if replay.is_none() {
        core.queue.expiry.stubs.settled(position);
    }
    let mut is_new = false;
    if let Some(id) = replay {
        settlement.replays.settled.push(id);
        core.reading.cache.remove(PackKey::Replay(id));
        core.queue.retries.remove_replay(id);
    } else if core.queue.main.is_after_cursor(position) {
        is_new = core.queue.main.settle(position);
        packs.insert(position.entry());
    } else if let Some((number, index)) =
        core.queue.lanes.get(lane).and_then(|lane| lane.locate(position))
    {
        is_new = core.queue.lanes.settle_chunk(lane, number, index);
        chunks.insert((lane, number));
    }
    if replay.is_none()
        && let Some(state) = core.queue.retries.remove(position)
    {
        settlement.retries(state.is_in_main).deleted.push(position);
    }
    let Some(shop) = core.queue.lanes.get(lane).map(|lane| lane.shop) else { return };
    if is_new {
        core.queue.shops.settled(shop, 1);
    }
    let barriers = core.queue.shops.get(shop).and_then(|shop| shop.barriers.as_ref());
    if replay.is_none() && barriers.is_some_and(|barriers| barriers.positions.contains(&position)) {
        settling.barriers.push((shop, position));
        if core.queue.stored_barriers.remove(&position) {
            settlement.lanes.barriers.deleted.push(position);
        }
    }
}

/// Forgets recorded leads that are settled. Runs once, when everything is indexed.
fn tidy_leads<C: Content>(core: &mut Core<C>) {
    let is_read = |lead: &Position| core.queue.main.read_to >= lead.entry();
    let now = core.session.now.at;
    if !core.queue.are_leads_old || now < core.session.looks.leads_at {
        return;
    }
    core.session.looks.leads_at = now + LEADS_LOOK_EVERY;
    if !core.queue.leads.values().all(is_read)
        || core.queue.lanes.iter().any(|(_, lane)| lane.rest.is_some())
    {
        return;
    }
    core.queue.are_leads_old = false;
    let resources: Vec<u64> = core.queue.leads.keys().copied().collect();
    resources.into_iter().for_each(|resource| finish::tidy_lead(core, resource));
}

fn record_leads<C: Content>(core: &mut Core<C>) {
    let Draft { settlement, settling, .. } = &mut core.ledger.draft;
    settling.leads = std::mem::take(&mut core.ledger.new_leads);
    let leads = settling.leads.iter().map(|(_, hash, position)| (*hash, *position));
    let changes = &mut settlement.lanes.leads;
    changes.written.extend(leads);
    changes.deleted.retain(|gone| !changes.written.iter().any(|(hash, _)| hash == gone));
}

/// Moves the cursor over packs that are completely settled, and over packs at the front that
/// move into lanes.
fn advance<C: Content>(core: &mut Core<C>) {
    let mut advance = Advance::default();
    let AtOnce { passed_packs, passed_webhooks, .. } = core.config.tuning.at_once;
    while advance.entries < passed_packs && advance.webhooks < passed_webhooks {
        let next = core.queue.main.pass(&mut advance);
        let Some(pack) = next.or_else(|| moving::move_next(core, &mut advance)) else { break };
        passed(core, &pack);
    }
    let main = &mut core.ledger.draft.settlement.main;
    main.cursor = advance.cursor;
    main.entries_passed = advance.entries;
    main.webhooks_passed = advance.webhooks;
}

fn passed<C: Content>(core: &mut Core<C>, pack: &MainPack) {
    core.reading.cache.remove(PackKey::Main(pack.entry));
    core.controls.passed(pack.entry);
    if pack.are_bits_stored {
        core.ledger.draft.settlement.main.whole.push(pack.entry);
    }
}

/// Writes the bits of partly settled packs and chunks, and deletes completely settled chunks.
fn settle_packs<C: Content>(core: &mut Core<C>) {
    let Draft { settlement, packs, chunks, .. } = &mut core.ledger.draft;
    for entry in std::mem::take(packs) {
        if let Some(pack) = core.queue.main.get(entry) {
            settlement.main.bits.push((entry, pack.bits()));
            core.queue.main.bits_stored(entry);
        }
    }
    for (key, number) in std::mem::take(chunks) {
        let Some(lane) = core.queue.lanes.get_mut(key) else { continue };
        let hash = lane.hash;
        match lane.stored.as_mut().and_then(|stored| stored.chunk(number)) {
            Some(chunk) => {
                settlement.lanes.chunk_bits.push((hash, number, chunk.bits.clone()));
            }
            None => {
                settlement.lanes.chunks.deleted.push((hash, number));
                core.reading.cache.remove(PackKey::Chunk(hash, number));
            }
        }
    }
}

fn settle_rows<C: Content>(core: &mut Core<C>) {
    let count = core.ledger.changed.len().min(ROWS_MAX);
    let changed: BTreeSet<LaneKey> = core.ledger.changed.drain(..count).collect();
    let settling = core.ledger.draft.settling.lanes.iter();
    let lanes: BTreeSet<LaneKey> = changed.iter().chain(settling).copied().collect();
    for key in lanes {
        let Some(lane) = core.queue.lanes.get_mut(key) else { continue };
        if let Some(stored) = &mut lane.stored {
            stored.is_changed |= changed.contains(&key);
        }
        let is_changed = lane.stored.as_ref().is_some_and(|stored| stored.is_changed);
        let failing = if is_changed { time::failing_spans(core, key) } else { Spans::default() };
        let settlement = &mut core.ledger.draft.settlement;
        let Some(lane) = core.queue.lanes.get_mut(key) else { continue };
        let hash = lane.hash;
        let breaker = lane.breaker;
        let is_suspect = lane.flow.suspect.is_some();
        let front = core.queue.index.nodes.front(&lane.window);
        let Some(stored) = lane.stored.as_mut() else { continue };
        if stored.waiting == 0 {
            settlement.lanes.rows.deleted.push(hash);
            let next = stored.next;
            lane.stored = None;
            core.queue.lanes.numbers.used_up_to(next);
            continue;
        }
        if std::mem::take(&mut stored.is_changed) {
            settlement.lanes.rows.written.push(LaneRowChange {
                lane: hash,
                first_chunk: stored.oldest(),
                last_chunk: stored.next - 1,
                waiting: stored.waiting,
                first: front.unwrap_or(stored.first),
                last: stored.last,
                failing,
                is_tripped: breaker.is_open(),
                is_suspect,
            });
        }
    }
    settle_retries(core);
    // Their retry states are read again with their chunks.
    let unread = std::mem::take(&mut core.ledger.draft.unread);
    unread.into_iter().for_each(|position| core.queue.retries.shed(position));
}

/// Writes the retry states that changed.
fn settle_retries<C: Content>(core: &mut Core<C>) {
    for _ in 0..RETRIES_MAX {
        let Some((position, lane)) = core.ledger.retries.pop_first() else { break };
        let Some(state) = core.queue.retries.get(position) else { continue };
        let stored = time::stored_now(core, lane, state);
        let is_in_main = state.is_in_main;
        let retries = core.ledger.draft.settlement.retries(is_in_main);
        retries.written.push((position, stored));
        core.queue.retries.mark_stored(position);
    }
    let stale = core.queue.retries.take_stale(RETRIES_MAX);
    core.ledger.draft.settlement.main.retries.deleted.extend(stale);
}
