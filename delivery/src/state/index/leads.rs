//! Leads: the event of a resource that is sent for its head, and the others for which it stands.

use std::collections::HashSet;

use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use super::{Index, Lead, NONE, NodeKey, Nodes, ResourceKey, usize_of};

/// Most events for which one event stands. Bounds the time of a choice.
const RUN_MAX: u32 = 10_000;

impl Index {
    /// Chooses the newest event that may stand for the head of a resource, unless the choice is
    /// made already. Returns the number of events for which it stands, including itself.
    pub(crate) fn choose_lead(
        &mut self,
        key: ResourceKey,
        may_lead: impl Fn(Position, Option<Fingerprint>) -> Lead,
    ) -> u32 {
        let Some(resource) = self.resource(key).copied() else { return 0 };
        if resource.lead != NONE {
            return u32::try_from(self.run(key).len()).unwrap_or(u32::MAX);
        }
        let mut lead = resource.head;
        let mut length = 1;
        let coalesces = self.node(resource.head).coalesces;
        if coalesces != 0 {
            let mut known: HashSet<Fingerprint> =
                self.nodes.fingerprint(resource.head).into_iter().collect();
            let rest = self.nodes.chain(resource.head).skip(1);
            for (passed, (node, candidate)) in (2..=RUN_MAX).zip(rest) {
                if candidate.coalesces != coalesces || candidate.is_replay {
                    break;
                }
                let fingerprint = self.nodes.fingerprint(node);
                // A late copy of an older event is not the newest event.
                let is_copy = fingerprint.is_some_and(|fingerprint| !known.insert(fingerprint));
                match may_lead(candidate.position, fingerprint) {
                    Lead::Yes if is_copy => {}
                    Lead::Yes => (lead, length) = (node, passed),
                    Lead::Skip => {}
                    Lead::End => break,
                }
            }
        }
        self.resources[usize_of(key)].lead = lead;
        length
    }

    /// Chooses the event at `position`. If it is gone, chooses the newest one before that is no copy of
    /// another, and for which `has_ended` is false. Replays before it follow after it: it stands for none
    /// of them. Returns the number of events for which it stands, or 0 if all events are later.
    pub(crate) fn lead_up_to(
        &mut self,
        key: ResourceKey,
        position: Position,
        has_ended: impl Fn(Fingerprint) -> bool,
    ) -> u32 {
        let Some(resource) = self.resource(key).copied() else { return 0 };
        let run = self.nodes.chain(resource.head).take_while(|(_, node)| node.position <= position);
        let run: Vec<(NodeKey, bool)> = run.map(|(key, node)| (key, node.is_replay)).collect();
        let Some(at) = place_of_lead(&self.nodes, &run, position, has_ended) else { return 0 };
        let lead = run[at].0;
        let mut last = lead;
        for (replay, _) in run[..at].iter().filter(|(_, is_replay)| *is_replay) {
            if self.nodes.move_after(*replay, last) {
                self.resources[usize_of(key)].tail = *replay;
            }
            last = *replay;
        }
        self.resources[usize_of(key)].lead = lead;
        let events = run[..=at].iter().filter(|(_, is_replay)| !is_replay).count();
        u32::try_from(events).unwrap_or(u32::MAX)
    }

    /// Webhooks for which the head stands: the head first, its lead last.
    pub(crate) fn run(&self, key: ResourceKey) -> Vec<NodeKey> {
        let (Some(resource), Some(lead)) = (self.resource(key), self.lead(key)) else {
            return Vec::new();
        };
        let mut run = Vec::with_capacity(1);
        for (node, _) in self.nodes.chain(resource.head) {
            run.push(node);
            if node == lead {
                break;
            }
        }
        run
    }
}

/// Index in `run` of the event at `position`, or of the newest one that may be sent in its place.
/// Replays are marked.
fn place_of_lead(
    nodes: &Nodes,
    run: &[(NodeKey, bool)],
    position: Position,
    has_ended: impl Fn(Fingerprint) -> bool,
) -> Option<usize> {
    let newest = run.iter().rposition(|(_, is_replay)| !is_replay)?;
    let lead = run[newest].0;
    // A lead has ended only if another leader's deduplication window was shorter.
    if nodes.get(lead).position == position && !nodes.fingerprint(lead).is_some_and(&has_ended) {
        return Some(newest);
    }
    let mut known = HashSet::new();
    let mut place = None;
    for (at, (key, _)) in run.iter().enumerate().filter(|(_, (_, is_replay))| !is_replay) {
        let fingerprint = nodes.fingerprint(*key);
        // Without fingerprints, nothing shows that an event is no copy.
        let is_copy = fingerprint.is_none_or(|one| !known.insert(one) || has_ended(one));
        // The head may be sent whatever it is.
        if place.is_none() || !is_copy {
            place = Some(at);
        }
    }
    place
}
