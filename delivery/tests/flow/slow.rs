//! Shops that are partly slow or hanging and succeed in between.

use std::cell::Cell;

use super::*;

/// Number of slots, which the limiter may not reduce.
const SLOTS: usize = 16;

fn steady(seed: u64) -> Config {
    let bounds = Bounds { concurrency_min: SLOTS, concurrency_max: SLOTS, rate_max: None };
    Config { bounds, seed, ..config(SLOTS) }
}

/// Shop Y is healthy and sends a webhook every ten seconds during a flood of others. Checks that
/// only the first one waits until an attempt is cut off.
fn flows(mut world: World, from: Duration, cuts_max: u64) {
    for round in 0..12 {
        world.accept(from + round * 10 * SECOND, [(Y, 0)]);
    }
    world.run(from + 123 * SECOND);
    let mut waits = world.took[&(Y, 0)].clone();
    waits.sort_unstable();
    assert!(waits.len() >= 12 && waits[waits.len() - 1] < 2 * SECOND, "{waits:?}");
    assert!(waits[waits.len() - 2] < 100 * MS, "{waits:?}");
    assert!(world.core.counts().cut_off <= cuts_max, "{} cut off", world.core.counts().cut_off);
}

/// Runs shop Y beside a flood of shop X.
fn flows_beside(seed: u64, flood: u32, of_x: impl Fn() -> Answer + 'static, cuts_max: u64) {
    let answers: Box<Answers> =
        Box::new(move |shop, _, _| if shop == X { of_x() } else { Answer::Takes(5 * MS) });
    let mut world = known(steady(seed), answers);
    for second in 0..flood / 100 {
        world.accept(SECOND + second * 10 * MS, (0..100).map(|_| (X, 0)));
    }
    flows(world, 2 * SECOND, cuts_max);
}

#[test]
fn a_shop_whose_answers_take_25_seconds_leaves_a_slot_to_others() {
    for seed in 0..10 {
        flows_beside(seed, 400, || Answer::Takes(25 * SECOND), 1);
    }
}

#[test]
fn a_shop_of_which_every_tenth_webhook_hangs_leaves_a_slot_to_others() {
    for seed in 0..10 {
        let calls = Cell::new(0);
        let answer = move || {
            calls.set(calls.get() + 1);
            if calls.get() % 10 == 0 { Answer::Hangs } else { Answer::Takes(5 * MS) }
        };
        flows_beside(seed, 10_000, answer, 16);
    }
}

#[test]
fn nothing_is_cut_off_for_a_webhook_that_waits_for_a_pause_of_the_backend() {
    for seed in 0..10 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            10..18 => Answer::Takes(20 * SECOND),
            9 if at < 15 * SECOND => Answer::PausesAll(15 * SECOND),
            _ => Answer::Takes(5 * MS),
        });
        let mut world = known(steady(seed), answers);
        world.accept(10 * SECOND, (10..18).map(|shop| (shop, 0)));
        world.accept(10 * SECOND + 200 * MS, [(9, 0)]);
        world.accept(10 * SECOND + 300 * MS, [(Y, 0)]);
        world.run(24 * SECOND);
        assert_eq!(world.core.counts().cut_off, 0, "seed {seed}");
        world.run(60 * SECOND);
        assert_eq!(world.waiting, 0);
    }
}

#[test]
fn two_shops_that_are_slow_leave_a_slot_to_others() {
    for seed in 0..10 {
        let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
            X | 7 => Answer::Takes(25 * SECOND),
            _ => Answer::Takes(5 * MS),
        });
        let mut world = known(steady(seed), answers);
        world.accept(SECOND, (0..400).map(|number| (if number % 2 == 0 { X } else { 7 }, 0)));
        flows(world, 2 * SECOND, 1);
    }
}

#[test]
fn others_have_slots_beside_the_limit_while_a_slow_shop_holds_it() {
    for seed in 0..10 {
        let bounds = Bounds { concurrency_min: 4, concurrency_max: 64, rate_max: None };
        let config = Config { bounds, seed, ..config(64) };
        let answers: Box<Answers> =
            Box::new(|shop, _, _| Answer::Takes(if shop == X { 25 * SECOND } else { 5 * MS }));
        let mut world = known(config, answers);
        world.accept(SECOND, (0..400).map(|_| (X, 0)));
        flows(world, 32 * SECOND, 1);
    }
}

