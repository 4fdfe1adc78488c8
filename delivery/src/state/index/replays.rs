//! Replays in the index: their entries, and the newest of each resource.

use std::collections::HashMap;

use spillway_webhook::StreamId;

use super::{Node, NodeKey, ResourceKey};

/// Replays by node.
#[derive(Debug, Default)]
pub(super) struct Replays {
    entries: HashMap<NodeKey, StreamId>,
    /// The replay of each resource that was added last. Replays of a resource usually come in order, and
    /// before any number of other webhooks.
    last: HashMap<ResourceKey, NodeKey>,
}

impl Replays {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entry in the stream of replays.
    pub(super) fn entry(&self, node: NodeKey) -> Option<StreamId> {
        self.entries.get(&node).copied()
    }

    /// The replay of a resource that was added last, unless it is gone.
    pub(super) fn last(&self, resource: ResourceKey) -> Option<NodeKey> {
        self.last.get(&resource).copied()
    }

    pub(super) fn insert(&mut self, node: NodeKey, resource: ResourceKey, entry: StreamId) {
        self.entries.insert(node, entry);
        self.last.insert(resource, node);
    }

    /// Removes a replay. `before` is the webhook before it in its resource.
    pub(super) fn remove(&mut self, key: NodeKey, node: &Node, before: Option<&Node>) {
        self.entries.remove(&key);
        if self.last.get(&node.resource) != Some(&key) {
            return;
        }
        if before.is_some_and(|before| before.is_replay) {
            self.last.insert(node.resource, node.previous);
        } else {
            self.last.remove(&node.resource);
        }
    }
}
