//! Nodes of the index, and the links between them along a lane and along a resource.

use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use super::{LaneKey, ResourceKey, usize_of};
use crate::classified::{Class, Classified, StateRole};
use crate::state::index::key_of;

/// Key of a webhook in the index.
pub(crate) type NodeKey = u32;
/// Key that means no node.
pub(crate) const NONE: u32 = u32::MAX;

/// Bytes of one node, in a list that grows by doubling.
const NODE_BYTES: usize = 48;
/// Bytes of a fingerprint, if fingerprints are kept.
const FINGERPRINT_BYTES: usize = 16;

/// A webhook that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    /// Position at which the webhook was accepted.
    pub position: Position,
    /// Resource of the webhook.
    pub resource: ResourceKey,
    /// Lane of the webhook.
    pub lane: LaneKey,
    pub(super) next: NodeKey,
    pub(super) previous: NodeKey,
    lane_next: NodeKey,
    lane_previous: NodeKey,
    /// Class of its turns.
    pub class: Class,
    /// Events with the same number may stand for each other; 0 if none may.
    pub coalesces: u32,
    /// True if an operator requested it again.
    pub is_replay: bool,
    /// Part in the comparison of updates.
    pub role: StateRole,
}

impl Node {
    /// Node without links.
    pub(super) fn new(
        position: Position,
        lane: LaneKey,
        classified: &Classified,
        is_replay: bool,
    ) -> Self {
        Self {
            position,
            resource: NONE,
            lane,
            next: NONE,
            previous: NONE,
            lane_next: NONE,
            lane_previous: NONE,
            class: classified.class,
            coalesces: if is_replay { 0 } else { classified.coalesces },
            is_replay,
            role: classified.role,
        }
    }
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

/// Nodes, in a list whose free places are used again.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    /// First free place; its `next` is the place of the next one.
    free: NodeKey,
    /// Of each place, if they are kept; 0 if it has none.
    fingerprints: Option<Vec<Fingerprint>>,
}

impl Nodes {
    /// Creates an empty list, with or without fingerprints.
    pub(super) fn new(keeps_fingerprints: bool) -> Self {
        let fingerprints = keeps_fingerprints.then(Vec::new);
        Self { nodes: Vec::new(), free: NONE, fingerprints }
    }

    /// Bytes of one node.
    pub(super) fn bytes_each(&self) -> usize {
        NODE_BYTES + if self.fingerprints.is_some() { FINGERPRINT_BYTES } else { 0 }
    }

    /// A node that is known to exist.
    pub(super) fn get(&self, key: NodeKey) -> &Node {
        &self.nodes[usize_of(key)]
    }

    /// A node that is known to exist, to change it.
    pub(super) fn get_mut(&mut self, key: NodeKey) -> &mut Node {
        &mut self.nodes[usize_of(key)]
    }

    /// True if another webhook of its resource follows.
    pub(crate) fn has_next(&self, key: NodeKey) -> bool {
        self.find(key).is_some_and(|node| node.next != NONE)
    }

    /// A node; `None` for [`NONE`].
    pub(super) fn find(&self, key: NodeKey) -> Option<&Node> {
        self.nodes.get(usize_of(key))
    }

    /// Moves a webhook, which is not the head of its resource, to directly after `after`, a later one of
    /// the resource. Returns true if it is the last one then.
    pub(super) fn move_after(&mut self, key: NodeKey, after: NodeKey) -> bool {
        let Node { previous, next, .. } = *self.get(key);
        self.get_mut(previous).next = next;
        self.get_mut(next).previous = previous;
        let following = self.get(after).next;
        let moved = self.get_mut(key);
        (moved.previous, moved.next) = (after, following);
        self.get_mut(after).next = key;
        if following == NONE {
            return true;
        }
        self.get_mut(following).previous = key;
        false
    }

