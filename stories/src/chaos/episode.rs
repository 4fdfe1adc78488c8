//! One plan carried out: the faults, how long each was felt, and what the ledger says in the end.

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
/// Connections that send one webhook each at the moment of some faults, and of the first one.
const BURST: u64 = 300;
/// Resources of the bursts have numbers from here on.
const BURSTS_FROM: u64 = 20_000;
/// How often everything is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Longer than any takeover, on a busy machine.
const RECOVERS_WITHIN: Duration = Duration::from_secs(120);
/// No record came for so long: there are no more.
const QUIET: Duration = Duration::from_secs(2);
/// A process that holds more than this has no bound.
const RESIDENT_BYTES_MAX: u64 = 384 << 20;

/// What one fault did.
#[derive(Clone, Debug)]
pub struct Felt {
    /// The kinds that were made together.
    pub kinds: Vec<Kind>,
    /// From its end until all that was answered 200 by then had arrived, every sender had been
    /// answered 200 again, and the receiver was ready.
    pub recovery: Duration,
    /// Attempts answered 503 meanwhile.
    pub refused: usize,
    /// Attempts that were not answered.
    pub unanswered: usize,
}

/// What an episode showed.
#[derive(Clone, Debug)]
pub struct Shown {
    /// What was carried out.
    pub plan: Plan,
    /// What each fault did, in order.
    pub felt: Vec<Felt>,
    /// What reached the backend.
    pub delivered: Figures,
    /// What reached the topic.
    pub produced: Option<Once>,
    /// Webhooks that the backend refused for good, each replayed and delivered in the end.
    pub poisoned: usize,
    /// Settlements that were sent again.
    pub duplicates: Duplicates,
    /// As many webhooks may have been repeated.
    pub repeats_max: usize,
    /// The largest resident memory, in bytes, by process.
    pub memory: BTreeMap<String, u64>,
    /// Processes of ours that ended by themselves and were started again.
    pub ended: Vec<String>,
}

struct Episode {
    plan: Plan,
    world: World,
    ledger: Arc<Ledger>,
    felt: Vec<Felt>,
    /// So many of those stored have been looked at, and these had not arrived.
    looked_at: usize,
    missing: Vec<Event>,
}

/// Carries out a plan.
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
    // Nothing of these arrives before the episode ends: they are not looked at until then.
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

    /// Hundreds of senders at once, whose time is over at once if they are not answered.
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

    /// Some time goes by.
    async fn pass(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.world.supervise();
            sleep(LOOK.min(time)).await;
        }
    }

    /// True if the receiver is ready, and every sender was answered 200 since so many were stored.
    async fn is_well_since(&mut self, stored: usize) -> bool {
        let since = self.ledger.stored_after(stored);
        let of_load = since.iter().filter(|event| event.resource < BURSTS_FROM);
        let served: HashSet<u64> = of_load.map(|event| event.resource % SENDERS).collect();
        served.len() as u64 == SENDERS && self.world.is_ready().await
    }

    /// True if all that was stored by the last look has arrived.
    fn has_arrived(&mut self) -> bool {
        let world = &mut self.world;
        self.missing.retain(|event| !world.has_arrived(*event));
        self.missing.is_empty()
    }

    /// From now on what is stored by now is missing until it arrives.
    fn look(&mut self) {
        let new = self.ledger.stored_after(self.looked_at);
        self.looked_at += new.len();
        self.missing.extend(new);
    }

    /// Waits for something, while processes are kept running.
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

    /// Attempts answered 503, and not answered.
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
        // Whatever comes now comes too late.
        self.world.repeat_all_settlements().await;
        self.quiet().await;
        self.reach(&what, async |episode| episode.world.is_empty().await).await;
        self.world.expect_sound().await;

        // What was refused for good and came by a replay has no place in the order.
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
    /// Fails the test if anything was lost, invented, altered or out of order, if more was repeated
    /// than may be, or if memory had no bound.
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
