//! Expires webhooks that are overdue: which lane is next, and which of its webhooks.

use std::time::Duration;

use spillway_webhook::position::Position;

use crate::classified::{Class, Content};
use crate::config::Config;
use crate::settlement::GivenUp;
use crate::state::Core;
use crate::state::expiry::EXPIRED;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::lane::Lane;
use crate::state::ready::ReadyKind;
use crate::state::resource::HeadState;
use crate::state::retry::RetryKey;
use crate::state::shop::ShopGate;
use crate::steps::time::About;
use crate::steps::{choose, compare, gate, give_up, pick, spent};
use crate::turn::Turn;

/// Lanes per scan.
const LANES_AT_ONCE: usize = 16;

/// Webhooks of a lane per scan.
const WEBHOOKS_AT_ONCE: usize = 64;

/// Time until the next scan if there was no room for dead letters. An operator has to make room.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(2);

/// Time until the next scan if the last one found more than it could give up.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Time between two scans.
const LOOK_EVERY: Duration = Duration::from_millis(50);

const _: () =
    assert!(LOOK_AGAIN.as_millis() < LOOK_EVERY.as_millis(), "a scan that found more comes sooner");

const _: () =
    assert!(LOOK_EVERY.as_millis() < LOOK_FOR_ROOM.as_millis(), "no room needs an operator");

/// Gives up the webhooks that are overdue for a while.
pub(crate) fn expire_overdue<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    if core.queue.expiry.wakes_at().is_none_or(|at| at > now) {
        return;
    }
    core.queue.expiry.looks_at = now + LOOK_EVERY;
    for _ in 0..core.queue.expiry.lanes.len().min(LANES_AT_ONCE) {
        let Some(key) = core.queue.expiry.next() else { return };
        if !spent::has_failed_for_long(core, key) {
            core.queue.expiry.lanes.remove(&key);
            continue;
        }
        (0..WEBHOOKS_AT_ONCE).take_while(|_| expire_next(core, key)).for_each(drop);
    }
}

/// Gives up the oldest webhook of a lane that is overdue for a while. Returns true if the next
/// one may be tried.
fn expire_next<C: Content>(core: &mut Core<C>, key: LaneKey) -> bool {
    if gate::may_go_on(core).is_err() || core.backend.is_stopped() {
        return false;
    }
    if core.ledger.expiring() >= core.config.tuning.unsettled {
        core.queue.expiry.looks_at = core.session.now.at + LOOK_AGAIN;
        return false;
    }
    if core.session.dead_room == 0 {
        core.queue.expiry.looks_at = core.session.now.at + LOOK_FOR_ROOM;
        return false;
    }
    let Some(lane) = core.queue.lanes.get(key) else { return false };
    // Webhooks held back by a barrier could not be tried, so it is unknown if the lane still
    // fails.
    if !lane.flow.failures.has_any_since(lane.flow.unheld_at) {
        return false;
    }
    let shop = lane.shop;
    let expires_after = expires_after(core, lane);
    match core.queue.shops.gate(shop, core.session.now.at) {
        ShopGate::Stopped | ShopGate::Starved => return false,
        // An expiry sends nothing.
        ShopGate::Open | ShopGate::Full | ShopGate::PausedUntil(_) => {}
    }
    for class in [Class::Priority, Class::Rest] {
        for was_tried in [false, true] {
            let index = &core.queue.index;
            let Some(lane) = core.queue.lanes.get_mut(key) else { return false };
            // After a cut, the head may be a replay of the webhook that was listed: it has the same
            // position, and does not expire.
            let is_ready = |position, resource| {
                index.is_ready(key, resource, position)
                    && index.head_node(resource).is_some_and(|head| !head.is_replay)
            };
            let Some(resource) = lane.ready.peek_accepted(class, was_tried, is_ready) else {
                continue;
            };
            let Some(head) = core.queue.index.head(resource) else { continue };
            // All webhooks up to the recorded lead expire together with the head.
            let newest = recorded_lead(core, resource).unwrap_or(head).max(head);
            let queued = RetryKey::Queued(newest);
            let of_newest = spent::spent(core, key, queued, newest, About::Shop);
            let own = core.queue.retries.of_head(&core.queue.index, resource);
            let own = own.map_or(Duration::ZERO, |retry| retry.spent);
            let Some(excess) = of_newest.max(own).checked_sub(expires_after) else { continue };
            let kind = ReadyKind { was_tried, is_replay: false };
            return match pick::take_from(core, shop, key, class, kind) {
                Some(Some(turn)) => expire_turn(core, turn, excess),
                // A barrier came before the webhook.
                Some(None) => true,
                None => false,
            };
        }
    }
    false
}

