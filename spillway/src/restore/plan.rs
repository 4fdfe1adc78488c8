//! Plan of a restoration: which webhooks each consumer still needs, and the entries, bits and counts that follow.
//! Pure.
//!
//! Invariants. A webhook of the archive that a consumer has not settled is after the consumer's cursor, and its bit
//! is not set. Of each lane and resource, what a consumer gets is the end of what it got or would have got: from
//! some webhook on, all of them. So the last one that the backend sees is the newest one.

use std::collections::HashMap;

use spillway_archive::{Checkpoint, ConsumerCheckpoint};
use spillway_queue::consumers::ConsumerKind;
use spillway_queue::rebuild::{RebuiltConsumer, RebuiltQueue};
use spillway_webhook::{Position, StreamId};

/// Webhooks that a consumer has not settled.
#[derive(Debug, Clone, Default)]
pub(super) struct ConsumerNeeds {
    /// Name of the consumer.
    pub name: String,
    kind: Option<ConsumerKind>,
    cursor: StreamId,
    /// Lanes, and shops of lanes by earlier rules, each with the first position that waits.
    lanes: HashMap<u64, Position>,
    shops: HashMap<u64, Position>,
    /// Hashes of the shops of all lanes.
    shops_of_lanes: Vec<u64>,
    /// Position from which on everything is needed.
    floor: Option<Position>,
    /// Settled webhooks after the cursor.
    done: HashMap<StreamId, Vec<u8>>,
}

/// Properties of a webhook by which it is found.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneFacts {
    /// Lanes in which it may lie.
    pub lanes: [u64; 3],
    /// Hash of its shop's domain.
    pub shop: u64,
    /// True if only its place is left.
    pub is_erased: bool,
}

/// An entry to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlannedEntry {
    /// Id that it gets.
    pub id: StreamId,
    /// For each webhook, true if a consumer needs it. The others are erased.
    pub kept: Vec<bool>,
    /// Consumers with a bit for each webhook that is kept for others only.
    pub bits: Vec<(String, Vec<u8>)>,
}

/// Plans entries one after the other.
pub(super) struct RestorePlanner {
    consumers: Vec<PlannedConsumer>,
    /// Id that was given last.
    last: StreamId,
    /// Entries so far.
    pub entries: u64,
    /// Webhooks in them, also those that are erased.
    pub webhooks: u64,
    /// Entries that got another id, because theirs was given twice.
    pub shifted: u64,
}

/// A consumer, and what was planned for it.
struct PlannedConsumer {
    needs: ConsumerNeeds,
    /// First entry that it needs.
    first: Option<StreamId>,
    /// Entries before that, up to its cursor, and their webhooks.
    passed: (u64, u64),
    open: u64,
    restored: u64,
}

impl ConsumerNeeds {
    /// Everything after an entry.
    pub(super) fn after(name: &str, kind: Option<ConsumerKind>, cursor: StreamId) -> Self {
        Self { name: name.to_owned(), kind, cursor, ..Self::default() }
    }

    /// Everything that a consumer had not settled when the checkpoint was made.
    pub(super) fn of(consumer: &ConsumerCheckpoint) -> Self {
        let kind = consumer.kind.as_deref().and_then(ConsumerKind::of_label);
        let mut needs = Self::after(&consumer.name, kind, consumer.cursor);
        needs.floor = consumer.floor;
        needs.done = consumer.done().collect();
        for mark in &consumer.lanes {
            let (firsts, key) = match mark.lane {
                Some(lane) => (&mut needs.lanes, lane),
                None => (&mut needs.shops, mark.shop),
            };
            let first = firsts.entry(key).or_insert(mark.first);
            *first = mark.first.min(*first);
            needs.shops_of_lanes.push(mark.shop);
        }
        needs
    }

    /// Program whose consumer it is, if that is known.
    pub(super) fn kind(&self) -> Option<ConsumerKind> {
        self.kind
    }

    /// Entries up to here are settled, except for what lies in lanes.
    pub(super) fn cursor(&self) -> StreamId {
        self.cursor
    }

    /// Hashes of shops of which webhooks may be needed where [`needs_any`](Self::needs_any) is false.
    pub(super) fn shops(&self) -> &[u64] {
        &self.shops_of_lanes
    }

    /// True if a webhook of this entry may be needed whatever its shop is. A pack that cannot be decoded is needed
    /// then: the consumer sets it aside.
    pub(super) fn needs_any(&self, entry: StreamId) -> bool {
        entry > self.cursor || self.floor.is_some_and(|floor| entry >= floor.entry())
    }

    /// First entry of which something waits in a lane.
    pub(super) fn first_in_lanes(&self) -> Option<StreamId> {
        let firsts = self.lanes.values().chain(self.shops.values()).chain(&self.floor);
        firsts.min().map(|first| first.entry())
    }

    /// Entry after which the first one is that may be needed.
    pub(super) fn begins_after(&self) -> StreamId {
        let lanes = self.first_in_lanes().map(StreamId::previous);
        lanes.map_or(self.cursor, |lanes| lanes.min(self.cursor))
    }

    fn needs(&self, entry: StreamId, index: u32, webhook: &LaneFacts) -> bool {
        let position = Position::new(entry, index);
        let waits = |first: Option<&Position>| first.is_some_and(|first| position >= *first);
        if webhook.is_erased {
            return false;
        }
        // Everything of a lane from its first webhook on, also after the cursor: the newest comes last.
        if waits(self.floor.as_ref())
            || waits(self.shops.get(&webhook.shop))
            || webhook.lanes.iter().any(|lane| waits(self.lanes.get(lane)))
        {
            return true;
        }
        entry > self.cursor && !self.done.get(&entry).is_some_and(|bits| is_set(bits, index))
    }
}

