//! Chooses the webhook to send of a resource that has its turn, and finds its bytes.

use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{Lead, NodeKey, ResourceKey};
use crate::state::ledger::{Finished, HeadEnd};
use crate::state::queue_view::LEAD_BYTES;
use crate::state::resource::{HeadState, Step};
use crate::steps::{finish, heads, read};
use crate::turn::Turn;

/// Paused resources that are listed before the list is searched for those that are no longer
/// paused.
const PAUSED_FEW: usize = 1024;

/// Recorded leads may take 1/`LEADS_PART` of the index. After that, each event is sent for itself.
const LEADS_PART: usize = 8;

/// Returns the webhook to send of a resource that has its turn, with its bytes. Returns `None`
/// if it waits for the bytes or is not to be sent.
pub(crate) fn at_turn<C: Content>(
    core: &mut Core<C>,
    turn: Turn,
    wait_max: Duration,
) -> Option<(NodeKey, C, u32)> {
    let node = choose(core, turn, wait_max.min(core.config.coalesce_wait_max))?;
    let position = core.queue.index.node(node).position;
    let (key, record_index) = core.queue.locate(node)?;
    let Some((content, record_index)) = read::at_hand(core, turn, position, key, record_index)
    else {
        read::starve(core, turn, key);
        return None;
    };
    if core.controls.pauses(&content, record_index, position) {
        pause_resource(core, turn);
        return None;
    }
    Some((node, content, record_index))
}

/// Chooses the webhook to send of a resource: the newest event that may stand for its head. If
/// it stands for others, that is recorded first.
fn choose<C: Content>(core: &mut Core<C>, turn: Turn, wait_max: Duration) -> Option<NodeKey> {
    let Turn { shop, lane, resource } = turn;
    if heads::undo_choice(core, resource) {
        return None;
    }
    let about = *core.queue.index.resource(resource)?;
    let is_replay = core.queue.index.replay(about.head).is_some();
    let wall_ms = core.session.now.wall_ms;
    if !is_replay && let Some(lead) = core.queue.leads.get(&about.hash).copied() {
        let has_ended = core.ledger.seen.ended(wall_ms);
        if core.queue.index.lead_up_to(resource, lead, has_ended) > 0 {
            return core.queue.index.lead(resource);
        }
        finish::forget_lead(core, about.hash);
    }
    let head = core.queue.index.head(resource)?;
    // A head that was tried alone stays alone, because its time for retries is not that of
    // later events.
    let retry = core.queue.retries.of_head(&core.queue.index, resource);
    let was_tried = retry.is_some_and(|retry| retry.attempts > 0);
    let are_leads_many = core.queue.leads.len() * LEAD_BYTES > core.config.index_bytes / LEADS_PART;
    let wait_max = u64::try_from(wait_max.as_millis()).unwrap_or(u64::MAX);
    let shop = core.queue.shops.get(shop)?;
    // With lanes of two key schemes, a run may extend over two lanes.
    let is_alone = was_tried || are_leads_many || shop.is_mixed();
    let barriers = shop.barriers.as_ref();
    let barrier = barriers.and_then(|barriers| barriers.positions.first().copied());
    let has_ended = core.ledger.seen.ended(wall_ms);
    let length = core.queue.index.choose_lead(resource, |position, fingerprint| {
        let is_after = barrier.is_some_and(|barrier| position > barrier);
        if is_alone || is_after || position.ms.saturating_sub(head.ms) > wait_max {
            Lead::End
        } else if fingerprint.is_some_and(&has_ended) {
            Lead::Skip
        } else {
            Lead::Yes
        }
    });
    let lead = core.queue.index.lead(resource)?;
    if length > 1 {
        let position = core.queue.index.node(lead).position;
        core.ledger.new_leads.push((resource, about.hash, position));
        core.queue.step(resource, Step::Blocked(HeadState::Recording));
        if let Some(lane) = core.queue.lanes.get_mut(lane) {
            lane.flow.recording += 1;
        }
        return None;
    }
    Some(lead)
}

/// Makes a resource wait whose head a filter pauses.
fn pause_resource<C: Content>(core: &mut Core<C>, turn: Turn) {
    core.queue.step(turn.resource, Step::Blocked(HeadState::Paused));
    let paused = &mut core.controls.paused;
    paused.push(turn.resource);
    // Resources of windows that were cut are pushed again.
    if paused.len() > 2 * core.queue.index.resources().len() + PAUSED_FEW {
        paused.retain(|one| core.queue.index.state(*one) == Some(HeadState::Paused));
        paused.sort_unstable();
        paused.dedup();
    }
    if let Some(lane) = core.queue.lanes.get_mut(turn.lane) {
        lane.flow.paused += 1;
    }
}

/// Fingerprint of a webhook, if duplicates are looked for.
pub(crate) fn fingerprint<C: Content>(
    core: &Core<C>,
    content: &C,
    record_index: u32,
) -> Option<Fingerprint> {
    core.ledger.seen.is_on().then(|| content.fingerprint(record_index)).flatten()
}

/// Ends the head of a resource if a webhook with this fingerprint was delivered lately. Returns true
/// if it did.
pub(crate) fn ends_as_duplicate<C: Content>(
    core: &mut Core<C>,
    resource: ResourceKey,
    fingerprint: Option<Fingerprint>,
) -> bool {
    let wall_ms = core.session.now.wall_ms;
    if !fingerprint.is_some_and(|one| core.ledger.seen.contains(one, wall_ms)) {
        return false;
    }
    core.counts.undelivered.duplicates += 1;
    let end = HeadEnd::Duplicate;
    finish::finish(core, Finished { resource, end, fingerprint, attempts: 0, update: None });
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Loaded;
    use crate::steps::sample::{self, at};

    #[test]
    fn a_replay_that_came_while_the_lead_was_recorded_goes_first() {
        let leads = vec![(7, at(30))];
        let mut core = sample::core(1_000_000, Loaded { leads, ..Loaded::default() });
        core.queue.main.read_to = at(100).entry();
        let [lane, _] = sample::lanes(&mut core);
        let resource = sample::add(&mut core, lane, 7, at(20), false);
        sample::add(&mut core, lane, 7, at(30), false);
        assert_eq!(core.queue.index.lead_up_to(resource, at(30), |_| false), 2);
        core.queue.step(resource, Step::Blocked(HeadState::Recording));
        sample::add(&mut core, lane, 7, at(10), true);
        assert_eq!(sample::order(&core, resource), [20, 30, 10]);
        core.queue.step(resource, Step::Released);
        let shop = core.queue.lanes.get(lane).expect("lane").shop;
        assert!(at_turn(&mut core, Turn { shop, lane, resource }, Duration::ZERO).is_none());
        assert_eq!(sample::order(&core, resource), [10, 20, 30]);
        assert_eq!(core.queue.index.state(resource), Some(HeadState::Ready));
        assert!(core.reading.waiting.is_empty(), "nothing is read for the lead");
    }
}