#[test]
fn nothing_is_cut_off_for_a_webhook_that_waits_for_the_rate() {
    let bounds = Bounds { concurrency_max: SLOTS, concurrency_min: SLOTS, rate_max: Some(1.0) };
    let answers: Box<Answers> =
        Box::new(|shop, _, _| Answer::Takes(if shop == Y { 5 * MS } else { 25 * SECOND }));
    let mut world = known(Config { bounds, ..config(SLOTS) }, answers);
    world.accept(SECOND, (10..17).map(|shop| (shop, 0)));
    for second in 10..20 {
        world.accept(second * SECOND, [(Y, 0), (Y, 1), (Y, 2)]);
    }
    world.run(22 * SECOND);
    assert_eq!(world.core.counts().cut_off, 0);
}

#[test]
fn a_flood_of_a_slow_shop_finds_its_concurrency_although_it_leaves_slots_to_others() {
    let delivered = |answer: Duration, has_others: bool| {
        let bounds = Bounds { concurrency_min: 1, concurrency_max: 64, rate_max: None };
        let config = Config { bounds, ..config(64) };
        let mut world = World::new(config, Box::new(move |_, _, _| Answer::Takes(answer)));
        if has_others {
            world.accept(MS, [(Y, 0), (2, 0)]);
        }
        for second in 0..100 {
            world.accept(SECOND + second * 10 * MS, (0..100).map(|_| (X, 0)));
        }
        world.run(240 * SECOND);
        10_000 - world.waiting
    };
    for answer in [200 * MS, 2 * SECOND] {
        let (alone, beside) = (delivered(answer, false), delivered(answer, true));
        println!("{answer:?}: {alone} alone, {beside} where others were served");
        assert!(10 * beside > 8 * alone, "{answer:?}: {beside} of {alone}");
    }
}

#[test]
fn new_shops_have_turns_beside_floods_while_some_attempts_hang() {
    for flooding in [1, 2, 3, 10] {
        let calls = Cell::new(0);
        let answers: Box<Answers> = Box::new(move |shop, _, _| {
            calls.set(calls.get() + usize::from(shop == X));
            let is_slow = shop == X && calls.get().is_multiple_of(10);
            Answer::Takes(if is_slow { 25 * SECOND } else { 5 * MS })
        });
        let mut world = World::new(steady(1), answers);
        world.accept(MS, [(Y, 0)]);
        for second in 0..100 {
            world.accept(SECOND + second * 10 * MS, (0..100).map(|_| (X, 0)));
            let floods = (0..500).map(|number| (300 + number % flooding, 0));
            world.accept(SECOND + second * 10 * MS, floods);
        }
        world.accept(20 * SECOND, (50..250).map(|shop| (shop, 0)));
        world.run(60 * SECOND);
        let longest = (50..250).map(|shop| world.longest(shop)).max();
        assert!(longest < Some(5 * SECOND), "beside {flooding}: {longest:?}");
    }
}

#[test]
fn payloads_that_can_not_be_fetched_say_nothing_about_the_backend_or_the_lane() {
    let until = 120 * SECOND;
    let answers: Box<Answers> = Box::new(move |_, kind, at| {
        let is_unfetched = kind == STUB && at < until;
        if is_unfetched { Answer::Unfetched(5 * MS) } else { Answer::Takes(5 * MS) }
    });
    let mut world = known(config(64), answers);
    // As many of one lane as would open its circuit breaker, and as many lanes as would take the
    // backend down.
    world.accept(SECOND, (0..20).map(|_| (X, STUB)).chain((10..40).map(|shop| (shop, STUB))));
    world.accept(100 * SECOND, [(X, 0)]);
    world.run(until);
    let status = world.core.status();
    assert!(!status.is_paused && status.limit > 0 && status.blocked_lanes == 0, "{status:?}");
    let counts = world.core.counts();
    assert_eq!((counts.backend.went_down, counts.breakers_opened), (0, 0));
    assert!(world.longest(X) < SECOND, "{:?}", world.longest(X));
    assert_eq!(world.run(until + 2 * LONGEST), 0);
}

