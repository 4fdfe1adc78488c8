//! Simulation of the store mode: shards, restorer, disk, Redis, senders, a second receiver and
//! crashes in seeded schedules. Everything that takes time ends in any order, late, or without an
//! answer.
//!
//! `SEED=n` plays one schedule and prints it. `SEEDS=n` and `STEPS=n` set the number and the length
//! of schedules.

mod process;
mod redis;
mod world;

use std::collections::HashMap;

use world::World;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Small generator: the same numbers for the same seed.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).expect("it is smaller than a usize")
    }

    /// True `of_thousand` times in a thousand.
    pub(crate) fn chance(&mut self, of_thousand: u64) -> bool {
        self.next() % 1000 < of_thousand
    }
}

/// Faults of each kind in a thousand steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub hangs: u64,
    pub fills: u64,
    pub breaks: u64,
    pub stalls: u64,
    pub expires: u64,
    pub disk_fails: u64,
    pub claims: u64,
    pub crashes: u64,
    /// SIGTERMs.
    pub stops: u64,
    /// Steps in which senders send.
    pub sends: u64,
}

impl Plan {
    pub(super) fn of(random: &mut Random) -> Self {
        let mut pick = |all: &[u64]| all[random.below(all.len())];
        Self {
            hangs: pick(&[0, 5, 20, 60]),
            fills: pick(&[0, 0, 5, 20]),
            breaks: pick(&[0, 5, 30]),
            stalls: pick(&[0, 20, 100]),
            expires: pick(&[0, 10, 50]),
            disk_fails: pick(&[0, 0, 100, 500]),
            claims: pick(&[0, 0, 3, 10]),
            crashes: pick(&[0, 0, 3, 10]),
            stops: pick(&[0, 0, 3, 10]),
            sends: pick(&[100, 300, 600]),
        }
    }

    /// Plan in which nothing fails any more, and nothing new is sent.
    pub(super) fn healed() -> Self {
        Self {
            hangs: 0,
            fills: 0,
            breaks: 0,
            stalls: 0,
            expires: 0,
            disk_fails: 0,
            claims: 0,
            crashes: 0,
            stops: 0,
            sends: 0,
        }
    }

    pub(super) fn is_healed(&self) -> bool {
        self.sends == 0
    }
}

/// Plays one schedule. Returns how often each change of mode happened.
fn play(seed: u64, steps: u64, is_logged: bool) -> HashMap<(&'static str, &'static str), u64> {
    let mut world = World::new(seed, is_logged);
    for _ in 0..steps {
        world.step();
        world.check();
    }
    world.plan = Plan::healed();
    for _ in 0..20_000 {
        if world.is_over() {
            break;
        }
        world.step();
        world.check();
    }
    world.check_end();
    world.transitions
}

/// Schedules of the suite. Fewer do not reach every transition.
const SEEDS: u64 = 100_000;

#[test]
fn every_200_is_stored_once_and_in_order_whatever_happens() {
    let steps = setting("STEPS").unwrap_or(400);
    if let Some(seed) = setting("SEED") {
        play(seed, steps, true);
        return;
    }
    let mut transitions: HashMap<_, u64> = HashMap::new();
    let seeds = setting("SEEDS").unwrap_or(SEEDS);
    for seed in 0..seeds {
        let played = std::panic::catch_unwind(|| play(seed, steps, false));
        match played {
            Ok(all) => all.into_iter().for_each(|(key, count)| {
                *transitions.entry(key).or_default() += count;
            }),
            Err(panic) => {
                println!("seed {seed} failed: SEED={seed} shows its schedule");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{transitions:?}");
    // As many as in the tables of `mode`, and a refused append that is followed by restoring.
    assert!(seeds < SEEDS || transitions.len() == 19, "{transitions:?}");
}
