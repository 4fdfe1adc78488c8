//! A backend that enforces a quota by 429 without `Retry-After`, in virtual time and from one seed.
//! The limiter finds the quota within seconds, whatever happens in the first second.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use spillway_limiter::{Bounds, Limiter, Sample, Signal};

const STARTS: u64 = 40;
const QUOTA_PER_SECOND: f64 = 100.0;
/// Start of the measurement. Until then, the limiter has time to find the quota.
const MEASURED_FROM: Duration = Duration::from_secs(5);
const MEASURED_TO: Duration = Duration::from_secs(15);
const SETTINGS: Bounds = Bounds { concurrency_min: 1, concurrency_max: 512, rate_max: None };

/// Counting method of a backend.
#[derive(Debug, Clone, Copy)]
enum Quota {
    /// Tokens that refill evenly, up to this number.
    TokenBucket(f64),
    /// A count that begins at zero each second, at this offset after the start.
    FixedWindow(Duration),
}

struct Backend {
    quota: Quota,
    tokens: f64,
    counted_at: Duration,
    random: SmallRng,
}

impl Backend {
    fn new(quota: Quota, seed: u64) -> Self {
        let tokens = match quota {
            Quota::TokenBucket(burst) => burst,
            Quota::FixedWindow(_) => QUOTA_PER_SECOND,
        };
        let random = SmallRng::seed_from_u64(seed);
        Self { quota, tokens, counted_at: Duration::ZERO, random }
    }

    /// Returns the answer to a request, and the time that it takes.
    fn answer(&mut self, now: Duration) -> (Signal, Duration) {
        match self.quota {
            Quota::TokenBucket(burst) => {
                let since = now.saturating_sub(self.counted_at).as_secs_f64();
                self.tokens = (self.tokens + since * QUOTA_PER_SECOND).min(burst);
            }
            Quota::FixedWindow(phase) => {
                let second = |at: Duration| (at + Duration::from_secs(1) - phase).as_secs();
                if second(now) != second(self.counted_at) {
                    self.tokens = QUOTA_PER_SECOND;
                }
            }
        }
        self.counted_at = now;
        if self.tokens < 1.0 {
            let took = Duration::from_micros(self.random.random_range(500..3_000));
            return (Signal::Overloaded { retry_after: None }, took);
        }
        self.tokens -= 1.0;
        (Signal::Done, Duration::from_micros(self.random.random_range(20_000..50_000)))
    }
}

/// Answers within the measured time.
#[derive(Debug, Default)]
struct Measured {
    done: u32,
    refused: u32,
}

impl Measured {
    fn done_per_second(&self) -> f64 {
        f64::from(self.done) / (MEASURED_TO - MEASURED_FROM).as_secs_f64()
    }

    fn refused_share(&self) -> f64 {
        f64::from(self.refused) / f64::from(self.done + self.refused).max(1.0)
    }
}

/// Plays one start, always with one more delivery to send.
fn play(quota: Quota, seed: u64) -> Measured {
    let mut backend = Backend::new(quota, seed);
    let mut limiter = Limiter::new(SETTINGS);
    let mut under_way: BinaryHeap<Reverse<(Duration, usize)>> = BinaryHeap::new();
    let mut samples: Vec<Sample> = Vec::new();
    let (mut now, mut measured) = (Duration::ZERO, Measured::default());
    while now < MEASURED_TO {
        while limiter.admit(under_way.len(), now) {
            let (signal, took) = backend.answer(now);
            let number = samples.len();
            samples.push(Sample { began: now, in_flight: under_way.len() + 1, signal });
            under_way.push(Reverse((now + took, number)));
        }
        let answered_at = under_way.peek().map(|Reverse((at, _))| *at);
        let wakes_at = limiter.wakes_at(now);
        let next = answered_at.into_iter().chain(wakes_at).min();
        now = next.expect("an answer or a time is awaited");
        while let Some(Reverse((at, number))) = under_way.peek().copied()
            && at <= now
        {
            under_way.pop();
            let sample = samples[number];
            limiter.ended(&sample, now, backend.random.random());
            if now >= MEASURED_FROM {
                measured.done += u32::from(sample.signal == Signal::Done);
                measured.refused += u32::from(sample.signal != Signal::Done);
            }
        }
    }
    measured
}

fn check(name: &str, quota: impl Fn(&mut SmallRng) -> Quota) {
    let mut missed = Vec::new();
    for seed in 0..STARTS {
        let quota = quota(&mut SmallRng::seed_from_u64(seed));
        let measured = play(quota, seed);
        let (done, refused) = (measured.done_per_second(), measured.refused_share());
        if done < 0.9 * QUOTA_PER_SECOND || refused > 0.03 {
            missed.push(format!("seed {seed}, {quota:?}: {done:.1}/s, {refused:.3} refused"));
        }
    }
    assert!(missed.is_empty(), "{name}: {} of {STARTS}\n{}", missed.len(), missed.join("\n"));
}

#[test]
fn a_token_bucket_is_found_from_every_start() {
    check("token bucket", |random| Quota::TokenBucket(random.random_range(5.0..30.0)));
}

#[test]
fn a_token_bucket_of_a_second_is_found_from_every_start() {
    check("token bucket of a second", |_| Quota::TokenBucket(QUOTA_PER_SECOND));
}

#[test]
fn a_count_per_second_is_found_from_every_start() {
    check("fixed window", |random| {
        Quota::FixedWindow(Duration::from_millis(random.random_range(0..1_000)))
    });
}
