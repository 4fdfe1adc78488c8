//! Settlements gather webhooks while that holds nothing up.

use super::*;

/// Plays a world of 16 slots in which a settlement may follow the last one after `every`.
fn settled_every(every: Duration, answers: Box<Answers>, accept: impl Fn(&mut World)) -> World {
    settled_after([every, every], answers, accept)
}

/// The same with the time while webhooks wait for the settlement, and the time while none does.
fn settled_after(
    [every, every_calm]: [Duration; 2],
    answers: Box<Answers>,
    accept: impl Fn(&mut World),
) -> World {
    let mut config = config(16);
    config.bounds.concurrency_min = 16;
    config.tuning.settlements.every = every;
    config.tuning.settlements.every_calm = every_calm;
    let mut world = World::new(config, answers);
    accept(&mut world);
    assert_eq!(world.run(120 * SECOND), 0, "all are delivered");
    world
}

#[test]
fn settlements_are_fewer_while_all_slots_are_busy_and_deliveries_take_no_longer() {
    let play = |every| {
        let answers: Box<Answers> = Box::new(|shop, _, _| Answer::Takes(MS + MS * (shop % 9)));
        settled_every(every, answers, |world| {
            for pack in 0..40 {
                world.accept(MS + MS * pack, (100..150).map(|shop| (shop, 0)));
            }
        })
    };
    let (at_once, gathered) = (play(Duration::ZERO), play(5 * MS));
    assert_eq!(gathered.delivered.len(), 2_000);
    let counts = (at_once.settlements, gathered.settlements);
    assert!(counts.1 * 3 < counts.0 * 2, "{counts:?}");
    assert!(gathered.now < at_once.now * 2, "{:?}, {:?}", at_once.now, gathered.now);
}

#[test]
fn a_product_whose_events_are_in_line_is_as_fast_beside_slow_attempts() {
    let play = |times| {
        let answers: Box<Answers> =
            Box::new(|shop, _, _| Answer::Takes(if shop == X { 5 * MS } else { 10 * SECOND }));
        settled_after(times, answers, |world| {
            world.accept(MS, [(100, 0), (101, 0), (102, 0)]);
            world.accept(2 * MS, (0..100).map(|_| (X, IN_LINE)));
        })
    };
    let (at_once, gathered) = (play([Duration::ZERO; 2]), play([5 * MS, SECOND]));
    let (before, after) = (at_once.longest(X), gathered.longest(X));
    // Nothing follows the last one.
    assert!(after < before * 5 / 4 + 100 * MS + SECOND, "{before:?}, {after:?}");
}

#[test]
fn a_product_whose_events_are_in_line_is_as_fast_alone() {
    let play = |every| {
        settled_every(every, slow(MS), |world| world.accept(MS, (0..100).map(|_| (X, IN_LINE))))
    };
    let (at_once, gathered) = (play(Duration::ZERO), play(5 * MS));
    // Nothing follows the last one.
    assert!(gathered.now <= at_once.now + 5 * MS, "{:?}, {:?}", at_once.now, gathered.now);
    assert_eq!(gathered.settlements, at_once.settlements);
}

#[test]
fn webhooks_that_nothing_follows_share_settlements_although_slots_are_free() {
    let play = |every| {
        settled_every(every, slow(MS), |world| {
            for number in 0..500 {
                world.accept(MS + MS * number, [(100 + number % 50, 0)]);
            }
        })
    };
    let (at_once, gathered) = (play(Duration::ZERO), play(5 * MS));
    let counts = (at_once.settlements, gathered.settlements);
    assert!(counts.1 * 2 <= counts.0, "{counts:?}");
    let longest = (100..150).map(|shop| gathered.longest(shop)).max();
    assert!(longest < Some(15 * MS), "{longest:?}");
}

#[test]
fn what_ends_beside_slow_attempts_is_settled_without_another_event() {
    let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
        X => Answer::Takes(MS),
        Y => Answer::Takes(2 * MS),
        _ => Answer::Takes(10 * SECOND),
    });
    let world = settled_every(5 * MS, answers, |world| {
        world.accept(MS, [(100, 0), (101, 0), (102, 0)]);
        world.accept(50 * MS, [(X, 0), (Y, 0)]);
    });
    // X is settled at once, and Y after the time for which the next settlement gathers more.
    assert!(world.longest(X) < 5 * MS, "{:?}", world.longest(X));
    let of_y = world.longest(Y);
    assert!((5 * MS..20 * MS).contains(&of_y), "{of_y:?}");
}

#[test]
fn settlements_that_nothing_waits_for_gather_for_longer() {
    let play = |every_calm| {
        settled_after([2 * MS, every_calm], slow(MS), |world| {
            for number in 0..500 {
                world.accept(MS + MS * number, [(100 + number % 50, 0)]);
            }
        })
    };
    let (short, long) = (play(2 * MS), play(10 * MS));
    let counts = (short.settlements, long.settlements);
    assert!(counts.1 * 3 <= counts.0, "{counts:?}");
}

#[test]
fn a_webhook_that_arrives_after_its_product_was_delivered_ends_the_gathering() {
    let world = settled_after([2 * MS, SECOND], slow(MS), |world| {
        world.accept(MS, [(X, 0)]);
        world.accept(10 * MS, [(Y, IN_LINE)]);
        world.accept(20 * MS, [(Y, IN_LINE)]);
    });
    // X is settled at once, and what follows gathers for a second: the first of Y only up to the next one.
    assert!(world.longest(Y) < SECOND * 5 / 4, "{:?}", world.longest(Y));
}
