//! One attack, with calm before and behind it, over and over.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use stories::hostile::attack::Attack;
use stories::hostile::siege::{Heard, Siege, crowd};
use stories::ledger::{Ledger, Outcome};
use stories::measure::percentile;
use stories::service::Service;
use stories::size::size;
use tokio::time::sleep;

/// What one connection may hold, whatever comes over it: a head (64 KiB), as much again while the
/// buffer that it fills is grown, and 32 KiB for its task and its answer.
const CONNECTION_BYTES_MAX: u64 = 160 << 10;
/// What an idle one may.
const IDLE_BYTES_MAX: u64 = 16 << 10;
/// Twice what may be in flight, for a body and its copy in a pack; and what the allocator keeps.
const PROCESS_BYTES_MAX: u64 = (2 * 64 + 64) << 20;
/// How much the good ones' p99 may grow.
const GROWTH_MAX: f64 = 1.2;
/// The most requests that a stranger writes before an answer.
const PIPELINED_MAX: u64 = 5;

/// What came of an attack.
pub struct Trial {
    pub attack: Attack,
    pub strangers: usize,
    /// The good ones' p99 in each calm, and in the attack behind it.
    pub p99: Vec<(Duration, Duration)>,
    /// Good ones that were sent while the attack went on.
    pub good: usize,
    /// What the strangers heard.
    pub heard: Heard,
    /// Resident memory before it, and at most.
    pub memory_bytes: (u64, u64),
}

impl Trial {
    pub async fn run(attack: Attack, receiver: &Service, ledger: &Ledger) -> Self {
        let (rounds, window) = size((1, 1000), (5, 1500));
        let window = Duration::from_millis(window);
        let strangers = attack.strangers(crowd(size(500, 10_000)));
        let before = receiver.resident_bytes();
        let mut trial = Self {
            attack,
            strangers,
            p99: Vec::new(),
            good: 0,
            heard: Heard::new(),
            memory_bytes: (before, before),
        };
        for _ in 0..rounds {
            let calm = trial.watch(receiver, window).await;
            let siege = Siege::begin(attack, strangers, receiver.address());
            trial.watch(receiver, attack.settles_after(strangers)).await;
            let storm = trial.watch(receiver, window).await;
            for (status, count) in siege.end() {
                *trial.heard.entry(status).or_default() += count;
            }
            trial.good += within(ledger, &storm).len();
            let p99 = |window| percentile(&within(ledger, window), 0.99);
            trial.p99.push((p99(&calm), p99(&storm)));
            // What they left behind is gone before the next calm.
            trial.watch(receiver, Duration::from_millis(500)).await;
        }
        trial
    }

    /// Lets time pass and keeps an eye on the memory.
    async fn watch(&mut self, receiver: &Service, time: Duration) -> Range<Instant> {
        let began = Instant::now();
        while began.elapsed() < time {
            self.memory_bytes.1 = self.memory_bytes.1.max(receiver.resident_bytes());
            sleep(Duration::from_millis(20)).await;
        }
        began..Instant::now()
    }

    /// By how much the good ones' p99 grew: the median over all rounds.
    pub fn growth(&self) -> f64 {
        let ratio = |(calm, storm): &(Duration, Duration)| storm.as_secs_f64() / calm.as_secs_f64();
        let mut ratios: Vec<f64> = self.p99.iter().map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    }

    /// The most memory that it may have cost, beside what was there before.
    pub fn memory_bytes_max(&self) -> u64 {
        let each = match self.attack {
            Attack::Idle => IDLE_BYTES_MAX,
            _ => CONNECTION_BYTES_MAX,
        };
        PROCESS_BYTES_MAX + self.strangers as u64 * each
    }

    /// How many of the strangers' webhooks were good ones.
    pub fn stored(&self) -> u64 {
        self.heard.get(&200).copied().unwrap_or(0)
    }

    /// How many more may have been, whose answer nobody waited for.
    pub fn owed_max(&self) -> u64 {
        self.strangers as u64 * self.p99.len() as u64 * PIPELINED_MAX
    }

    pub fn expect_harmless(&self) {
        let is_ours = |status: &u16| *status >= 500;
        assert!(!self.heard.keys().any(is_ours), "{self}: a bad request was answered 5xx");
        let grown = self.memory_bytes.1 - self.memory_bytes.0;
        assert!(grown < self.memory_bytes_max(), "{self}: memory grew by {grown} bytes");
        let speaks = !matches!(self.attack, Attack::Idle | Attack::RapidReset);
        assert!(!speaks || !self.heard.is_empty(), "{self}: nobody was answered");
        assert!(self.good > 0, "{self}: no good webhook came meanwhile");
    }

    pub fn expect_unfelt(&self) {
        let growth = self.growth();
        assert!(growth <= GROWTH_MAX, "{self}: p99 grew {growth:.2} times");
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, most) = self.memory_bytes;
        write!(
            f,
            "{:?} by {}: p99 {:.2} times that of calm {:.1?}, memory {} MiB, at most {} MiB, heard {:?}",
            self.attack,
            self.strangers,
            self.growth(),
            self.p99,
            before >> 20,
            most >> 20,
            self.heard
        )
    }
}

/// How long the good ones waited that were sent in this window.
fn within(ledger: &Ledger, window: &Range<Instant>) -> Vec<Duration> {
    let attempts = ledger.attempts();
    let sent = attempts.iter().filter(|attempt| window.contains(&attempt.began));
    sent.filter(|attempt| attempt.outcome == Outcome::Stored).map(|attempt| attempt.took).collect()
}
