//! The order of the faults: a pure function of the seed.
//!
//! Kinds are drawn at random among those that the cell allows and that were drawn least often. In a
//! long run each kind comes about equally often, in every order.

use std::collections::HashMap;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::fault::{Fault, Kind, Parts};
use crate::seed::chance;

/// Number of faults in four that come alone.
const ALONE_OF_FOUR: u32 = 3;

/// A cell and its faults, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of the plan in the run.
    pub number: usize,
    /// Parts of the cell.
    pub parts: Parts,
    /// Faults, in order.
    pub faults: Vec<Fault>,
    /// Seed of the load.
    pub seed: u64,
}

/// Draws `episodes` plans of `faults_each` faults; a fault of two kinds counts as two. Without
/// `disks`, faults that need a mounted disk are left out, for users who may not mount one.
pub fn draw(seed: u64, episodes: usize, faults_each: usize, disks: bool) -> Vec<Plan> {
    let mut chance = chance(seed, 1 << 40);
    let mut dealt = HashMap::new();
    let plan = |number| {
        let parts = Parts {
            kafka: number % 3 == 0,
            spill: number % 4 != 1,
            standby: number % 2 == 0,
            clocks: number % 3 == 1,
            disks: disks && number % 3 != 1,
            shares_disk: disks && number % 3 != 1 && number % 5 == 2,
            broken_shop: number % 3 != 2,
        };
        let mut faults: Vec<Fault> = Vec::new();
        while faults.iter().map(|fault| fault.kinds.len()).sum::<usize>() < faults_each {
            faults.push(deal(&parts, &mut dealt, &mut chance));
        }
        Plan { number, parts, faults, seed: seed.wrapping_add(number as u64) }
    };
    (0..episodes).map(plan).collect()
}

/// Draws a plan for one cell with all parts, with a fault at the end of each interval.
pub fn soak(seed: u64, faults: usize, every: Duration, disks: bool) -> Plan {
    let mut chance = chance(seed, 1 << 41);
    let parts = Parts {
        kafka: true,
        spill: true,
        standby: true,
        clocks: true,
        disks,
        shares_disk: false,
        broken_shop: true,
    };
    let mut dealt = HashMap::new();
    let fault = |_| Fault { after: every, ..deal(&parts, &mut dealt, &mut chance) };
    Plan { number: 0, parts, faults: (0..faults).map(fault).collect(), seed }
}

fn deal(parts: &Parts, dealt: &mut HashMap<Kind, usize>, chance: &mut StdRng) -> Fault {
    let first = pick(dealt, chance, |kind| kind.fits(parts)).expect("some kind fits each cell");
    let mut kinds = vec![first];
    if !chance.random_ratio(ALONE_OF_FOUR, 4) {
        kinds.extend(pick(dealt, chance, |kind| kind.fits(parts) && kind.goes_with(first)));
    }
    let lasts = kinds.iter().map(|kind| chance.random_range(kind.lasts_ms())).max();
    Fault {
        after: Duration::from_millis(chance.random_range(0..=300)),
        lasts: Duration::from_millis(lasts.expect("a fault has a kind")),
        chance: chance.random(),
        kinds,
    }
}

fn pick(
    dealt: &mut HashMap<Kind, usize>,
    chance: &mut StdRng,
    may_be: impl Fn(Kind) -> bool,
) -> Option<Kind> {
    let kinds: Vec<Kind> = Kind::ALL.iter().copied().filter(|kind| may_be(*kind)).collect();
    let times = |kind: &Kind| dealt.get(kind).copied().unwrap_or(0);
    let least = kinds.iter().map(times).min()?;
    let rare: Vec<Kind> = kinds.into_iter().filter(|kind| times(kind) == least).collect();
    let kind = *rare.choose(chance)?;
    *dealt.entry(kind).or_default() += 1;
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::super::fault::Victim;
    use super::*;

    fn count(plans: &[Plan], kind: Kind) -> usize {
        let faults = plans.iter().flat_map(|plan| &plan.faults);
        faults.flat_map(|fault| &fault.kinds).filter(|dealt| **dealt == kind).count()
    }

    #[test]
    fn the_same_seed_gives_the_same_plans() {
        assert_eq!(draw(7, 6, 10, true), draw(7, 6, 10, true));
        assert_ne!(draw(7, 6, 10, true), draw(8, 6, 10, true));
    }

    #[test]
    fn a_long_run_has_every_kind_many_times() {
        let plans = draw(7, 40, 26, true);
        for kind in Kind::ALL {
            assert!(count(&plans, *kind) >= 15, "{kind:?}: {}", count(&plans, *kind));
        }
    }

    #[test]
    fn webhooks_are_spilled_by_a_receiver_that_runs_and_is_sent_to() {
        let keeps_away = |kind: &Kind| matches!(kind.victim(), Victim::Receiver | Victim::Clients);
        let mut fed = 0;
        for fault in draw(2044, 100, 26, true).iter().flat_map(|plan| &plan.faults) {
            if fault.kinds.contains(&Kind::FeedStalls) {
                fed += 1;
                assert!(!fault.kinds.iter().any(keeps_away), "{:?}", fault.kinds);
            }
        }
        assert!(fed >= 15, "{fed}");
    }

    #[test]
    fn no_fault_is_dealt_to_a_cell_that_lacks_what_it_befalls() {
        for plan in draw(7, 40, 26, false) {
            let kinds = plan.faults.iter().flat_map(|fault| &fault.kinds);
            assert!(kinds.clone().all(|kind| kind.fits(&plan.parts)), "{plan:?}");
        }
    }
}
