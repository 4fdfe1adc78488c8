//! A webhook is given up when its time for retries is over, also in lanes with few attempts.

use spillway_delivery::ReplayRead;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Shop X gets a webhook each `every` up to `until`; others are healthy. Returns the number for X.
fn with_others(world: &mut World, every: Duration, until: Duration, end: Duration) -> u64 {
    let mut count = 0;
    while count * every < until {
        world.accept(SECOND + count * every, [(X, 0)]);
        count += 1;
    }
    for tick in (0..).take_while(|tick| *tick * 10 * SECOND < end) {
        world.accept(tick * 10 * SECOND, [(2 + tick % 5, 0)]);
    }
    u64::from(count)
}

#[test]
fn a_shop_that_asks_for_pauses_for_good_is_given_up_as_fast_as_it_fills() {
    let answers = unwell(Answer::PausesShop(600 * SECOND), Duration::MAX);
    let mut world = known(Config { retry_for: 2 * HOUR, ..config(16) }, answers);
    let count = with_others(&mut world, 10 * SECOND, 2 * HOUR, 5 * HOUR);
    world.run(2 * HOUR);
    assert_eq!(world.dead, 0);
    world.run(3 * HOUR);
    assert!(world.dead >= count / 2 - 70, "{} of {count} after an hour more", world.dead);
    assert!(world.dead <= count / 2 + 1, "{} of {count} after an hour more", world.dead);
    // The requested pauses, one more minute, and the time of a scan.
    world.run(4 * HOUR + 700 * SECOND);
    assert_eq!(world.dead, count);
    assert!(world.sent[&(X, 0)] < 40, "{} attempts", world.sent[&(X, 0)]);
}

#[test]
fn a_shop_that_hangs_amid_calm_is_given_up_as_fast_as_it_fills() {
    for concurrency_max in [1, 16] {
        let answers = unwell(Answer::Hangs, Duration::MAX);
        let config = Config { retry_for: HOUR, ..config(concurrency_max) };
        let mut world = known(config, answers);
        let count = with_others(&mut world, SECOND, 2 * HOUR, 4 * HOUR);
        world.run(HOUR);
        assert_eq!(world.dead, 0);
        world.run(3 * HOUR + 180 * SECOND);
        assert_eq!(world.dead, count, "{concurrency_max} slots");
    }
}

#[test]
fn what_expires_while_a_shop_hangs_is_none_of_what_came_after_its_recovery() {
    let answers = unwell(Answer::Hangs, HOUR + 300 * SECOND);
    let mut world = known(Config { retry_for: HOUR, ..config(16) }, answers);
    let count = with_others(&mut world, SECOND, 2 * HOUR, 3 * HOUR);
    world.run(2 * HOUR + 60 * SECOND);
    // Only the webhooks of the first minutes.
    assert!((200..=400).contains(&world.dead), "{} of {count}", world.dead);
    assert_eq!(world.took[&(X, 0)].len() as u64, count, "dead or delivered");
}

#[test]
fn the_first_refusals_after_hours_of_failures_make_no_dead_letters() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        X if at < 2 * HOUR => Answer::Fails(MS),
        X if at < 2 * HOUR + 1_200 * SECOND => Answer::Refuses(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(Config { retry_refused_for: HOUR, ..config(16) }, answers);
    with_others(&mut world, 10 * SECOND, 2 * HOUR, 3 * HOUR);
    assert_eq!(world.run(3 * HOUR), 0);
    assert_eq!(world.dead, 0);
}

#[test]
fn what_is_only_refused_is_given_up_after_its_own_time() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        X if at < HOUR => Answer::Fails(MS),
        X => Answer::Refuses(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(Config { retry_refused_for: HOUR, ..config(16) }, answers);
    let count = with_others(&mut world, 60 * SECOND, HOUR, 4 * HOUR);
    world.run(2 * HOUR - SECOND);
    assert_eq!(world.dead, 0);
    world.run(2 * HOUR + 600 * SECOND);
    assert_eq!(world.dead, count);
}

