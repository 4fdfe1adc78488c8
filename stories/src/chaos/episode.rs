//! Executes one plan: the faults, the recovery time of each, and the final state of the ledger.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::fault::{Fault, Kind};
use super::plan::Plan;
use super::world::{BROKEN_SHOP, SHOPS, World};
use crate::cell::Cell;
use crate::check::{Figures, check};
use crate::exactly_once::{self, Once};
use crate::ledger::{Event, Ledger, Outcome};
use crate::load::{Load, Running};
use crate::receipt::Receipt;
use crate::report::say;
use crate::seed::chance;
use crate::settlements::Duplicates;

/// Connections that send.
const SENDERS: u64 = 16;
/// Connections that send one webhook each when some kinds of faults begin, and when the first fault
/// begins.
const BURST: u64 = 300;
/// Number of the first resource of the bursts.
const BURSTS_FROM: u64 = 20_000;
/// Time between two looks at everything.
const LOOK: Duration = Duration::from_millis(20);
/// Longer than any takeover takes on a busy machine.
const RECOVERS_WITHIN: Duration = Duration::from_secs(120);
/// Time without a new record after which no more are expected.
const QUIET: Duration = Duration::from_secs(2);
/// Memory limit: a process that holds more is considered unbounded.
const RESIDENT_BYTES_MAX: u64 = 384 << 20;

/// Effect of one fault.
#[derive(Clone, Debug)]
pub struct Felt {
    /// Kinds that were made together.
    pub kinds: Vec<Kind>,
    /// Time from the end of the fault until all webhooks answered 200 by then arrived, every sender
    /// was answered 200 again, and the receiver was ready.
    pub recovery: Duration,
    /// Attempts answered 503 during the fault and the recovery.
    pub refused: usize,
    /// Attempts without an answer during the fault and the recovery.
    pub unanswered: usize,
}

/// Results of an episode.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The executed plan.
    pub plan: Plan,
    /// Effect of each fault, in order.
    pub felt: Vec<Felt>,
    /// Check of what reached the backend.
    pub delivered: Figures,
    /// Check of what reached the topic.
    pub produced: Option<Once>,
    /// Webhooks that the backend refused for good. Each was replayed and then delivered.
    pub poisoned: usize,
    /// Settlements that were sent again.
    pub duplicates: Duplicates,
    /// Maximum number of webhooks that may have been repeated.
    pub repeats_max: usize,
    /// The largest resident memory, in bytes, by process.
    pub memory: BTreeMap<String, u64>,
    /// Our processes that ended by themselves and were started again.
    pub ended: Vec<String>,
}

struct Episode {
    plan: Plan,
    world: World,
    ledger: Arc<Ledger>,
    felt: Vec<Felt>,
    /// Number of stored webhooks looked at; `missing` are those of them that had not arrived.
    looked_at: usize,
    missing: Vec<Event>,
}

/// Executes a plan.
pub async fn play(plan: Plan, cell: Cell) -> Shown {
    let world = World::start(cell, plan.parts, plan.seed).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: SENDERS,
        resources: 64,
        shops: Some(SHOPS),
        pause: Duration::from_millis(40),
        ..Load::steady(plan.seed)
    };
    let running = load.start(world.address(), &ledger);
    // These webhooks do not arrive before the episode ends and are checked only then.
    let broken = Arc::new(Ledger::default());
    let of_broken_shop = Load {
        connections: 2,
        resources: 16,
        first_resource: 10_000,
        shops: Some(BROKEN_SHOP..BROKEN_SHOP + 1),
        pause: Duration::from_millis(50),
        ..Load::steady(plan.seed)
    };
    let failing = plan.parts.broken_shop.then(|| of_broken_shop.start(world.address(), &broken));
    let faults = plan.faults.clone();
    let mut episode =
        Episode { plan, world, ledger, felt: Vec::new(), looked_at: 0, missing: Vec::new() };
    for (number, fault) in faults.into_iter().enumerate() {
        episode.befall(number, fault).await;
    }
    running.stop().await;
    if let Some(failing) = failing {
        failing.stop().await;
    }
    episode.ledger.absorb(&broken);
    episode.world.fix_shop();
    episode.end().await
}

impl Episode {
    async fn befall(&mut self, number: usize, fault: Fault) {
        self.pass(fault.after).await;
        let before = self.troubles();
        let mut chance = chance(fault.chance, 0);
        for kind in &fault.kinds {
            self.world.strike(*kind, &mut chance).await;
        }
        let is_burst = number == 0 || fault.kinds.iter().any(|kind| kind.wants_burst());
        let burst = is_burst.then(|| self.burst(number));
        self.pass(fault.lasts).await;
        self.world.heal().await;
        let burst = tokio::spawn(async move {
            if let Some(burst) = burst {
                burst.join().await;
            }
        });
        let what = format!("{}, burst of fault {number}", self.plan.number);
        self.reach(&what, async |_| burst.is_finished()).await;
        burst.await.expect("senders end well");
        self.look();
        let (healed, stored) = (Instant::now(), self.looked_at);
        let what = format!("{}, fault {number}: {:?}", self.plan.number, fault.kinds);
        self.reach(&what, async |episode| {
            episode.has_arrived() && episode.is_well_since(stored).await
        })
        .await;
        let recovery = healed.elapsed();
        let after = self.troubles();
        let (refused, unanswered) = (after.0 - before.0, after.1 - before.1);
        say(&format!(
            "chaos {what} for {:?}: {refused} answered 503, {unanswered} not, back after {recovery:.1?}",
            fault.lasts
        ));
        self.felt.push(Felt { kinds: fault.kinds, recovery, refused, unanswered });
    }

