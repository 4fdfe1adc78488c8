//! Index of webhooks, in order within their resource and within their lane's window.
//!
//! Two lists run through each node. The list of its resource has a head, and only the head is ever
//! sent. The list of its lane is the window, which is cut from the end and filled again from Redis.
//! Bounded in bytes.

mod leads;
mod nodes;
mod replays;

use slab::Slab;
use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::classified::Classified;
use crate::state::folded::ByHash;
use crate::state::resource::HeadState;

pub(crate) use self::nodes::{NONE, Node, NodeKey, Nodes, Window};
use self::replays::Replays;

/// Key of a resource in the index.
pub(crate) type ResourceKey = u32;
/// Key of a lane.
pub(crate) type LaneKey = u32;

/// Bytes of a resource: its row, its entry in a table between half and nearly full, and a ready
/// entry.
const RESOURCE_BYTES: usize = 96;
/// Bytes of a replay's entries, in two tables between half and nearly full.
const REPLAY_BYTES: usize = 64;
/// Indexed webhooks of one resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexedResource {
    /// Hash of the unit of order.
    pub hash: u64,
    /// Oldest webhook.
    pub head: NodeKey,
    tail: NodeKey,
    /// Last webhook that the head stands for; [`NONE`] while that is undecided.
    lead: NodeKey,
    /// State of the resource.
    pub state: HeadState,
}

/// Result of checking if an event may stand for those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lead {
    /// The event may.
    Yes,
    /// The event may not, but a later one may. The later one then stands for this one, too.
    Skip,
    /// Neither this event nor any later one may.
    End,
}

/// A webhook to index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexEntry {
    /// Position at which the webhook was accepted.
    pub position: Position,
    /// Attributes that decide how it is handled.
    pub classified: Classified,
    /// Entry in the stream of replays, if the webhook is a replay.
    pub replay: Option<StreamId>,
}

/// Result of indexing a webhook.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Added {
    /// Resource of the webhook.
    pub resource: ResourceKey,
    /// True if the resource was not indexed before.
    pub is_new: bool,
    /// True if the resource was not indexed before, or has another head now.
    pub is_head: bool,
}

/// All webhooks that are indexed.
#[derive(Debug)]
pub(crate) struct Index {
    /// Every webhook.
    pub nodes: Nodes,
    resources: Slab<IndexedResource>,
    by_hash: ByHash<ResourceKey>,
    replays: Replays,
    bytes: usize,
}

