//! An hour of a cell in virtual time. Of a hundred shops one fails, one hangs, one is paused and
//! one is over its rate. The test compares the healthy shops with the same hour without the others.
//!
//! The test suite plays four minutes at a tenth of the load. `make simulate-core` plays the hour at
//! 2,000 webhooks a second, with 1,000 and with 20,000 shops. `MINUTES`, `RATE` and `SEED` change
//! these numbers. The same numbers play the same hour.

mod cell;
mod load;
mod store;

use std::time::{Duration, Instant};

use crate::cell::{Cell, Played};
use crate::load::{Health, Ills, Load};

/// Factor by which healthy shops may wait longer than without the others, and the difference that
/// is too short to compare.
const SLOWER_MAX: f64 = 1.5;
const NOISE: Duration = Duration::from_millis(2);
/// `INDEX_MEMORY`.
const INDEX_BYTES: usize = 64 << 20;
/// Reads that were under way when the index became full may take 1/`SLACK_PART` of it.
const SLACK_PART: usize = 16;
/// Bound of the main stream beyond that of the calm hour, in `PARK_AFTER` of accepted packs.
const STREAM_PART_MAX: f64 = 1.5;

/// Number from an environment variable.
fn number(name: &str, usual: u32) -> u32 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

fn play(load: &Load) -> Played {
    let began = Instant::now();
    let played = Cell::new(load).play();
    println!(
        "{} shops, {}: played in {:.0?}: {played}",
        load.shops,
        match load.ills {
            Ills::None => "all well".to_owned(),
            Ills::Hundredth => "one in a hundred each unwell".to_owned(),
            Ills::InPart(shops) => format!("{shops} fail in part"),
            Ills::Recovering(shops) => format!("{shops} recover"),
        },
        began.elapsed()
    );
    played
}

/// Plays both hours and compares them. Returns the results.
fn compare(ill: &Load) -> (Played, Played) {
    let calm = play(&Load { ills: Ills::None, ..*ill });
    let bad = play(ill);
    assert_eq!(calm.of(Health::Well).delivered, calm.of(Health::Well).accepted);
    for health in Health::ALL.into_iter().filter(|health| ill.has(*health)) {
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
    let most = ill.index_bytes + ill.index_bytes / SLACK_PART;
    assert!(bad.index_bytes <= most, "{} bytes", bad.index_bytes);
    (calm, bad)
}

fn healthy_shops_do_not_notice(shops: u32) {
    let (minutes, rate) = (number("MINUTES", 4), number("RATE", 200));
    let length = Duration::from_secs(60) * minutes;
    let park_after = Duration::from_secs(60).min(length / 24);
    let (retry_for, index_bytes, ills) = (length / 3, INDEX_BYTES, Ills::Hundredth);
    let load = Load { shops, rate, length, park_after, retry_for, index_bytes, ills };
    let (calm, bad) = compare(&load);
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
    let (retry_for, index_bytes, ills) = (length / 3, INDEX_BYTES, Ills::Hundredth);
    for shops in [1_000, 20_000] {
        compare(&Load { shops, rate: 2_000, length, park_after, retry_for, index_bytes, ills });
    }
}

#[test]
fn webhooks_that_fail_among_others_that_succeed_do_not_fill_the_index_for_all() {
    let (length, park_after) = (Duration::from_secs(300), Duration::from_secs(12));
    let (index_bytes, ills) = (1 << 20, Ills::InPart(24));
    let retry_for = 10 * length;
    compare(&Load { shops: 60, rate: 200, length, park_after, retry_for, index_bytes, ills });
}

#[test]
fn the_same_load_is_played_the_same_way_again() {
    let (length, park_after) = (Duration::from_secs(60), Duration::from_secs(3));
    let (retry_for, index_bytes, ills) = (length / 3, 1 << 20, Ills::InPart(24));
    let load = Load { shops: 60, rate: 200, length, park_after, retry_for, index_bytes, ills };
    assert_eq!(play(&load).to_string(), play(&load).to_string());
}

#[test]
fn shops_that_recover_catch_up_with_the_main_stream() {
    let (length, park_after) = (Duration::from_secs(240), Duration::from_secs(60));
    let (retry_for, index_bytes, ills) = (10 * length, INDEX_BYTES, Ills::Recovering(400));
    let load = Load { shops: 500, rate: 1_000, length, park_after, retry_for, index_bytes, ills };
    let (_, recovered) = compare(&load);
    for wait in [recovered.recovered_wait, recovered.catching_up_wait] {
        assert!(wait > Duration::ZERO && wait < Duration::from_secs(1), "{wait:?}");
    }
    // Their breakers opened at the same time, but are not probed at the same time.
    let to = load.recovers_at();
    let (from, shops) = (to - Duration::from_secs(15), 400);
    let most = recovered.most_failed(from, to);
    assert!(most > 0 && most < shops / 4, "{most} shops were probed within a second");
}
