//! Ends a head, and notes what the next settlement drops or deletes.

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::ledger::{Finished, WebhookPlace};
use crate::state::resource::Step;

/// Ends a head. It then waits for its settlement.
pub(crate) fn finish<C: Content>(core: &mut Core<C>, finished: Finished<C>) {
    core.queue.step(finished.resource, Step::Finished);
    core.ledger.sent.remove(&finished.resource);
    core.ledger.draft.is_awaited |= is_followed(core, finished.resource);
    core.ledger.finished.push(finished);
}

/// True if a webhook of a resource follows those for which its head stands.
fn is_followed<C: Content>(core: &Core<C>, resource: ResourceKey) -> bool {
    let index = &core.queue.index;
    index.lead(resource).is_some_and(|lead| index.nodes.has_next(lead))
}

/// Notes a webhook that is dropped. A settlement settles it.
pub(crate) fn drop_webhook<C: Content>(core: &mut Core<C>, dropped: WebhookPlace) {
    if let Some(lane) = core.queue.lanes.get_mut(dropped.lane) {
        lane.dropping += 1;
    }
    core.ledger.undelivered.dropped.push_back(dropped);
}

/// Notes a webhook in a lane that the filter excludes. A settlement settles it.
pub(crate) fn exclude_webhook<C: Content>(core: &mut Core<C>, excluded: WebhookPlace) {
    if let Some(lane) = core.queue.lanes.get_mut(excluded.lane) {
        lane.dropping += 1;
    }
    core.counts.undelivered.excluded += 1;
    core.ledger.undelivered.excluded.push_back(excluded);
}

/// Forgets the recorded lead of a resource, also in Redis.
pub(crate) fn forget_lead<C: Content>(core: &mut Core<C>, resource: u64) {
    core.queue.leads.remove(&resource);
    core.ledger.draft.settlement.lanes.leads.deleted.push(resource);
}

/// Forgets the recorded lead of a resource if no webhook is left for which it stands.
/// Everything up to the lead must be indexed.
pub(crate) fn tidy_lead<C: Content>(core: &mut Core<C>, resource: u64) {
    let Some(lead) = core.queue.leads.get(&resource).copied() else { return };
    let index = &core.queue.index;
    let indexed = index.by_hash(resource).and_then(|key| index.resource(key));
    // Replays do not count.
    let is_needed = indexed.is_some_and(|resource| {
        let mut nodes = index.nodes.chain(resource.head);
        nodes.any(|(_, node)| !node.is_replay && node.position <= lead)
    });
    if !is_needed {
        forget_lead(core, resource);
    }
}

/// Deletes a chunk of which nothing is left with the next settlement.
pub(crate) fn delete_chunk<C: Content>(core: &mut Core<C>, key: LaneKey, number: u32) {
    let hash = core.queue.lanes.get(key).map_or(0, |lane| lane.hash);
    let draft = &mut core.ledger.draft;
    draft.settlement.lanes.chunks.deleted.push((hash, number));
    draft.settling.lanes.insert(key);
}