#[test]
fn a_replay_is_tried_although_all_else_of_its_lane_expires() {
    let answers = unwell(Answer::Hangs, Duration::MAX);
    let mut world = known(Config { retry_for: HOUR, ..config(16) }, answers);
    with_others(&mut world, 10 * SECOND, 3 * HOUR, 3 * HOUR);
    world.run(2 * HOUR + 180 * SECOND);
    assert!(world.dead > 300, "{}", world.dead);
    let entry = PACKS.with_borrow(|packs| {
        *packs.iter().find(|(_, lanes)| lanes[0] == (X, 0)).expect("it was accepted").0
    });
    // Kind 1 distinguishes the replay from the others in what is sent.
    let (classified, content) = (classified(X, 0, entry.seq, 0), Lanes(Rc::new(vec![(X, 1)])));
    let (id, position) = (StreamId { ms: 1, seq: 1 }, Position::new(entry, 0));
    world.step(vec![Event::Replay(ReplayRead { id, position, classified, content })]);
    world.run(2 * HOUR + 600 * SECOND);
    assert_eq!(world.sent.get(&(X, 1)), Some(&1), "once, and given up again");
}

/// Pauses these shops and no others, as an operator.
fn pause_shops(world: &mut World, shops: &[u32]) {
    world.version += 1;
    world.step(vec![Event::Controls(Controls {
        version: world.version,
        is_all_paused: false,
        shops: shops.iter().map(|shop| u64::from(*shop) + 1).collect(),
        filters: Vec::new(),
        drops: Drops::default(),
    })]);
}

#[test]
fn what_came_while_an_operator_paused_its_shop_has_all_its_time_after_that() {
    let answers = unwell(Answer::Hangs, Duration::MAX);
    let mut world = known(Config { retry_for: 2 * HOUR, ..config(16) }, answers);
    let count = with_others(&mut world, 10 * SECOND, 4 * HOUR + 300 * SECOND, 8 * HOUR);
    world.run(HOUR);
    pause_shops(&mut world, &[X]);
    world.run(3 * HOUR);
    pause_shops(&mut world, &[]);
    world.run(4 * HOUR + 300 * SECOND);
    // Webhooks of the first four minutes.
    assert!((10..40).contains(&world.dead), "{} of {count}", world.dead);
    // Webhooks from before the pause, which had an hour before it and one after it.
    world.run(5 * HOUR);
    assert!((320..=366).contains(&world.dead), "{} of {count}", world.dead);
    // Webhooks that arrived during the pause have two hours from its end.
    world.run(5 * HOUR + 150 * SECOND);
    assert!(world.dead >= 1_070, "{} of {count}", world.dead);
    world.run(6 * HOUR + 500 * SECOND);
    assert_eq!(world.dead, count);
}

#[test]
fn a_stop_of_the_backend_before_it_came_gives_no_webhook_more_time() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        _ if (1..3_600).contains(&at.as_secs()) => Answer::Fails(MS),
        X => Answer::Hangs,
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(Config { retry_for: HOUR, ..config(16) }, answers);
    with_others(&mut world, SECOND, SECOND, 4 * HOUR);
    for tick in 0..300 {
        world.accept(HOUR + (300 + tick * 10) * SECOND, [(X, 0)]);
    }
    world.run(2 * HOUR + 300 * SECOND);
    assert!(world.dead <= 1, "{}", world.dead);
    // One webhook every ten seconds, and one more minute.
    world.run(2 * HOUR + 960 * SECOND);
    assert!((55..=66).contains(&world.dead), "{}", world.dead);
}

#[test]
fn replays_do_not_hold_up_what_expires() {
    let answers = unwell(Answer::Hangs, Duration::MAX);
    let mut world = known(Config { retry_for: HOUR, ..config(16) }, answers);
    with_others(&mut world, 10 * SECOND, 4 * HOUR, 4 * HOUR);
    world.run(2 * HOUR + 180 * SECOND);
    let of_x: Vec<StreamId> = PACKS.with_borrow(|packs| {
        let of_x = packs.iter().filter(|(_, lanes)| lanes[0] == (X, 0));
        of_x.map(|(entry, _)| *entry).take(200).collect()
    });
    let replays = (1..).zip(of_x).map(|(seq, entry)| {
        let (classified, content) = (classified(X, 0, entry.seq, 0), Lanes(Rc::new(vec![(X, 1)])));
        let (id, position) = (StreamId { ms: 1, seq }, Position::new(entry, 0));
        Event::Replay(ReplayRead { id, position, classified, content })
    });
    world.step(replays.collect());
    world.run(2 * HOUR + 600 * SECOND);
    let before = world.dead;
    world.run(2 * HOUR + 1_800 * SECOND);
    assert!(world.dead - before >= 118, "{} in 20 minutes", world.dead - before);
}