#[test]
fn a_host_of_payloads_that_hangs_leaves_slots_to_webhooks_without_payloads() {
    for slots in [1, 2, 4, 64] {
        let asked_until = Cell::new(Duration::ZERO);
        // One fetch at a time, as of a host that is known to hang.
        let answers: Box<Answers> = Box::new(move |_, kind, at| match (kind, asked_until.get()) {
            (STUB, until) if at >= until => {
                asked_until.set(at + TIMEOUT);
                Answer::Unfetched(TIMEOUT)
            }
            (STUB, _) => Answer::Unfetched(Duration::ZERO),
            _ => Answer::Takes(5 * MS),
        });
        let bounds = Bounds { concurrency_min: slots, concurrency_max: slots, rate_max: None };
        let mut world = known(Config { bounds, ..config(slots) }, answers);
        world.accept(SECOND, (0..20).map(|_| (X, STUB)).chain((10..40).map(|shop| (shop, STUB))));
        for second in 2..602 {
            world.accept(second * SECOND, [(Y, 0)]);
        }
        world.run(610 * SECOND);
        // A single slot is cut off from a fetch after a slice.
        let most = if slots == 1 { 3 * SECOND } else { 10 * MS };
        assert!(world.longest(Y) < most, "{slots}: {:?}", world.longest(Y));
        assert!(world.took[&(Y, 0)].len() == 601);
    }
}

#[test]
fn the_time_of_a_fetch_is_no_latency_of_the_backend() {
    let from = 5 * SECOND;
    let answers: Box<Answers> = Box::new(move |_, _, at| match at < from {
        true => Answer::Takes(5 * MS),
        false => Answer::Fetches(80 * MS, 5 * MS),
    });
    let mut world = World::new(Config { index_bytes: 256 << 10, ..config(SLOTS) }, answers);
    world.accept(MS, [(Y, 0)]);
    world.has_backlog = true;
    world.run(from);
    assert_eq!(world.core.status().limit, SLOTS);
    for tick in 0..100 {
        world.run(from + tick * 100 * MS);
        let limit = world.core.status().limit;
        assert!(limit > SLOTS / 2, "{limit} at {:?}", world.now);
    }
}

#[test]
fn a_stub_that_waits_is_counted_from_an_hour_before_its_payload_expires() {
    let answers: Box<Answers> = Box::new(|shop, _, at| {
        let is_unfetched = shop == X && at < 7_000 * SECOND;
        if is_unfetched { Answer::Unfetched(MS) } else { Answer::Takes(MS) }
    });
    let mut world = known(config(4), answers);
    world.accept(SECOND, [(X, STUB), (Y, STUB), (X, 0)]);
    for (second, expiring) in [(50, 0), (70, 1), (5_000, 1)] {
        assert_eq!(world.run(second * SECOND), 2);
        assert_eq!(world.core.status().stubs_expiring, expiring, "after {second} s");
    }
    assert_eq!(world.run(8_000 * SECOND), 0);
    assert_eq!(world.core.status().stubs_expiring, 0);
}

#[test]
fn several_shops_of_which_every_tenth_webhook_is_slow_leave_a_slot_to_others() {
    let slow = [Answer::Hangs, Answer::Takes(5 * SECOND)];
    for (shops, answer) in [2, 5, 20].into_iter().flat_map(|of| slow.map(|slow| (of, slow))) {
        let calls = Cell::new(0);
        let answers: Box<Answers> = Box::new(move |shop, _, _| {
            calls.set(calls.get() + u32::from(shop != Y));
            if shop != Y && calls.get().is_multiple_of(10) { answer } else { Answer::Takes(5 * MS) }
        });
        let mut world = known(steady(shops.into()), answers);
        for tick in 0..1_000 {
            let of = (0..11).map(|one| (100 + (one + tick) % shops, 0));
            world.accept(SECOND + tick * 100 * MS, of);
            world.accept(2 * SECOND + tick * 100 * MS, [(Y, 0), (Y, 0)]);
        }
        world.run(200 * SECOND);
        let mut waits = world.took[&(Y, 0)].clone();
        waits.sort_unstable();
        assert_eq!(waits.len(), 2_001, "{shops} {answer:?}");
        assert!(waits[1_980] < 150 * MS && waits[2_000] < SECOND, "{:?}", &waits[1_980..]);
        let counts = world.core.counts();
        assert!(counts.cut_off < 400, "{shops} {answer:?}: {} are cut off", counts.cut_off);
        if let Answer::Takes(_) = answer {
            // A webhook that is only slow is cut off once, so that it ends.
            let most = world.attempts.values().max();
            assert!(counts.cut_off > 0 && most <= Some(&2), "{shops}: {most:?} attempts");
        }
    }
}
