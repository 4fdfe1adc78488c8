//! Time that counts for retries, as the world counts it. No webhook is given up before its time is
//! over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::truth::Violation;
use crate::webhook::{ORDERS, Resource, SHOPS, Webhook};
use crate::world::World;

/// Delay after which the leader learns of a pause, of its end, and of its deliveries.
const HEARD_AFTER: Duration = Duration::from_millis(1500);

/// Counted time: there was a leader with a lease, the backend was not stopped, and no operator
/// paused it.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    up_to: Duration,
    /// End of the leader's lease.
    pub leads_until: Duration,
    of_shops: [Duration; SHOPS as usize],
    /// Part of that time in which a filter paused a resource.
    filtered: BTreeMap<Resource, Duration>,
    /// Counted time of each webhook's resource when it was accepted.
    at_first: BTreeMap<Position, Duration>,
}

impl Counted {
    /// Notes that a webhook is accepted.
    pub(crate) fn accepted(&mut self, webhook: &Webhook) {
        self.at_first.insert(webhook.position, self.of(webhook));
    }

    fn of(&self, webhook: &Webhook) -> Duration {
        let filtered = self.filtered.get(&webhook.resource()).copied().unwrap_or_default();
        self.of_shops[usize::from(webhook.shop)].saturating_sub(filtered)
    }

    fn since(&self, webhook: &Webhook) -> Duration {
        let first = self.at_first.get(&webhook.position).copied().unwrap_or_default();
        self.of(webhook).saturating_sub(first)
    }
}

impl World {
    /// Counts the time up to now, if it counts. Nothing has changed since the last call.
    pub(crate) fn count_time(&mut self) {
        let from = std::mem::replace(&mut self.counted.up_to, self.now);
        let took = self.now.min(self.counted.leads_until).saturating_sub(from);
        let status = self.leader.core.status();
        if status.is_down || status.is_refusing || self.environment.controls.is_all_paused {
            return;
        }
        for shop in 0..SHOPS {
            if !self.is_shop_paused(shop) {
                self.counted.of_shops[usize::from(shop)] += took;
            }
        }
        let filters = self.environment.controls.filters.iter().copied();
        let filters: BTreeSet<Resource> =
            filters.filter(|resource| !self.is_shop_paused(resource.0)).collect();
        for resource in filters {
            *self.counted.filtered.entry(resource).or_default() += took;
        }
    }

    /// Checks that a webhook given up because of its time had all its time. One that stands for
    /// others has their time, and a replay has that of the repeated webhook.
    pub(crate) fn check_dead(&self, webhook: &Webhook, reason: &str) -> Result<(), Violation> {
        let least = match reason {
            "expired" => self.plan.config.retry_for + self.plan.config.tuning.expiry_grace,
            "retries_exhausted" => self.plan.config.retry_for,
            _ => return Ok(()),
        };
        let counted = self.counted.since(webhook) + HEARD_AFTER;
        if webhook.kind != ORDERS && counted < least {
            return Err(format!("{} is {reason} after {counted:?} of {least:?}", webhook.name()));
        }
        Ok(())
    }
}
