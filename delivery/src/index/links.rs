//! Links between nodes: in stream order along a lane, and along a resource.

use spillway_webhook::position::Position;

use super::{Index, NONE, Node, NodeKey, ResourceKey, Window, usize_of};

impl Index {
    /// Node of the window after which `position` belongs; `None` if the position is in the window
    /// already.
    pub(super) fn place_in_lane(&self, window: &Window, position: Position) -> Option<NodeKey> {
        let mut before = window.last;
        while let Some(node) = self.nodes.get(usize_of(before))
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

    /// Puts a node into its resource's chain by position, but never before a head that is at work,
    /// nor among the webhooks for which that head stands. Returns true if the node is now the head.
    pub(super) fn link_resource(&mut self, key: ResourceKey, node: NodeKey) -> bool {
        let resource = self.resources[usize_of(key)];
        let position = self.node(node).position;
        let speaks_for_others = resource.lead != NONE && resource.lead != resource.head;
        let is_fixed = resource.state.is_at_work() || speaks_for_others;
        let fixed = match (is_fixed, resource.lead) {
            (false, _) => NONE,
            (true, NONE) => resource.head,
            (true, lead) => lead,
        };
        // A replay is older than most webhooks, so the search need not begin at the newest.
        let first = if fixed == NONE { resource.head } else { self.node(fixed).next };
        let is_first = first == NONE || self.node(first).position > position;
        let mut before = if is_first { fixed } else { resource.tail };
        while before != NONE && before != fixed && self.node(before).position > position {
            before = self.node(before).previous;
        }
        let after = if before == NONE { resource.head } else { self.node(before).next };
        let linked = &mut self.nodes[usize_of(node)];
        (linked.previous, linked.next) = (before, after);
        if before != NONE {
            self.nodes[usize_of(before)].next = node;
        }
        if after != NONE {
            self.nodes[usize_of(after)].previous = node;
        }
        let resource = &mut self.resources[usize_of(key)];
        if after == NONE {
            resource.tail = node;
        }
        if before == NONE {
            (resource.head, resource.lead) = (node, NONE);
        }
        before == NONE
    }

    pub(super) fn chain(&self, first: NodeKey) -> impl Iterator<Item = (NodeKey, &Node)> {
        let mut next = first;
        std::iter::from_fn(move || {
            let node = self.nodes.get(usize_of(next))?;
            let key = std::mem::replace(&mut next, node.next);
            Some((key, node))
        })
    }
}
