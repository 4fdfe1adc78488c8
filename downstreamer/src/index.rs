//! What waits, without its bytes: which webhook, in which pack, behind which other.
//!
//! Invariants: a resource's webhooks stand in accepted order; only its head is ever delivered, and
//! the next one becomes head when the head is *settled*, so a repeat after a crash is only ever of
//! a resource's newest delivered event. Where events are coalesced, the head speaks for a run of them
//! up to its *lead*, which is what is delivered, and all of them are settled with it. Bounded:
//! [`Index::has_room`] ends intake.

mod pack;
mod whole;

use std::collections::{HashMap, HashSet, VecDeque};

use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;

pub use self::pack::{OpenPack, Source};
use crate::schedule::barriers::Position;
use crate::schedule::{Class, ShopKey};

/// What one waiting webhook takes here, in a list that grows by doubling.
const WEBHOOK_BYTES: usize = 24;
/// The same of its fingerprint, where those are kept.
const FINGERPRINT_BYTES: usize = 24;
/// What a resource takes, in a table that is between half and nearly full, and in the schedule.
const RESOURCE_BYTES: usize = 88;
const NONE: u32 = u32::MAX;
/// Events that one stands for, at most: bounds the time a choice takes.
const RUN_MAX: u32 = 10_000;

/// A pack in the index.
pub type PackKey = u32;
/// A resource in the index: a hash of what its events must stay in order with. Two resources of
/// one hash are delivered as if they were one, which is slower and safe.
pub type ResourceKey = u64;

/// A waiting webhook in the index.
pub type NodeKey = u32;

/// Where a waiting webhook lies. Sorts as it was read: in stream order within the main stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Its pack.
    pub pack: PackKey,
    /// Its place in the entry it was accepted in.
    pub index: u32,
}

/// A webhook that comes to wait.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Where it lies.
    pub place: Place,
    /// Which round it takes part in.
    pub class: Class,
    /// Events of one resource with the same number may stand for each other; 0: for none.
    pub coalesces: u8,
    /// What tells duplicates; kept only by an index that was told to.
    pub fingerprint: Option<Fingerprint>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    place: Place,
    next: u32,
    class: Class,
    coalesces: u8,
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
    /// Its head waits for others of its shop.
    Held,
    /// An operator paused its head.
    Paused,
}

#[derive(Debug, Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
    /// No webhook before this one lies in the main stream.
    main: u32,
    /// The last webhook that the head speaks for; [`NONE`] while that is undecided.
    lead: u32,
    shop: ShopKey,
    state: State,
}

/// Everything that waits.
#[derive(Debug)]
pub struct Index {
    packs: HashMap<PackKey, OpenPack>,
    next_pack: PackKey,
    /// Main packs in stream order.
    main: VecDeque<PackKey>,
    /// So many of the first ones hold nothing but what is paused.
    paused_front: usize,
    nodes: Vec<Node>,
    /// One for each node, if they are kept.
    fingerprints: Option<Vec<Fingerprint>>,
    free: u32,
    bytes: usize,
    bytes_max: usize,
    resources: HashMap<ResourceKey, Queue>,
    /// Settled webhooks in main packs behind the cursor.
    settled_open: u64,
    /// Settled webhooks, in all.
    settled: u64,
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

/// Whether an event may stand for those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// It may.
    Yes,
    /// It may not, but one behind it may, and then stands for this one too.
    Skip,
    /// Neither this one nor any behind it.
    End,
}

impl Index {
    /// An index of about `bytes`; `keeps_fingerprints`: whether [`Index::fingerprint`] is needed.
    pub fn new(bytes: usize, keeps_fingerprints: bool) -> Self {
        Self {
            packs: HashMap::new(),
            next_pack: 0,
            main: VecDeque::new(),
            paused_front: 0,
            nodes: Vec::new(),
            fingerprints: keeps_fingerprints.then(Vec::new),
            free: NONE,
            bytes: 0,
            bytes_max: bytes,
            resources: HashMap::new(),
            settled_open: 0,
            settled: 0,
        }
    }

    /// Whether another pack may be added.
    pub fn has_room(&self) -> bool {
        self.bytes < self.bytes_max
    }

    /// Whether what is paused may be added, too.
    pub fn has_ample_room(&self) -> bool {
        self.bytes < self.bytes_max / 4 * 3
    }