/// Newest webhook that the head of a resource was recorded to stand for.
fn recorded_lead<C: Content>(core: &Core<C>, resource: ResourceKey) -> Option<Position> {
    let hash = core.queue.index.resource(resource)?.hash;
    core.queue.leads.get(&hash).copied()
}

/// Time after which the webhooks of a lane expire.
fn expires_after<C: Content>(core: &Core<C>, lane: &Lane) -> Duration {
    let Config { retry_for, retry_refused_for, tuning, .. } = core.config;
    let is_refused = lane.clock.is_refused();
    let time = if is_refused { retry_for.max(retry_refused_for) } else { retry_for };
    time + tuning.expiry_grace
}

/// Gives up the head of a resource and those that it stands for. Webhooks accepted within
/// `excess` after the head are overdue, too.
fn expire_turn<C: Content>(core: &mut Core<C>, turn: Turn, excess: Duration) -> bool {
    let Some((node, content, record_index)) = choose::at_turn(core, turn, excess) else {
        // Only one lead is recorded at a time, because a run whose lead is recorded must be indexed
        // whole before it ends.
        return core.queue.index.state(turn.resource) != Some(HeadState::Recording);
    };
    let position = core.queue.index.node(node).position;
    let retry = core.queue.retries.of_head(&core.queue.index, turn.resource);
    let attempts = retry.map_or(0, |retry| retry.attempts);
    let fingerprint = choose::fingerprint(core, &content, record_index);
    if choose::ends_as_duplicate(core, turn.resource, fingerprint) {
        return true;
    }
    let update = compare::update(core, node, &content, record_index);
    if compare::ends_as_known(core, turn.resource, fingerprint, update) {
        return true;
    }
    let reason = EXPIRED;
    let evidence = C::Evidence::default();
    let bytes = content.dead_bytes(record_index, &evidence);
    if !give_up::check_dead_room(core, bytes) {
        core.queue.expiry.looks_at = core.session.now.at + LOOK_FOR_ROOM;
        core.queue.place_by_head(turn.resource, core.session.now.at);
        return false;
    }
    let letter = GivenUp { position, content, record_index, reason, attempts, evidence };
    give_up::end_as_dead_letter(core, turn.resource, letter, bytes, fingerprint);
    core.ledger.expired += 1;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Loaded;
    use crate::state::resource::Step;
    use crate::steps::cut;
    use crate::steps::sample::{self, at};

    /// A webhook and its replay, which have the same position, wait in a lane that fails, and a cut drops the webhook.
    #[test]
    fn a_replay_does_not_expire_in_place_of_its_webhook_that_was_cut_off() {
        const SECOND: Duration = Duration::from_secs(1);
        let mut core = sample::core(1_000_000, Loaded::default());
        core.config.tuning.expiry_grace = Duration::ZERO;
        core.session.are_replays_loaded = true;
        core.session.now.at = 2 * SECOND;
        core.session.lease_until = 60 * SECOND;
        core.session.dead_room = 1_000_000;
        let [key, _] = sample::lanes(&mut core);
        let other = sample::add(&mut core, key, 6, at(10), false);
        core.queue.step(other, Step::Blocked(HeadState::Retrying));
        let resource = sample::add(&mut core, key, 7, at(20), false);
        assert_eq!(sample::add(&mut core, key, 7, at(20), true), resource);
        let lane = core.queue.lanes.get_mut(key).expect("a lane");
        lane.flow.failures.add(SECOND, 2 * SECOND);
        assert!(cut::cut(&mut core, key, Duration::ZERO));
        assert!(core.queue.index.head_node(resource).expect("a head").is_replay);

        core.queue.expiry.lanes.insert(key);
        expire_overdue(&mut core);
        assert!(core.reading.wanted.is_empty(), "its bytes are not read to give it up");
        assert_eq!(core.queue.index.state(resource), Some(HeadState::Ready));
        let lane = core.queue.lanes.get(key).expect("a lane");
        assert!(lane.ready.contains(at(20), resource));
    }
}