    /// The last webhook of a resource up to `position`, searched from `start`; `fixed` if all after that
    /// are later.
    pub(super) fn last_up_to(&self, position: Position, start: NodeKey, fixed: NodeKey) -> NodeKey {
        let mut last = start;
        while last != NONE
            && let next = self.get(last).next
            && next != NONE
            && self.get(next).position <= position
        {
            last = next;
        }
        while last != NONE && last != fixed && self.get(last).position > position {
            last = self.get(last).previous;
        }
        last
    }

    /// Adds a node in a free place.
    pub(super) fn allocate(&mut self, node: &Node, fingerprint: Option<Fingerprint>) -> NodeKey {
        let key = match self.free {
            NONE => {
                self.nodes.push(*node);
                key_of(self.nodes.len() - 1)
            }
            key => {
                self.free = self.nodes[usize_of(key)].next;
                self.nodes[usize_of(key)] = *node;
                key
            }
        };
        if let Some(fingerprints) = &mut self.fingerprints {
            fingerprints.resize(self.nodes.len(), 0);
            fingerprints[usize_of(key)] = fingerprint.unwrap_or(0);
        }
        key
    }

    /// Frees the place of a node that has no links any more.
    pub(super) fn free(&mut self, key: NodeKey) {
        self.nodes[usize_of(key)].next = self.free;
        self.free = key;
    }

    /// Fingerprint of a webhook, to find duplicates.
    pub(crate) fn fingerprint(&self, key: NodeKey) -> Option<Fingerprint> {
        let kept = self.fingerprints.as_ref()?.get(usize_of(key));
        kept.copied().filter(|fingerprint| *fingerprint != 0)
    }

    /// Position of the oldest webhook of a window.
    pub(crate) fn front(&self, window: &Window) -> Option<Position> {
        self.find(window.first).map(|node| node.position)
    }

    /// Node of the newest webhook of a window.
    pub(crate) fn back(&self, window: &Window) -> Option<(NodeKey, &Node)> {
        Some((window.last, self.find(window.last)?))
    }

    /// The webhooks of a window, oldest first.
    pub(crate) fn window(&self, window: &Window) -> impl Iterator<Item = (NodeKey, &Node)> {
        let mut next = window.first;
        std::iter::from_fn(move || {
            let node = self.find(next)?;
            let key = std::mem::replace(&mut next, node.lane_next);
            Some((key, node))
        })
    }

    /// Node of the window after which `position` belongs; `None` if the position is in the window
    /// already.
    pub(super) fn place_in_lane(&self, window: &Window, position: Position) -> Option<NodeKey> {
        let mut before = window.last;
        while let Some(node) = self.find(before)
            && node.position >= position
        {
            if node.position == position {
                return None;
            }
            before = node.lane_previous;
        }
        Some(before)
    }

    pub(super) fn link_lane(&mut self, window: &mut Window, key: NodeKey, before: NodeKey) {
        let after = match before {
            NONE => std::mem::replace(&mut window.first, key),
            before => {
                let next = &mut self.nodes[usize_of(before)].lane_next;
                std::mem::replace(next, key)
            }
        };
        match after {
            NONE => window.last = key,
            after => self.nodes[usize_of(after)].lane_previous = key,
        }
        let node = &mut self.nodes[usize_of(key)];
        node.lane_previous = before;
        node.lane_next = after;
        window.count += 1;
    }

    pub(super) fn unlink_lane(&mut self, window: &mut Window, node: &Node) {
        match node.lane_previous {
            NONE => window.first = node.lane_next,
            previous => self.nodes[usize_of(previous)].lane_next = node.lane_next,
        }
        match node.lane_next {
            NONE => window.last = node.lane_previous,
            next => self.nodes[usize_of(next)].lane_previous = node.lane_previous,
        }
        window.count -= 1;
    }

    /// A webhook and those after it in its resource.
    pub(crate) fn chain(&self, first: NodeKey) -> impl Iterator<Item = (NodeKey, &Node)> {
        let mut next = first;
        std::iter::from_fn(move || {
            let node = self.find(next)?;
            let key = std::mem::replace(&mut next, node.next);
            Some((key, node))
        })
    }
}