#[test]
fn failures_that_say_nothing_of_a_lane_end_its_refusals_too() {
    let answers: Box<Answers> = Box::new(|_, _, at| match at {
        _ if at < 100 * SECOND => Answer::Refuses(MS),
        _ if at < HOUR => Answer::Unavailable(MS),
        _ => Answer::Refuses(MS),
    });
    let mut world = World::new(config(16), answers);
    for tick in 0..100 {
        world.accept(SECOND + tick * 40 * SECOND, [(X, 0)]);
    }
    world.run(HOUR + 1_200 * SECOND);
    assert_eq!(world.dead, 0);
}

#[test]
fn thousands_that_expire_at_once_do_not_delay_others() {
    let answers: Box<Answers> =
        Box::new(|shop, _, _| if shop < 16 { Answer::Hangs } else { Answer::Takes(5 * MS) });
    let mut world = World::new(Config { retry_for: HOUR, ..config(64) }, answers);
    world.accept(MS, [(20, 0), (21, 0)]);
    world.run(100 * MS);
    for shop in 0..16 {
        world.accept(SECOND, (0..1_000).map(|_| (shop, 0)));
    }
    for tick in 0..(HOUR + 60 * SECOND).as_secs() {
        world.accept(u32::try_from(tick).expect("it is small") * SECOND, [(22, 0)]);
    }
    for tick in 0..1_800 {
        world.accept(HOUR + 60 * SECOND + tick * 100 * MS, [(23, 0)]);
    }
    world.run(HOUR + 240 * SECOND);
    assert_eq!(world.dead, 16_000);
    assert!(world.longest(23) <= 5 * MS + 2 * SETTLING, "{:?}", world.longest(23));
}

#[test]
fn what_waits_behind_a_resource_that_always_fails_is_given_up_as_fast_as_it_fills() {
    let answers = unwell(Answer::Fails(MS), Duration::MAX);
    let mut world = known(Config { retry_for: HOUR, ..config(16) }, answers);
    for minute in 0..360 {
        world.accept(minute * 60 * SECOND, [(X, IN_LINE), (2 + minute % 5, 0)]);
    }
    world.run(HOUR - SECOND);
    assert_eq!(world.dead, 0);
    world.run(6 * HOUR);
    assert!((285..=300).contains(&world.dead), "{}", world.dead);
}

/// A leader that begins with a lane of X that failed before, and one webhook for each of these
/// ages. All webhooks of X hang.
fn taken_over(failing: Spans, accepted_before: &[Duration]) -> World {
    let Classified { lane, .. } = classified(X, 0, 0, 0);
    let ids = accepted_before.iter().map(|ago| StreamId { ms: before(*ago), seq: lane });
    let ids: Vec<_> = ids.collect();
    let at = |id: &StreamId| Position::new(*id, 0);
    let known = stored_lane(X, u32::try_from(ids.len()).expect("it is small"));
    let (first, last) = (at(&ids[0]), at(&ids[ids.len() - 1]));
    let lane = LaneLoaded { first, last, failing, is_tripped: true, is_suspect: true, ..known };
    let cursor = StreamId { ms: EPOCH_MS, seq: 0 };
    let loaded = Loaded { cursor, lanes: vec![lane], ..Loaded::default() };
    let config = Config { retry_for: HOUR, ..config(16) };
    let count = ids.len();
    IN_CHUNKS.set(ids);
    let mut world = World::load(config, unwell(Answer::Hangs, Duration::MAX), loaded);
    world.waiting = count;
    world
}

/// A time before the leader, in milliseconds since the Unix epoch.
fn before(time: Duration) -> u64 {
    EPOCH_MS - time.as_millis() as u64
}

