//! One event, one settlement, and one lane that fails take a bounded part of the time and of the index,
//! whatever has piled up.

use super::*;

#[test]
fn a_settlement_passes_a_bounded_number_of_packs_and_webhooks() {
    // The first pack stays at the front until it moves. By then, all others are settled.
    for (packs, count) in [(10_000, 1), (1000, 100)] {
        let config = Config { park_after: 120 * SECOND, ..config(64) };
        let mut world = World::new(config, slow(MS));
        world.pause(Some(9));
        world.accept(MS, [(X, 9), (Y, 9)]);
        for number in 0..packs {
            world.accept(SECOND + MS * number, (0..count).map(|shop| (shop, 0)));
        }
        assert_eq!(world.run(110 * SECOND), 2);
        assert_eq!(world.passed, (0, 0));
        world.run(130 * SECOND);
        assert_eq!(world.moved, 2);
        assert_eq!(world.passed, (u64::from(packs) + 1, u64::from(packs * count) + 2));
        let (packs_max, webhooks_max) = world.passed_max;
        assert!(packs_max <= 1024, "{packs_max} packs at once");
        assert!(webhooks_max < 16_384 + 100, "{webhooks_max} webhooks at once");
    }
}

#[test]
fn a_settled_barrier_releases_what_it_held_back_in_parts() {
    const HELD: u32 = 500;
    let answers: Box<Answers> = Box::new(|_, kind, at| match kind {
        BARRIER if at < 20 * SECOND => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let bounds = Bounds { concurrency_min: 64, concurrency_max: 64, rate_max: None };
    let mut tuning = Tuning::default();
    tuning.at_once.released = 10;
    let mut world = known(Config { bounds, tuning, ..config(64) }, answers);
    world.accept(SECOND, [(X, BARRIER)]);
    for number in 0..HELD {
        world.accept(2 * SECOND + number * MS, [(X, 0)]);
        world.accept(2 * SECOND + number * 100 * MS, [(Y, 0)]);
    }
    world.run(19 * SECOND);
    assert!(!world.took.contains_key(&(X, 0)), "all are held back");
    world.sends_max = 0;
    assert_eq!(world.run(60 * SECOND), 0);
    assert!(world.longest(Y) < SECOND);
    assert_eq!(world.took[&(X, 0)].len(), HELD as usize);
    // One more, as the other shop may have its turn at the same time.
    assert!((10..=11).contains(&world.sends_max), "{} at once", world.sends_max);
}

#[test]
fn shops_that_fail_and_whose_events_stand_for_each_other_never_fill_the_index() {
    const Z: u32 = 77;
    let config = Config { index_bytes: 128 << 10, park_after: SECOND, ..config(16) };
    let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
        X | Z => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(config, answers);
    // Within the 300 s for which an event may stand for another, six times what the index holds.
    for tick in 0..6_000 {
        let kind = |number| COALESCED + ((2 * tick + number) % 40) as u8;
        let of = |shop| (0..2).map(move |number| (shop, kind(number)));
        world.accept(SECOND + 100 * MS * tick, of(X).chain(of(Z)));
    }
    for second in 4..600 {
        world.accept(second * SECOND, [(Y, 0)]);
    }
    world.run(602 * SECOND);
    assert_eq!(world.took[&(Y, 0)].len(), 597);
    assert!(world.core.status().index_bytes < 96 << 10);
    assert!(world.longest(Y) < SECOND, "{:?}", world.longest(Y));
}

#[test]
fn what_a_barrier_held_back_is_released_though_nothing_of_it_is_sent() {
    let answers: Box<Answers> = Box::new(|_, kind, at| match kind {
        BARRIER if at < 20 * SECOND => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut tuning = Tuning::default();
    tuning.at_once.released = 10;
    let mut world = known(Config { tuning, ..config(64) }, answers);
    world.pause(Some(9));
    world.accept(SECOND, [(X, BARRIER)]);
    for number in 0..500 {
        world.accept(2 * SECOND + number * MS, [(X, 9)]);
    }
    world.accept(3 * SECOND, [(X, 0)]);
    world.run(120 * SECOND);
    let [took] = world.took[&(X, 0)][..] else { panic!("it was delivered once") };
    let barrier = world.took[&(X, BARRIER)][0] + SECOND;
    assert!(took + 3 * SECOND < barrier + 2 * SECOND, "{took:?}, the barrier at {barrier:?}");
}
