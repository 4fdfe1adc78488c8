//! The first step: a webhook that was read is indexed, settled because the consumer's filter excludes
//! it, dropped as an operator ordered, or left in the part of its lane that is not indexed.

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::classified::{Classified, Content};
use crate::event::{PackRead, ReplayRead};
use crate::pack_key::PackKey;
use crate::state::Core;
use crate::state::index::{IndexEntry, LaneKey};
use crate::state::ledger::WebhookPlace;
use crate::state::queue_view::UNREAD_FEW;
use crate::state::resource::HeadState;
use crate::steps::{cut, finish, heads, moving, unread};

pub(crate) fn pack_arrived<C: Content>(core: &mut Core<C>, pack: PackRead<C>) {
    let PackRead { entry, classified, content } = pack;
    if entry <= core.queue.main.read_to {
        return;
    }
    let bits = core.queue.bits.remove(&entry);
    let count = u32::try_from(classified.len()).unwrap_or(u32::MAX);
    let due_at = moving::moves_at(core, entry);
    core.queue.main.push(entry, count, bits, due_at);
    core.reading.cache.pass(PackKey::Main(entry), content);
    for (index, classified) in (0..).zip(classified) {
        let is_settled = core.queue.main.get(entry).is_some_and(|pack| pack.is_settled(index));
        let position = Position::new(entry, index);
        if is_settled {
            core.queue.retries.forget_settled(position);
        } else if classified.is_excluded {
            excluded_arrived(core, position, classified.resource);
        } else {
            core.queue.main.holds(classified.lane);
            webhook_arrived(core, position, classified, None);
        }
    }
    release_unread(core);
    cut::make_room(core);
}

/// Settles a webhook of the main stream that the filter excludes. It takes no memory, forms no barrier
/// and waits in no lane. The next settlement has its bit, or passes its pack.
fn excluded_arrived<C: Content>(core: &mut Core<C>, position: Position, resource: u64) {
    core.counts.undelivered.excluded += 1;
    core.queue.main.settle(position);
    core.ledger.draft.packs.insert(position.entry());
    // Another filter let it be tried, or be the lead of others.
    core.queue.retries.forget_settled(position);
    lead_dropped(core, resource, position);
}

pub(crate) fn corrupt_arrived<C: Content>(core: &mut Core<C>, entry: StreamId) {
    let due_at = moving::moves_at(core, entry);
    core.queue.main.push(entry, 0, None, due_at);
    core.queue.retries.forget_corrupt(entry);
    core.ledger.draft.settlement.main.corrupt.push(entry);
}

pub(crate) fn replay_arrived<C: Content>(core: &mut Core<C>, replay: ReplayRead<C>) {
    let ReplayRead { id, position, classified, content } = replay;
    if id <= core.controls.replays_to {
        return;
    }
    core.reading.cache.pass(PackKey::Replay(id), content);
    core.controls.replays_to = id;
    webhook_arrived(core, position, classified, Some(id));
    cut::make_room(core);
}

fn webhook_arrived<C: Content>(
    core: &mut Core<C>,
    position: Position,
    classified: Classified,
    replay: Option<StreamId>,
) {
    let shop = core.queue.shops.intern(classified.shop);
    let lane = core.queue.lane(classified.lane, shop);
    if replay.is_none() {
        core.queue.shops.arrived(shop, 1);
        if position.entry() <= core.queue.main.known_to
            && let Some(lane) = core.queue.lanes.get_mut(lane)
        {
            lane.flow.is_left = true;
        }
    }
    if core.controls.drops(position, replay) {
        finish::drop_webhook(core, WebhookPlace { lane, position, replay });
        lead_dropped(core, classified.resource, position);
        return;
    }
    if replay.is_none() {
        core.queue.expiry.stubs.arrived(position, classified.expires_at_ms);
    }
    // A replay is out of order anyway. It waits for no barrier and is none.
    if classified.is_barrier && replay.is_none() {
        core.queue.add_barrier(classified.shop, position);
    }
    if replay.is_none()
        && let Some(known) = core.queue.lanes.get_mut(lane)
        && known.rest.is_some()
    {
        known.skip(position);
        return;
    }
    index_webhook(core, lane, &IndexEntry { position, classified, replay });
}

