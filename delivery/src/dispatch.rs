//! The gate, and the sending of a webhook.
//!
//! If something may not be sent now, the gate names the reason ([`Blocked`](crate::turn::Blocked)).
//! A webhook passes these checks in order: leader and operator, backend, turn of its shop, lane,
//! bytes in memory, pauses, duplicates, limiter.

use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;

use crate::attempts::{Attempt, Sent};
use crate::backend::Allowed;
use crate::core::Core;
use crate::event::{Dispatch, Effect};
use crate::index::{LaneKey, Lead, NodeKey, usize_of};
use crate::lane::Lane;
use crate::ledger::{Ended, Finished};
use crate::resource::{HeadState, Step};
use crate::shop::{ShopGate, ShopKey};
use crate::sorted::Content;
use crate::suspects::SLICE;
use crate::turn::{Blocked, Turn};

/// Time before which lanes get no turn if the previous leader left webhooks of them behind. They
/// had a turn before and may hang.
pub(crate) const LEFT_AFTER: Duration = Duration::from_secs(1);

/// Leads that one settlement records.
const LEADS_MAX: usize = 256;

/// Most probes under way while the backend is stopped, including slow ones.
const PROBES_MAX: usize = 4;

/// A shop holds slots if it has at least 1/`HELD_PART` of them and its deliveries are long.
const HELD_PART: usize = 4;

/// Most shops that are skipped at once because they hold slots.
const ASIDE_MAX: u32 = 16;

/// Other shops get 1/`MORE_PART` of the slots in addition while some are held.
const MORE_PART: usize = 8;

