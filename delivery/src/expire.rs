//! Expires webhooks that are overdue: which lane is next, and which of its webhooks.

use std::time::Duration;

use spillway_webhook::position::Position;

use crate::config::Config;
use crate::core::Core;
use crate::expiry::EXPIRED;
use crate::index::{LaneKey, ResourceKey};
use crate::lane::Lane;
use crate::lane_clock::{AcceptTime, CountedTime, LaneClock};
use crate::ledger::{Ended, Finished};
use crate::ready::ReadyKind;
use crate::resource::HeadState;
use crate::retry::RetryState;
use crate::settlement::GivenUp;
use crate::shop::ShopGate;
use crate::sorted::{Class, Content};
use crate::time::About;
use crate::turn::Turn;

/// Lanes per scan.
const LANES_AT_ONCE: usize = 16;
/// Webhooks of a lane per scan.
const WEBHOOKS_AT_ONCE: usize = 64;

/// Time until the next scan if there was no room for dead letters. An operator has to make room.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(2);

/// Time until the next scan if the last one found more than it could give up.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Time between two scans.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const _: () =
    assert!(LOOK_AGAIN.as_millis() < LOOK_EVERY.as_millis(), "a scan that found more comes sooner");
const _: () =
    assert!(LOOK_EVERY.as_millis() < LOOK_FOR_ROOM.as_millis(), "no room needs an operator");

impl<C: Content> Core<C> {
    /// Time spent on retries of a run: the webhook at its head, and those up to `newest` for which
    /// that one is sent. If no delivery of the lane succeeds, the time without attempts counts,
    /// too.
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

    /// Last part of that time, in which all attempts were refused.
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
        of_lane: fn(&LaneClock, AcceptTime, Duration, CountedTime<'_>) -> Duration,
    ) -> Duration {
        let active = self.active();
        let retry = self.queue.retries.get(head);
        let since = |retry: &RetryState| self.time_of(lane, about, retry.since, active);
        let own = retry.and_then(|retry| Some(own(retry)? + since(retry)));
        let own = own.unwrap_or_default();
        match self.queue.lanes.get(lane) {
            Some(known) if known.breaker.is_open() || self.has_failed_for_long(lane) => {
                // The time is at most the age of the webhook, even if a clock was changed.
                let age = self.session.now.wall_ms.saturating_sub(newest.ms);
                let time = |from, to| self.time_of(lane, About::Shop, from, to);
                let of_lane = of_lane(&known.clock, self.accepted(newest), active, &time);
                own.max(of_lane.min(Duration::from_millis(age)))
            }
            _ => own,
        }
    }

    /// Adds a lane to those that expire, after a webhook of it was given up.
    pub(crate) fn may_expire_from_now_on(&mut self, key: LaneKey) {
        if self.has_failed_for_long(key) {
            self.queue.expiry.lanes.insert(key);
        }
    }

    fn has_failed_for_long(&self, key: LaneKey) -> bool {
        self.failing(key) >= self.config.retry_for
    }

    /// Gives up the webhooks that are overdue for a while.
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

    /// Gives up the oldest webhook of a lane that is overdue for a while. Returns true if the next
    /// one may be tried.
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
        // Webhooks held back by a barrier could not be tried, so it is unknown if the lane still
        // fails.
        if !lane.flow.failures.has_any_since(lane.flow.unheld_at) {
            return false;
        }
        let shop = lane.shop;
        let expires_after = self.expires_after(lane);
        match self.queue.shops.gate(shop, self.session.now.at) {
            ShopGate::Stopped | ShopGate::Starved => return false,
            // An expiry sends nothing.
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
                // All webhooks up to the recorded lead expire together with the head.
                let newest = self.recorded_lead(resource).unwrap_or(head);
                let of_newest = self.spent(key, newest, newest, About::Shop);
                let own = self.queue.retries.get(head).map_or(Duration::ZERO, |retry| retry.spent);
                let Some(excess) = of_newest.max(own).checked_sub(expires_after) else { continue };
                let kind = ReadyKind { was_tried, is_replay: false };
                return match self.take_from(shop, key, class, kind) {
                    Some(Some(turn)) => self.expire_turn(turn, excess),
                    // A barrier came before the webhook.
                    Some(None) => true,
                    None => false,
                };
            }
        }
        false
    }

    /// Newest webhook that the head of a resource was recorded to stand for.
    fn recorded_lead(&self, resource: ResourceKey) -> Option<Position> {
        let hash = self.queue.index.resource(resource)?.hash;
        self.queue.leads.get(&hash).copied()
    }

    /// Time after which the webhooks of a lane expire.
    fn expires_after(&self, lane: &Lane) -> Duration {
        let Config { retry_for, retry_refused_for, tuning, .. } = self.config;
        let is_refused = lane.clock.is_refused();
        let time = if is_refused { retry_for.max(retry_refused_for) } else { retry_for };
        time + tuning.expiry_grace
    }

    /// Gives up the head of a resource and those that it stands for. Webhooks accepted within
    /// `excess` after the head are overdue, too.
    fn expire_turn(&mut self, turn: Turn, excess: Duration) -> bool {
        let Some((node, content, record_index)) = self.at_turn(turn, excess) else {
            // Only one lead is recorded at a time, because the window cannot be cut before a
            // recorded lead.
            return self.queue.index.state(turn.resource) != Some(HeadState::Recording);
        };
        let position = self.queue.index.node(node).position;
        let head = self.queue.index.head(turn.resource).unwrap_or(position);
        let attempts = self.queue.retries.get(head).map_or(0, |retry| retry.attempts);
        let fingerprint = self.fingerprint(&content, record_index);
        if attempts == 0 && self.is_duplicate(fingerprint) {
            self.counts.duplicates += 1;
            let resource = turn.resource;
            let end = Ended::Duplicate;
            self.finish(Finished { resource, end, fingerprint, attempts });
            return true;
        }
        let reason = EXPIRED;
        let evidence = C::Evidence::default();
        let bytes = content.dead_bytes(record_index, &evidence);
        if !self.has_dead_room(bytes) {
            self.queue.expiry.looks_at = self.session.now.at + LOOK_FOR_ROOM;
            self.release(turn.resource);
            return false;
        }
        let letter = GivenUp { position, content, record_index, reason, attempts, evidence };
        self.end_as_dead_letter(turn.resource, letter, bytes, fingerprint);
        self.ledger.expired += 1;
        true
    }
}