#[test]
fn what_came_while_there_was_no_leader_or_the_backend_was_stopped_has_all_its_time() {
    // It failed for 40 minutes; an hour did not count; then 30 minutes, and ten without a leader.
    let minutes = |count: u32| count * 60 * SECOND;
    let mut failed = Spans::one(before(minutes(140)), minutes(40));
    failed.push(before(minutes(40)), minutes(30));
    // Before it failed, in its 30th minute, in the hour, 15 minutes after it, and without a leader.
    let accepted = [150, 110, 70, 25, 5].map(minutes);
    let mut world = taken_over(failed, &accepted);
    for tick in 0..720 {
        world.accept(tick * 10 * SECOND, [(2 + tick % 5, 0)]);
    }
    // Minutes until each has spent an hour, plus a few minutes for a probe, the grace and a scan.
    for (dead, minute) in [(1, 5), (2, 23), (3, 33), (4, 48), (5, 63)] {
        if dead > 1 {
            world.run(minutes(minute) - minutes(3) - SECOND);
            assert_eq!(world.dead, dead - 1, "before minute {minute}");
        }
        world.run(minutes(minute));
        assert_eq!(world.dead, dead, "in minute {minute}");
    }
}

#[test]
fn the_rows_of_lanes_whose_probes_are_all_cut_off_say_for_how_long_they_have_failed() {
    // The leader may be killed at any time. The next one finds only what was written.
    let shops = FIRST_OF_ONE..FIRST_OF_ONE + 40;
    let failing = Spans::one(before(60 * SECOND), 60 * SECOND);
    let lane = |shop| LaneLoaded {
        failing: failing.clone(),
        is_tripped: true,
        is_suspect: true,
        ..stored_lane(shop, 1)
    };
    let cursor = StreamId { ms: EPOCH_MS, seq: 0 };
    let loaded = Loaded { cursor, lanes: shops.clone().map(lane).collect(), ..Loaded::default() };
    let answers = |shop, _, _: Duration| {
        if shop >= FIRST_OF_ONE { Answer::Hangs } else { Answer::Takes(5 * MS) }
    };
    let config = Config { retry_for: 2 * HOUR, ..config(4) };
    let mut world = World::load(config, Box::new(answers), loaded);
    world.waiting = 40;
    for second in 1..3_600 {
        world.accept(second * SECOND, [(2 + second % 5, 0)]);
    }
    world.run(3_600 * SECOND);
    let written = |shop| world.failing.get(&classified(shop, 0, 0, 0).lane).map(Spans::total);
    let late = shops.filter(|shop| written(*shop).is_none_or(|total| total < 2_400 * SECOND));
    assert_eq!(late.count(), 0, "rows say less than 40 of the 60 minutes");
}

#[test]
fn what_a_filter_pauses_spends_no_time_though_others_of_its_lane_flow() {
    let answers: Box<Answers> =
        Box::new(|_, kind, _| if kind == 200 { Answer::Fails(MS) } else { Answer::Takes(5 * MS) });
    let mut world = known(config(16), answers);
    world.accept(SECOND, [(X, 200)]);
    for tick in 0..400 {
        world.accept(SECOND + tick * 10 * SECOND, [(X, 201), (Y, 0)]);
    }
    world.run(100 * SECOND);
    world.pause(Some(200));
    world.run(HOUR);
    world.step(vec![Event::Stop]);
    world.run(HOUR + SECOND);
    let spent: Vec<_> = world.spent.values().copied().collect();
    assert_eq!(spent.len(), 1);
    assert!(spent[0] >= 98 * SECOND && spent[0] <= 100 * SECOND, "{spent:?}");
}

#[test]
fn a_clock_that_goes_back_makes_no_webhook_older() {
    let answers = unwell(Answer::Hangs, Duration::MAX);
    let mut world = known(Config { retry_for: 2 * HOUR, ..config(16) }, answers);
    let count = with_others(&mut world, 10 * SECOND, 3 * HOUR, 4 * HOUR);
    world.run(HOUR);
    // All webhooks of the next hour seem to arrive now.
    world.clock_behind = HOUR;
    world.run(3 * HOUR + 300 * SECOND);
    // Only webhooks of the first minutes, because of the clock: late rather than early.
    assert!((20..=362).contains(&world.dead), "{} of {count}", world.dead);
}

/// Kinds 200 and 201 share a lane. Kind 200 is paused for two hours; others get `of_others`.
fn paused_beside(of_others: Answer, config: Config) -> World {
    let answers = move |shop, kind, at| match kind {
        _ if shop != X => Answer::Takes(5 * MS),
        200 if at >= 2 * HOUR => Answer::Fails(MS),
        _ => of_others,
    };
    let mut world = known(config, Box::new(answers));
    world.pause(Some(200));
    world.accept(SECOND, [(X, 200)]);
    for tick in 0..1_800 {
        world.accept(SECOND + tick * 10 * SECOND, [(X, 201), (Y, 0)]);
    }
    world.run(2 * HOUR);
    world.dead = 0;
    world.pause(None);
    world
}

