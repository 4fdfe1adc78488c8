//! An index that others have filled for hours: a lane that may go is read on, and so is the main
//! stream.

use super::*;

const Z: u32 = 77;

#[test]
fn a_lane_of_which_only_a_failing_product_is_indexed_is_read_on() {
    let config = Config {
        index_bytes: 192 << 10,
        park_after: SECOND,
        coalesce_wait_max: Duration::ZERO,
        ..config(16)
    };
    let answers: Box<Answers> = Box::new(|shop, kind, at| match (shop, kind) {
        (100.., _) | (X, COALESCED) => Answer::Fails(MS),
        (X, _) if at < 300 * SECOND => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(config, answers);
    world.unread = Some(VecDeque::new());
    world.accept(SECOND, [(X, COALESCED)]);
    for tick in 0..300 {
        world.accept((10 + tick) * SECOND, [(X, COALESCED + 1 + (tick % 30) as u8)]);
        world.accept((10 + tick) * SECOND, (100..200).map(|shop| (shop, 0)));
    }
    // Before, all lanes are probed once.
    for second in 200..2_000 {
        world.accept(second * SECOND, [(Y, 0)]);
    }
    world.run(2_000 * SECOND);
    let of_x = world.took.iter().filter(|((shop, _), _)| *shop == X);
    assert_eq!(of_x.map(|(_, took)| took.len()).sum::<usize>(), 300);
    assert!(world.longest(X) < 600 * SECOND, "{:?}", world.longest(X));
    assert!(world.longest(Y) < 5 * SECOND, "{:?}", world.longest(Y));
}

#[test]
fn many_shops_that_are_slower_than_their_webhooks_hide_no_other() {
    let mut config = Config { index_bytes: 256 << 10, park_after: 10 * SECOND, ..config(64) };
    config.shop_bounds.concurrency_max = 1;
    let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
        Y => Answer::Takes(5 * MS),
        _ => Answer::Takes(200 * MS),
    });
    let mut world = known(config, answers);
    world.unread = Some(VecDeque::new());
    for tick in 0..3_000 {
        world.accept(SECOND + tick * 100 * MS, (100..140).flat_map(|shop| [(shop, 0); 3]));
    }
    for second in 4..600 {
        world.accept(second * SECOND, [(Y, 0)]);
    }
    world.run(600 * SECOND);
    assert_eq!(world.took[&(Y, 0)].len(), 597);
    assert!(world.longest(Y) < 3 * SECOND, "{:?}", world.longest(Y));
    // Each of them has its five a second from the first to the last.
    let least = (100..140).map(|shop| world.took[&(shop, 0)].len()).min();
    assert!(least > Some(2_800), "{least:?}");
}

#[test]
fn thousands_of_paused_lanes_delay_no_lane_that_recovers() {
    let config = Config { index_bytes: 2 << 20, park_after: SECOND, ..config(16) };
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        Z if at < 300 * SECOND => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(config, answers);
    world.unread = Some(VecDeque::new());
    world.pause(Some(5));
    for round in 0..20 {
        world.accept((2 + round) * SECOND, (100..2_100).map(|shop| (shop, 5)));
    }
    for tick in 0..1_000 {
        world.accept(2 * SECOND + tick * 200 * MS, [(Z, 0)]);
    }
    world.run(360 * SECOND);
    let took = world.took.get(&(Z, 0)).map_or(0, Vec::len);
    assert_eq!(took, 1_000);
}

#[test]
fn a_backlog_that_keeps_all_slots_busy_is_not_cut() {
    let config = Config { index_bytes: 256 << 10, ..config(16) };
    let mut world = known(config, slow(100 * MS));
    world.has_backlog = true;
    world.run(60 * SECOND);
    let index_bytes = world.core.status().index_bytes;
    assert!(index_bytes > 240 << 10, "{index_bytes}");
    assert_eq!(world.core.counts().cuts, 0);
}
