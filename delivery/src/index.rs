//! Index of webhooks, in order within their resource and within their lane's window.
//!
//! Two lists run through each node. The list of its resource has a head, and only the head is ever
//! sent. The list of its lane is the window, which is cut from the end and filled again from Redis.
//! Bounded in bytes.

mod leads;
mod links;

use std::collections::HashMap;

use slab::Slab;
use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::by_hash::ByHash;
use crate::resource::HeadState;
use crate::sorted::{Class, Sorted};

/// Key of a webhook in the index.
pub(crate) type NodeKey = u32;
/// Key of a resource in the index.
pub(crate) type ResourceKey = u32;
/// Key of a lane.
pub(crate) type LaneKey = u32;
/// Key that means no node.
pub(crate) const NONE: u32 = u32::MAX;

/// Bytes of one node, in a list that grows by doubling.
const NODE_BYTES: usize = 48;
/// Bytes of a fingerprint, if fingerprints are kept.
const FINGERPRINT_BYTES: usize = 16;
/// Bytes of a resource: its row, its entry in a table between half and nearly full, and a ready
/// entry.
const RESOURCE_BYTES: usize = 96;
/// Bytes of a replay's entry, in a table between half and nearly full.
const REPLAY_BYTES: usize = 48;
/// A webhook that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    /// Position at which the webhook was accepted.
    pub position: Position,
    /// Resource of the webhook.
    pub resource: ResourceKey,
    /// Lane of the webhook.
    pub lane: LaneKey,
    next: NodeKey,
    previous: NodeKey,
    lane_next: NodeKey,
    lane_previous: NodeKey,
    class: Class,
    coalesces: u8,
    is_replay: bool,
}

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

/// The indexed part of a lane, in stream order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Oldest webhook.
    pub first: NodeKey,
    last: NodeKey,
    /// Number of webhooks in the window.
    pub count: u32,
    /// Number of replays of the lane. They are not part of the window and are never cut.
    pub replays: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self { first: NONE, last: NONE, count: 0, replays: 0 }
    }
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
    pub sorted: Sorted,
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
    /// True if the webhook is now the head of the resource.
    pub is_head: bool,
}

/// All webhooks that are indexed.
#[derive(Debug)]
pub(crate) struct Index {
    nodes: Vec<Node>,
    free: NodeKey,
    fingerprints: Option<Vec<Fingerprint>>,
    resources: Slab<IndexedResource>,
    by_hash: ByHash<ResourceKey>,
    replays: HashMap<NodeKey, StreamId>,
    bytes: usize,
}

