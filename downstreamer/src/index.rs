//! What waits, without its bytes: which webhook, in which pack, behind which other.
//!
//! Invariants: a resource's webhooks stand in accepted order; only its head is ever delivered, and
//! the next one becomes head when the head is *settled*, so a repeat after a crash is only ever of
//! a resource's newest delivered event. Bounded: [`Index::has_room`] ends intake.

use std::collections::{HashMap, VecDeque};

use spillway_webhook::StreamId;

/// What one waiting webhook takes here: its node, and its resource's row if it has its own.
const WEBHOOK_BYTES: usize = 48;
/// What a main pack takes, beside its webhooks: its row, its bits, its place in the order.
const MAIN_PACK_BYTES: usize = 200;
/// What a parked webhook takes, beside its own: a pack, what it has been through, its next trial.
const PARKED_PACK_BYTES: usize = 320;
const NONE: u32 = u32::MAX;

/// A pack in the index.
pub type PackKey = u32;
/// A resource in the index: a hash of what its events must stay in order with. Two resources of
/// one hash are delivered as if they were one, which is slower and safe.
pub type ResourceKey = u64;

/// Which stream a pack lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The main stream.
    Main,
    /// The parked stream: a pack of one.
    Parked,
}

/// A pack with webhooks that are not settled.
#[derive(Debug)]
pub struct OpenPack {
    /// Which stream it lies in.
    pub source: Source,
    /// Its id there.
    pub id: StreamId,
    /// The entry its webhooks were accepted in.
    pub origin: StreamId,
    /// Webhooks in it.
    pub count: u32,
    /// Of these, not settled.
    pub left: u32,
    /// A bit for each settled webhook.
    pub bits: Vec<u8>,
    /// Whether Redis holds the bits.
    pub bits_stored: bool,
}

/// A waiting webhook in the index.
pub type NodeKey = u32;

/// Where a waiting webhook lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its pack.
    pub pack: PackKey,
    /// Its place in the entry it was accepted in.
    pub index: u32,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    place: Place,
    next: u32,
}

/// What a resource is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its head waits for its turn.
    Ready,
    /// Its head is being delivered or settled.
    Busy,
    /// Its head waits for a retry.
    Delayed,
    /// Some of its webhooks are being parked.
    Parking,
}

#[derive(Debug, Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
    /// No webhook before this one lies in the main stream.
    main: u32,
    state: State,
}

/// Everything that waits.
#[derive(Debug)]
pub struct Index {
    packs: HashMap<PackKey, OpenPack>,
    next_pack: PackKey,
    /// Main packs in stream order.
    main: VecDeque<PackKey>,
    nodes: Vec<Node>,
    free: u32,
    bytes: usize,
    bytes_max: usize,
    resources: HashMap<ResourceKey, Queue>,
    /// Settled webhooks in main packs behind the cursor.
    settled_open: u64,
}

/// How far the cursor can go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Advance {
    /// The new cursor, if it moves.
    pub cursor: Option<StreamId>,
    /// Entries it passes.
    pub entries: u64,
    /// Webhooks it passes.
    pub webhooks: u64,
}

impl OpenPack {
    /// A pack in the main stream; `bits` are those that Redis holds.
    pub fn main(id: StreamId, count: u32, bits: Option<&Vec<u8>>) -> Self {
        let mut own = vec![0u8; (count as usize).div_ceil(8)];
        if let Some(bits) = bits {
            own.iter_mut().zip(bits).for_each(|(own, bits)| *own = *bits);
        }
        let mut pack = Self {
            source: Source::Main,
            id,
            origin: id,
            count,
            left: 0,
            bits: own,
            bits_stored: bits.is_some(),
        };
        pack.left = (0..count).filter(|index| !pack.is_settled(*index)).count() as u32;
        pack
    }

    /// A pack in the parked stream, of one webhook accepted in `origin`.
    pub fn parked(id: StreamId, origin: StreamId) -> Self {
        Self {
            source: Source::Parked,
            id,
            origin,
            count: 1,
            left: 1,
            bits: Vec::new(),
            bits_stored: false,
        }
    }

