//! Liveness: a webhook waits for long only for a reason of its own lane, shop or resource.

use std::collections::HashMap;
use std::time::Duration;

use crate::backend::Mode;
use crate::truth::Violation;
use crate::webhook::{BARRIERS, Resource, Scheme, shop_hash};
use crate::world::World;

/// Time within which a webhook of a healthy lane is settled if nothing else fails, and if few slots
/// may have to catch up with a backlog.
const BOUND_STEADY: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(30);
/// Time within which the circuit breaker of a lane must find out that it is healthy again.
const RECOVERY: Duration = Duration::from_secs(75);
/// Memory of an index that has room for each lane.
const INDEX_LEAST: usize = 8000;
/// Number of priority replays that count as a flood.
const URGENT: usize = 8;
/// Time between two checks.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// Times up to which something had a reason to wait.
#[derive(Default)]
pub(crate) struct Liveness {
    checked_at: Duration,
    all: Duration,
    shops: HashMap<u8, Duration>,
    lanes: HashMap<(u8, u8), Duration>,
    resources: HashMap<Resource, Duration>,
}

fn raise<K: std::hash::Hash + Eq>(times: &mut HashMap<K, Duration>, key: K, until: Duration) {
    let time = times.entry(key).or_default();
    *time = until.max(*time);
}

impl Liveness {
    pub(crate) fn excuse_all(&mut self, until: Duration) {
        self.all = self.all.max(until);
    }
}

impl World {
    pub(crate) fn check_liveness(&mut self) -> Result<(), Violation> {
        if self.now < self.liveness.checked_at {
            return Ok(());
        }
        self.liveness.checked_at = self.now + CHECK_EVERY;
        self.note_reasons();
        let least = if self.plan.is_steady { BOUND_STEADY } else { BOUND };
        let bound = least + 20 * self.plan.tick + Duration::from_millis(100 * self.plan.latency_ms);
        for position in &self.truth.unsettled {
            let fate = &self.truth.fates[position];
            let webhook = &fate.webhook;
            let live = &self.liveness;
            let of = |time: Option<&Duration>| time.copied().unwrap_or_default();
            let since = live
                .all
                .max(fate.appended_at)
                .max(of(live.shops.get(&webhook.shop)))
                .max(of(live.lanes.get(&(webhook.shop, webhook.kind))))
                .max(of(live.resources.get(&webhook.resource())));
            let waited = self.now.saturating_sub(since);
            self.tally.waits += u64::from(waited > Duration::from_secs(1));
            self.tally.longest = self.tally.longest.max(waited);
            if waited > bound {
                return Err(format!(
                    "liveness: {} waits since {since:?}, {:?}",
                    webhook.name(),
                    self.leader.core.status()
                ));
            }
        }
        Ok(())
    }

    fn note_reasons(&mut self) {
        let now = self.now;
        let live = &mut self.liveness;
        let environment = &self.environment;
        let controls = &environment.controls;
        let retry = now + self.plan.config.backoff.longest;
        let has_room = self.plan.config.index_bytes >= INDEX_LEAST && self.plan.latency_ms < 200;
        if !has_room || !environment.has_lease || !environment.may_move || controls.is_all_paused {
            live.excuse_all(now + Duration::from_secs(5));
        }
        if self.leader.core.status().is_refusing {
            live.excuse_all(now + Duration::from_secs(10));
        }
        if self.backends.all.is_some() {
            live.excuse_all(now + RECOVERY);
        }
        for shop in 0..crate::webhook::SHOPS {
            let is_filtered = controls.filters.iter().any(|resource| resource.0 == shop);
            if controls.shops.contains(&shop_hash(shop)) || is_filtered {
                raise(&mut live.shops, shop, now);
            }
        }
        let is_shop_wide = self.scheme == Scheme::Shop || self.plan.changes_scheme;
        for ((shop, kind), mode) in &self.backends.lanes {
            raise(&mut live.lanes, (*shop, *kind), now + RECOVERY);
            if is_shop_wide || matches!(mode, Mode::Busy(_)) {
                raise(&mut live.shops, *shop, now + RECOVERY);
            }
        }
        for (resource, mode) in &self.backends.resources {
            raise(&mut live.resources, *resource, retry);
            // A failing resource concerns only itself.
            if !matches!(mode, Mode::Failing | Mode::Refusing | Mode::Poison) {
                raise(&mut live.lanes, (resource.0, resource.1), now + RECOVERY);
            }
            if is_shop_wide || matches!(mode, Mode::Busy(_)) {
                raise(&mut live.shops, resource.0, now + RECOVERY);
            }
        }
        // A run has the turn of the event that stands for it.
        for position in self.redis.leads.values() {
            if let Some(fate) = self.truth.fates.get(position) {
                raise(&mut live.resources, fate.webhook.resource(), fate.appended_at);
            }
        }
        // Priority replays have four turns of five, of a low rate.
        let urgent = self.redis.replays.values().filter(|webhook| webhook.kind == BARRIERS);
        if self.plan.config.bounds.rate_max.is_some() && urgent.count() >= URGENT {
            live.excuse_all(now);
        }
        // Replays are older than the waiting webhooks of their shop, and go first.
        for webhook in self.redis.replays.values() {
            raise(&mut live.shops, webhook.shop, now);
        }
        for position in &self.truth.unsettled {
            let webhook = self.truth.fates[position].webhook;
            if webhook.kind == BARRIERS {
                raise(&mut live.shops, webhook.shop, now);
            }
        }
    }
}
