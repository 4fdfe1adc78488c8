//! The pacer: limits the number of deliveries that begin each second, to `MAX_RATE` and to a cap
//! that many 429 set.
//!
//! A 429 indicates a quota. Only a rate can keep a quota: a concurrency would have to follow each
//! change of the latency. The cap falls to slightly below what was accepted in the last second. It
//! falls at most once a second, since a quota that is counted by the second refuses everything
//! until the next second. From there it grows in one of two ways ([`Growth`]):
//!
//! - While the quota is not known, the rate stays for a second and then doubles each second: the
//!   rate accepted before the first 429 may be a small part of the quota.
//! - Once a rate is known to be refused, the cap grows towards it along a cubic (CUBIC, RFC 9438:
//!   fast at first, long near that rate, then faster and faster), so that it spends most of the
//!   time just below the quota.

use std::time::Duration;

/// Part of the rate that remains after a 429.
const CUT: f64 = 0.91;
/// Time from a cut until the rate that was refused is reached again.
const RECOVERY: Duration = Duration::from_secs(5);
/// Part of the tried rate that must be accepted for the tried rate to be the quota.
const KNOWN: f64 = 0.9;
/// Part of the tried rate that must be accepted for the quota to be near it.
const CLOSE: f64 = 0.5;
/// Growth since the cut, as a factor, after which the cap is dropped.
const FORGOTTEN: f64 = 8.0;
/// Maximum number of doublings: enough for the cap to be dropped.
const DOUBLINGS_MAX: f64 = 4.0;
/// Time between two cuts, and time over which the accepted rate is measured.
const SECOND: Duration = Duration::from_secs(1);
/// Number of parts in which that time is counted.
const PARTS: usize = 10;
/// Time for which unused tokens accumulate: a timer that fires late must not lower the rate.
const GATHERED: Duration = Duration::from_millis(20);
/// Minimum of the cap, per second: no quota is lower.
const CAP_MIN: f64 = 0.2;

/// Weight of one answer in the share of 429.
const SHARE_WEIGHT: f64 = 1.0 / 64.0;
/// Share of 429 that is no accident, while there is a cap. Three in a row exceed it, because a
/// quota refuses several in a row.
const SHARE: f64 = 0.04;
/// Share of 429 that is no accident, while there is no cap. A quota that is exceeded refuses most
/// of what is above it.
const SHARE_FIRST: f64 = 0.2;

/// A token bucket whose rate is the lower of `MAX_RATE` and the cap.
#[derive(Debug)]
pub(crate) struct Pacer {
    rate_max: Option<f64>,
    cap: Option<Cap>,
    tokens: f64,
    filled_at: Duration,
    accepted: RecentStarts,
    /// Share of 429 in the last answers.
    share: f64,
}

/// Maximum number of deliveries that begin each second, as a function of the time since a cut.
#[derive(Debug, Clone, Copy)]
struct Cap {
    /// Rate just after the cut.
    cut_to: f64,
    since: Duration,
    growth: Growth,
}

/// Growth of the cap after a cut.
#[derive(Debug, Clone, Copy)]
enum Growth {
    /// The quota is unknown. The rate doubles each second, after a first second without growth.
    Doubling,
    /// The rate `refused` was refused. The cap follows a cubic that is flat there.
    Cubic { refused: f64 },
}

impl Cap {
    fn at(self, now: Duration) -> f64 {
        let age = now.saturating_sub(self.since).as_secs_f64();
        match self.growth {
            Growth::Doubling => {
                let doublings = (age - SECOND.as_secs_f64()).clamp(0.0, DOUBLINGS_MAX);
                self.cut_to * doublings.exp2()
            }
            Growth::Cubic { refused } => {
                let age = age / RECOVERY.as_secs_f64() - 1.0;
                let depth = if age < 0.0 { refused - self.cut_to } else { refused * (1.0 - CUT) };
                refused + depth * age.powi(3)
            }
        }
    }

    /// Returns the next cap after a refusal, while `accepted` deliveries per second were accepted.
    /// `tried` is the rate of this cap when the refused delivery began.
    fn cut(self, accepted: f64, tried: f64, now: Duration) -> Self {
        let is_known = accepted >= KNOWN * tried;
        let is_close = accepted >= CLOSE * tried;
        let (growth, base) = match self.growth {
            // If the rate was the quota, the cap states it more exactly than the count of accepted
            // deliveries.
            _ if is_known => (Growth::Cubic { refused: tried }, tried),
            // The accepted rate lags behind a rate that doubles.
            Growth::Doubling if is_close => (Growth::Cubic { refused: tried }, accepted),
            Growth::Cubic { .. } if is_close => (Growth::Cubic { refused: accepted }, accepted),
            // The quota is not near the tried rate.
            Growth::Doubling | Growth::Cubic { .. } => (Growth::Doubling, accepted),
        };
        Self { cut_to: (CUT * base).max(CAP_MIN), since: now, growth }
    }
}

