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
    // No window is filled beyond this size.
    assert!(world.core.status().index_bytes < 112 << 10);
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

#[test]
fn shops_that_fail_and_fill_the_index_hide_no_healthy_shop_behind_them() {
    const Z: u32 = 77;
    let many: Vec<u32> = (100..140).collect();
    let shops: [&[u32]; 3] = [&[X], &[X, Z], &many];
    for (shops, answer) in shops.into_iter().flat_map(|of| {
        [Answer::Fails(MS), Answer::Hangs, Answer::Refuses(MS), Answer::Unavailable(MS)]
            .map(|answer| (of, answer))
    }) {
        // Each lane is probed before, and a backend that refuses is probed once in ten seconds.
        if shops.len() > 2 && matches!(answer, Answer::Refuses(_)) {
            continue;
        }
        // No lane holds a sixteenth of the index if there are many.
        let index_bytes = if shops.len() > 2 { 512 << 10 } else { 128 << 10 };
        let config = Config { index_bytes, park_after: SECOND, ..config(16) };
        let answers: Box<Answers> = Box::new(move |shop, _, _| match shop {
            Y => Answer::Takes(5 * MS),
            _ => answer,
        });
        // Nothing was delivered before.
        let mut world = World::new(config, answers);
        world.unread = Some(VecDeque::new());
        for number in 0..6_000 {
            let kinds = (0..3).map(|kind| (shops[number % shops.len()], kind));
            world.accept(MS, kinds);
        }
        world.accept(SECOND, [(Y, 0)]);
        for second in 60..120 {
            world.accept(second * SECOND, [(Y, 0)]);
        }
        world.run(400 * SECOND);
        let took = world.took.get(&(Y, 0)).map_or(0, Vec::len);
        assert_eq!(took, 61, "{shops:?} {answer:?}");
        let most = if shops.len() > 2 { 180 } else { 60 };
        assert!(world.longest(Y) < most * SECOND, "{answer:?} {:?}", world.longest(Y));
    }
}

#[test]
fn a_backlog_of_events_that_stand_for_others_is_sent_while_it_is_recorded() {
    const PAIRS: usize = 50_000;
    let mut world = known(config(16), slow(5 * MS));
    world.run(SECOND);
    world.accept(SECOND, [X; PAIRS].map(|shop| (shop, PAIRED)));
    world.accept(SECOND, [X; PAIRS].map(|shop| (shop, PAIRED)));
    world.run(SECOND + 100 * MS);
    let sent = world.sent.get(&(X, PAIRED)).map_or(0, |sent| *sent);
    assert!(sent > 100, "{sent} are sent");
    let (recorded, settled) = (world.leads, world.delivered.len());
    assert!(recorded < 2 * 256 + 2 * settled, "{recorded} are recorded, {settled} sent");
}

#[test]
fn shops_of_which_some_products_fail_with_many_events_each_fill_no_index() {
    for all_from in [Duration::MAX, 200 * SECOND] {
        partly_failing_fill_no_index(all_from);
    }
}

/// From `all_from` on, all that these shops have left fails.
fn partly_failing_fill_no_index(all_from: Duration) {
    let config = Config { index_bytes: 512 << 10, park_after: SECOND, ..config(16) };
    let fails = move |kind: u8, at| kind >= COALESCED && (kind.is_multiple_of(10) || at > all_from);
    let answers: Box<Answers> = Box::new(move |_, kind, at| match fails(kind, at) {
        true => Answer::Fails(MS),
        false => Answer::Takes(5 * MS),
    });
    let mut world = known(config, answers);
    world.unread = Some(VecDeque::new());
    for shop in 0..60 {
        let at = SECOND + shop * 2 * SECOND;
        // A hundred events of each product, before the first is sent.
        for _ in 0..100 {
            world.accept(at, (COALESCED..TOPICS).map(|kind| (100 + shop, kind)));
        }
        // Others of its products succeed.
        for tick in 1..100 {
            world.accept(at + tick * 3 * SECOND, [(100 + shop, COALESCED + 1)]);
        }
    }
    for second in 4..600 {
        world.accept(second * SECOND, [(Y, 0)]);
    }
    let mut index_bytes = 0;
    for second in 1..700 {
        world.run(second * SECOND);
        index_bytes = index_bytes.max(world.core.status().index_bytes);
    }
    assert_eq!(world.took[&(Y, 0)].len(), 597);
    assert!(world.longest(Y) < 2 * SECOND, "{:?}", world.longest(Y));
    // Two windows may exceed the limit: one up to a recorded lead, and one to try more of its lane.
    assert!(index_bytes < 768 << 10, "{index_bytes}");
    // The four failing products of every shop wait with their events, four times what the index
    // holds, and a few of the others of these shops.
    let others = if all_from == Duration::MAX { 4_000 } else { 10_000 };
    assert!(world.waiting < 60 * 4 * 100 + others, "{} wait", world.waiting);
}

