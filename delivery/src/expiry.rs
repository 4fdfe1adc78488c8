//! Expiry: dead letters without a last attempt, of lanes that get few attempts.
//!
//! Once nothing of a lane has succeeded for `RETRY_FOR`, what was accepted before is given up with the next attempt of
//! it that fails. A lane that hangs, or whose backend asks for long pauses, gets so few attempts that it would fill
//! faster than it is given up. So what is overdue for a while expires as soon as its bytes are at hand. Probes go on
//! meanwhile: a success ends it. A replay does not expire: whoever replays wants to see it tried.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::config::Config;
use crate::core::Core;
use crate::dispatch::Turn;
use crate::index::{LaneKey, ResourceKey};
use crate::lane::Lane;
use crate::lane_clock::{Accepted, CountedTime, LaneClock};
use crate::ledger::{Ended, Finished};
use crate::ready::ReadyKind;
use crate::resource::State;
use crate::retry::RetryState;
use crate::settlement::DeadLetter;
use crate::shop::ShopGate;
use crate::sorted::{Class, Content};
use crate::time::About;

/// Reason of a dead letter without a last attempt.
pub(crate) const EXPIRED: &str = "expired";
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same where the last one found more than it could give up.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The same where there was no room for dead letters: until an operator makes some.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(2);
/// Lanes per look, and webhooks of each.
const LANES_AT_ONCE: usize = 16;
const WEBHOOKS_AT_ONCE: usize = 64;

/// Lanes in which webhooks expire.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    lanes: BTreeSet<LaneKey>,
    /// Lane of the last turn: they go round.
    last: LaneKey,
    looks_at: Duration,
}

impl Expiry {
    /// When there is something to do.
    pub fn wakes_at(&self) -> Option<Duration> {
        (!self.lanes.is_empty()).then_some(self.looks_at)
    }

    fn next(&mut self) -> Option<LaneKey> {
        let mut after = self.lanes.range((Bound::Excluded(self.last), Bound::Unbounded));
        self.last = after.next().or_else(|| self.lanes.first()).copied()?;
        Some(self.last)
    }
}

impl<C: Content> Core<C> {
    /// Time that a run has spent on retries: the webhook at its head, and those up to `newest` for which that one is sent.
    /// Where nothing of its lane succeeds, the time in which it could not be tried counts, too.
    pub(crate) fn spent(
        &self,
        lane: LaneKey,
        head: Position,
        newest: Position,
        about: About<'_, C>,
    ) -> Duration {
        let own = |retry: &RetryState| Some(retry.spent);
        self.longer(lane, (head, newest), about, own, LaneClock::failing_of)
    }

    /// The last part of it, in which all attempts were refused.
    pub(crate) fn refused_for(
        &self,
        lane: LaneKey,
        head: Position,
        newest: Position,
        about: About<'_, C>,
    ) -> Duration {
        self.longer(lane, (head, newest), about, |retry| retry.refused, LaneClock::refused_of)
    }

