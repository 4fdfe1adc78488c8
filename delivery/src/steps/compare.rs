//! Compares an update that has its turn with the last one delivered of its resource. One that shows
//! nothing new is dropped.

use spillway_webhook::fingerprint::Fingerprint;

use crate::classified::{Content, StateRole, UpdateState};
use crate::state::Core;
use crate::state::attempts::Attempt;
use crate::state::index::{Node, NodeKey, ResourceKey};
use crate::state::last_delivered::{Novelty, SentUpdate};
use crate::state::ledger::{Finished, HeadEnd};
use crate::steps::finish;

/// State that a webhook shows, if it is compared.
pub(crate) fn update<C: Content>(
    core: &Core<C>,
    node: NodeKey,
    content: &C,
    record_index: u32,
) -> Option<UpdateState> {
    let is_compared = core.queue.index.node(node).role == StateRole::Compared;
    (is_compared && core.ledger.last_delivered.is_on())
        .then(|| content.update(record_index))
        .flatten()
}

/// Ends the head of a resource if the update that would be sent for it shows nothing new. Returns true
/// if it did.
pub(crate) fn ends_as_known<C: Content>(
    core: &mut Core<C>,
    resource: ResourceKey,
    fingerprint: Option<Fingerprint>,
    update: Option<UpdateState>,
) -> bool {
    let Some(update) = update else { return false };
    let Some(hash) = core.queue.index.resource(resource).map(|one| one.hash) else { return false };
    let end = match core.ledger.last_delivered.compare(hash, &update) {
        Novelty::Same => {
            core.counts.undelivered.suppressed += 1;
            HeadEnd::Suppressed
        }
        // Of the events that a lead stands for, one may be newer than the lead.
        Novelty::Older if core.queue.index.run(resource).len() == 1 => {
            core.counts.undelivered.stale += 1;
            HeadEnd::Stale
        }
        Novelty::New | Novelty::Older => return false,
    };
    finish::finish(core, Finished { resource, end, fingerprint, attempts: 0, update: None });
    true
}

/// Notes that an attempt begins with this state. Returns the state to note once the attempt is settled as
/// delivered; `None` for a replay, which shows an old one.
pub(crate) fn begin_attempt<C: Content>(
    core: &mut Core<C>,
    resource: ResourceKey,
    node: NodeKey,
    update: Option<UpdateState>,
    is_replay: bool,
) -> Option<SentUpdate> {
    if !core.ledger.last_delivered.is_on() {
        return None;
    }
    let Node { position, role, .. } = *core.queue.index.node(node);
    // First: the end of the attempt is counted in any case.
    if role == StateRole::HidesAll {
        core.ledger.last_delivered.on_hiding(position.ms);
    }
    let hash = core.queue.index.resource(resource)?.hash;
    let sent = match role {
        StateRole::Compared | StateRole::MayShow => {
            core.ledger.last_delivered.on_attempt(hash, update, position.ms)
        }
        // The first has no resource of which anything is known, and the other is counted for all of them.
        StateRole::None | StateRole::HidesAll => None,
    };
    if is_replay {
        core.ledger.last_delivered.forget(hash);
        return None;
    }
    sent
}

/// Notes that an attempt has ended, with whatever result.
pub(crate) fn end_attempt<C: Content>(core: &mut Core<C>, attempt: &Attempt) {
    if attempt.sent.hides_states && core.ledger.last_delivered.is_on() {
        core.ledger.last_delivered.on_hidden();
    }
}

/// Forgets the state of a resource, of which a webhook is given up.
pub(crate) fn forget<C: Content>(core: &mut Core<C>, resource: ResourceKey) {
    if !core.ledger.last_delivered.is_on() {
        return;
    }
    if let Some(hash) = core.queue.index.resource(resource).map(|one| one.hash) {
        core.ledger.last_delivered.forget(hash);
    }
}