impl Index {
    /// Creates an empty index, with or without fingerprints.
    pub(crate) fn new(keeps_fingerprints: bool) -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            fingerprints: keeps_fingerprints.then(Vec::new),
            resources: Slab::new(),
            by_hash: ByHash::default(),
            replays: HashMap::new(),
            bytes: 0,
        }
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory in use in bytes, counted again from all nodes and resources.
    pub(crate) fn recount(&self) -> usize {
        let chains = self.resources.iter().map(|(_, resource)| self.chain(resource.head).count());
        chains.sum::<usize>() * self.node_bytes()
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
    pub(crate) fn resources(&self) -> impl Iterator<Item = (ResourceKey, &IndexedResource)> {
        self.resources.iter().map(|(key, resource)| (key_of(key), resource))
    }

    /// Number of indexed resources.
    pub(crate) fn len(&self) -> usize {
        self.resources.len()
    }

    /// The state of a resource.
    pub(crate) fn state(&self, key: ResourceKey) -> Option<HeadState> {
        self.resource(key).map(|resource| resource.state)
    }

    /// True if a resource waits for its turn in a lane, to send the webhook at `position`.
    pub(crate) fn is_ready(
        &self,
        lane: LaneKey,
        resource: ResourceKey,
        position: Position,
    ) -> bool {
        let lead = self.lead(resource).map(|lead| self.node(lead).position);
        self.state(resource) == Some(HeadState::Ready)
            && self.lane(resource) == Some(lane)
            && lead == Some(position)
    }

    /// Changes the state of a resource.
    pub(crate) fn set_state(&mut self, key: ResourceKey, state: HeadState) {
        if let Some(resource) = self.resources.get_mut(usize_of(key)) {
            resource.state = state;
        }
    }

    /// A webhook.
    pub(crate) fn node(&self, key: NodeKey) -> &Node {
        &self.nodes[usize_of(key)]
    }

    /// Memory that replays take, in bytes, as if each had its own resource.
    pub(crate) fn replay_bytes(&self) -> usize {
        self.replays.len() * (self.node_bytes() + RESOURCE_BYTES + REPLAY_BYTES)
    }

    /// Every replay.
    pub(crate) fn replays(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.replays.keys().map(|key| self.node(*key))
    }

    /// Entry of a replay in the stream of replays; `None` if the webhook is not a replay.
    pub(crate) fn replay(&self, key: NodeKey) -> Option<StreamId> {
        if self.node(key).is_replay { self.replays.get(&key).copied() } else { None }
    }

    /// Fingerprint of a webhook, to find duplicates.
    pub(crate) fn fingerprint(&self, key: NodeKey) -> Option<Fingerprint> {
        let kept = self.fingerprints.as_ref()?.get(usize_of(key));
        kept.copied().filter(|fingerprint| *fingerprint != 0)
    }

    /// Position of the oldest webhook of a window.
    pub(crate) fn front(&self, window: &Window) -> Option<Position> {
        self.nodes.get(usize_of(window.first)).map(|node| node.position)
    }

    /// Position of the newest webhook of a window.
    pub(crate) fn back(&self, window: &Window) -> Option<Position> {
        self.nodes.get(usize_of(window.last)).map(|node| node.position)
    }

    /// The webhooks of a window, oldest first.
    pub(crate) fn window(&self, window: &Window) -> impl Iterator<Item = (NodeKey, &Node)> {
        let mut next = window.first;
        std::iter::from_fn(move || {
            let node = self.nodes.get(usize_of(next))?;
            let key = std::mem::replace(&mut next, node.lane_next);
            Some((key, node))
        })
    }

    /// Adds a webhook in the order of its position. Returns `None` if that position is already
    /// indexed.
    pub(crate) fn add(
        &mut self,
        arrival: &IndexEntry,
        lane: LaneKey,
        window: &mut Window,
    ) -> Option<Added> {
        let IndexEntry { position, sorted, replay } = *arrival;
        let before_in_lane = match replay {
            Some(_) => NONE,
            None => self.place_in_lane(window, position)?,
        };
        let found = self.by_hash.get(&sorted.resource).copied();
        let node = self.allocate(&Node {
            position,
            resource: NONE,
            lane,
            next: NONE,
            previous: NONE,
            lane_next: NONE,
            lane_previous: NONE,
            class: sorted.class,
            coalesces: if replay.is_some() { 0 } else { sorted.coalesces },
            is_replay: replay.is_some(),
        });
        if let Some(fingerprints) = &mut self.fingerprints {
            fingerprints.resize(self.nodes.len(), 0);
            fingerprints[usize_of(node)] = sorted.fingerprint.unwrap_or(0);
        }
        if let Some(id) = replay {
            self.replays.insert(node, id);
            self.bytes += REPLAY_BYTES;
        }
        self.bytes += self.node_bytes();
        match replay {
            Some(_) => window.replays += 1,
            None => self.link_lane(window, node, before_in_lane),
        }
        let resource = match found {
            Some(resource) => resource,
            None => {
                let resource = key_of(self.resources.insert(IndexedResource {
                    hash: sorted.resource,
                    head: node,
                    tail: node,
                    lead: NONE,
                    state: HeadState::Ready,
                }));
                self.by_hash.insert(sorted.resource, resource);
                self.bytes += RESOURCE_BYTES;
                self.nodes[usize_of(node)].resource = resource;
                return Some(Added { resource, is_new: true, is_head: true });
            }
        };
        self.nodes[usize_of(node)].resource = resource;
        let is_head = self.link_resource(resource, node);
        Some(Added { resource, is_new: false, is_head })
    }

    /// Lane of a resource's head.
    pub(crate) fn lane(&self, key: ResourceKey) -> Option<LaneKey> {
        self.resource(key).map(|resource| self.node(resource.head).lane)
    }

    /// Class of a resource's head.
    pub(crate) fn class(&self, key: ResourceKey) -> Option<Class> {
        self.resource(key).map(|resource| self.node(resource.head).class)
    }

    /// Position of a resource's head.
    pub(crate) fn head(&self, key: ResourceKey) -> Option<Position> {
        self.resource(key).map(|resource| self.node(resource.head).position)
    }

    /// True if the head of a resource is a replay.
    pub(crate) fn is_replay(&self, key: ResourceKey) -> bool {
        self.resource(key).is_some_and(|resource| self.node(resource.head).is_replay)
    }

    /// Node that is sent for a resource: its lead, or its head while the lead is undecided.
    pub(crate) fn lead(&self, key: ResourceKey) -> Option<NodeKey> {
        let resource = self.resource(key)?;
        Some(if resource.lead == NONE { resource.head } else { resource.lead })
    }

    /// True if a webhook of a resource up to `position` is indexed. Replays do not count.
    pub(crate) fn has_up_to(&self, key: ResourceKey, position: Position) -> bool {
        let head = self.resource(key).map_or(NONE, |resource| resource.head);
        self.chain(head).any(|(_, node)| !node.is_replay && node.position <= position)
    }

    /// Sorts the webhooks of a resource by position, after an attempt during which replays arrived.
    /// Returns true if the head changed.
    pub(crate) fn reorder(&mut self, key: ResourceKey) -> bool {
        // Such replays follow directly after the webhook that was sent.
        let sent = self.lead(key).unwrap_or(NONE);
        let is_after = |sent: &Node| {
            let next = self.nodes.get(usize_of(sent.next));
            next.is_none_or(|next| next.position > sent.position)
        };
        if self.nodes.get(usize_of(sent)).is_none_or(is_after) {
            return false;
        }
        let mut chain = self.all_of(key);
        chain.sort_by_key(|node| self.node(*node).position);
        let befores = std::iter::once(NONE).chain(chain.iter().copied());
        let afters = chain.iter().copied().skip(1).chain(std::iter::once(NONE));
        for ((node, before), after) in chain.iter().zip(befores).zip(afters) {
            let node = &mut self.nodes[usize_of(*node)];
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
        self.chain(head).map(|(node, _)| node).collect()
    }

    /// Takes a webhook out of its resource and its window. Returns true if the resource is gone.
    pub(crate) fn remove(&mut self, key: NodeKey, window: &mut Window) -> bool {
        let node = *self.node(key);
        if node.is_replay {
            window.replays -= 1;
            self.replays.remove(&key);
            self.bytes -= REPLAY_BYTES;
        } else {
            self.unlink_lane(window, &node);
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
            self.nodes[usize_of(node.previous)].next = node.next;
        }
        if node.next != NONE {
            self.nodes[usize_of(node.next)].previous = node.previous;
        }
        if is_gone {
            let gone = self.resources.remove(usize_of(node.resource));
            self.by_hash.remove(&gone.hash);
            self.bytes -= RESOURCE_BYTES;
        }
        self.bytes -= self.node_bytes();
        self.nodes[usize_of(key)].next = self.free;
        self.free = key;
        is_gone
    }

    /// The newest webhook of a window, unless it must stay indexed. It must stay if its resource is
    /// at work, if it is a recorded lead, or if a recorded lead stands for it.
    pub(crate) fn loose_end(
        &self,
        window: &Window,
        holds: impl Fn(&IndexedResource, Position) -> bool,
    ) -> Option<NodeKey> {
        let node = self.nodes.get(usize_of(window.last))?;
        let resource = self.resource(node.resource)?;
        let is_fixed = resource.state.is_at_work() || holds(resource, node.position);
        (!is_fixed).then_some(window.last)
    }

    fn allocate(&mut self, node: &Node) -> NodeKey {
        if self.free == NONE {
            self.nodes.push(*node);
            return key_of(self.nodes.len() - 1);
        }
        let key = self.free;
        self.free = self.nodes[usize_of(key)].next;
        self.nodes[usize_of(key)] = *node;
        key
    }

    fn node_bytes(&self) -> usize {
        NODE_BYTES + if self.fingerprints.is_some() { FINGERPRINT_BYTES } else { 0 }
    }
}

pub(crate) fn usize_of(key: u32) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}

pub(crate) fn key_of(index: usize) -> u32 {
    u32::try_from(index).expect("BUG: the index is bounded far below 2^32")
}