#[test]
fn what_a_filter_paused_has_all_its_time_after_that_though_others_of_its_lane_failed() {
    for of_others in [Answer::Fails(MS), Answer::Hangs, Answer::PausesShop(10 * SECOND)] {
        let config = Config { retry_for: HOUR, ..config(16) };
        let mut world = paused_beside(of_others, config);
        world.run(3 * HOUR - SECOND);
        assert_eq!(world.took.get(&(X, 200)), None, "{of_others:?}");
        world.run(3 * HOUR + 300 * SECOND);
        assert!(world.took.contains_key(&(X, 200)), "{of_others:?}");
    }
}

#[test]
fn what_expires_goes_on_beside_many_deliveries() {
    let mut config = Config { retry_for: 40 * SECOND, ..config(64) };
    config.tuning.unsettled = 1;
    config.tuning.expiry_grace = SECOND;
    let mut world = known(config, unwell(Answer::Hangs, Duration::MAX));
    world.accept(SECOND, (0..200).map(|_| (X, 0)));
    for tick in 0..150_000 {
        world.accept(SECOND + tick * MS, [(2 + tick % 5, 0)]);
    }
    world.run(150 * SECOND);
    assert_eq!(world.dead, 200);
}

#[test]
fn a_success_in_the_main_stream_ends_the_failing_time_in_the_row_of_its_lane() {
    let lane = stored_lane(500, 2);
    let failing = Spans::one(EPOCH_MS - 7_200_000, HOUR);
    let loaded = Loaded {
        cursor: StreamId { ms: EPOCH_MS, seq: 0 },
        lanes: vec![LaneLoaded { failing, ..lane.clone() }],
        ..Loaded::default()
    };
    let answers: Box<Answers> =
        Box::new(|_, kind, _| if kind == 1 { Answer::Fails(MS) } else { Answer::Takes(5 * MS) });
    let mut world = World::load(config(4), answers, loaded);
    world.waiting = 2;
    world.run(2 * SECOND);
    assert!(!world.failing.contains_key(&lane.lane) || world.failing[&lane.lane].is_empty());
    world.accept(3 * SECOND, [(500, 0)]);
    world.run(4 * SECOND);
    world.step(vec![Event::Stop]);
    world.run(5 * SECOND);
    assert!(world.failing[&lane.lane].total() < 2 * SECOND, "{:?}", world.failing[&lane.lane]);
}

#[test]
fn what_a_filter_paused_has_not_failed_with_its_lane_for_the_next_leader() {
    let answers = unwell(Answer::Fails(MS), Duration::MAX);
    let config = Config { park_after: SECOND, retry_for: 48 * HOUR, ..config(16) };
    let mut world = known(config, answers);
    world.pause(Some(200));
    world.accept(SECOND, [(X, 200), (X, 201)]);
    with_others(&mut world, HOUR, HOUR, 3 * HOUR);
    world.run(2 * HOUR);
    // Another control has changed, and the webhook had no turn since.
    world.pause(Some(200));
    world.step(vec![Event::Stop]);
    world.run(2 * HOUR + SECOND);
    let lane = classified(X, 200, 0, 0).lane;
    assert!(world.failing[&lane].total() < 60 * SECOND, "{:?}", world.failing[&lane]);
}

/// Id of the first pack that begins with a webhook of this shop and kind.
fn pack_of(lane: (u32, u8)) -> StreamId {
    let first = |(id, lanes): (&StreamId, &Vec<(u32, u8)>)| (lanes[0] == lane).then_some(*id);
    PACKS.with_borrow(|packs| packs.iter().find_map(first).expect("it was accepted"))
}

