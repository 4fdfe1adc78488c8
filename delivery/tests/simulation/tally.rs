//! Counts of the events of a run. A schedule in which nothing happens finds no bugs.

use std::fmt;
use std::time::Duration;

use spillway_delivery::{Outcome, PendingSettlement};

use crate::webhook::Bytes;

/// Counts of one run or of several runs.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub steps: u64,
    pub webhooks: u64,
    pub sent: u64,
    pub takeovers: u64,
    pub moved: u64,
    pub cuts: u64,
    /// Number of lost chunks.
    pub spoiled: u64,
    pub chunks_read: u64,
    pub leads: u64,
    pub barriers_moved: u64,
    pub outcomes: [u64; 7],
    /// Dead letters without a last attempt.
    pub expired: u64,
    pub replays: u64,
    /// Webhooks that the filter excluded.
    pub excluded: u64,
    /// Liveness checks of webhooks that waited for more than a second without an excuse.
    pub waits: u64,
    /// Longest wait without an excuse.
    pub longest: Duration,
    pub virtual_time: Duration,
}

impl Tally {
    pub(crate) fn settled(&mut self, settlement: &PendingSettlement<Bytes>) {
        let lanes = &settlement.lanes;
        self.moved +=
            lanes.chunks.written.iter().map(|chunk| chunk.positions.len() as u64).sum::<u64>();
        self.leads += lanes.leads.written.len() as u64;
        self.barriers_moved += lanes.barriers.written.len() as u64;
        self.replays += settlement.replays.settled.len() as u64;
        self.outcomes[4] += settlement.controls.dropped;
        let expired = settlement.dead.iter().filter(|letter| letter.reason == "expired");
        self.expired += expired.count() as u64;
        for record in &settlement.records {
            let at = match record.outcome {
                Outcome::Delivered => 0,
                Outcome::Duplicate => 1,
                Outcome::Coalesced => 2,
                Outcome::Dead => 3,
                Outcome::Dropped => 4,
                Outcome::Suppressed => 5,
                Outcome::Stale => 6,
            };
            self.outcomes[at] += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.webhooks += other.webhooks;
        self.sent += other.sent;
        self.takeovers += other.takeovers;
        self.moved += other.moved;
        self.cuts += other.cuts;
        self.spoiled += other.spoiled;
        self.chunks_read += other.chunks_read;
        self.leads += other.leads;
        self.barriers_moved += other.barriers_moved;
        for (sum, one) in self.outcomes.iter_mut().zip(other.outcomes) {
            *sum += one;
        }
        self.expired += other.expired;
        self.replays += other.replays;
        self.excluded += other.excluded;
        self.waits += other.waits;
        self.longest = self.longest.max(other.longest);
        self.virtual_time += other.virtual_time;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, webhooks, sent, takeovers, moved, cuts, chunks_read, leads, .. } = self;
        let [delivered, duplicate, coalesced, dead, dropped, suppressed, stale] = self.outcomes;
        let Self {
            barriers_moved,
            expired,
            replays,
            excluded,
            waits,
            longest,
            virtual_time,
            spoiled,
            ..
        } = self;
        write!(
            f,
            "{steps} steps, {virtual_time:.0?} of virtual time, {webhooks} webhooks, {sent} \
             attempts, {takeovers} takeovers, {moved} moved into lanes ({barriers_moved} \
             barriers), {cuts} cuts, {chunks_read} chunks read, {leads} leads, {delivered} \
             delivered, {duplicate} duplicates, {coalesced} coalesced, {dead} dead ({expired} \
             expired), {dropped} \
             dropped, {suppressed} suppressed, {stale} stale, {excluded} excluded, {spoiled} chunks lost, {replays} replays, {waits} waits checked, the longest {longest:.1?}"
        )
    }
}
