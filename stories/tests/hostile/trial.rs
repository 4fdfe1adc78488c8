//! One attack, repeated, with calm before and after it.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use stories::hostile::attack::Attack;
use stories::hostile::siege::{Heard, Siege, crowd};
use stories::ledger::{Attempt, Ledger, Outcome};
use stories::measure::percentile;
use stories::service::Service;
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

/// Memory of one connection, whatever is sent over it: a head (64 KiB), the same again while its
/// buffer grows, and 32 KiB for its task and its answer.
const CONNECTION_BYTES_MAX: u64 = 160 << 10;
/// Memory of an idle connection.
const IDLE_BYTES_MAX: u64 = 16 << 10;
/// Twice the limit of bytes in flight, for a body and its copy in a pack, plus what the allocator
/// keeps.
const PROCESS_BYTES_MAX: u64 = (2 * 64 + 64) << 20;
/// Limit for the growth of the good webhooks' p99.
pub(crate) const GROWTH_MAX: f64 = 1.2;
/// Time within which all idle connections are open.
const SOON: Duration = Duration::from_secs(60);
/// Maximum number of requests that an attacker writes before an answer.
const PIPELINED_MAX: u64 = 5;

/// Servers and webhooks of the measurement.
pub(crate) struct Scene<'a> {
    /// Receives the good webhooks, and is attacked.
    pub receiver: &'a Service,
    /// Address at which it serves HTTPS.
    pub tls: SocketAddr,
    /// Receives no good webhooks, and is attacked instead. The cost of that attack for the good
    /// webhooks is the cost of sharing the machine. Only present in measurements.
    pub bare: Option<&'a Service>,
    /// The good webhooks.
    pub ledger: &'a Ledger,
}

/// Figures of the good webhooks in one period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub p50: Duration,
    pub p99: Duration,
    /// Number of good webhooks.
    pub good: usize,
    /// Share of a core that the receiver used.
    pub cpu: f64,
}

/// A period that has passed, and the CPU time of the receiver in it.
struct Watched {
    window: Range<Instant>,
    cpu: Duration,
}

/// A calm period and an attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub calm: Stretch,
    /// Attack on the receiver.
    pub attack: Stretch,
    /// Another calm period, and an attack on the bare server.
    pub elsewhere: Option<[Stretch; 2]>,
}

/// Results of an attack.
pub(crate) struct Trial {
    pub attack: Attack,
    pub strangers: usize,
    pub rounds: Vec<Round>,
    /// Answers of the receiver to the attackers.
    pub heard: Heard,
    /// Resident memory before the attack, and the maximum.
    pub memory_bytes: (u64, u64),
}

impl Trial {
    pub(crate) async fn run(attack: Attack, scene: &Scene<'_>) -> Self {
        let (rounds, window) = size((1, 500), (8, 1000));
        let rounds = match std::env::var("ROUNDS") {
            Ok(text) => text.parse().expect("ROUNDS is a number"),
            Err(_) => rounds,
        };
        let window = Duration::from_millis(window);
        let before = scene.receiver.resident_bytes();
        let mut trial = Self {
            attack,
            strangers: attack.strangers(crowd(size(500, 10_000))),
            rounds: Vec::new(),
            heard: Heard::new(),
            memory_bytes: (before, before),
        };
        for _ in 0..rounds {
            let calm = trial.watch(scene, window).await;
            let address = if attack.is_of_tls() { scene.tls } else { scene.receiver.address() };
            let (attack, heard) = trial.besiege(scene, scene.receiver, address, window).await;
            for (status, count) in heard {
                *trial.heard.entry(status).or_default() += count;
            }
            let mut elsewhere = None;
            if let Some(bare) = scene.bare {
                let calm = trial.watch(scene, window).await;
                let attack = trial.besiege(scene, bare, bare.address(), window).await.0;
                elsewhere = Some([calm, attack]);
            }
            // Only evaluated now, because reading the ledger blocks its writers.
            let judge = |watched: Watched| watched.judge(scene.ledger);
            let elsewhere = elsewhere.map(|both| both.map(judge));
            trial.rounds.push(Round { calm: judge(calm), attack: judge(attack), elsewhere });
        }
        trial
    }

    /// Measures the good webhooks while this server is attacked.
    async fn besiege(
        &mut self,
        scene: &Scene<'_>,
        server: &Service,
        address: SocketAddr,
        window: Duration,
    ) -> (Watched, Heard) {
        let siege = Siege::begin(self.attack, self.strangers, address);
        if self.attack == Attack::Idle {
            // Attackers connect before the measurement, and nearly all are connected during it.
            // Idle ones are disconnected after the time for headers and reconnect.
            let most = self.strangers * 9 / 10;
            until("nearly all are there", SOON, async || server.open_files() > most).await;
        }
        self.watch(scene, self.attack.settles_after()).await;
        if self.attack.is_answered() {
            // Attackers only run when a core is idle, which takes a while on a busy machine.
            until("an attacker is answered", SOON, async || siege.is_answered()).await;
        }
        let watched = self.watch(scene, window).await;
        let heard = siege.end();
        // Remains of the attack are gone before the next calm period.
        self.watch(scene, Duration::from_millis(400)).await;
        (watched, heard)
    }

