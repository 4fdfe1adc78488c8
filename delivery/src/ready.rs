//! Resources of a lane that wait for their turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use spillway_webhook::position::Position;

use crate::index::ResourceKey;
use crate::sorted::Class;

/// Resources by the position of what is sent of them, oldest first.
type OldestFirst = BinaryHeap<Reverse<(Position, ResourceKey)>>;

/// Resources of a lane whose heads wait for their turn, in stream order.
#[derive(Debug, Default)]
pub struct Ready {
    /// By class, and by whether the head was tried before.
    heaps: [[OldestFirst; 2]; 2],
}

impl Ready {
    /// Adds a resource.
    pub fn push(&mut self, class: Class, was_tried: bool, at: Position, resource: ResourceKey) {
        let heap = &mut self.heaps[class.index()][usize::from(was_tried)];
        // Of most lanes, one waits.
        if heap.capacity() == 0 {
            heap.reserve_exact(1);
        }
        heap.push(Reverse((at, resource)));
    }

    /// The oldest resource of a class that `is_ready`; those that are not any more are dropped.
    /// `fresh_first`: whether one that was never tried goes first, or one that was.
    pub fn peek(
        &mut self,
        class: Class,
        fresh_first: Option<bool>,
        is_ready: impl Fn(Position, ResourceKey) -> bool,
    ) -> Option<(Position, bool)> {
        let mut tops = [None, None];
        for (top, heap) in tops.iter_mut().zip(&mut self.heaps[class.index()]) {
            while let Some(Reverse((position, resource))) = heap.peek().copied() {
                if is_ready(position, resource) {
                    *top = Some(position);
                    break;
                }
                heap.pop();
            }
        }
        match (tops[0], tops[1], fresh_first) {
            (None, None, _) => None,
            (Some(fresh), None, _) => Some((fresh, false)),
            (None, Some(tried), _) => Some((tried, true)),
            (Some(fresh), Some(_), Some(true)) => Some((fresh, false)),
            (Some(_), Some(tried), Some(false)) => Some((tried, true)),
            (Some(fresh), Some(tried), None) => Some((fresh.min(tried), tried < fresh)),
        }
    }

    /// Keeps those that are ready.
    pub fn retain(&mut self, is_ready: impl Fn(Position, ResourceKey) -> bool) {
        for heap in self.heaps.iter_mut().flatten() {
            heap.retain(|Reverse((position, resource))| is_ready(*position, *resource));
        }
    }

    /// True if a resource is listed to send the webhook at `position`. Slow: for tests.
    pub fn contains(&self, position: Position, resource: ResourceKey) -> bool {
        let listed = self.heaps.iter().flatten().flatten();
        listed.into_iter().any(|Reverse(one)| *one == (position, resource))
    }

    /// True if a resource of a class `is_ready`. Slow: for tests.
    pub fn has(&self, class: Class, is_ready: impl Fn(Position, ResourceKey) -> bool) -> bool {
        let mut listed = self.heaps[class.index()].iter().flatten();
        listed.any(|Reverse((position, resource))| is_ready(*position, *resource))
    }

    /// Whether nothing waits for its turn.
    pub fn is_empty(&self) -> bool {
        self.heaps.iter().flatten().all(BinaryHeap::is_empty)
    }

    /// Takes what [`Ready::peek`] showed.
    pub fn pop(&mut self, class: Class, was_tried: bool) -> Option<ResourceKey> {
        let Reverse((_, resource)) = self.heaps[class.index()][usize::from(was_tried)].pop()?;
        Some(resource)
    }
}
