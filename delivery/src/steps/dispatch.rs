//! Sends what may be sent: one turn after the other, while there are slots.

use spillway_webhook::fingerprint::Fingerprint;

use crate::classified::{Content, StateRole, UpdateState};
use crate::event::{Dispatch, Effect};
use crate::state::Core;
use crate::state::attempts::{Attempt, Sent};
use crate::state::index::NodeKey;
use crate::state::resource::Step;
use crate::state::retry::key_of_head;
use crate::steps::{choose, compare, gate, slots, suspect_turns, time, turns};
use crate::turn::Turn;

/// Most shops that are skipped at once because they hold slots.
const ASIDE_MAX: u32 = 16;

/// Sends what may be sent.
pub(crate) fn dispatch_turns<C: Content>(core: &mut Core<C>) -> Vec<Effect<C>> {
    let mut effects = Vec::new();
    let mut aside = 0;
    core.queue.shops.take_back();
    suspect_turns::call_suspects(core);
    let now = core.session.now.at;
    let is_crowded = core.attempts.is_crowded(core.limiter.concurrency(now));
    core.attempts.proven.look(is_crowded, now);
    loop {
        if gate::may_begin(core).is_err() {
            core.attempts.note_waiting_turn(now);
            break;
        }
        let Some(turn) = turns::next_turn(core) else { break };
        let is_holding = !core.backend.is_stopped() && slots::is_holding_slots(core, turn.shop);
        if slots::ensure_slot(core, &turn, is_holding).is_err() {
            if is_holding && aside < ASIDE_MAX {
                aside += 1;
                core.queue.place_by_head(turn.resource, core.session.now.at);
                core.queue.shops.set_aside(turn.shop);
                continue;
            }
            core.attempts.note_waiting_turn(now);
            // The first one that waits goes first. A lane that was called is asked again.
            if core.waiting_turn.is_some() {
                core.queue.place_by_head(turn.resource, core.session.now.at);
            } else {
                core.waiting_turn = Some(turn);
            }
            break;
        }
        let is_unfailed = core.backend.is_stopped() && slots::is_unfailed(core, turn.lane);
        match begin(core, turn) {
            Some(effect) => {
                let probes = &mut core.session.looks.unfailed_probes;
                *probes = if is_unfailed { *probes + 1 } else { 0 };
                effects.push(effect);
            }
            None => core.limiter.unused(),
        }
    }
    effects
}

/// Sends the webhook that has its turn, unless it waits for its bytes or is not to be sent.
fn begin<C: Content>(core: &mut Core<C>, turn: Turn) -> Option<Effect<C>> {
    let wait_max = core.config.coalesce_wait_max;
    let (node, content, record_index) = choose::at_turn(core, turn, wait_max)?;
    let is_replay = core.queue.index.replay(node).is_some();
    let fingerprint = choose::fingerprint(core, &content, record_index);
    if !is_replay && choose::ends_as_duplicate(core, turn.resource, fingerprint) {
        return None;
    }
    let update = compare::update(core, node, &content, record_index);
    if !is_replay && compare::ends_as_known(core, turn.resource, fingerprint, update) {
        return None;
    }
    send(core, turn, node, (content, record_index), (fingerprint, update))
}

fn send<C: Content>(
    core: &mut Core<C>,
    turn: Turn,
    node: NodeKey,
    (content, record_index): (C, u32),
    (fingerprint, update): (Option<Fingerprint>, Option<UpdateState>),
) -> Option<Effect<C>> {
    let Turn { shop, lane, resource } = turn;
    let run = core.queue.index.run(resource);
    let older = u32::try_from(run.len() - 1).unwrap_or(u32::MAX);
    let position = core.queue.index.node(node).position;
    let head = key_of_head(&core.queue.index, resource)?;
    let is_replay = core.queue.index.replay(node).is_some();
    let attempts = core.queue.retries.of(head).map_or(0, |retry| retry.attempts);
    let now = core.session.now.at;
    core.queue.step(resource, Step::Sent);
    core.ledger.sent.insert(resource, (content.clone(), record_index));
    core.queue.shops.began(shop, now);
    let active = time::active(core);
    let row = core.queue.lanes.get_mut(lane)?;
    row.flow.in_flight += 1;
    row.flow.began_at = now;
    row.flow.is_in_line = false;
    let is_suspect = row.flow.suspect.is_some();
    // Nothing may fail from here on: what an attempt begins to hide, its end shows again.
    let hides_states = core.queue.index.node(node).role == StateRole::HidesAll;
    let update = compare::begin_attempt(core, resource, node, update, is_replay);
    let id = core.attempts.begin(Attempt {
        resource,
        lane,
        shop,
        position,
        number: attempts + 1,
        began: now,
        began_active: active,
        in_flight: core.attempts.len() + 1,
        sent: Sent { fingerprint, older, update, hides_states },
        is_suspect,
        is_slow: false,
        is_long: false,
    });
    let lane = core.queue.lanes.get(lane).map_or(0, |lane| lane.hash);
    let shop = core.queue.shops.get(shop).map_or(0, |shop| shop.hash);
    Some(Effect::Send(Box::new(Dispatch {
        id,
        lane,
        shop,
        position,
        content,
        record_index,
        attempt: attempts + 1,
        older,
        is_replay,
        fingerprint,
    })))
}
