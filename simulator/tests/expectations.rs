//! Checks the expectations of every scenario file with the downstreamer's limiter and each of its
//! seeds.

use std::path::Path;

use simulator::algorithm::Kind;
use simulator::report::Played;
use simulator::run::run;
use simulator::scenario::Scenario;

fn scenarios() -> Vec<Scenario> {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios"));
    Scenario::read_all(directory).expect("scenarios that can be read")
}

fn scenario(name: &str) -> Scenario {
    let mut all = scenarios().into_iter();
    all.find(|one| one.name == name).unwrap_or_else(|| panic!("no scenario {name}"))
}

/// Plays all scenarios for which `is_chosen` holds, and lists the expectations that do not hold.
fn check(is_chosen: impl Fn(&Scenario) -> bool) {
    let mut missed = Vec::new();
    for scenario in scenarios().iter().filter(|one| is_chosen(one)) {
        for finding in Played::play(scenario, Kind::Spillway).findings() {
            if !finding.holds {
                missed.push(format!(
                    "{}: {} should be {}, is {:?} with seeds {:?}",
                    scenario.name, finding.what, finding.range, finding.measured, scenario.seeds
                ));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

const LONG_S: f64 = 1000.0;

#[test]
fn our_limiter_meets_every_expectation() {
    check(|scenario| scenario.seconds <= LONG_S);
}

#[test]
fn our_limiter_meets_every_expectation_for_an_hour() {
    check(|scenario| scenario.seconds > LONG_S);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let scenario = scenario("exponential-004");
    let limits = |seed| {
        let record = run(&scenario, &mut *Kind::Spillway.build(&scenario.client), seed);
        record.rows.iter().map(|row| (row.limit, row.done)).collect::<Vec<_>>()
    };
    assert_eq!(limits(7), limits(7));
    assert_ne!(limits(7), limits(8));
}

#[test]
fn a_fixed_limit_does_what_littles_law_says() {
    // 32 at once with 128 workers of 50 ms: 640 per second, each in 50 ms.
    let mut many = scenario("constant-128");
    many.seconds = 10.0;
    let record = run(&many, &mut *Kind::Fixed.build(&many.client), 1);
    let done: u32 = record.rows.iter().map(|row| row.done).sum();
    assert!((6340..=6400).contains(&done), "{done}");
    assert!(record.latencies.iter().all(|(_, latency)| (latency - 0.05).abs() < 1e-4));
    // With 4 workers: 80 per second, each in 400 ms.
    let mut few = scenario("constant-004");
    few.seconds = 10.0;
    let record = run(&few, &mut *Kind::Fixed.build(&few.client), 1);
    let done: u32 = record.rows.iter().map(|row| row.done).sum();
    assert!((790..=800).contains(&done), "{done}");
    let settled = record.latencies.iter().filter(|(at, _)| *at > 1.0);
    assert!(settled.into_iter().all(|(_, latency)| (latency - 0.4).abs() < 1e-3));
}
