//! Settings of one run, chosen by its seed.

use std::time::Duration;

use spillway_delivery::{
    AtOnce, Backoff, Config, DedupWindow, SettlementBounds, ShopBounds, Suppression, Tuning,
};
use spillway_limiter::Bounds;

use crate::random::Random;
use crate::webhook::{Exclusion, SHOPS, Scheme};

/// Memory for the last delivered states of all resources.
pub(crate) const ROOMY: usize = 1 << 20;

/// Settings of one run.
pub(crate) struct Plan {
    pub config: Config,
    pub scheme: Scheme,
    /// True if the scheme changes at some takeovers.
    pub changes_scheme: bool,
    /// A shop whose backend never fails.
    pub healthy: Option<u8>,
    pub dedup_window: Duration,
    pub resources: u64,
    /// Longest time after which the core checks its timers.
    pub tick: Duration,
    /// Longest time between two acts of the world, in milliseconds.
    pub act_ms: u64,
    /// Takeovers in a thousand acts.
    pub crashes: u64,
    /// New failures in a thousand acts.
    pub failures: u64,
    /// Acts of the operator in a thousand acts.
    pub operator: u64,
    pub packs: u64,
    pub latency_ms: u64,
    /// Restores of older data in a thousand acts.
    pub restores: u64,
    /// Lost chunks in a thousand takeovers.
    pub spoils: u64,
    /// True if the consumer has a filter.
    pub has_filter: bool,
    /// Changes of the filter in a thousand takeovers.
    pub filter_changes: u64,
    /// True if only lanes fail. Then every wait of a healthy lane is checked.
    pub is_steady: bool,
}

impl Plan {
    pub(crate) fn new(random: &mut Random) -> Self {
        let scheme = if random.chance(200) { Scheme::Shop } else { Scheme::Resource };
        let mut plan = Self {
            config: config(random),
            scheme,
            changes_scheme: random.chance(150),
            healthy: random
                .chance(700)
                .then(|| u8::try_from(random.below(u64::from(SHOPS))).expect("it is small")),
            dedup_window: Duration::from_secs(random.pick(&[0, 1, 5, 3600])),
            resources: 1 + random.below(6),
            tick: random.pick(&[50, 50, 200, 1000].map(Duration::from_millis)),
            act_ms: random.pick(&[20, 60, 200, 600]),
            crashes: random.pick(&[0, 5, 20, 60]),
            failures: random.pick(&[0, 20, 60, 150]),
            operator: random.pick(&[0, 10, 40]),
            packs: random.pick(&[100, 250, 500, 700]),
            latency_ms: random.pick(&[2, 10, 40, 200]),
            restores: random.pick(&[0, 0, 0, 0, 0, 5, 20]),
            spoils: random.pick(&[0, 0, 100, 500]),
            has_filter: random.chance(400),
            filter_changes: 0,
            is_steady: false,
        };
        if plan.has_filter {
            plan.filter_changes = random.pick(&[0, 300]);
        }
        if random.chance(300) {
            plan.steady(random);
        }
        plan
    }

    /// Makes only lanes of other shops fail, so that a healthy lane has what it needs.
    fn steady(&mut self, random: &mut Random) {
        self.is_steady = true;
        self.changes_scheme = false;
        self.healthy.get_or_insert(0);
        self.tick = Duration::from_millis(50);
        self.act_ms = random.pick(&[200, 400, 1000]);
        self.crashes = 0;
        self.restores = 0;
        self.failures = random.pick(&[60, 150]);
        self.packs = random.pick(&[250, 500]);
        self.latency_ms = random.pick(&[2, 10]);
        let config = &mut self.config;
        config.index_bytes = random.pick(&[12_000, 16_000, 30_000, 1 << 20]);
        config.bounds.concurrency_max = random.pick(&[4, 16]);
        config.shop_bounds.concurrency_max = random.pick(&[2, 8]);
        config.tuning.settlements.webhooks = random.pick(&[10, 2048]);
        config.tuning.settlements.lanes = random.pick(&[2, 256]);
        config.tuning.unsettled = 256;
    }

    /// Paths that a filter excludes.
    pub(crate) fn exclusion(&self, random: &mut Random) -> Exclusion {
        let paths: &[u8] = if self.has_filter { &[0, 0b1, 0b10, 0b11, 0b111] } else { &[0] };
        Exclusion(random.pick(paths))
    }

    /// Creates a deduplication window that holds these fingerprints.
    pub(crate) fn seen(&self, remembered: &[(u128, u64)]) -> DedupWindow {
        let mut seen = DedupWindow::new(self.dedup_window, 1 << 20);
        remembered.iter().for_each(|(fingerprint, at)| seen.insert(*fingerprint, *at));
        seen
    }
}

fn config(random: &mut Random) -> Config {
    let seconds = Duration::from_secs;
    Config {
        bounds: Bounds {
            concurrency_min: 1,
            concurrency_max: random.pick(&[2, 4, 16]),
            rate_max: random.pick(&[None, None, None, Some(200.0), Some(10.0)]),
        },
        shop_bounds: ShopBounds {
            concurrency_max: random.pick(&[1, 2, 8, 16]),
            spacing: random.pick(&[0, 0, 0, 20].map(Duration::from_millis)),
        },
        backoff: Backoff { first: random.ms(50, 1000), longest: random.ms(1000, 6000) },
        retry_for: Duration::from_millis(random.pick(&[300, 3000, 20_000, 120_000, 172_800_000])),
        retry_refused_for: seconds(random.pick(&[1, 20, 3600])),
        coalesce_wait_max: seconds(random.pick(&[1, 10, 600])),
        park_after: random.ms(0, 3000),
        index_bytes: random.pick(&[4000, 5000, 6000, 8000, 12_000, 30_000, 1 << 20]),
        keeps_fingerprints: random.chance(500),
        suppression: Suppression {
            bytes: random.pick(&[0, 1500, ROOMY, ROOMY]),
            drops_stale: random.chance(500),
            // All times of a simulation are of one clock.
            clock_skew_ms: 0,
        },
        seed: random.next(),
        tuning: Tuning {
            window_low: random.pick(&[1, 2, 4, 16, 512]),
            chunks_at_once: random.pick(&[1, 2, 4]),
            moved_packs: random.pick(&[1, 2, 8]),
            moved_bytes: random.pick(&[1, 500, 2000, 512 << 10]),
            settlements: SettlementBounds {
                webhooks: random.pick(&[1, 3, 10, 2048]),
                lanes: random.pick(&[1, 2, 256]),
                every: Duration::from_millis(random.pick(&[0, 5, 5, 20])),
                every_calm: Duration::from_millis(random.pick(&[0, 5, 20, 50])),
            },
            at_once: AtOnce {
                passed_packs: random.pick(&[1, 3, 1024]),
                passed_webhooks: random.pick(&[1, 5, 16_384]),
                released: random.pick(&[1, 2, 4096]),
            },
            unsettled: random.pick(&[1, 4, 256]),
            cache_bytes: random.pick(&[0, 1000, 4000, 32 << 20]),
            breaker_failures: random.pick(&[1, 2, 4, 16]),
            breaker_opens_after: random.ms(0, 5000),
            expiry_grace: random.ms(0, 2000),
        },
    }
}