#[test]
fn what_waited_behind_a_webhook_that_a_filter_paused_has_all_its_time_after_that() {
    let answers = unwell(Answer::Fails(MS), Duration::MAX);
    let mut world = known(Config { retry_for: HOUR, ..config(16) }, answers);
    world.accept(SECOND, [(X, TOPICS)]);
    for number in 0..50 {
        world.accept(200 * SECOND + number * SECOND, [(X, TOPICS + 1)]);
    }
    for tick in 0..2_000 {
        world.accept(tick * 10 * SECOND, [(2 + tick % 5, 0)]);
    }
    world.run(100 * SECOND);
    world.pause(Some(TOPICS));
    world.run(3 * HOUR);
    let first = pack_of((X, TOPICS));
    world.drop_main(HashMap::from([(first, vec![1])]));
    world.run(3 * HOUR + 3_000 * SECOND);
    assert_eq!(world.dead, 0);
    world.run(5 * HOUR);
    assert!(world.dead > 0);
}

#[test]
fn what_is_dropped_during_its_last_attempt_is_no_dead_letter() {
    for is_dropped in [false, true] {
        let answers = unwell(Answer::Refuses(SECOND), Duration::MAX);
        let mut world = known(Config { retry_refused_for: Duration::ZERO, ..config(16) }, answers);
        world.accept(SECOND, [(X, 0)]);
        world.run(SECOND + 500 * MS);
        assert_eq!(world.sent[&(X, 0)], 1);
        if is_dropped {
            let first = pack_of((X, 0));
            world.drop_main(HashMap::from([(first, vec![1])]));
        }
        world.run(20 * SECOND);
        assert_eq!((world.dead, world.sent[&(X, 0)]), (u64::from(!is_dropped), 1), "{is_dropped}");
    }
}

#[test]
fn time_without_a_lease_counts_for_nothing() {
    for answer in [Answer::Fails(MS), Answer::Refuses(MS)] {
        let config = Config { retry_for: HOUR, retry_refused_for: HOUR, ..config(16) };
        let mut world = known(config, unwell(answer, Duration::MAX));
        world.accept(SECOND, [(X, 0)]);
        for tick in 0..1_500 {
            world.accept(tick * 10 * SECOND, [(2 + tick % 5, 0)]);
        }
        world.run(10 * SECOND);
        world.has_lease = false;
        world.run(2 * HOUR);
        world.has_lease = true;
        world.run(3 * HOUR - 60 * SECOND);
        assert_eq!(world.dead, 0, "{answer:?}");
        world.run(3 * HOUR + 120 * SECOND);
        assert_eq!(world.dead, 1, "{answer:?}");
    }
}

#[test]
fn what_a_barrier_held_back_is_tried_before_it_expires() {
    let answers: Box<Answers> = Box::new(|shop, kind, at| match (shop, kind) {
        (X, 0) if at < HOUR + 900 * SECOND => Answer::Fails(MS),
        (X, BARRIER) if at < HOUR + 3_000 * SECOND => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(Config { retry_for: HOUR, ..config(16) }, answers);
    world.accept(SECOND, [(X, 0)]);
    world.accept(2 * SECOND, [(X, BARRIER)]);
    for tick in 0..300 {
        world.accept(3 * SECOND + tick * SECOND, [(X, 0)]);
    }
    for tick in 0..1_500 {
        world.accept(tick * 10 * SECOND, [(2 + tick % 5, 0)]);
    }
    world.run(3 * HOUR);
    assert_eq!(world.dead, 1);
    assert_eq!(world.took[&(X, 0)].len(), 301);
}

#[test]
fn what_is_only_refused_expires_after_the_time_of_refusals() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        X if at < HOUR + 900 * SECOND => Answer::Hangs,
        X => Answer::Refuses(MS),
        _ => Answer::Takes(5 * MS),
    });
    let config = Config { retry_for: HOUR, retry_refused_for: 5 * HOUR, ..config(16) };
    let mut world = known(config, answers);
    with_others(&mut world, 10 * SECOND, 3 * HOUR, 7 * HOUR);
    world.run(HOUR + 900 * SECOND);
    let before = world.dead;
    world.run(5 * HOUR);
    assert!(world.dead <= before + 20, "{before}, then {}", world.dead);
}

#[test]
fn a_run_that_was_not_tried_expires_as_far_as_it_is_overdue() {
    let answers = unwell(Answer::Hangs, Duration::MAX);
    let config = Config { retry_for: 600 * SECOND, ..config(16) };
    let mut world = known(config, answers);
    for tick in 0..360 {
        let of_x = (0..30).map(|kind| (X, COALESCED + kind));
        world.accept(SECOND + tick * 10 * SECOND, of_x.chain([(Y, 0)]));
    }
    world.run(HOUR);
    let untried: Vec<_> =
        world.took.iter().filter(|(key, _)| key.0 == X && !world.sent.contains_key(key)).collect();
    // For a few, a lead was recorded for a probe that another resource then got.
    let is_early = |took: &Vec<Duration>| took.iter().min() < Some(&(660 * SECOND));
    let early = untried.iter().filter(|(_, took)| is_early(took)).count();
    assert!(untried.len() > 5 && early <= 2, "{early} of {}", untried.len());
}

