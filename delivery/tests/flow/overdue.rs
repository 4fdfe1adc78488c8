//! What had all its time for retries is given up, however few attempts its lane gets; nothing is before.

use spillway_delivery::ReplayRead;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Shop X gets a webhook each `every` up to `until`, all others are well. Returns how many X got.
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
    // The pauses that it asks for, a minute more, and the time of a look.
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
    // Those of the first minutes, and no more.
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
    // Kind 1 is told from the others by what is sent.
    let (sorted, content) = (sorted(X, 0, entry.seq, 0), Lanes(Rc::new(vec![(X, 1)])));
    let (id, position) = (StreamId { ms: 1, seq: 1 }, Position::new(entry, 0));
    world.step(vec![Event::Replay(ReplayRead { id, position, sorted, content })]);
    world.run(2 * HOUR + 600 * SECOND);
    assert_eq!(world.sent.get(&(X, 1)), Some(&1), "once, and given up again");
}