    /// Whether the webhook at `index` is settled.
    pub fn is_settled(&self, index: u32) -> bool {
        self.bits.get(index as usize / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }

    /// The place in the pack of the webhook that was accepted at `index`.
    pub fn record_index(&self, index: u32) -> u32 {
        match self.source {
            Source::Main => index,
            Source::Parked => 0,
        }
    }
}

impl Index {
    /// An index of about `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self {
            packs: HashMap::new(),
            next_pack: 0,
            main: VecDeque::new(),
            nodes: Vec::new(),
            free: NONE,
            bytes: 0,
            bytes_max: bytes,
            resources: HashMap::new(),
            settled_open: 0,
        }
    }

    /// Whether another pack may be added.
    pub fn has_room(&self) -> bool {
        self.bytes < self.bytes_max
    }

    /// Settled webhooks in packs behind the cursor.
    pub fn settled_open(&self) -> u64 {
        self.settled_open
    }

    /// Adds a pack; main packs in stream order.
    pub fn add_pack(&mut self, pack: OpenPack) -> PackKey {
        let key = self.next_pack;
        self.next_pack = self.next_pack.wrapping_add(1);
        if pack.source == Source::Main {
            self.main.push_back(key);
            self.settled_open += u64::from(pack.count - pack.left);
        }
        self.bytes += pack_bytes(pack.source);
        self.packs.insert(key, pack);
        key
    }

    /// An open pack.
    pub fn pack(&self, key: PackKey) -> Option<&OpenPack> {
        self.packs.get(&key)
    }

    /// Adds a webhook behind those of its resource that were accepted before it; says whether the
    /// resource has become ready.
    pub fn add(&mut self, resource: ResourceKey, place: Place) -> bool {
        let node = self.allocate(Node { place, next: NONE });
        self.bytes += WEBHOOK_BYTES;
        let Some(queue) = self.resources.get(&resource).copied() else {
            let queue = Queue { head: node, tail: node, main: node, state: State::Ready };
            self.resources.insert(resource, queue);
            return true;
        };
        if self.position(queue.tail) <= self.position(node) {
            self.nodes[queue.tail as usize].next = node;
            let queue = self.queue_mut(resource);
            queue.tail = node;
            if queue.main == NONE {
                queue.main = node;
            }
        } else {
            self.insert_in_order(resource, queue, node);
        }
        false
    }

    /// The first webhook of a resource.
    pub fn head(&self, resource: ResourceKey) -> Option<Place> {
        let queue = self.resources.get(&resource)?;
        Some(self.nodes[queue.head as usize].place)
    }

    /// The webhooks of a resource that lie in the main stream, in order; some that are parked may
    /// be among them.
    pub fn in_main(&self, resource: ResourceKey) -> impl Iterator<Item = (NodeKey, Place)> {
        self.from(self.resources.get(&resource).map_or(NONE, |queue| queue.main))
    }

    /// What a resource is doing; `None` if nothing of it waits.
    pub fn state(&self, resource: ResourceKey) -> Option<State> {
        self.resources.get(&resource).map(|queue| queue.state)
    }

    /// Notes what a resource is doing.
    pub fn set_state(&mut self, resource: ResourceKey, state: State) {
        if let Some(queue) = self.resources.get_mut(&resource) {
            queue.state = state;
        }
    }

    /// The head of `resource` is settled: its next webhook becomes the head, and the resource is
    /// ready if there is one, which is said.
    pub fn pop(&mut self, resource: ResourceKey) -> bool {
        let Some(queue) = self.resources.get_mut(&resource) else { return false };
        let head = queue.head;
        let next = self.nodes[head as usize].next;
        if next == NONE {
            self.resources.remove(&resource);
        } else {
            if queue.main == head {
                queue.main = next;
            }
            queue.head = next;
            queue.state = State::Ready;
        }
        self.nodes[head as usize].next = self.free;
        self.free = head;
        self.bytes -= WEBHOOK_BYTES;
        next != NONE
    }

    /// Notes that the webhook at `place` is settled. A parked pack is gone with it; a main one
    /// stays until the cursor passes it.
    pub fn mark_settled(&mut self, place: Place) {
        let Some(pack) = self.packs.get_mut(&place.pack) else { return };
        if pack.source == Source::Main {
            pack.bits[place.index as usize / 8] |= 1 << (place.index % 8);
            self.settled_open += 1;
        }
        pack.left -= 1;
        if pack.source == Source::Parked {
            self.packs.remove(&place.pack);
            self.bytes -= PARKED_PACK_BYTES;
        }
    }

    /// The parked pack `key` has its id now.
    pub fn parked_as(&mut self, key: PackKey, id: StreamId) {
        if let Some(pack) = self.packs.get_mut(&key) {
            pack.id = id;
        }
    }

    /// Notes that Redis holds the bits of a pack.
    pub fn bits_stored(&mut self, key: PackKey) {
        if let Some(pack) = self.packs.get_mut(&key) {
            pack.bits_stored = true;
        }
    }

    /// Moves the cursor over every main pack that is settled whole; hands these out.
    pub fn advance(&mut self) -> (Advance, Vec<(PackKey, OpenPack)>) {
        let mut advance = Advance::default();
        let mut passed = Vec::new();
        while let Some(first) = self.main.front() {
            if self.packs.get(first).is_some_and(|pack| pack.left > 0) {
                break;
            }
            let key = self.main.pop_front().expect("BUG: there is a front");
            let Some(pack) = self.packs.remove(&key) else { continue };
            self.bytes -= MAIN_PACK_BYTES;
            advance.cursor = Some(pack.id);
            advance.entries += 1;
            advance.webhooks += u64::from(pack.count);
            self.settled_open -= u64::from(pack.count);
            passed.push((key, pack));
        }
        (advance, passed)
    }

    /// The webhook `node` of `resource` lies in the parked pack `to` now; says where that is.
    pub fn moved(&mut self, resource: ResourceKey, node: NodeKey, to: PackKey) -> Place {
        let moved = &mut self.nodes[node as usize];
        moved.place.pack = to;
        let (place, next) = (moved.place, moved.next);
        let queue = self.queue_mut(resource);
        if queue.main == node {
            queue.main = next;
        }
        place
    }

    fn from(&self, first: NodeKey) -> impl Iterator<Item = (NodeKey, Place)> {
        let mut next = first;
        std::iter::from_fn(move || {
            let (key, node) = (next, self.nodes.get(next as usize)?);
            next = node.next;
            Some((key, node.place))
        })
    }

    fn allocate(&mut self, node: Node) -> u32 {
        if self.free == NONE {
            self.nodes.push(node);
            return u32::try_from(self.nodes.len() - 1).expect("BUG: the index is bounded");
        }
        let slot = self.free;
        self.free = self.nodes[slot as usize].next;
        self.nodes[slot as usize] = node;
        slot
    }

    fn position(&self, node: u32) -> (StreamId, u32) {
        let place = self.nodes[node as usize].place;
        let origin = self.packs.get(&place.pack).map_or(StreamId::ZERO, |pack| pack.origin);
        (origin, place.index)
    }

    /// A replayed webhook is older than what waits: it goes where it was accepted, but never
    /// before a head that is under way.
    fn insert_in_order(&mut self, resource: ResourceKey, queue: Queue, node: u32) {
        let position = self.position(node);
        let is_head_fixed = matches!(queue.state, State::Busy | State::Parking);
        if !is_head_fixed && position < self.position(queue.head) {
            self.nodes[node as usize].next = queue.head;
            self.queue_mut(resource).head = node;
            return;
        }
        let mut before = queue.head;
        while self.nodes[before as usize].next != NONE
            && self.position(self.nodes[before as usize].next) <= position
        {
            before = self.nodes[before as usize].next;
        }
        let after = self.nodes[before as usize].next;
        self.nodes[node as usize].next = after;
        self.nodes[before as usize].next = node;
        if after == NONE {
            self.queue_mut(resource).tail = node;
        }
    }

    fn queue_mut(&mut self, resource: ResourceKey) -> &mut Queue {
        self.resources.get_mut(&resource).expect("BUG: the resource was just found")
    }
}