/// Leads that are settled remain recorded until the leader has read up to the newest lead.
#[test]
fn a_recorded_lead_older_than_an_untried_webhook_does_not_make_it_overdue() {
    let settled = Position::new(StreamId { ms: EPOCH_MS + 1_500, seq: 1 }, 200);
    let unread = Position::new(StreamId { ms: u64::MAX, seq: 1 }, 0);
    let late = COALESCED + 30..TOPICS;
    let leads = late.clone().map(|kind| (classified(X, kind, 0, 0).resource, settled));
    let leads = leads.chain([(1, unread)]).collect();
    let config = Config { retry_for: 600 * SECOND, ..config(16) };
    let answers = unwell(Answer::Hangs, Duration::MAX);
    let mut world = World::load(config, answers, Loaded { leads, ..Loaded::default() });
    others_are_well(&mut world, HOUR);
    world.accept(SECOND, (COALESCED..late.start).map(|kind| (X, kind)));
    world.accept(500 * SECOND, late.clone().map(|kind| (X, kind)));
    world.run(HOUR);
    let took = late.flat_map(|kind| world.took[&(X, kind)].clone());
    let soonest = took.min().unwrap_or_default();
    assert!(soonest > 600 * SECOND, "given up after {soonest:?}");
}

/// Sends webhooks of healthy shops up to `end`.
fn others_are_well(world: &mut World, end: Duration) {
    for tick in (0..).take_while(|tick| *tick * 10 * SECOND < end) {
        world.accept(SECOND + tick * 10 * SECOND, [(2 + tick % 5, 0)]);
    }
}

/// Redis' clock goes back by an hour. Later webhooks are paused for two hours and have not failed.
#[test]
fn what_comes_after_the_clock_went_back_has_all_its_time() {
    let config = Config { retry_for: 50 * 60 * SECOND, ..config(16) };
    let mut world = known(config, unwell(Answer::Fails(MS), Duration::MAX));
    others_are_well(&mut world, 8 * HOUR);
    world.accept(SECOND, [(X, 200)]);
    world.run(2 * HOUR);
    assert_eq!(world.dead, 1);
    world.clock_behind = HOUR;
    // At this time the ids are again higher than before.
    world.accept(3 * HOUR + 60 * SECOND, [(X, 201)]);
    world.run(3 * HOUR + 61 * SECOND);
    pause_shops(&mut world, &[X]);
    world.run(5 * HOUR + 61 * SECOND);
    pause_shops(&mut world, &[]);
    world.run(5 * HOUR + 48 * 60 * SECOND);
    assert_eq!(world.dead, 1, "given up before its time");
    world.run(6 * HOUR);
    assert_eq!(world.dead, 2);
}

/// An event of a product has failed for nearly all its time when another one arrives. The next
/// leader does not know that they were not sent together. The later one still has its own time.
#[test]
fn what_came_behind_one_that_failed_for_long_is_not_given_up_with_it_by_the_next_leader() {
    let entry = StreamId { ms: EPOCH_MS + 1_000, seq: 1 };
    let spent = HOUR - 5 * SECOND;
    let stored = StoredRetry { attempts: 60, spent, as_of_ms: EPOCH_MS, ..StoredRetry::default() };
    let retries = vec![(Position::new(entry, 0), stored)];
    let config = Config { retry_for: HOUR, ..config(16) };
    let answers = unwell(Answer::Fails(MS), Duration::MAX);
    let mut world = World::load(config, answers, Loaded { retries, ..Loaded::default() });
    world.accept(SECOND, [(X, 200)]);
    world.accept(2 * SECOND, [(X, 200)]);
    others_are_well(&mut world, 3 * HOUR);
    world.run(600 * SECOND);
    assert_eq!(world.dead, 1);
    world.run(3 * HOUR);
    assert_eq!(world.dead, 2, "each has its own time");
}