    /// Lets time pass and records the largest memory.
    async fn watch(&mut self, scene: &Scene<'_>, time: Duration) -> Watched {
        let (began, cpu) = (Instant::now(), scene.receiver.cpu());
        while began.elapsed() < time {
            self.memory_bytes.1 = self.memory_bytes.1.max(scene.receiver.resident_bytes());
            sleep(Duration::from_millis(20)).await;
        }
        let cpu = scene.receiver.cpu() - cpu;
        Watched { window: began..Instant::now(), cpu }
    }

    /// p99 of the good webhooks in calm: the median over all rounds, twice in each.
    pub(crate) fn calm(&self) -> Duration {
        let again = self.rounds.iter().filter_map(|round| round.elsewhere).map(|both| both[0]);
        median(self.rounds.iter().map(|round| round.calm).chain(again).collect())
    }

    /// p99 of the good webhooks while the receiver was attacked.
    pub(crate) fn attacked(&self) -> Duration {
        median(self.rounds.iter().map(|round| round.attack).collect())
    }

    /// p99 of the good webhooks while the bare server was attacked.
    pub(crate) fn elsewhere(&self) -> Duration {
        median(self.rounds.iter().filter_map(|round| round.elsewhere).map(|both| both[1]).collect())
    }

    /// Growth of the p99 by the attack.
    pub(crate) fn growth(&self) -> f64 {
        self.attacked().as_secs_f64() / self.calm().as_secs_f64()
    }

    /// Growth of the p99 by the same attack on a server without good webhooks.
    pub(crate) fn growth_elsewhere(&self) -> f64 {
        self.elsewhere().as_secs_f64() / self.calm().as_secs_f64()
    }

    /// Growth beyond that of calm, and beyond that of sharing the machine.
    pub(crate) fn own_growth(&self) -> f64 {
        self.growth() / self.growth_elsewhere().max(1.0)
    }

    /// Ratio of the two halves of the calm.
    pub(crate) fn noise(&self) -> f64 {
        let again = self.rounds.iter().filter_map(|round| round.elsewhere).map(|both| both[0]);
        let first = median(self.rounds.iter().map(|round| round.calm).collect());
        median(again.collect()).as_secs_f64() / first.as_secs_f64()
    }

    /// Share of a core that the receiver used: the median over all rounds.
    pub(crate) fn cpu(&self, of: fn(&Round) -> Stretch) -> f64 {
        let mut all: Vec<_> = self.rounds.iter().map(|round| of(round).cpu).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }

    /// Limit of the additional memory during the attack.
    pub(crate) fn memory_bytes_max(&self) -> u64 {
        let each = match self.attack {
            Attack::Idle => IDLE_BYTES_MAX,
            _ => CONNECTION_BYTES_MAX,
        };
        PROCESS_BYTES_MAX + self.strangers as u64 * each
    }

    /// Number of the attackers' webhooks that were stored.
    pub(crate) fn stored(&self) -> u64 {
        self.heard.get(&200).copied().unwrap_or(0)
    }

    /// Maximum number of further stored webhooks, whose answer nobody waited for.
    pub(crate) fn owed_max(&self) -> u64 {
        self.strangers as u64 * self.rounds.len() as u64 * PIPELINED_MAX
    }

    pub(crate) fn expect_harmless(&self) {
        let is_ours = |status: &u16| *status >= 500;
        assert!(!self.heard.keys().any(is_ours), "{self}: a bad request was answered 5xx");
        let grown = self.memory_bytes.1 - self.memory_bytes.0;
        assert!(grown < self.memory_bytes_max(), "{self}: memory grew by {grown} bytes");
        assert!(
            !self.attack.is_answered() || !self.heard.is_empty(),
            "{self}: nobody was answered"
        );
    }

    /// True if the p99 of good webhooks grows within the limit, whatever the cause.
    pub(crate) fn is_unfelt(&self) -> bool {
        self.growth() <= GROWTH_MAX
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, most) = self.memory_bytes;
        write!(
            f,
            "{:?} by {}: p99 {:.1?} in calm, {:.1?} under attack ({:.2}), {:.1?} while the bare server is \
             attacked, of a core {:.3} and {:.3}, memory {} MiB, at most {} MiB, heard {:?}",
            self.attack,
            self.strangers,
            self.calm(),
            self.attacked(),
            self.growth(),
            self.elsewhere(),
            self.cpu(|round| round.calm),
            self.cpu(|round| round.attack),
            before >> 20,
            most >> 20,
            self.heard
        )
    }
}

/// Median of the p99 values; zero if there are none.
fn median(stretches: Vec<Stretch>) -> Duration {
    let mut all: Vec<_> = stretches.iter().map(|stretch| stretch.p99).collect();
    all.sort();
    let middle = all.len() / 2;
    match all.len() {
        0 => Duration::ZERO,
        count if count.is_multiple_of(2) => (all[middle - 1] + all[middle]) / 2,
        _ => all[middle],
    }
}

impl Watched {
    fn judge(&self, ledger: &Ledger) -> Stretch {
        let attempts = ledger.attempts();
        let is_ours = |attempt: &&Attempt| {
            attempt.outcome == Outcome::Stored && self.window.contains(&attempt.began)
        };
        let took: Vec<_> = attempts.iter().filter(is_ours).map(|attempt| attempt.took).collect();
        let time = self.window.end - self.window.start;
        Stretch {
            p50: percentile(&took, 0.5),
            p99: percentile(&took, 0.99),
            good: took.len(),
            cpu: self.cpu.as_secs_f64() / time.as_secs_f64(),
        }
    }
}