    fn longer(
        &self,
        lane: LaneKey,
        (head, newest): (Position, Position),
        about: About<'_, C>,
        own: fn(&RetryState) -> Option<Duration>,
        of_lane: fn(&LaneClock, Accepted, Duration, CountedTime<'_>) -> Duration,
    ) -> Duration {
        let active = self.active();
        let retry = self.queue.retries.get(head);
        let since = |retry: &RetryState| self.time_of(lane, about, retry.since, active);
        let own = retry.and_then(|retry| Some(own(retry)? + since(retry)));
        let own = own.unwrap_or_default();
        match self.queue.lanes.get(lane) {
            Some(known) if known.breaker.is_open() || self.has_failed_for_long(lane) => {
                // Whatever was done to the clocks.
                let age = self.session.now.wall_ms.saturating_sub(newest.ms);
                let time = |from, to| self.time_of(lane, About::Shop, from, to);
                let of_lane = of_lane(&known.clock, self.accepted(newest), active, &time);
                own.max(of_lane.min(Duration::from_millis(age)))
            }
            _ => own,
        }
    }

    /// A webhook of a lane was given up: others may be overdue.
    pub(crate) fn may_expire_from_now_on(&mut self, key: LaneKey) {
        if self.has_failed_for_long(key) {
            self.queue.expiry.lanes.insert(key);
        }
    }

    fn has_failed_for_long(&self, key: LaneKey) -> bool {
        self.failing(key) >= self.config.retry_for
    }

    /// Gives up what is overdue for a while.
    pub(crate) fn expire(&mut self) {
        let now = self.session.now.at;
        if self.queue.expiry.wakes_at().is_none_or(|at| at > now) {
            return;
        }
        self.queue.expiry.looks_at = now + LOOK_EVERY;
        for _ in 0..self.queue.expiry.lanes.len().min(LANES_AT_ONCE) {
            let Some(key) = self.queue.expiry.next() else { return };
            if !self.has_failed_for_long(key) {
                self.queue.expiry.lanes.remove(&key);
                continue;
            }
            (0..WEBHOOKS_AT_ONCE).take_while(|_| self.expire_next(key)).for_each(drop);
        }
    }

    /// Gives up the oldest webhook of a lane that is overdue for a while. Returns whether to go on with the next.
    fn expire_next(&mut self, key: LaneKey) -> bool {
        if self.may_go_on().is_err() || self.backend.is_stopped() {
            return false;
        }
        if self.ledger.expiring() >= self.config.tuning.unsettled {
            self.queue.expiry.looks_at = self.session.now.at + LOOK_AGAIN;
            return false;
        }
        if self.session.dead_room == 0 {
            self.queue.expiry.looks_at = self.session.now.at + LOOK_FOR_ROOM;
            return false;
        }
        let Some(lane) = self.queue.lanes.get(key) else { return false };
        // What a barrier held back could not be tried: nobody knows whether the lane still fails.
        if !lane.flow.failures.has_any_since(lane.flow.unheld_at) {
            return false;
        }
        let (shop, expires_after) = (lane.shop, self.expires_after(lane));
        match self.queue.shops.gate(shop, self.session.now.at) {
            ShopGate::Stopped | ShopGate::Starved => return false,
            // Nothing is sent.
            ShopGate::Open | ShopGate::Full | ShopGate::PausedUntil(_) => {}
        }
        for class in [Class::Priority, Class::Rest] {
            for was_tried in [false, true] {
                let index = &self.queue.index;
                let Some(lane) = self.queue.lanes.get_mut(key) else { return false };
                let is_ready = |position, resource| index.is_ready(key, resource, position);
                let Some(resource) = lane.ready.peek_accepted(class, was_tried, is_ready) else {
                    continue;
                };
                let Some(head) = self.queue.index.head(resource) else { continue };
                // What it was recorded to stand for goes with it.
                let newest = self.recorded_lead(resource).unwrap_or(head);
                let of_newest = self.spent(key, newest, newest, About::Shop);
                let own = self.queue.retries.get(head).map_or(Duration::ZERO, |retry| retry.spent);
                let Some(excess) = of_newest.max(own).checked_sub(expires_after) else { continue };
                let kind = ReadyKind { was_tried, is_replay: false };
                return match self.take_from(shop, key, class, kind) {
                    Some(Some(turn)) => self.expire_turn(turn, excess),
                    // A barrier came before it.
                    Some(None) => true,
                    None => false,
                };
            }
        }
        false
    }

    /// Newest webhook that a resource's head was recorded to stand for.
    fn recorded_lead(&self, resource: ResourceKey) -> Option<Position> {
        let hash = self.queue.index.resource(resource)?.hash;
        self.queue.leads.get(&hash).copied()
    }

    /// Time after which something of a lane expires.
    fn expires_after(&self, lane: &Lane) -> Duration {
        let Config { retry_for, retry_refused_for, tuning, .. } = self.config;
        let is_refused = lane.clock.is_refused();
        let time = if is_refused { retry_for.max(retry_refused_for) } else { retry_for };
        time + tuning.expiry_grace
    }

    /// Gives up the head of a resource, and what it stands for: what came within `excess` after it is overdue, too.
    fn expire_turn(&mut self, turn: Turn, excess: Duration) -> bool {
        let Some((node, content, record_index)) = self.at_turn(turn, excess) else {
            // One lead at a time is recorded: up to it the window can't be cut.
            return self.queue.index.state(turn.resource) != Some(State::Recording);
        };
        let position = self.queue.index.node(node).position;
        let head = self.queue.index.head(turn.resource).unwrap_or(position);
        let attempts = self.queue.retries.get(head).map_or(0, |retry| retry.attempts);
        let fingerprint = self.fingerprint(&content, record_index);
        if attempts == 0 && self.is_duplicate(fingerprint) {
            self.counts.duplicates += 1;
            let (resource, end) = (turn.resource, Ended::Duplicate);
            self.finish(Finished { resource, end, fingerprint, attempts });
            return true;
        }
        let (reason, evidence) = (EXPIRED, C::Evidence::default());
        let bytes = content.dead_bytes(record_index, &evidence);
        if !self.has_dead_room(bytes) {
            self.queue.expiry.looks_at = self.session.now.at + LOOK_FOR_ROOM;
            self.release(turn.resource);
            return false;
        }
        let letter = DeadLetter { position, content, record_index, reason, attempts, evidence };
        self.bury(turn.resource, letter, bytes, fingerprint);
        self.ledger.expired += 1;
        true
    }
}