impl<C: Content> Core<C> {
    /// Sends what may be sent.
    pub(crate) fn dispatch(&mut self) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        let mut aside = 0;
        self.queue.shops.take_back();
        self.call_suspects();
        let now = self.session.now.at;
        let is_crowded = self.attempts.is_crowded(self.limiter.concurrency(now));
        self.attempts.proven.look(is_crowded, now);
        while self.may_begin().is_ok() {
            let Some(turn) = self.next_turn() else { break };
            let is_holding = !self.backend.is_stopped() && self.is_holding_slots(turn.shop);
            if self.ensure_slot(&turn, is_holding).is_err() {
                if is_holding && aside < ASIDE_MAX {
                    aside += 1;
                    self.release(turn.resource);
                    self.queue.shops.set_aside(turn.shop);
                    continue;
                }
                // The first one that waits goes first. A lane that was called is asked again.
                if self.next.is_some() {
                    self.release(turn.resource);
                } else {
                    self.next = Some(turn);
                }
                break;
            }
            let is_unfailed = self.backend.is_stopped() && self.is_unfailed(turn.lane);
            match self.begin(turn) {
                Some(effect) => {
                    let probes = &mut self.session.looks.unfailed_probes;
                    *probes = if is_unfailed { *probes + 1 } else { 0 };
                    effects.push(effect);
                }
                None => self.limiter.unused(),
            }
        }
        effects
    }

    /// Checks if a head of this lane may be sent now, except for the checks of its own resource and
    /// of the limiter.
    pub(crate) fn may_send(&self, lane: &Lane) -> Result<(), Blocked> {
        self.may_begin()?;
        self.shop_gate(lane.shop)?;
        self.lane_gate(lane)
    }

    /// Reason why nothing of a blocked lane is sent. Reasons that concern all lanes come first.
    pub(crate) fn blocked_by(&self, lane: &Lane) -> Blocked {
        if self.backend.is_stopped() {
            return self.stopped_by();
        }
        if let Err(blocked @ (Blocked::ShopPaused | Blocked::ShopRate)) = self.shop_gate(lane.shop)
        {
            return blocked;
        }
        if lane.breaker.is_open() {
            Blocked::LaneBreaker
        } else if lane.flow.suspect.is_some() {
            Blocked::LaneSuspect
        } else if lane.flow.stalled > 0 {
            Blocked::LaneSlow
        } else if lane.flow.paused > 0 {
            Blocked::FilterPaused
        } else {
            Blocked::Barrier
        }
    }

    /// Checks if anything may begin, or end without an attempt.
    pub(crate) fn may_go_on(&self) -> Result<(), Blocked> {
        let session = &self.session;
        if session.is_stopping
            || !session.are_replays_loaded
            || session.now.at >= session.lease_until
        {
            return Err(Blocked::NotLeading);
        }
        if self.controls.pauses.is_all() {
            return Err(Blocked::AllPaused);
        }
        if self.ledger.new_leads.len() >= LEADS_MAX {
            return Err(Blocked::Unsettled);
        }
        Ok(())
    }

    /// Checks if any attempt may begin.
    pub(crate) fn may_begin(&self) -> Result<(), Blocked> {
        self.may_go_on()?;
        let at_risk = self.attempts.len() + self.ledger.unsettled();
        if at_risk >= self.config.bounds.concurrency_max + self.config.tuning.unsettled {
            return Err(Blocked::Unsettled);
        }
        let now = self.session.now.at;
        match self.backend.allows(now) {
            Allowed::Nothing => Err(self.stopped_by()),
            // A slow probe does not block a lane that has not failed.
            Allowed::Probe if self.has_quick_probe() => Err(self.stopped_by()),
            Allowed::Probe | Allowed::All => Ok(()),
        }
    }

    /// True if a probe under way may end soon. A backend that is down gets another probe after the
    /// shortest slice. One that refuses gets another only if those under way are slow, because each
    /// probe may cost a webhook.
    fn has_quick_probe(&self) -> bool {
        if self.backend.is_refusing() {
            return self.attempts.has_quick(Duration::ZERO);
        }
        self.attempts.has_quick(self.session.now.at.saturating_sub(SLICE))
    }

    fn stopped_by(&self) -> Blocked {
        if self.backend.is_refusing() { Blocked::BackendRefuses } else { Blocked::BackendDown }
    }

    pub(crate) fn shop_gate(&self, shop: ShopKey) -> Result<(), Blocked> {
        match self.queue.shops.gate(shop, self.session.now.at) {
            ShopGate::Open => Ok(()),
            ShopGate::Stopped => Err(Blocked::ShopPaused),
            ShopGate::Starved => Err(Blocked::Reading),
            ShopGate::Full => Err(Blocked::ShopConcurrency),
            ShopGate::PausedUntil(_) => Err(Blocked::ShopRate),
        }
    }

    /// Checks if the lane's own attempts allow another one.
    pub(crate) fn lane_gate(&self, lane: &Lane) -> Result<(), Blocked> {
        let now = self.session.now.at;
        if lane.flow.is_left && now < LEFT_AFTER {
            return Err(Blocked::NotLeading);
        }
        if self.backend.is_stopped() {
            // The backend itself is probed instead.
            return Ok(());
        }
        if let Some(probe_at) = lane.breaker.probe_at()
            && (lane.flow.is_at_work() || now < probe_at)
        {
            return Err(Blocked::LaneBreaker);
        }
        let Some(key) = self.queue.lanes.by_hash(lane.hash) else { return Ok(()) };
        if let Some(suspect) = lane.flow.suspect {
            if lane.flow.is_at_work() || now < suspect.until {
                return Err(Blocked::LaneSuspect);
            }
            if !self.attempts.suspects.may_go(key, self.free_for_suspects()) {
                return Err(Blocked::SlowSlots);
            }
        }
        if lane.flow.stalled > 0 && !self.has_free_slot_alone(key) {
            return Err(Blocked::LaneSlow);
        }
        Ok(())
    }

    /// True if a slow lane may take more than its share: no other lane had a success lately, and a
    /// slot is free. It does not wait for a slot, because others would then wait for it.
    fn has_free_slot_alone(&self, lane: LaneKey) -> bool {
        let now = self.session.now.at;
        self.attempts.len() < self.limiter.concurrency(now) + self.spare_slots()
            && self.attempts.is_alone(lane, now)
    }

    /// Slots in addition to the limiter's. A single slot could be held by one hanging shop, so two
    /// are allowed while two shops send.
    pub(crate) fn spare_slots(&self) -> usize {
        let in_flight = self.attempts.len();
        if in_flight == 0 || in_flight >= self.config.bounds.concurrency_max {
            0
        } else if self.backend.is_stopped() {
            // Slow probes do not count.
            if in_flight < PROBES_MAX { in_flight - self.attempts.usual() } else { 0 }
        } else {
            let concurrency = self.limiter.concurrency(self.session.now.at);
            usize::from(self.queue.shops.len() > 1 && concurrency == 1)
        }
    }

    /// Slots for probes of a lane while the backend is stopped. A backend that refuses may cost a
    /// webhook for each probe. Then a lane that failed has one, if nothing else is under way.
    pub(crate) fn probe_slots(&self, lane: LaneKey) -> usize {
        let is_alone = !self.backend.is_down() && !self.is_unfailed(lane);
        let most = if is_alone { 1 } else { PROBES_MAX };
        most.min(self.config.bounds.concurrency_max)
    }

    /// True if a shop holds a quarter of the slots with long deliveries. Webhooks of other shops
    /// would wait as long.
    fn is_holding_slots(&self, key: ShopKey) -> bool {
        let part = (self.limiter.concurrency(self.session.now.at) / HELD_PART).max(1);
        self.queue.shops.get(key).is_some_and(|shop| {
            shop.is_long()
                && usize_of(shop.in_flight) >= part
                && self.backend.has_served_other(shop.hash)
        })
    }

    /// Requests a slot from the limiter for a delivery of this shop. While long deliveries hold a
    /// quarter of the slots, other shops may use an eighth more. If the limit plus that eighth
    /// exceeds `concurrency_max`, the shop that holds slots leaves the excess free.
    fn ensure_slot(&mut self, turn: &Turn, is_holding: bool) -> Result<(), Blocked> {
        if self.backend.is_stopped() && self.attempts.len() >= self.probe_slots(turn.lane) {
            return Err(Blocked::Limit);
        }
        let slots = self.attempts.len() - self.spare_slots();
        let slots =
            if is_holding { slots + self.left_slots() } else { slots - self.more_slots(turn.shop) };
        let is_admitted = self.limiter.admit(slots, self.session.now.at);
        if is_admitted { Ok(()) } else { Err(Blocked::Limit) }
    }

    /// Slots that a shop with long deliveries leaves to others.
    fn left_slots(&self) -> usize {
        let limit = self.limiter.concurrency(self.session.now.at);
        let most = self.config.bounds.concurrency_max;
        (limit + (limit / MORE_PART).max(1)).saturating_sub(most)
    }

    /// Slots in addition to the limiter's for a shop that does not hold slots.
    pub(crate) fn more_slots(&self, key: ShopKey) -> usize {
        let limit = self.limiter.concurrency(self.session.now.at);
        let in_flight = self.attempts.len();
        let are_held = self.attempts.long() >= (limit / HELD_PART).max(1);
        let is_usual = are_held
            && limit > 0
            && in_flight < self.config.bounds.concurrency_max
            && !self.backend.is_stopped()
            && !self.is_holding_slots(key);
        if is_usual { (limit / MORE_PART).max(1).min(in_flight - self.spare_slots()) } else { 0 }
    }

    /// Sends the webhook that has its turn, unless it waits for its bytes or is not to be sent.
    fn begin(&mut self, turn: Turn) -> Option<Effect<C>> {
        let wait_max = self.config.coalesce_wait_max;
        let (node, content, record_index) = self.at_turn(turn, wait_max)?;
        self.send(turn, node, content, record_index)
    }

    /// Returns the webhook to send of a resource that has its turn, with its bytes. Returns `None`
    /// if it waits for the bytes or is not to be sent.
    pub(crate) fn at_turn(&mut self, turn: Turn, wait_max: Duration) -> Option<(NodeKey, C, u32)> {
        let node = self.choose(turn, wait_max.min(self.config.coalesce_wait_max))?;
        let position = self.queue.index.node(node).position;
        let (key, record_index) = self.locate(node)?;
        let Some((content, record_index)) = self.at_hand(turn, position, key, record_index) else {
            self.starve(turn, key);
            return None;
        };
        if self.controls.pauses(&content, record_index, position) {
            self.pause_resource(turn);
            return None;
        }
        Some((node, content, record_index))
    }

    /// Fingerprint of a webhook, if duplicates are looked for.
    pub(crate) fn fingerprint(&self, content: &C, record_index: u32) -> Option<Fingerprint> {
        self.ledger.seen.is_on().then(|| content.fingerprint(record_index)).flatten()
    }

    /// True if a webhook with this fingerprint was delivered lately.
    pub(crate) fn is_duplicate(&self, fingerprint: Option<Fingerprint>) -> bool {
        let wall_ms = self.session.now.wall_ms;
        fingerprint.is_some_and(|one| self.ledger.seen.contains(one, wall_ms))
    }

    /// Chooses the webhook to send of a resource: the newest event that may stand for its head. If
    /// it stands for others, that is recorded first.
    fn choose(&mut self, turn: Turn, wait_max: Duration) -> Option<NodeKey> {
        let Turn { shop, lane, resource } = turn;
        let about = *self.queue.index.resource(resource)?;
        let is_replay = self.queue.index.replay(about.head).is_some();
        if !is_replay && let Some(lead) = self.queue.leads.get(&about.hash).copied() {
            if self.queue.index.lead_up_to(resource, lead) > 0 {
                return self.queue.index.lead(resource);
            }
            self.forget_lead(about.hash);
        }
        let head = self.queue.index.head(resource)?;
        let wall_ms = self.session.now.wall_ms;
        // A head that was tried alone stays alone, because its time for retries is not that of
        // later events.
        let was_tried = self.queue.retries.get(head).is_some_and(|retry| retry.attempts > 0);
        let wait_max = u64::try_from(wait_max.as_millis()).unwrap_or(u64::MAX);
        let shop = self.queue.shops.get(shop)?;
        // With lanes of two key schemes, a run may extend over two lanes.
        let is_mixed = shop.is_mixed();
        let barriers = shop.barriers.as_ref();
        let barrier = barriers.and_then(|barriers| barriers.positions.first().copied());
        let seen = &self.ledger.seen;
        let length = self.queue.index.choose_lead(resource, |position, fingerprint| {
            let is_after = barrier.is_some_and(|barrier| position > barrier);
            if was_tried || is_mixed || is_after || position.ms.saturating_sub(head.ms) > wait_max {
                Lead::End
            } else if fingerprint.is_some_and(|one| seen.contains(one, wall_ms)) {
                Lead::Skip
            } else {
                Lead::Yes
            }
        });
        let lead = self.queue.index.lead(resource)?;
        if length > 1 {
            let position = self.queue.index.node(lead).position;
            self.ledger.new_leads.push((resource, about.hash, position));
            self.step(resource, Step::Blocked(HeadState::Recording));
            if let Some(lane) = self.queue.lanes.get_mut(lane) {
                lane.flow.recording += 1;
            }
            return None;
        }
        Some(lead)
    }

    fn send(
        &mut self,
        turn: Turn,
        node: NodeKey,
        content: C,
        record_index: u32,
    ) -> Option<Effect<C>> {
        let Turn { shop, lane, resource } = turn;
        let position = self.queue.index.node(node).position;
        let head = self.queue.index.head(resource)?;
        let is_replay = self.queue.index.replay(node).is_some();
        let attempts = self.queue.retries.get(head).map_or(0, |retry| retry.attempts);
        let own = self.fingerprint(&content, record_index);
        if attempts == 0 && !is_replay && self.is_duplicate(own) {
            self.counts.duplicates += 1;
            self.finish(Finished {
                resource,
                end: Ended::Duplicate,
                fingerprint: own,
                attempts: 0,
            });
            return None;
        }
        let older = u32::try_from(self.queue.index.run(resource).len() - 1).unwrap_or(u32::MAX);
        let now = self.session.now.at;
        self.step(resource, Step::Sent);
        self.ledger.sent.insert(resource, (content.clone(), record_index));
        self.queue.shops.began(shop, now);
        let active = self.active();
        let row = self.queue.lanes.get_mut(lane)?;
        row.flow.in_flight += 1;
        row.flow.began_at = now;
        row.flow.is_in_line = false;
        let is_suspect = row.flow.suspect.is_some();
        let id = self.attempts.begin(Attempt {
            resource,
            lane,
            shop,
            position,
            number: attempts + 1,
            began: now,
            began_active: active,
            in_flight: self.attempts.len() + 1,
            sent: Sent { fingerprint: own, older },
            is_suspect,
            is_slow: false,
            is_long: false,
        });
        let lane = self.queue.lanes.get(lane).map_or(0, |lane| lane.hash);
        let shop = self.queue.shops.get(shop).map_or(0, |shop| shop.hash);
        Some(Effect::Send(Box::new(Dispatch {
            id,
            lane,
            shop,
            position,
            content,
            record_index,
            attempt: attempts + 1,
            older,
            is_replay,
            fingerprint: own,
        })))
    }
}
