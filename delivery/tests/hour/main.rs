//! An hour of a cell in virtual time, in which one shop of a hundred fails, one hangs, one is paused
//! and one is over its rate: what the healthy ones notice, beside the same hour without them.
//!
//! The suite plays four minutes of it at a tenth of the load. `make simulate-core` plays the hour at
//! 2,000 webhooks a second, of 1,000 and of 20,000 shops. `MINUTES` and `RATE` are other numbers.

mod cell;
mod load;
mod store;

use std::time::{Duration, Instant};

use crate::cell::{Cell, Played};
use crate::load::{Health, Load};

/// How much longer the healthy shops may wait than without the others, and what is too short to
/// compare.
const SLOWER_MAX: f64 = 1.5;
const NOISE: Duration = Duration::from_millis(2);
/// `INDEX_MEMORY`.
pub const INDEX_BYTES: usize = 64 << 20;
/// Reads for windows that were under way when the index became full.
const INDEX_SLACK: usize = 4 << 20;
/// Main stream beyond the calm one, in `PARK_AFTER` of accepted packs.
const STREAM_PART_MAX: f64 = 1.5;

/// A number from the environment.
fn number(name: &str, usual: u32) -> u32 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

fn play(load: &Load) -> Played {
    let began = Instant::now();
    let played = Cell::new(load).play();
    println!(
        "{} shops, {}: played in {:.0?}: {played}",
        load.shops,
        if load.has_ill { "one in a hundred each unwell" } else { "all well" },
        began.elapsed()
    );
    played
}

/// Plays both, and compares. Returns what was compared.
fn compare(ill: &Load) -> (Played, Played) {
    let calm = play(&Load { has_ill: false, ..*ill });
    let bad = play(ill);
    assert_eq!(calm.of(Health::Well).delivered, calm.of(Health::Well).accepted);
    for health in Health::ALL {
        let of = bad.of(health);
        assert!(of.accepted > 0, "{health:?}: nothing was accepted");
        assert_eq!(of.delivered + of.dead, of.accepted, "{health:?}");
        assert!(of.dead == 0 || health.may_die(), "{health:?}: {} dead letters", of.dead);
    }
    for part in [0.5, 0.99] {
        let (is, was) = (bad.wait(part), calm.wait(part));
        let most = was.mul_f64(SLOWER_MAX).max(was + NOISE);
        assert!(is <= most, "{part} of the healthy: {is:?}, {was:?} without the others");
    }
    assert!(bad.index_bytes <= INDEX_BYTES + INDEX_SLACK, "{} bytes", bad.index_bytes);
    (calm, bad)
}

fn healthy_shops_do_not_notice(shops: u32) {
    let (minutes, rate) = (number("MINUTES", 4), number("RATE", 200));
    let length = Duration::from_secs(60) * minutes;
    let park_after = Duration::from_secs(60).min(length / 24);
    let (calm, bad) = compare(&Load { shops, rate, length, park_after, has_ill: true });
    let parked = park_after.as_secs_f64() * load::PACKS_PER_SECOND * STREAM_PART_MAX;
    let most = calm.main_packs as f64 + parked;
    assert!(bad.main_packs as f64 <= most, "{} packs in the main stream", bad.main_packs);
}

#[test]
fn a_thousand_shops_do_not_notice_forty_that_are_unwell() {
    healthy_shops_do_not_notice(1_000);
}

#[test]
fn twenty_thousand_shops_do_not_notice_eight_hundred_that_are_unwell() {
    healthy_shops_do_not_notice(20_000);
}

#[test]
fn a_new_leader_is_not_held_up_by_what_the_last_one_left_in_the_main_stream() {
    let (length, park_after) = (Duration::from_secs(60), Duration::from_secs(60));
    for shops in [1_000, 20_000] {
        compare(&Load { shops, rate: 2_000, length, park_after, has_ill: true });
    }
}