impl Pacer {
    pub(crate) fn new(rate_max: Option<f64>) -> Self {
        Self {
            rate_max,
            cap: None,
            tokens: 1.0,
            filled_at: Duration::ZERO,
            accepted: RecentStarts::default(),
            share: 0.0,
        }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Duration) -> bool {
        let Some(rate) = self.rate(now) else { return true };
        let gathered = now.saturating_sub(self.filled_at).as_secs_f64() * rate;
        self.tokens = (self.tokens + gathered).min(1.0 + rate * GATHERED.as_secs_f64());
        self.filled_at = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }

    /// Returns the token that was taken last and was not used.
    pub(crate) fn give_back(&mut self) {
        self.tokens += 1.0;
    }

    /// Time of the next token, if there is none at `now`.
    pub(crate) fn refills_at(&self, now: Duration) -> Option<Duration> {
        let rate = self.rate(now)?;
        let since = now.saturating_sub(self.filled_at).as_secs_f64();
        let missing = 1.0 - self.tokens - since * rate;
        // Slightly later, so that rounding does not cause a wake-up too early.
        (missing > 0.0).then(|| now + Duration::from_secs_f64(missing / rate + 1e-6))
    }

    /// Records an accepted delivery.
    pub(crate) fn done(&mut self, now: Duration) {
        self.accepted.add(now);
        self.share -= self.share * SHARE_WEIGHT;
        if self.cap.is_some_and(|cap| cap.at(now) > FORGOTTEN * cap.cut_to) {
            self.cap = None;
        }
    }

    /// Records a 429 for a delivery that began at `began`.
    pub(crate) fn refused(&mut self, began: Duration, now: Duration) {
        self.share += (1.0 - self.share) * SHARE_WEIGHT;
        if self.share < if self.cap.is_some() { SHARE } else { SHARE_FIRST } {
            return;
        }
        if self.cap.is_some_and(|cap| began < cap.since || now < cap.since + SECOND) {
            return;
        }
        self.cap = Some(match self.cap {
            Some(cap) => cap.cut(self.accepted.last_second(now), cap.at(began), now),
            None => Cap {
                cut_to: (CUT * self.accepted.since_first(now)).max(CAP_MIN),
                since: now,
                growth: Growth::Doubling,
            },
        });
        self.tokens = self.tokens.min(1.0);
    }

    fn rate(&self, now: Duration) -> Option<f64> {
        let cap = self.cap.map(|cap| cap.at(now).max(CAP_MIN));
        match (self.rate_max, cap) {
            (Some(most), Some(cap)) => Some(most.min(cap)),
            (most, cap) => most.or(cap),
        }
    }
}

/// Number of deliveries accepted within the last second.
#[derive(Debug, Default)]
struct RecentStarts {
    parts: [u32; PARTS],
    /// Number of the newest part, counted from the start.
    newest: u128,
    first_at: Option<Duration>,
}

impl RecentStarts {
    fn add(&mut self, now: Duration) {
        self.forget(now);
        self.first_at.get_or_insert(now);
        let part = (self.newest % PARTS as u128) as usize;
        self.parts[part] = self.parts[part].saturating_add(1);
    }

    /// Number of deliveries within the last second.
    fn last_second(&mut self, now: Duration) -> f64 {
        self.forget(now);
        self.parts.iter().copied().map(f64::from).sum()
    }

    /// Rate within the last second, or since the first accepted delivery: before that, little was
    /// sent.
    fn since_first(&mut self, now: Duration) -> f64 {
        let number = self.last_second(now);
        let age = now.saturating_sub(self.first_at.unwrap_or(now)).clamp(SECOND / 10, SECOND);
        number / age.as_secs_f64()
    }

    fn forget(&mut self, now: Duration) {
        let newest = now.as_nanos() / (SECOND.as_nanos() / PARTS as u128);
        let passed = newest.saturating_sub(self.newest).min(PARTS as u128);
        for number in 0..passed {
            self.parts[((newest - number) % PARTS as u128) as usize] = 0;
        }
        self.newest = newest;
    }
}
