//! Resources of a lane that wait for their turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use spillway_webhook::position::Position;

use crate::classified::Class;
use crate::state::index::ResourceKey;

/// Resources ordered by the position of their head, oldest first. One whose newest event is recorded
/// to stand for the others keeps its place, and is sent before more of them are recorded.
type OldestFirst = BinaryHeap<Reverse<(Position, ResourceKey)>>;

/// Heaps by class, and then by whether the head was tried before.
type Heaps = [[OldestFirst; 2]; 2];

/// Resources of a lane whose heads wait for their turn, in stream order.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    heaps: Heaps,
    /// Resources whose head is a replay.
    replays: Option<Box<Heaps>>,
}

/// Kind of a head that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadyKind {
    /// True if the head was tried before.
    pub was_tried: bool,
    /// True if the head is a replay.
    pub is_replay: bool,
}

impl Ready {
    /// Adds a resource.
    pub(crate) fn push(
        &mut self,
        class: Class,
        kind: ReadyKind,
        at: Position,
        resource: ResourceKey,
    ) {
        let heaps = if kind.is_replay {
            &mut **self.replays.get_or_insert_default()
        } else {
            &mut self.heaps
        };
        let heap = &mut heaps[class.index()][usize::from(kind.was_tried)];
        // In most lanes only one resource waits.
        if heap.capacity() == 0 {
            heap.reserve_exact(1);
        }
        heap.push(Reverse((at, resource)));
    }

    /// Returns the oldest resource of a class for which `is_ready` holds. Resources that are no
    /// longer ready are dropped. With `fresh_first`, heads that were never tried go first (true) or
    /// heads that were tried go first (false). Without it, the oldest goes first.
    pub(crate) fn peek(
        &mut self,
        class: Class,
        fresh_first: Option<bool>,
        is_ready: impl Fn(Position, ResourceKey) -> bool,
    ) -> Option<(Position, ReadyKind)> {
        let accepted = tops(&mut self.heaps, class, &is_ready);
        let replays = self.replays.as_mut();
        let replays = replays.map_or([None, None], |heaps| tops(heaps, class, &is_ready));
        let kind = |was_tried, is_replay| ReadyKind { was_tried, is_replay };
        let oldest = |was_tried: bool| match (
            accepted[usize::from(was_tried)],
            replays[usize::from(was_tried)],
        ) {
            (Some(accepted), Some(replay)) if replay < accepted => {
                Some((replay, kind(was_tried, true)))
            }
            (Some(accepted), _) => Some((accepted, kind(was_tried, false))),
            (None, replay) => replay.map(|replay| (replay, kind(was_tried, true))),
        };
        let fresh = oldest(false);
        let tried = oldest(true);
        match fresh_first {
            Some(true) => fresh.or(tried),
            Some(false) => tried.or(fresh),
            None => [fresh, tried].into_iter().flatten().min_by_key(|(position, _)| *position),
        }
    }

    /// Returns the oldest resource of a class that is not a replay, has the given `was_tried`, and
    /// for which `is_ready` holds.
    pub(crate) fn peek_accepted(
        &mut self,
        class: Class,
        was_tried: bool,
        is_ready: impl Fn(Position, ResourceKey) -> bool,
    ) -> Option<ResourceKey> {
        oldest(&mut self.heaps[class.index()][usize::from(was_tried)], &is_ready)
            .map(|(_, resource)| resource)
    }

    /// Keeps only the resources for which `is_ready` holds.
    pub(crate) fn retain(&mut self, is_ready: impl Fn(Position, ResourceKey) -> bool) {
        let replays = self.replays.iter_mut().flat_map(|heaps| heaps.iter_mut().flatten());
        for heap in self.heaps.iter_mut().flatten().chain(replays) {
            heap.retain(|Reverse((position, resource))| is_ready(*position, *resource));
        }
    }

    /// True if a resource with its head at `position` is listed. Slow: for tests.
    pub(crate) fn contains(&self, position: Position, resource: ResourceKey) -> bool {
        let mut listed = self.all().flatten().flatten();
        listed.any(|Reverse(one)| *one == (position, resource))
    }

    /// True if `is_ready` holds for a resource of a class. Slow: for tests.
    pub(crate) fn has(
        &self,
        class: Class,
        is_ready: impl Fn(Position, ResourceKey) -> bool,
    ) -> bool {
        let all = self.replays.iter().map(|heaps| &**heaps).chain([&self.heaps]);
        let mut listed = all.flat_map(|heaps| &heaps[class.index()]).flatten();
        listed.any(|Reverse((position, resource))| is_ready(*position, *resource))
    }

    /// True if no resource waits for its turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().flatten().all(BinaryHeap::is_empty)
    }

    fn all(&self) -> impl Iterator<Item = &[OldestFirst; 2]> {
        self.heaps.iter().chain(self.replays.iter().flat_map(|heaps| heaps.iter()))
    }

    /// Takes the oldest resource of a kind, as returned by [`Ready::peek`].
    pub(crate) fn pop(&mut self, class: Class, kind: ReadyKind) -> Option<ResourceKey> {
        let heaps = if kind.is_replay { self.replays.as_deref_mut()? } else { &mut self.heaps };
        let Reverse((_, resource)) = heaps[class.index()][usize::from(kind.was_tried)].pop()?;
        Some(resource)
    }
}

/// Positions of the oldest ready resources of a class: one that was never tried and one that was.
fn tops(
    heaps: &mut Heaps,
    class: Class,
    is_ready: &impl Fn(Position, ResourceKey) -> bool,
) -> [Option<Position>; 2] {
    let [fresh, tried] = &mut heaps[class.index()];
    [oldest(fresh, is_ready), oldest(tried, is_ready)].map(|top| top.map(|(position, _)| position))
}

/// Returns the oldest ready resource. Drops those before it, which are not ready.
fn oldest(
    heap: &mut OldestFirst,
    is_ready: &impl Fn(Position, ResourceKey) -> bool,
) -> Option<(Position, ResourceKey)> {
    while let Some(Reverse((position, resource))) = heap.peek().copied() {
        if is_ready(position, resource) {
            return Some((position, resource));
        }
        heap.pop();
    }
    None
}