fn pack_bytes(source: Source) -> usize {
    match source {
        Source::Main => MAIN_PACK_BYTES,
        Source::Parked => PARKED_PACK_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seq: u64) -> StreamId {
        StreamId { ms: 1, seq }
    }

    fn indices(index: &Index, resource: ResourceKey) -> Vec<(u64, u32)> {
        index
            .from(index.resources[&resource].head)
            .map(|(_, place)| (index.pack(place.pack).unwrap().origin.seq, place.index))
            .collect()
    }

    #[test]
    fn a_resource_is_in_accepted_order_and_ready_one_at_a_time() {
        let mut index = Index::new(1 << 20);
        let pack = index.add_pack(OpenPack::main(id(1), 3, None));
        assert!(index.add(7, Place { pack, index: 0 }));
        assert!(!index.add(7, Place { pack, index: 2 }));
        assert!(index.add(8, Place { pack, index: 1 }));
        assert_eq!(indices(&index, 7), [(1, 0), (1, 2)]);
        index.set_state(7, State::Busy);
        assert!(index.pop(7));
        assert_eq!(index.state(7), Some(State::Ready));
        assert!(!index.pop(7));
        assert_eq!(index.state(7), None);
        assert_eq!(index.bytes, MAIN_PACK_BYTES + WEBHOOK_BYTES);
    }

    #[test]
    fn a_replayed_webhook_goes_where_it_was_accepted() {
        let mut index = Index::new(1 << 20);
        let main = index.add_pack(OpenPack::main(id(5), 2, None));
        index.add(7, Place { pack: main, index: 0 });
        index.add(7, Place { pack: main, index: 1 });
        let old = index.add_pack(OpenPack::parked(id(90), id(3)));
        assert!(!index.add(7, Place { pack: old, index: 4 }));
        assert_eq!(indices(&index, 7), [(3, 4), (5, 0), (5, 1)]);
        index.set_state(7, State::Busy);
        let older = index.add_pack(OpenPack::parked(id(91), id(2)));
        index.add(7, Place { pack: older, index: 0 });
        assert_eq!(indices(&index, 7), [(3, 4), (2, 0), (5, 0), (5, 1)]);
    }

    #[test]
    fn the_cursor_passes_whole_packs_in_order() {
        let mut index = Index::new(1 << 20);
        let first = index.add_pack(OpenPack::main(id(1), 2, None));
        let second = index.add_pack(OpenPack::main(id(2), 1, None));
        index.mark_settled(Place { pack: second, index: 0 });
        assert_eq!(index.advance().0, Advance::default());
        assert_eq!(index.settled_open(), 1);
        index.mark_settled(Place { pack: first, index: 1 });
        index.mark_settled(Place { pack: first, index: 0 });
        let (advance, passed) = index.advance();
        assert_eq!(advance, Advance { cursor: Some(id(2)), entries: 2, webhooks: 3 });
        assert_eq!(passed.len(), 2);
        assert_eq!(index.settled_open(), 0);
    }

    #[test]
    fn bits_that_redis_holds_are_settled_already() {
        let pack = OpenPack::main(id(1), 10, Some(&vec![0b0000_0101, 0b10]));
        assert_eq!(pack.left, 7);
        assert!(pack.is_settled(0) && pack.is_settled(2) && pack.is_settled(9));
        assert!(!pack.is_settled(1));
    }

    #[test]
    fn a_parked_webhook_keeps_its_place() {
        let mut index = Index::new(1 << 20);
        let main = index.add_pack(OpenPack::main(id(5), 2, None));
        index.add(7, Place { pack: main, index: 0 });
        index.add(7, Place { pack: main, index: 1 });
        let parked = index.add_pack(OpenPack::parked(id(90), id(5)));
        let first = index.in_main(7).next().unwrap().0;
        assert_eq!(index.moved(7, first, parked), Place { pack: parked, index: 0 });
        assert_eq!(indices(&index, 7), [(5, 0), (5, 1)]);
        assert_eq!(index.head(7), Some(Place { pack: parked, index: 0 }));
        assert_eq!(index.in_main(7).count(), 1);
    }

    #[test]
    fn freed_nodes_are_used_again() {
        let mut index = Index::new(1 << 20);
        for round in 0..100 {
            let pack = index.add_pack(OpenPack::main(id(round), 1, None));
            index.add(round, Place { pack, index: 0 });
            index.mark_settled(Place { pack, index: 0 });
            index.pop(round);
            index.advance();
        }
        assert_eq!(index.nodes.len(), 1);
        assert!(index.packs.is_empty() && index.main.is_empty());
        assert_eq!(index.bytes, 0);
    }
}
