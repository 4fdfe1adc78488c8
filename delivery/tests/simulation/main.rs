//! Simulation of the delivery core in virtual time, against a model of Redis, failing backends, an
//! operator, crashes and takeovers. Each run is determined by its seed.
//!
//! `SEEDS=n` runs n seeds, `STEPS=n` runs n steps of each, `SEED=n` runs one seed and prints its
//! schedule.

mod acts;
mod backend;
mod counted;
mod leader;
mod liveness;
mod plan;
mod random;
mod redis;
mod shown;
mod tally;
mod truth;
mod webhook;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tally::Tally;
use truth::Violation;
use world::World;

/// Processor time for which seeds are run, unless their number is given: as many beside other tests
/// as alone.
const RUN_FOR: Duration = Duration::from_secs(60);
/// Virtual time within which everything is settled once all is healthy.
const CALM_MAX: Duration = Duration::from_secs(900);
/// Most steps in that time.
const CALM_STEPS: usize = 400_000;
/// Most failing seeds that are reported.
const FAILURES_MAX: u64 = 5;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("not negative")
}

/// Runs a world through its faults, and then without faults until nothing is left.
fn play(world: &mut World, steps: u64) -> Result<(), Violation> {
    for _ in 0..steps {
        world.step()?;
    }
    world.calm();
    let until = world.now + CALM_MAX;
    for _ in 0..CALM_STEPS {
        if is_over(world) {
            return world.shown.check_end(world.circumstances());
        }
        world.step()?;
        if world.now > until {
            break;
        }
    }
    Err(format!(
        "{} are left: {:?}; cursor {} of {}; {:?}; in redis: {:?}",
        world.truth.unsettled.len(),
        world.truth.unsettled.iter().take(5).collect::<Vec<_>>(),
        world.redis.cursor,
        world.redis.last,
        world.leader.core.status(),
        world.redis.remains()
    ))
}

fn is_over(world: &World) -> bool {
    world.truth.unsettled.is_empty()
        && world.redis.cursor == world.redis.last
        && world.redis.remains().is_none()
        && world.leader.core.is_quiet()
        // Of what is settled, no stub is said to wait.
        && world.leader.core.status().stubs_expiring == 0
}

fn run(seed: u64, steps: u64, is_logged: bool) -> (Result<(), Violation>, Tally) {
    let mut world = World::new(seed, is_logged);
    let played = catch_unwind(AssertUnwindSafe(|| play(&mut world, steps)));
    let result = played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    });
    if is_logged {
        world.log.print();
        println!(
            "{:?} {:?} latency {} tick {:?} {:?}",
            world.scheme,
            world.exclusion,
            world.plan.latency_ms,
            world.plan.tick,
            world.plan.config
        );
    }
    world.tally.cuts += world.leader.core.counts().cuts;
    world.tally.excluded += world.leader.core.counts().undelivered.excluded;
    world.tally.virtual_time = world.now;
    (result, world.tally)
}

#[test]
fn every_schedule_keeps_order_and_loses_nothing() {
    let steps = setting("STEPS").unwrap_or(1000);
    if let Some(seed) = setting("SEED") {
        let (result, tally) = run(seed, steps, true);
        println!("{tally}");
        result.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        return;
    }
    let seeds = setting("SEEDS").unwrap_or(u64::MAX);
    let most = setting("MAXF").unwrap_or(FAILURES_MAX);
    let first = setting("FIRST").unwrap_or(0);
    let began = Instant::now();
    let (next, failed) = (AtomicU64::new(first), AtomicU64::new(0));
    let sum = Mutex::new(Tally::default());
    let is_limited = setting("SEEDS").is_none();
    std::panic::set_hook(Box::new(|_| {}));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !(is_limited && processor_time() > RUN_FOR)
                    && failed.load(Ordering::Relaxed) < most
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - first >= seeds {
                        break;
                    }
                    let (result, tally) = run(seed, steps, false);
                    sum.lock().expect("no thread panics").add(&tally);
                    if let Err(violation) = result {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("seed {seed}: {violation}");
                    }
                }
            });
        }
    });
    drop(std::panic::take_hook());
    let failed = failed.load(Ordering::Relaxed);
    let seeds = next.load(Ordering::Relaxed) - first;
    let sum = *sum.lock().expect("no thread panics");
    println!("{seeds} seeds of {steps} steps in {:?}, {failed} failed: {sum}", began.elapsed());
    assert_eq!(failed, 0, "seeds failed: run one with SEED=n to see its schedule");
}
