//! Some shops get no answer, or the answer that the backend is full. Other shops are served and
//! must not be delayed.

use super::*;

/// Time at which the first shops begin to fail.
const ILL_FROM: Duration = Duration::from_secs(10);
/// Time after which their failures are recognized as their own.
const TOLD_AFTER: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(600);
/// Number of the first failing shop.
const ILL: u32 = 100;
const HEALTHY: u32 = 20;

/// Number of webhooks of healthy shops, at one each `every`.
fn accepted(every: Duration) -> u32 {
    (END - SECOND).div_duration_f64(every) as u32
}

/// Twenty healthy shops beside failing ones. The healthy shops together get a webhook each
/// `all_every`, in turn. Each failing shop gets one each `ill_every`.
fn beside(ill: u32, answer: Answer, all_every: Duration, ill_every: Duration) -> World {
    PACKS.with_borrow_mut(BTreeMap::clear);
    let answers = move |shop, _, at| {
        if shop >= ILL && at >= ILL_FROM { answer } else { Answer::Takes(5 * MS) }
    };
    let mut world = World::new(config(16), Box::new(answers));
    for number in 0..accepted(all_every) {
        world.accept(SECOND + all_every * number, [(number % HEALTHY, 0)]);
    }
    for shop in 0..ill {
        let mut at = SECOND + 37 * MS * shop;
        while at < END {
            world.accept(at, [(ILL + shop, 0)]);
            at += ill_every;
        }
    }
    world
}

#[test]
fn shops_that_are_served_do_not_wait_for_others_whose_answers_say_that_there_is_no_room() {
    let answers = [
        Answer::Fails(5 * MS),
        Answer::Resets(MS),
        Answer::Unavailable(MS),
        Answer::Overloaded(MS),
        Answer::RetryAfter(SECOND),
    ];
    for answer in answers {
        for ill in [1, 2, 10] {
            for (all_every, ill_every) in [(50 * MS, SECOND), (SECOND, 10 * SECOND)] {
                let mut world = beside(ill, answer, all_every, ill_every);
                world.run(END + SECOND);
                let what = format!("{answer:?}, {ill} shops, every {all_every:?}");
                let served = world.took.range(..(HEALTHY, 0)).map(|(_, took)| took);
                let number: usize = served.clone().map(Vec::len).sum();
                assert_eq!(number, accepted(all_every) as usize, "{what}");
                let longest = served.clone().flatten().max();
                assert!(longest < Some(&(20 * SECOND)), "{what}: {longest:?}");
                let told = (ILL_FROM + TOLD_AFTER).div_duration_f64(all_every * HEALTHY) as usize;
                let later = served.flat_map(|took| took.iter().skip(told + 1)).max();
                assert!(later < Some(&(200 * MS)), "{what}: {later:?} later on");
            }
        }
    }
}

/// A pseudorandom number below a hundred for an attempt.
fn percentile(shop: u32, at: Duration) -> u64 {
    let drawn = (at.as_nanos() as u64 ^ u64::from(shop)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (drawn >> 32) % 100
}

#[test]
fn a_backend_that_is_full_for_everybody_is_given_less() {
    for refused in [30, 60, 90] {
        PACKS.with_borrow_mut(BTreeMap::clear);
        let answers: Box<Answers> = Box::new(move |shop, _, at| {
            let is_refused = at >= ILL_FROM && percentile(shop, at) < refused;
            if is_refused { Answer::Unavailable(5 * MS) } else { Answer::Takes(20 * MS) }
        });
        let mut world = World::new(config(64), answers);
        for round in 0..6_000 {
            world.accept(SECOND + round * 20 * MS, (0..HEALTHY).map(|shop| (shop, 0)));
        }
        world.run(ILL_FROM);
        let before = world.core.status().limit;
        world.run(60 * SECOND);
        let after = world.core.status().limit;
        assert!(
            after * 4 <= before,
            "{refused} of 100 refused: {after} at a time, {before} before"
        );
    }
}

#[test]
fn one_who_says_outright_that_all_is_to_be_left_alone_is_believed_each_time() {
    let mut world = beside(1, Answer::PausesAll(3 * SECOND), 100 * MS, 5 * SECOND);
    world.run(300 * SECOND);
    let longest = world.took.range(..(HEALTHY, 0)).flat_map(|(_, took)| took.iter().skip(50)).max();
    assert!(longest >= Some(&(2 * SECOND)), "{longest:?}");
}

#[test]
fn a_backend_that_comes_back_with_little_room_is_given_little() {
    PACKS.with_borrow_mut(BTreeMap::clear);
    let answers: Box<Answers> = Box::new(|shop, _, at| {
        let is_taken = at < ILL_FROM || (at > 60 * SECOND && percentile(shop, at) < 10);
        if is_taken { Answer::Takes(20 * MS) } else { Answer::Unavailable(5 * MS) }
    });
    let mut world = World::new(config(64), answers);
    // One webhook of each shop.
    for shop in 0..30_000 {
        world.accept(SECOND + shop * 5 * MS, [(shop, 0)]);
    }
    world.run(ILL_FROM);
    let mut limits = Vec::new();
    world.run(70 * SECOND);
    for second in 70..150 {
        world.run(second * SECOND);
        limits.push(world.core.status().limit);
    }
    limits.sort_unstable();
    assert!(limits[limits.len() / 2] <= 8, "{limits:?}");
}