    /// Settled webhooks in packs behind the cursor.
    pub fn settled_open(&self) -> u64 {
        self.settled_open
    }

    /// Adds a pack; main packs in stream order.
    pub fn add_pack(&mut self, mut pack: OpenPack) -> PackKey {
        pack.moved_at = self.settled;
        let key = self.next_pack;
        self.next_pack = self.next_pack.wrapping_add(1);
        if pack.source == Source::Main {
            self.main.push_back(key);
            self.settled_open += u64::from(pack.count - pack.left);
        }
        self.bytes += pack.source.pack_bytes();
        self.packs.insert(key, pack);
        key
    }

    /// Webhooks that were settled, in all.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// An open pack.
    pub fn pack(&self, key: PackKey) -> Option<&OpenPack> {
        self.packs.get(&key)
    }

    /// Adds a webhook behind those of its resource that were accepted before it; says whether the
    /// resource is new, and so to be made ready.
    pub fn add(&mut self, resource: ResourceKey, shop: ShopKey, webhook: &Waiting) -> bool {
        let node = self.allocate(webhook);
        self.bytes += self.webhook_bytes();
        let Some(queue) = self.resources.get(&resource).copied() else {
            self.bytes += RESOURCE_BYTES;
            let queue =
                Queue { head: node, tail: node, main: node, lead: NONE, shop, state: State::Ready };
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

    /// Where the first webhook of a resource was accepted.
    pub fn head_position(&self, resource: ResourceKey) -> Option<Position> {
        self.resources.get(&resource).map(|queue| self.position(queue.head))
    }

    /// The shop of a resource, and the class of its head.
    pub fn turn(&self, resource: ResourceKey) -> Option<(ShopKey, Class)> {
        let queue = self.resources.get(&resource)?;
        Some((queue.shop, self.nodes[queue.head as usize].class))
    }

    /// Whether a newer event of the resource may stand for its head.
    pub fn coalesces(&self, resource: ResourceKey) -> bool {
        let queue = self.resources.get(&resource);
        queue.is_some_and(|queue| self.nodes[queue.head as usize].coalesces != 0)
    }

    /// Decides what is delivered of a resource, unless that is decided: the newest of the events
    /// behind its head that may stand for each other, if `may_lead` agrees. Says where it lies and
    /// how many it stands for.
    pub fn choose_lead(
        &mut self,
        resource: ResourceKey,
        may_lead: impl Fn(Position, Option<Fingerprint>) -> Lead,
    ) -> Option<(Place, u32)> {
        let queue = *self.resources.get(&resource)?;
        if queue.lead != NONE {
            let older = self.from(queue.head).take_while(|(node, _)| *node != queue.lead).count();
            let place = self.nodes[queue.lead as usize].place;
            return Some((place, u32::try_from(older).unwrap_or(u32::MAX)));
        }
        let (mut lead, mut older) = (queue.head, 0);
        let coalesces = self.nodes[queue.head as usize].coalesces;
        if coalesces != 0 {
            let mut known: HashSet<Fingerprint> =
                self.fingerprint(queue.head).into_iter().collect();
            for (passed, (node, _)) in (1..=RUN_MAX).zip(self.from(queue.head).skip(1)) {
                if self.nodes[node as usize].coalesces != coalesces {
                    break;
                }
                let fingerprint = self.fingerprint(node);
                // A late copy of an older event is not the newest.
                let is_copy = fingerprint.is_some_and(|fingerprint| !known.insert(fingerprint));
                match may_lead(self.position(node), fingerprint) {
                    Lead::Yes if is_copy => {}
                    Lead::Yes => (lead, older) = (node, passed),
                    Lead::Skip => {}
                    Lead::End => break,
                }
            }
        }
        self.queue_mut(resource).lead = lead;
        Some((self.nodes[lead as usize].place, older))
    }

    /// What is to be delivered of a resource: its lead, or its head while that is undecided.
    pub fn lead(&self, resource: ResourceKey) -> Option<Place> {
        let queue = self.resources.get(&resource)?;
        let node = if queue.lead == NONE { queue.head } else { queue.lead };
        Some(self.nodes[node as usize].place)
    }

    /// The webhooks that the head of a resource speaks for, itself first, its lead last.
    pub fn led(&self, resource: ResourceKey) -> impl Iterator<Item = (NodeKey, Place)> {
        let (head, last) = self.resources.get(&resource).map_or((NONE, NONE), |queue| {
            (queue.head, if queue.lead == NONE { queue.head } else { queue.lead })
        });
        let mut is_over = false;
        self.from(head).take_while(move |(node, _)| {
            let was_over = std::mem::replace(&mut is_over, *node == last);
            !was_over
        })
    }

    /// Where a webhook was accepted.
    pub fn position(&self, node: NodeKey) -> Position {
        let place = self.nodes[node as usize].place;
        let origin = self.packs.get(&place.pack).map_or(StreamId::ZERO, |pack| pack.origin);
        (origin, place.index)
    }

    /// What tells whether a webhook is a duplicate.
    pub fn fingerprint(&self, node: NodeKey) -> Option<Fingerprint> {
        let kept = self.fingerprints.as_ref()?.get(node as usize);
        kept.copied().filter(|fingerprint| *fingerprint != 0)
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

    /// What the head of `resource` spoke for is settled: the webhook behind it becomes the head. Says
    /// whether there is one.
    pub fn pop(&mut self, resource: ResourceKey) -> bool {
        let Some(queue) = self.resources.get(&resource).copied() else { return false };
        let last = if queue.lead == NONE { queue.head } else { queue.lead };
        let (mut head, mut main) = (queue.head, queue.main);
        loop {
            let gone = head;
            head = self.nodes[gone as usize].next;
            if main == gone {
                main = head;
            }
            self.nodes[gone as usize].next = self.free;
            self.free = gone;
            self.bytes -= self.webhook_bytes();
            if gone == last || head == NONE {
                break;
            }
        }
        if head == NONE {
            self.resources.remove(&resource);
            self.bytes -= RESOURCE_BYTES;
        } else {
            let queue = self.queue_mut(resource);
            (queue.head, queue.main, queue.lead) = (head, main, NONE);
            queue.state = State::Ready;
        }
        head != NONE
    }

    /// Notes that the webhook at `place` is settled. A parked pack is gone with it; a main one
    /// stays until the cursor passes it.
    pub fn mark_settled(&mut self, place: Place) {
        let Some(pack) = self.packs.get_mut(&place.pack) else { return };
        if pack.source == Source::Main {
            pack.bits[place.index as usize / 8] |= 1 << (place.index % 8);
            self.settled_open += 1;
        }
        self.settled += 1;
        pack.moved_at = self.settled;
        pack.left -= 1;
        if pack.source == Source::Parked {
            self.packs.remove(&place.pack);
            self.bytes -= Source::Parked.pack_bytes();
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
            self.paused_front = self.paused_front.saturating_sub(1);
            let Some(pack) = self.packs.remove(&key) else { continue };
            self.bytes -= Source::Main.pack_bytes();
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

    fn allocate(&mut self, webhook: &Waiting) -> NodeKey {
        let Waiting { place, class, coalesces, fingerprint } = *webhook;
        let node = Node { place, next: NONE, class, coalesces };
        let key = if self.free == NONE {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("BUG: the index is bounded")
        } else {
            let key = self.free;
            self.free = self.nodes[key as usize].next;
            self.nodes[key as usize] = node;
            key
        };
        if let Some(fingerprints) = &mut self.fingerprints {
            fingerprints.resize(self.nodes.len(), 0);
            fingerprints[key as usize] = fingerprint.unwrap_or(0);
        }
        key
    }

    fn webhook_bytes(&self) -> usize {
        WEBHOOK_BYTES + if self.fingerprints.is_some() { FINGERPRINT_BYTES } else { 0 }
    }

    /// A replayed webhook is older than what waits: it goes where it was accepted, but never
    /// before a head that is under way, or among what that speaks for.
    fn insert_in_order(&mut self, resource: ResourceKey, queue: Queue, node: u32) {
        let position = self.position(node);
        // A head that has been chosen alone, and waits for its retry, gives way.
        let speaks_for_others = queue.lead != NONE && queue.lead != queue.head;
        let is_head_fixed =
            matches!(queue.state, State::Busy | State::Parking) || speaks_for_others;
        if !is_head_fixed && position < self.position(queue.head) {
            self.nodes[node as usize].next = queue.head;
            let queue = self.queue_mut(resource);
            (queue.head, queue.lead) = (node, NONE);
            return;
        }
        let mut before = if queue.lead == NONE { queue.head } else { queue.lead };
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

#[cfg(test)]
mod tests;
