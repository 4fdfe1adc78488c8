//! What is asked of the whole index, which takes a look at all of it: where a shop's webhooks were
//! accepted, which are not to be delivered any more, which are paused.

use std::collections::HashSet;

use spillway_webhook::StreamId;

use super::{Index, NONE, OpenPack, PackKey, Place, RESOURCE_BYTES, ResourceKey, Source, State};
use crate::schedule::ShopKey;
use crate::schedule::barriers::Position;

impl Index {
    /// Where everything of a shop was accepted, but what is being settled and gone from its pack.
    /// Looks at every resource.
    pub fn positions(&self, shop: ShopKey) -> HashSet<Position> {
        let own = self.resources.values().filter(|queue| queue.shop == shop);
        own.flat_map(|queue| self.from(queue.head))
            .filter(|(_, place)| self.packs.contains_key(&place.pack))
            .map(|(node, _)| self.position(node))
            .collect()
    }

    /// Every resource with something that waits.
    pub fn resources(&self) -> impl Iterator<Item = (ResourceKey, State)> {
        self.resources.iter().map(|(resource, queue)| (*resource, queue.state))
    }

    /// Main packs behind the cursor, in stream order, from the first one with something in it that is
    /// not paused.
    pub fn front(&mut self) -> impl Iterator<Item = (PackKey, &OpenPack)> {
        let is_paused = |key| self.packs.get(key).is_some_and(OpenPack::is_paused);
        let more = self.main.iter().skip(self.paused_front).take_while(|key| is_paused(*key));
        self.paused_front += more.count();
        let front = self.main.iter().skip(self.paused_front);
        front.filter_map(|key| Some((*key, self.packs.get(key)?)))
    }

    /// Main entries that the cursor has not passed.
    pub fn open_entries(&self) -> impl Iterator<Item = StreamId> {
        let main = self.packs.values().filter(|pack| pack.source == Source::Main);
        main.map(|pack| pack.id)
    }

    /// Parked entries that are not settled.
    pub fn parked_entries(&self) -> impl Iterator<Item = StreamId> {
        let parked = self.packs.values().filter(|pack| pack.source == Source::Parked);
        parked.map(|pack| pack.id)
    }

    /// Whether anything of a resource `is_meant`.
    pub fn holds(&self, resource: ResourceKey, is_meant: impl Fn(&OpenPack, u32) -> bool) -> bool {
        let head = self.resources.get(&resource).map_or(NONE, |queue| queue.head);
        let mut places = self.from(head).map(|(_, place)| place);
        places.any(|at| self.packs.get(&at.pack).is_some_and(|pack| is_meant(pack, at.index)))
    }

    /// Takes out of a resource's queue what `is_meant`, and says where it was accepted. To be settled
    /// by whoever asks for it. None of the resource may be under way: what is delivered of it is chosen
    /// anew.
    pub fn take_out(
        &mut self,
        resource: ResourceKey,
        is_meant: impl Fn(&OpenPack, u32) -> bool,
    ) -> Vec<(Place, Position)> {
        let Some(mut queue) = self.resources.get(&resource).copied() else { return Vec::new() };
        let mut taken = Vec::new();
        let (mut before, mut node) = (NONE, queue.head);
        while node != NONE {
            let (place, next) = (self.nodes[node as usize].place, self.nodes[node as usize].next);
            if !self.packs.get(&place.pack).is_some_and(|pack| is_meant(pack, place.index)) {
                before = node;
                node = next;
                continue;
            }
            taken.push((place, self.position(node)));
            match before {
                NONE => queue.head = next,
                before => self.nodes[before as usize].next = next,
            }
            if queue.tail == node {
                queue.tail = before;
            }
            if queue.main == node {
                queue.main = next;
            }
            self.nodes[node as usize].next = self.free;
            self.free = node;
            self.bytes -= self.webhook_bytes();
            node = next;
        }
        if taken.is_empty() {
            return taken;
        }
        if queue.head == NONE {
            self.resources.remove(&resource);
            self.bytes -= RESOURCE_BYTES;
        } else {
            queue.lead = NONE;
            self.resources.insert(resource, queue);
        }
        taken
    }

    /// The head of a resource is paused.
    pub fn pause_head(&mut self, resource: ResourceKey) {
        self.set_state(resource, State::Paused);
        if let Some(place) = self.head(resource) {
            self.pause_one(place);
        }
    }

    /// One webhook is paused.
    pub fn pause_one(&mut self, place: Place) {
        if let Some(pack) = self.packs.get_mut(&place.pack) {
            pack.paused += 1;
        }
    }

    /// Counts anew what is paused: everything of the shops that `is_paused`.
    pub fn count_paused(&mut self, is_paused: impl Fn(ShopKey) -> bool) {
        self.paused_front = 0;
        self.packs.values_mut().for_each(|pack| pack.paused = 0);
        for queue in self.resources.values().filter(|queue| is_paused(queue.shop)) {
            let mut node = queue.head;
            while node != NONE {
                let webhook = &self.nodes[node as usize];
                if let Some(pack) = self.packs.get_mut(&webhook.place.pack) {
                    pack.paused += 1;
                }
                node = webhook.next;
            }
        }
    }
}