#[test]
fn shops_paused_by_a_filter_leave_room_for_a_lane_that_flows_again() {
    const V: u32 = 77;
    let config = Config {
        index_bytes: 256 << 10,
        park_after: SECOND,
        coalesce_wait_max: Duration::ZERO,
        ..config(16)
    };
    let answers: Box<Answers> = Box::new(|shop, kind, at| match (shop, kind) {
        (V, COALESCED) => Answer::Fails(MS),
        (V, _) if at < 60 * SECOND => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(config, answers);
    world.unread = Some(VecDeque::new());
    world.pause(Some(5));
    world.accept(SECOND, [(V, COALESCED)]);
    for tick in 0..200 {
        world.accept(SECOND + tick * 250 * MS, [(V, COALESCED + 1)]);
        world.accept(2 * SECOND + tick * 200 * MS, (100..140).map(|shop| (shop, 5)));
    }
    for second in 60..120 {
        world.accept(second * SECOND, [(V, COALESCED + 1), (Y, 0)]);
    }
    world.run(180 * SECOND);
    let took = world.took.get(&(V, COALESCED + 1)).map_or(0, Vec::len);
    assert_eq!(took, 260, "index {}", world.core.status().index_bytes);
}

#[test]
fn a_shop_that_is_slower_than_its_webhooks_keeps_no_others_in_the_stream() {
    let config = Config { park_after: 10 * SECOND, ..config(64) };
    let mut world = known(config, slow(100 * MS));
    for tick in 0..1_000 {
        world.accept(SECOND + tick * MS, [(X, IN_LINE), (X, IN_LINE), (Y, 0)]);
    }
    for tick in 0..5_000 {
        world.accept(2 * SECOND + tick * 10 * MS, [(Y, 0), (3, 0)]);
    }
    // More than a fifth is left.
    world.run(25 * SECOND);
    assert_eq!(world.moved, 0);
    world.run(60 * SECOND);
    assert!(world.took[&(X, IN_LINE)].len() < 1_000, "it is slow");
    let (packs, _) = world.passed;
    assert!(packs > 5_000, "{packs} packs passed");
    // Of the others, nothing moves.
    assert!(world.moved <= 2_000, "{} moved", world.moved);
    assert_eq!(world.run(700 * SECOND), 0);
}

#[test]
fn a_lane_is_read_up_to_its_lead_while_others_that_fail_take_all_room() {
    let config = Config { index_bytes: 64 << 10, park_after: SECOND, ..config(16) };
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        X if at > 400 * SECOND => Answer::Takes(5 * MS),
        X | 100.. => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(config, answers);
    world.unread = Some(VecDeque::new());
    // Each product's newest event lies behind nearly all others.
    for _ in 0..13 {
        world.accept(SECOND, (COALESCED..TOPICS).map(|kind| (X, kind)));
    }
    for number in 0..4_000 {
        world.accept(20 * SECOND + number * 10 * MS, [(100 + number % 30, 0)]);
    }
    for second in 4..900 {
        world.accept(second * SECOND, [(Y, 0)]);
    }
    world.run(900 * SECOND);
    let left = (COALESCED..TOPICS).filter(|kind| !world.took.contains_key(&(X, *kind))).count();
    assert_eq!(left, 0, "of 40 products");
    assert!(world.longest(Y) < 2 * SECOND, "{:?}", world.longest(Y));
}

#[test]
fn recorded_leads_take_an_eighth_of_the_index() {
    const INDEX_BYTES: usize = 256 << 10;
    let config = Config { index_bytes: INDEX_BYTES, park_after: SECOND, ..config(16) };
    let answers: Box<Answers> = Box::new(move |_, kind, _| {
        let fails = kind >= COALESCED && kind.is_multiple_of(4);
        if fails { Answer::Fails(MS) } else { Answer::Takes(MS) }
    });
    let mut world = known(config, answers);
    world.unread = Some(VecDeque::new());
    for shop in 0..200 {
        let at = SECOND + shop * SECOND;
        world.accept(at, (COALESCED..TOPICS).map(|kind| (100 + shop, kind)));
        world.accept(at, (COALESCED..TOPICS).map(|kind| (100 + shop, kind)));
        for tick in 1..100 {
            world.accept(at + tick * 3 * SECOND, [(100 + shop, COALESCED + 1)]);
        }
    }
    world.run(300 * SECOND);
    assert!(world.recorded_max > 500, "{}", world.recorded_max);
    assert!(world.recorded_max < INDEX_BYTES / 8 / 40 + 256, "{}", world.recorded_max);
}