/// Notes that a webhook was dropped or excluded before it was indexed. If it is a recorded lead, the lead is
/// checked once everything is indexed.
pub(crate) fn lead_dropped<C: Content>(core: &mut Core<C>, resource: u64, position: Position) {
    core.queue.are_leads_old |= core.queue.leads.get(&resource) == Some(&position);
}

/// Adds a webhook to its lane's window, and releases its resource if the webhook became the
/// head.
pub(crate) fn index_webhook<C: Content>(core: &mut Core<C>, lane: LaneKey, arrival: &IndexEntry) {
    let queue = &mut core.queue;
    let resource = queue.index.by_hash(arrival.classified.resource);
    let before = resource
        .and_then(|resource| Some((queue.index.head(resource)?, queue.index.lane(resource)?)));
    let Some(window) = queue.lanes.get_mut(lane).map(|lane| &mut lane.window) else { return };
    let Some(added) = queue.index.add(arrival, lane, window) else { return };
    if added.is_new {
        core.queue.place_by_head(added.resource, core.session.now.at);
    } else if added.is_head {
        // A replay was added before a head that waited.
        if let Some(before) = before {
            heads::leave(core, added.resource, before);
        }
        core.queue.place_by_head(added.resource, core.session.now.at);
    } else if queue.index.state(added.resource) == Some(HeadState::Finished) {
        // The settlement of the head holds this webhook up, unless it is under way.
        let ledger = &mut core.ledger;
        ledger.draft.is_awaited = ledger.draft.is_awaited
            || ledger.finished.iter().any(|head| head.resource == added.resource);
    }
}

/// Releases the resources whose recorded lead is indexed by now.
pub(crate) fn release_unread<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    if core.queue.unread.resources.len() > UNREAD_FEW {
        if now < core.session.looks.unread_at {
            return;
        }
        let resources = core.queue.unread.resources.len();
        core.session.looks.unread_at = now + unread::look_every(resources);
    }
    let mut unread = std::mem::take(&mut core.queue.unread.resources);
    unread.sort_unstable();
    unread.dedup();
    for resource in unread {
        if core.queue.index.state(resource) == Some(HeadState::Unread) {
            core.queue.place_by_head(resource, core.session.now.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Loaded;
    use crate::steps::sample::{self, NoContent, at};
    use crate::steps::settle;

    fn pack(ms: u64, classified: Vec<Classified>) -> PackRead<NoContent> {
        PackRead { entry: at(ms).entry(), classified, content: NoContent }
    }

    fn excluded(resource: u64) -> Classified {
        Classified { is_excluded: true, is_barrier: true, ..sample::classified(resource, 1) }
    }

    #[test]
    fn what_the_filter_excludes_is_settled_as_it_arrives_and_is_no_barrier() {
        let mut core = sample::core(1_000_000, Loaded::default());
        let bytes = core.queue.bytes();
        pack_arrived(&mut core, pack(10, vec![excluded(7), excluded(8)]));
        assert_eq!(core.queue.lanes.iter().len(), 0);
        assert_eq!((core.queue.barriers, core.queue.main.left), (0, 0));
        assert!(core.queue.bytes() > bytes, "the row of the pack");
        pack_arrived(&mut core, pack(11, vec![excluded(7), sample::classified(8, 1)]));
        assert_eq!((core.queue.main.left, core.counts.undelivered.excluded), (1, 3));
        let Some(crate::event::Effect::Settle(settlement)) = settle::begin_settlement(&mut core)
        else {
            panic!("nothing is settled")
        };
        assert_eq!(settlement.main.cursor, Some(at(10).entry()));
        assert_eq!(settlement.main.webhooks_passed, 2);
        assert_eq!(settlement.main.bits, [(at(11).entry(), vec![0b1])]);
        assert!(settlement.records.is_empty() && settlement.dead.is_empty());
    }

    #[test]
    fn a_replay_is_indexed_whatever_the_filter_says() {
        let mut core = sample::core(1_000_000, Loaded::default());
        let id = at(20).entry();
        let classified = excluded(7);
        let replay = ReplayRead { id, position: at(10), classified, content: NoContent };
        replay_arrived(&mut core, replay);
        assert!(core.queue.index.by_hash(7).is_some());
        assert_eq!(core.counts.undelivered.excluded, 0);
    }
}