    /// Sends from hundreds of connections at once. Each gives up if it is not answered.
    fn burst(&self, number: usize) -> Running {
        let load = Load {
            connections: BURST,
            resources: BURST,
            first_resource: BURSTS_FROM + BURST * number as u64,
            events: Some(1),
            shops: Some(SHOPS),
            pause: Duration::ZERO,
            ..Load::steady(self.plan.seed)
        };
        load.start(self.world.address(), &self.ledger)
    }

    /// Lets some time pass, while processes are kept running.
    async fn pass(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.world.supervise();
            sleep(LOOK.min(time)).await;
        }
    }

    /// True if the receiver is ready and every sender was answered 200 after the first `stored`
    /// webhooks.
    async fn is_well_since(&mut self, stored: usize) -> bool {
        let since = self.ledger.stored_after(stored);
        let of_load = since.iter().filter(|event| event.resource < BURSTS_FROM);
        let served: HashSet<u64> = of_load.map(|event| event.resource % SENDERS).collect();
        served.len() as u64 == SENDERS && self.world.is_ready().await
    }

    /// True if everything stored by the last look has arrived.
    fn has_arrived(&mut self) -> bool {
        let world = &mut self.world;
        self.missing.retain(|event| !world.has_arrived(*event));
        self.missing.is_empty()
    }

    /// Adds newly stored webhooks to the missing ones.
    fn look(&mut self) {
        let new = self.ledger.stored_after(self.looked_at);
        self.looked_at += new.len();
        self.missing.extend(new);
    }

    /// Waits for a condition, while processes are kept running.
    async fn reach(&mut self, what: &str, mut is_so: impl AsyncFnMut(&mut Self) -> bool) {
        let began = Instant::now();
        loop {
            self.world.supervise();
            if is_so(self).await {
                return;
            }
            if began.elapsed() > RECOVERS_WITHIN {
                self.world.explain(&self.missing).await;
                panic!("chaos {what} is not over, SEED={} and {:?}", self.plan.seed, self.plan);
            }
            sleep(LOOK).await;
        }
    }

    /// Number of attempts answered 503, and number of attempts without an answer.
    fn troubles(&self) -> (usize, usize) {
        let attempts = self.ledger.attempts();
        let of = |outcomes: &[Outcome]| {
            attempts.iter().filter(|attempt| outcomes.contains(&attempt.outcome)).count()
        };
        let unanswered = [Outcome::Unanswered, Outcome::CutInAnswer, Outcome::NotSent];
        (of(&[Outcome::Later]), of(&unanswered))
    }

    async fn end(mut self) -> Shown {
        let what = format!("{}, at its end", self.plan.number);
        self.look();
        self.reach(&what, async |episode| episode.has_arrived() && episode.world.is_empty().await)
            .await;
        let poison = self.world.poisoned();
        let poisoned = self.world.replay().await;
        self.reach(&what, async |episode| {
            let backend = &episode.world.backend;
            poison.iter().all(|event| backend.has_delivered(&event.webhook_id()))
        })
        .await;
        // Duplicates from now on must change nothing.
        self.world.repeat_all_settlements().await;
        self.quiet().await;
        self.reach(&what, async |episode| episode.world.is_empty().await).await;
        self.world.expect_sound().await;

        // Webhooks that were refused for good and then replayed are not checked for order.
        let is_poison = |receipt: &Receipt| {
            Event::of(receipt.webhook_id()).is_some_and(|event| poison.contains(&event))
        };
        let mut receipts = self.world.backend.receipts();
        receipts.retain(|receipt| !is_poison(receipt));
        let delivered = check(&self.ledger, &receipts, &poison);
        let arrivals = self.world.arrivals();
        let produced = arrivals.map(|all| exactly_once::check(&self.ledger, all, &[].into()));
        Shown {
            delivered,
            produced,
            poisoned,
            duplicates: self.world.duplicates(),
            repeats_max: self.world.repeats_max(),
            memory: self.world.memory().clone(),
            ended: self.world.ended().to_vec(),
            plan: self.plan,
            felt: self.felt,
        }
    }

    /// Waits until nothing more arrives.
    async fn quiet(&mut self) {
        let (mut count, mut since) = (0, Instant::now());
        self.reach("nothing more arrives", async |Self { world, .. }| {
            let now = world.backend.count() + world.arrivals().map_or(0, |all| all.len());
            if now != count {
                (count, since) = (now, Instant::now());
            }
            since.elapsed() > QUIET
        })
        .await;
    }
}

impl Shown {
    /// Fails the test if anything was lost, invented, altered or out of order, if there were too
    /// many repeats, or if memory exceeded its limit.
    #[track_caller]
    pub fn expect_sound(&self) {
        self.delivered.expect_sound(self.repeats_max);
        if let Some(produced) = &self.produced {
            produced.expect_exact();
        }
        let Duplicates { sent, refused, applied_twice, .. } = self.duplicates;
        assert_eq!(applied_twice, 0, "settlements applied twice: {:?}", self.duplicates);
        assert!(sent > 0 && refused > 0, "duplicates of settlements: {:?}", self.duplicates);
        for (name, bytes) in &self.memory {
            assert!(*bytes < RESIDENT_BYTES_MAX, "{name} held {bytes} bytes: {:?}", self.memory);
        }
    }
}