impl RestorePlanner {
    /// Plans for these consumers.
    pub(super) fn new(consumers: Vec<ConsumerNeeds>) -> Self {
        let of =
            |needs| PlannedConsumer { needs, first: None, passed: (0, 0), open: 0, restored: 0 };
        Self {
            consumers: consumers.into_iter().map(of).collect(),
            last: StreamId::ZERO,
            entries: 0,
            webhooks: 0,
            shifted: 0,
        }
    }

    /// Plans the next pack of the archive; without facts, it cannot be decoded. `None` if nobody needs it.
    pub(super) fn add(
        &mut self,
        entry: StreamId,
        webhooks: Option<&[LaneFacts]>,
    ) -> Option<PlannedEntry> {
        let needed = |consumer: &PlannedConsumer| match webhooks {
            Some(webhooks) => {
                let each = (0..).zip(webhooks);
                each.map(|(index, facts)| consumer.needs.needs(entry, index, facts)).collect()
            }
            None => vec![consumer.needs.needs_any(entry)],
        };
        let needed: Vec<Vec<bool>> = self.consumers.iter().map(needed).collect();
        let count = webhooks.map_or(1, <[_]>::len);
        let kept: Vec<bool> = (0..count).map(|index| needed.iter().any(|own| own[index])).collect();
        if !kept.contains(&true) {
            return None;
        }
        let id = entry.max(self.last.next());
        self.shifted += u64::from(id != entry);
        self.last = id;
        let count = webhooks.map_or(0, |webhooks| webhooks.len() as u64);
        let mut bits = Vec::new();
        for (consumer, own) in self.consumers.iter_mut().zip(&needed) {
            // A pack that cannot be decoded has no bits.
            let kept = if webhooks.is_some() { &kept[..] } else { &[] };
            bits.extend(consumer.add(id, own, kept, count));
        }
        self.entries += 1;
        self.webhooks += count;
        debug_assert!(self.last >= entry, "ids grow, and none goes back");
        Some(PlannedEntry { id, kept: if webhooks.is_some() { kept } else { Vec::new() }, bits })
    }

    /// Webhooks that each consumer gets.
    pub(super) fn restored(&self) -> impl Iterator<Item = (&ConsumerNeeds, u64)> {
        self.consumers.iter().map(|consumer| (&consumer.needs, consumer.restored))
    }

    /// The whole queue, after all entries. The consumers `at_end` get nothing: the archive has all of it already, or
    /// they have delivered what was accepted meanwhile. `known` is the newest state of the queue that is known.
    pub(super) fn queue(
        &self,
        cell: u32,
        known: KnownEnd,
        at_end: Vec<(String, Option<ConsumerKind>)>,
    ) -> RebuiltQueue {
        let cursors = self.consumers.iter().map(|consumer| consumer.needs.cursor);
        let last = cursors.fold(self.last.max(known.last), StreamId::max);
        let appended = known.appended.max(self.webhooks);
        let trimmed = appended - self.webhooks;
        let of = |consumer: &PlannedConsumer| RebuiltConsumer {
            name: consumer.needs.name.clone(),
            kind: consumer.needs.kind,
            cursor: consumer.cursor(),
            entries: consumer.passed.0,
            through: trimmed + consumer.passed.1,
            open: consumer.open,
        };
        let at_end = at_end.into_iter().map(|(name, kind)| RebuiltConsumer {
            name,
            kind,
            cursor: last,
            entries: self.entries,
            through: appended,
            open: 0,
        });
        let consumers = self.consumers.iter().map(of).chain(at_end).collect();
        RebuiltQueue {
            cell,
            entries: self.entries,
            last,
            appended,
            trimmed,
            consumers,
            notes: Vec::new(),
            lost: Vec::new(),
        }
    }
}

/// Newest state of the lost queue that is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownEnd {
    /// Id that was given out last.
    pub last: StreamId,
    /// Webhooks ever appended.
    pub appended: u64,
}

impl KnownEnd {
    /// End that a checkpoint knows, or the archive's own.
    pub(super) fn of(checkpoint: Option<&Checkpoint>, reach: StreamId) -> Self {
        let last = checkpoint.map_or(reach, |checkpoint| checkpoint.last.max(reach));
        Self { last, appended: checkpoint.map_or(0, |checkpoint| checkpoint.appended) }
    }
}

impl PlannedConsumer {
    /// Notes an entry with `count` webhooks. Returns the bits of those that are kept for others only.
    fn add(
        &mut self,
        id: StreamId,
        own: &[bool],
        kept: &[bool],
        count: u64,
    ) -> Option<(String, Vec<u8>)> {
        if own.contains(&true) {
            self.first.get_or_insert(id);
        }
        self.restored += own.iter().filter(|is_needed| **is_needed).count() as u64;
        if self.first.is_none() && id <= self.needs.cursor {
            self.passed.0 += 1;
            self.passed.1 += count;
            return None;
        }
        let mut bits = vec![0u8; kept.len().div_ceil(8)];
        let mut settled = 0;
        for (index, is_other) in kept.iter().zip(own).map(|(kept, own)| *kept && !own).enumerate() {
            if is_other {
                bits[index / 8] |= 1 << (index % 8);
                settled += 1;
            }
        }
        self.open += settled;
        (settled > 0).then(|| (self.needs.name.clone(), bits))
    }

    /// The consumer's cursor in the restored queue: before the first entry that it needs.
    fn cursor(&self) -> StreamId {
        self.first.map_or(self.needs.cursor, |first| first.previous().min(self.needs.cursor))
    }
}

fn is_set(bits: &[u8], index: u32) -> bool {
    let byte = usize::try_from(index / 8).ok().and_then(|at| bits.get(at));
    byte.is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

#[cfg(test)]
mod tests;
