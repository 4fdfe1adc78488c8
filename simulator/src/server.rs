//! A backend: workers, a queue in front of them, and all simulated faults.

use std::collections::VecDeque;
use std::time::Duration;

use crate::random::Random;
use crate::scenario::{Answer, Change, Distribution, Mode, Quota, Server as Settings};

/// Latency of an answer without processing.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Number of a request.
pub type Request = usize;

/// Result of a request's arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// The request is answered after this time without a worker.
    Answered(Answer, Duration),
    /// A worker processes the request for this time.
    Begun(Duration),
    /// The request waits for a worker.
    Queued,
    /// The request never gets an answer.
    Lost,
}

/// Simulated backend.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    busy: usize,
    queue: VecDeque<Request>,
    tokens: f64,
    counted_at: Duration,
    factor: f64,
    factor_at: Option<Duration>,
    /// Requests below this number are lost: they had arrived when the backend began to hang.
    lost_below: Request,
}

impl Server {
    /// Creates an idle backend.
    pub fn new(settings: Settings) -> Self {
        let tokens = settings.quota.map_or(0.0, |quota| quota.burst);
        Self {
            settings,
            busy: 0,
            queue: VecDeque::new(),
            tokens,
            counted_at: Duration::ZERO,
            factor: 1.0,
            factor_at: None,
            lost_below: 0,
        }
    }

    /// Applies a change. `next` is the number of the next request. Returns the requests that can
    /// begin now.
    pub fn change(
        &mut self,
        change: &Change,
        next: Request,
        now: Duration,
        random: &mut Random,
    ) -> Vec<(Request, Duration)> {
        self.settings.workers = change.workers.unwrap_or(self.settings.workers);
        self.settings.service_ms = change.service_ms.unwrap_or(self.settings.service_ms);
        if let Some(mode) = change.mode {
            if mode == Mode::Hang {
                self.lost_below = next;
                self.busy = 0;
                self.queue.clear();
            }
            self.settings.mode = mode;
        }
        let mut begun = Vec::new();
        while let Some(one) = self.begin_next(now, random) {
            begun.push(one);
        }
        begun
    }

    /// Accepts a request.
    pub fn arrive(&mut self, request: Request, now: Duration, random: &mut Random) -> Arrival {
        match self.settings.mode {
            Mode::Hang => return Arrival::Lost,
            Mode::Refuse => return Arrival::Answered(Answer::Broken, AT_ONCE),
            Mode::Unavailable => return Arrival::Answered(Answer::Unavailable, AT_ONCE),
            Mode::Serve => {}
        }
        let mut chance = random.uniform();
        for fault in &self.settings.faults {
            chance -= fault.share;
            if chance < 0.0 && fault.answer == Answer::TimedOut {
                return Arrival::Lost;
            }
            if chance < 0.0 {
                return Arrival::Answered(fault.answer, AT_ONCE);
            }
        }
        if self.settings.quota.is_some_and(|quota| !self.has_quota(quota, now)) {
            return Arrival::Answered(Answer::Overloaded, AT_ONCE);
        }
        if self.busy < self.workers(now) {
            self.busy += 1;
            return Arrival::Begun(self.service(now, random));
        }
        if self.settings.queue_max.is_some_and(|most| self.queue.len() >= most) {
            return Arrival::Answered(self.settings.full, AT_ONCE);
        }
        self.queue.push_back(request);
        Arrival::Queued
    }

    /// Finishes a request of a worker. Returns false if the request is lost, and the request that
    /// the worker takes next.
    pub fn finish(
        &mut self,
        request: Request,
        now: Duration,
        random: &mut Random,
    ) -> (bool, Option<(Request, Duration)>) {
        if request < self.lost_below {
            return (false, None);
        }
        self.busy -= 1;
        (true, self.begin_next(now, random))
    }

    fn begin_next(&mut self, now: Duration, random: &mut Random) -> Option<(Request, Duration)> {
        if self.busy >= self.workers(now) {
            return None;
        }
        let request = self.queue.pop_front()?;
        self.busy += 1;
        Some((request, self.service(now, random)))
    }

    /// `Retry-After` of its refusals.
    pub fn retry_after(&self) -> Option<Duration> {
        self.settings.retry_after_s.map(Duration::from_secs_f64)
    }

    /// Network time of a request and its answer together.
    pub fn network(&self) -> Duration {
        Duration::from_secs_f64(self.settings.network_ms / 1e3)
    }

    /// Capacity in requests per second.
    pub fn capacity(&self, now: Duration) -> f64 {
        let capacity = self.workers(now) as f64 / self.service_mean(now);
        let capacity = self.settings.quota.map_or(capacity, |q| capacity.min(q.per_second));
        if self.settings.mode == Mode::Serve { capacity } else { 0.0 }
    }

    /// Mean latency of a single request, in seconds.
    pub fn base(&self, now: Duration) -> f64 {
        self.service_mean(now) + self.settings.network_ms / 1e3
    }

    /// Median latency of a single request, in seconds.
    pub fn base_p50(&self, now: Duration) -> f64 {
        let service = self.service_mean(now);
        let sigma = self.settings.sigma;
        let median = match self.settings.distribution {
            Distribution::Constant => service,
            Distribution::Exponential => service * std::f64::consts::LN_2,
            Distribution::Lognormal => service * (-sigma * sigma / 2.0).exp(),
        };
        median + self.settings.network_ms / 1e3
    }

    fn workers(&self, now: Duration) -> usize {
        let drift = self.settings.drift.filter(|drift| !drift.of_service);
        let swing = drift.map_or(1.0, |drift| drift.at(now));
        (self.settings.workers * swing).round() as usize
    }

    fn service_mean(&self, now: Duration) -> f64 {
        let drift = self.settings.drift.filter(|drift| drift.of_service);
        let swing = drift.map_or(1.0, |drift| drift.at(now));
        self.settings.service_ms / 1e3 / swing
    }

    fn service(&mut self, now: Duration, random: &mut Random) -> Duration {
        let mean = self.service_mean(now);
        let seconds = match self.settings.distribution {
            Distribution::Constant => mean,
            Distribution::Exponential => random.exponential(mean),
            Distribution::Lognormal => random.lognormal(mean, self.settings.sigma),
        };
        Duration::from_secs_f64(seconds * self.noise(now, random))
    }

    fn noise(&mut self, now: Duration, random: &mut Random) -> f64 {
        let Some(noise) = self.settings.noise else { return 1.0 };
        let period = Duration::from_secs_f64(noise.period_ms / 1e3);
        if self.factor_at.is_none_or(|at| now >= at + period) {
            self.factor_at = Some(now);
            self.factor = 1.0 + noise.spread * (2.0 * random.uniform() - 1.0);
        }
        self.factor
    }

    fn has_quota(&mut self, quota: Quota, now: Duration) -> bool {
        if quota.burst > 0.0 {
            let since = now.saturating_sub(self.counted_at).as_secs_f64();
            self.tokens = (self.tokens + since * quota.per_second).min(quota.burst);
            self.counted_at = now;
        } else if now.as_secs() != self.counted_at.as_secs() || now.is_zero() {
            self.tokens = quota.per_second;
            self.counted_at = now;
        }
        let is_left = self.tokens >= 1.0;
        if is_left {
            self.tokens -= 1.0;
        }
        is_left
    }
}

impl crate::scenario::Drift {
    fn at(&self, now: Duration) -> f64 {
        let turn = now.as_secs_f64() / self.period_s * std::f64::consts::TAU;
        1.0 + self.swing * turn.sin()
    }
}
