//! Acts of the world: senders, an operator, failures and takeovers.

use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::backend::{Backends, Mode};
use crate::random::mix;
use crate::redis::Redis;
use crate::webhook::{
    BARRIERS, ORDERS, PRODUCTS, Resource, SHOPS, UNCOMPARED, UNDATED, Webhook, shop_hash,
};
use crate::world::{Task, World};

/// Most webhooks that wait. More would only take longer.
pub(crate) const WAITING_MAX: usize = 300;
/// States of a resource.
const STATES: u64 = 3;
/// Subscriptions to products.
const SUBSCRIPTIONS: u64 = 2;
/// Time by which an update may be sent too late.
const LATE_MS: u64 = 8000;
/// Resolution of the times of updates.
const ROUGH_MS: u64 = 100;
/// Most replays ordered at once: more than the smaller indexes hold.
const REPLAYS_MAX: usize = 150;

impl World {
    /// Does one random act, unless the calm has begun.
    pub(crate) fn act(&mut self) {
        if self.environment.is_calm {
            return;
        }
        let next = self.random.ms(0, self.plan.act_ms);
        self.later(next, Task::Act);
        if self.random.chance(self.plan.packs) && self.truth.unsettled.len() < WAITING_MAX {
            self.append();
        }
        if self.random.chance(self.plan.failures) {
            self.change_backend();
        }
        if self.random.chance(self.plan.operator) {
            self.operate();
        }
        if self.random.chance(self.plan.operator) {
            let is_flood = self.random.chance(250);
            let count = if is_flood { REPLAYS_MAX } else { 1 };
            (0..count).for_each(|_| self.replay(is_flood));
        }
        if self.plan.is_steady {
            return;
        }
        if self.random.chance(self.plan.restores) {
            self.restore();
        }
        if self.random.chance(5) {
            self.environment.has_lease = self.random.chance(500);
            self.environment.lease_at = Duration::ZERO;
        } else if self.random.chance(30) {
            self.environment.has_lease = true;
        }
        if self.random.chance(5) {
            self.environment.may_move = false;
        } else if self.random.chance(30) {
            self.environment.may_move = true;
        }
        if self.random.chance(10) {
            self.environment.dead_room = self.random.pick(&[0, 100, 250, 1 << 20, 1 << 20]);
        }
    }

    /// Keeps a copy of the data, or restores it. The leader detects that later.
    fn restore(&mut self) {
        let Some((redis, truth)) = self.copy.take() else {
            self.copy = Some((self.redis.clone(), self.truth.clone()));
            return;
        };
        self.log.add(self.now, || "restore".to_owned());
        let token = self.redis.token;
        let dropping = std::mem::take(&mut self.truth.dropping);
        self.redis = Redis { token, ..redis };
        self.truth = truth;
        self.truth.dropping = dropping;
        if self.plan.filter_changes > 0 {
            // The copy may be from the time of another filter.
            self.truth.forget_arrivals();
        }
        self.is_astray = true;
        // Everything since the copy waits again, until a new leader reads it.
        self.liveness.excuse_all(self.now + Duration::from_secs(5));
        let delay = self.delay();
        self.later(delay, Task::Restart);
    }

    /// Makes a chunk undecodable or removes it, as if Redis came back so.
    pub(crate) fn spoil(&mut self) {
        if self.is_astray || self.redis.chunks.is_empty() || !self.random.chance(self.plan.spoils) {
            return;
        }
        let at = self.random.index(self.redis.chunks.len());
        let Some(key) = self.redis.chunks.keys().nth(at).copied() else { return };
        let lost = self.redis.spoil(key, self.random.chance(500));
        self.log.add(self.now, || format!("chunk {key:x?} is lost with {lost:?}"));
        self.tally.spoiled += 1;
        for position in lost {
            self.truth.lost(position);
        }
    }

    fn some_resource(&mut self) -> Resource {
        let shop = self.small(u64::from(SHOPS));
        let kind = self.random.pick(&[ORDERS, ORDERS, PRODUCTS, PRODUCTS, PRODUCTS]);
        let kind = if self.random.chance(60) { BARRIERS } else { kind };
        (shop, kind, self.small(self.plan.resources))
    }

    /// Subscription of a webhook. Products have more than one, and a topic that is not compared.
    fn subscription(&mut self, kind: u8) -> u8 {
        match kind {
            PRODUCTS if self.random.chance(150) => UNCOMPARED,
            PRODUCTS => 1 + self.small(SUBSCRIPTIONS),
            _ => 1,
        }
    }

    fn small(&mut self, bound: u64) -> u8 {
        u8::try_from(self.random.below(bound)).expect("it is small")
    }