impl Index {
    /// Creates an empty index, with or without fingerprints.
    pub(crate) fn new(keeps_fingerprints: bool) -> Self {
        Self {
            nodes: Nodes::new(keeps_fingerprints),
            resources: Slab::new(),
            by_hash: ByHash::default(),
            replays: Replays::default(),
            bytes: 0,
        }
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory in use in bytes, counted again from all nodes and resources.
    pub(crate) fn recount(&self) -> usize {
        let chains =
            self.resources.iter().map(|(_, resource)| self.nodes.chain(resource.head).count());
        chains.sum::<usize>() * self.nodes.bytes_each()
            + self.resources.len() * RESOURCE_BYTES
            + self.replays.len() * REPLAY_BYTES
    }

    /// A resource, if it is indexed.
    pub(crate) fn resource(&self, key: ResourceKey) -> Option<&IndexedResource> {
        self.resources.get(usize_of(key))
    }

    /// The resource with this hash.
    pub(crate) fn by_hash(&self, hash: u64) -> Option<ResourceKey> {
        self.by_hash.get(&hash).copied()
    }

    /// Every resource.
    pub(crate) fn resources(
        &self,
    ) -> impl ExactSizeIterator<Item = (ResourceKey, &IndexedResource)> {
        self.resources.iter().map(|(key, resource)| (key_of(key), resource))
    }

    /// The state of a resource.
    pub(crate) fn state(&self, key: ResourceKey) -> Option<HeadState> {
        self.resource(key).map(|resource| resource.state)
    }

    /// True if a resource with its head at `position` waits for its turn in a lane.
    pub(crate) fn is_ready(
        &self,
        lane: LaneKey,
        resource: ResourceKey,
        position: Position,
    ) -> bool {
        self.state(resource) == Some(HeadState::Ready)
            && self.lane(resource) == Some(lane)
            && self.head(resource) == Some(position)
    }

    /// Changes the state of a resource.
    pub(crate) fn set_state(&mut self, key: ResourceKey, state: HeadState) {
        if let Some(resource) = self.resources.get_mut(usize_of(key)) {
            resource.state = state;
        }
    }

    /// A webhook.
    pub(crate) fn node(&self, key: NodeKey) -> &Node {
        self.nodes.get(key)
    }

    /// Memory that replays take, in bytes, as if each had its own resource and `others` bytes more.
    pub(crate) fn replay_bytes(&self, others: usize) -> usize {
        self.replays.len() * (self.nodes.bytes_each() + RESOURCE_BYTES + REPLAY_BYTES + others)
    }

    /// Entry of a replay in the stream of replays; `None` if the webhook is not a replay.
    pub(crate) fn replay(&self, key: NodeKey) -> Option<StreamId> {
        if self.node(key).is_replay { self.replays.entry(key) } else { None }
    }

    /// Adds a webhook in the order of its position. Returns `None` if that position is already
    /// indexed.
    pub(crate) fn add(
        &mut self,
        arrival: &IndexEntry,
        lane: LaneKey,
        window: &mut Window,
    ) -> Option<Added> {
        let IndexEntry { position, classified, replay } = *arrival;
        let before_in_lane = match replay {
            Some(_) => NONE,
            None => self.nodes.place_in_lane(window, position)?,
        };
        let found = self.by_hash.get(&classified.resource).copied();
        let new = Node::new(position, lane, &classified, replay.is_some());
        let node = self.nodes.allocate(&new, classified.fingerprint);
        self.bytes += self.nodes.bytes_each();
        match replay {
            Some(_) => window.replays += 1,
            None => self.nodes.link_lane(window, node, before_in_lane),
        }
        let is_new = found.is_none();
        let resource = found.unwrap_or_else(|| {
            self.bytes += RESOURCE_BYTES;
            key_of(self.resources.insert(IndexedResource {
                hash: classified.resource,
                head: node,
                tail: node,
                lead: NONE,
                state: HeadState::Ready,
            }))
        });
        if is_new {
            self.by_hash.insert(classified.resource, resource);
        }
        self.nodes.get_mut(node).resource = resource;
        let is_head = is_new || self.link_resource(resource, node);
        if let Some(entry) = replay {
            self.replays.insert(node, resource, entry);
            self.bytes += REPLAY_BYTES;
        }
        Some(Added { resource, is_new, is_head })
    }

    /// Lane of a resource's head.
    pub(crate) fn lane(&self, key: ResourceKey) -> Option<LaneKey> {
        self.head_node(key).map(|node| node.lane)
    }

    /// Position of a resource's head.
    pub(crate) fn head(&self, key: ResourceKey) -> Option<Position> {
        self.head_node(key).map(|node| node.position)
    }

    /// Node of a resource's head.
    pub(crate) fn head_node(&self, key: ResourceKey) -> Option<&Node> {
        self.resource(key).map(|resource| self.node(resource.head))
    }

    /// Node that is sent for a resource: its lead, or its head while the lead is undecided.
    pub(crate) fn lead(&self, key: ResourceKey) -> Option<NodeKey> {
        let resource = self.resource(key)?;
        Some(if resource.lead == NONE { resource.head } else { resource.lead })
    }

    /// Sorts the webhooks of a resource by position, after an attempt during which replays arrived.
    /// Returns true if the head changed.
    pub(crate) fn reorder(&mut self, key: ResourceKey) -> bool {
        // Such replays follow directly after the webhook that was sent.
        let sent = self.lead(key).unwrap_or(NONE);
        let is_after = |sent: &Node| {
            let next = self.nodes.find(sent.next);
            next.is_none_or(|next| next.position > sent.position)
        };
        if self.nodes.find(sent).is_none_or(is_after) {
            return false;
        }
        let mut chain = self.all_of(key);
        chain.sort_by_key(|node| self.node(*node).position);
        let befores = std::iter::once(NONE).chain(chain.iter().copied());
        let afters = chain.iter().copied().skip(1).chain(std::iter::once(NONE));
        for ((node, before), after) in chain.iter().zip(befores).zip(afters) {
            let node = self.nodes.get_mut(*node);
            (node.previous, node.next) = (before, after);
        }
        let resource = &mut self.resources[usize_of(key)];
        let before = resource.head;
        resource.head = chain[0];
        resource.tail = chain[chain.len() - 1];
        resource.lead = NONE;
        before != resource.head
    }

    /// Every webhook of a resource, oldest first.
    pub(crate) fn all_of(&self, key: ResourceKey) -> Vec<NodeKey> {
        let head = self.resource(key).map_or(NONE, |resource| resource.head);
        self.nodes.chain(head).map(|(node, _)| node).collect()
    }

    /// Forgets which later event was chosen to stand for a head that is not at work. Webhooks that follow
    /// that event, although they are older, go to their places. Returns true if the head changed.
    pub(crate) fn undo_choice(&mut self, key: ResourceKey) -> bool {
        let Some(IndexedResource { head, lead, .. }) = self.resource(key).copied() else {
            return false;
        };
        if lead == NONE || lead == head {
            return false;
        }
        let has_new_head = self.reorder(key);
        self.resources[usize_of(key)].lead = NONE;
        has_new_head
    }

    /// Takes a webhook out of its resource and its window. Returns true if the resource is gone. If
    /// it is a chosen lead of a head that is not at work, [`Self::undo_choice`] comes first.
    pub(crate) fn remove(&mut self, key: NodeKey, window: &mut Window) -> bool {
        let node = *self.node(key);
        if node.is_replay {
            window.replays -= 1;
            self.replays.remove(key, &node, self.nodes.find(node.previous));
            self.bytes -= REPLAY_BYTES;
        } else {
            self.nodes.unlink_lane(window, &node);
        }
        let resource = &mut self.resources[usize_of(node.resource)];
        if resource.head == key {
            resource.head = node.next;
        }
        if resource.tail == key {
            resource.tail = node.previous;
        }
        if resource.lead == key {
            resource.lead = NONE;
        }
        let is_gone = resource.head == NONE;
        if node.previous != NONE {
            self.nodes.get_mut(node.previous).next = node.next;
        }
        if node.next != NONE {
            self.nodes.get_mut(node.next).previous = node.previous;
        }
        if is_gone {
            let gone = self.resources.remove(usize_of(node.resource));
            self.by_hash.remove(&gone.hash);
            self.bytes -= RESOURCE_BYTES;
        }
        self.bytes -= self.nodes.bytes_each();
        self.nodes.free(key);
        is_gone
    }

    /// Puts a node into its resource's chain by position, but never before a head that is at work,
    /// nor among the webhooks for which that head stands. Returns true if the head changed.
    fn link_resource(&mut self, key: ResourceKey, node: NodeKey) -> bool {
        let position = self.node(node).position;
        let is_at_work = self.resources[usize_of(key)].state.is_at_work();
        let lead = self.nodes.find(self.resources[usize_of(key)].lead);
        let is_before_lead = lead.is_some_and(|lead| position < lead.position);
        // The event that stands for a head that waits is chosen again.
        let has_new_head = !is_at_work && is_before_lead && self.undo_choice(key);
        let resource = self.resources[usize_of(key)];
        let fixed = match resource.lead {
            NONE if is_at_work => resource.head,
            lead if is_at_work || lead != resource.head => lead,
            _ => NONE,
        };
        // A replay is older than most webhooks, so the search need not begin at the newest.
        let first = if fixed == NONE { resource.head } else { self.node(fixed).next };
        let is_first = first == NONE || self.node(first).position > position;
        // Replays usually come in order, so the search begins at the one that was added last.
        let fixed_at = self.nodes.find(fixed).map(|node| node.position);
        let last_replay = self.replays.last(key).filter(|last| {
            let at = self.node(*last).position;
            self.node(node).is_replay && at <= position && Some(at) > fixed_at
        });
        let start = if is_first { fixed } else { last_replay.unwrap_or(resource.tail) };
        let before = self.nodes.last_up_to(position, start, fixed);
        let after = if before == NONE { resource.head } else { self.node(before).next };
        let linked = self.nodes.get_mut(node);
        (linked.previous, linked.next) = (before, after);
        if before != NONE {
            self.nodes.get_mut(before).next = node;
        }
        if after != NONE {
            self.nodes.get_mut(after).previous = node;
        }
        let resource = &mut self.resources[usize_of(key)];
        if after == NONE {
            resource.tail = node;
        }
        if before == NONE {
            (resource.head, resource.lead) = (node, NONE);
        }
        has_new_head || before == NONE
    }
}

pub(crate) fn usize_of(key: u32) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}

pub(crate) fn key_of(index: usize) -> u32 {
    u32::try_from(index).expect("BUG: the index is bounded far below 2^32")
}

#[cfg(test)]
mod tests;