    /// Stores webhooks of senders.
    fn append(&mut self) {
        let ms = self.wall_ms();
        let seq = if self.redis.last.ms == ms { self.redis.last.seq + 1 } else { 0 };
        let entry = StreamId { ms, seq };
        let count = self.random.pick(&[1, 1, 2, 3, 6]);
        let mut webhooks: Vec<Webhook> = Vec::new();
        for index in 0..count {
            let position = Position::new(entry, index);
            let fingerprint = u128::from(mix(self.random.next())) | 1;
            let (shop, kind, resource) = self.some_resource();
            let state = self.small(STATES);
            let subscription = self.subscription(kind);
            let late_ms = if self.random.chance(150) { self.random.below(LATE_MS) } else { 0 };
            let is_dated =
                kind != PRODUCTS || subscription == UNCOMPARED || self.random.chance(900);
            let updated_ms = if is_dated { (ms - late_ms) / ROUGH_MS * ROUGH_MS } else { UNDATED };
            let new = Webhook {
                position,
                shop,
                kind,
                resource,
                fingerprint,
                state,
                updated_ms,
                subscription,
            };
            let webhook = match self.earlier().filter(|_| self.random.chance(50)) {
                Some(earlier) => Webhook { position, ..earlier },
                None => new,
            };
            webhooks.push(webhook);
            self.tally.webhooks += 1;
            self.truth.accepted(webhook, self.now);
            self.counted.accepted(&webhook);
        }
        let names: Vec<String> = webhooks.iter().map(Webhook::name).collect();
        self.log.add(self.now, || format!("append {names:?}"));
        self.redis.last = entry;
        self.redis.main.insert(entry, webhooks);
    }

    fn earlier(&mut self) -> Option<Webhook> {
        let count = self.truth.fates.len().min(20);
        let at = self.random.index(count);
        self.truth.fates.values().rev().nth(at).map(|fate| fate.webhook)
    }

    fn change_backend(&mut self) {
        let (shop, kind, resource) = self.some_resource();
        let mode = Backends::bad_mode(&mut self.random);
        let is_bad = self.random.chance(400);
        let spared = self.plan.healthy == Some(shop);
        match self.random.below(10) {
            0 if !self.plan.is_steady => {
                let down = self.random.pick(&[Mode::Unconnected, Mode::Failing, Mode::Refusing]);
                self.backends.all = is_bad.then_some(down);
            }
            1..=5 if is_bad && !spared => drop(self.backends.lanes.insert((shop, kind), mode)),
            6.. if is_bad && !spared => {
                self.backends.resources.insert((shop, kind, resource), mode);
            }
            1..=2 => self.backends.lanes.clear(),
            3..=5 => drop(self.backends.lanes.remove(&(shop, kind))),
            6..=7 => self.backends.resources.clear(),
            _ => drop(self.backends.resources.remove(&(shop, kind, resource))),
        }
        let about = format!("{:?}", self.backends);
        self.log.add(self.now, || about);
    }

    fn operate(&mut self) {
        let resource = self.some_resource();
        let shop = shop_hash(resource.0);
        let is_on = self.random.chance(400);
        let what = self.random.below(8);
        if what >= 6 {
            self.drop_some();
        }
        let controls = &mut self.environment.controls;
        match what {
            0 => controls.is_all_paused = is_on && !self.plan.is_steady,
            1 | 2 if is_on => drop(controls.shops.insert(shop)),
            3 if is_on => controls.filters.push(resource),
            1..=3 => {
                controls.shops.clear();
                controls.filters.clear();
                controls.is_all_paused = false;
            }
            4 | 5 => controls.is_all_paused = false,
            _ => {}
        }
        controls.version += 1;
        self.push_controls();
    }

    fn drop_some(&mut self) {
        let every = 1 + self.random.below(6);
        let meant: Vec<Position> = self
            .truth
            .unsettled
            .iter()
            .copied()
            .filter(|position| mix(position.ms ^ u64::from(position.index)) % 6 < every)
            .collect();
        for position in meant {
            if self.random.chance(300) {
                self.truth.dropping.insert(position);
                let drops = &mut self.environment.controls.drops.main;
                let bits = drops.entry(position.entry()).or_default();
                let index = position.index as usize;
                bits.resize(bits.len().max(index / 8 + 1), 0);
                bits[index / 8] |= 1 << (index % 8);
            }
        }
    }

    /// Replays a dead letter as an operator, perhaps again later. A flood replays all.
    fn replay(&mut self, is_flood: bool) {
        if self.redis.dead.is_empty() {
            return;
        }
        let at = self.random.index(self.redis.dead.len());
        let webhook = self.redis.dead[at];
        if !is_flood && self.random.chance(800) {
            self.redis.dead.swap_remove(at);
        }
        let last = self
            .leader
            .replays_to
            .max(self.redis.replays.keys().next_back().copied().unwrap_or_default());
        let ms = self.wall_ms();
        let id = StreamId { ms, seq: if last.ms == ms { last.seq + 1 } else { 0 } };
        self.log.add(self.now, || format!("an operator replays {}", webhook.name()));
        self.redis.replays.insert(id, webhook);
    }

    /// Makes everything healthy from now on.
    pub(crate) fn calm(&mut self) {
        self.environment.is_calm = true;
        self.backends = Backends::default();
        let controls = &mut self.environment.controls;
        controls.is_all_paused = false;
        controls.shops.clear();
        controls.filters.clear();
        controls.version += 1;
        self.push_controls();
        self.environment.has_lease = true;
        self.environment.lease_at = Duration::ZERO;
        self.environment.may_move = true;
        self.environment.dead_room = 1 << 20;
        self.plan.latency_ms = self.plan.latency_ms.min(20);
        self.plan.tick = Duration::from_millis(50);
        self.log.add(self.now, || "calm".to_owned());
    }
}
