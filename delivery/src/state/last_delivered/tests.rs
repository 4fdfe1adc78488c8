//! Knowledge of the last delivered state, step by step.

use super::*;

const ROOM: usize = 1 << 20;
/// Hash of a resource.
const ONE: u64 = 7;
/// Time at which webhooks are accepted.
const ACCEPTED_MS: u64 = 45;

fn table(drops_stale: bool) -> LastDelivered {
    LastDelivered::new(Suppression { bytes: ROOM, drops_stale, clock_skew_ms: 0 })
}

fn of(subscription: u32, hash: u128, updated_ms: u64) -> UpdateState {
    let subscription = NonZeroU32::new(subscription).expect("not zero");
    UpdateState { subscription, body: BodyState { hash, updated_ms: Some(updated_ms) } }
}

fn update(hash: u128, updated_ms: u64) -> UpdateState {
    of(1, hash, updated_ms)
}

/// Sends an update and settles it as delivered.
fn deliver(table: &mut LastDelivered, update: UpdateState) {
    if let Some(sent) = table.on_attempt(ONE, Some(update), ACCEPTED_MS) {
        table.on_delivered(ONE, sent);
    }
}

#[test]
fn only_what_the_backend_has_last_is_the_same() {
    let mut table = table(false);
    assert_eq!(table.compare(ONE, &update(1, 10)), Novelty::New);
    deliver(&mut table, update(1, 10));
    assert_eq!(table.compare(ONE, &update(1, 20)), Novelty::Same);
    assert_eq!(table.compare(8, &update(1, 20)), Novelty::New, "of another resource");
    assert_eq!(table.compare(ONE, &update(2, 30)), Novelty::New);
    deliver(&mut table, update(2, 30));
    assert_eq!(table.compare(ONE, &update(1, 40)), Novelty::New, "back to the first state");
}

#[test]
fn nothing_is_known_while_another_state_may_be_at_the_backend() {
    let mut table = table(true);
    deliver(&mut table, update(1, 10));
    table.on_attempt(ONE, Some(update(2, 10)), ACCEPTED_MS);
    assert_eq!(table.compare(ONE, &update(1, 30)), Novelty::New, "the other may be there");
    assert_eq!(table.compare(ONE, &update(3, 5)), Novelty::New, "nothing is judged");
    deliver(&mut table, update(1, 30));
    assert_eq!(table.compare(ONE, &update(1, 40)), Novelty::Same);
    // A webhook of a topic that is not compared, or a replay.
    table.on_attempt(ONE, None, ACCEPTED_MS);
    assert_eq!(table.compare(ONE, &update(1, 50)), Novelty::New);
    deliver(&mut table, update(1, 50));
    table.forget(ONE);
    assert_eq!(table.compare(ONE, &update(1, 60)), Novelty::New);
}

#[test]
fn each_subscription_has_the_state_once() {
    let mut table = table(false);
    deliver(&mut table, of(1, 1, 10));
    assert_eq!(table.compare(ONE, &of(2, 1, 10)), Novelty::New);
    deliver(&mut table, of(2, 1, 10));
    for subscription in [1, 2] {
        assert_eq!(table.compare(ONE, &of(subscription, 1, 20)), Novelty::Same);
    }
    // A subscription with a filter shows only some of the states.
    deliver(&mut table, of(2, 2, 30));
    assert_eq!(table.compare(ONE, &of(1, 1, 40)), Novelty::New);
    (1..=5).for_each(|subscription| deliver(&mut table, of(subscription, 3, 50)));
    assert_eq!(table.compare(ONE, &of(1, 3, 60)), Novelty::New, "the first of five");
    assert_eq!(table.compare(ONE, &of(3, 3, 60)), Novelty::Same);
}

#[test]
fn what_is_older_is_dropped_if_that_is_set() {
    for drops_stale in [false, true] {
        let mut table = table(drops_stale);
        deliver(&mut table, update(1, 10));
        let expected = if drops_stale { Novelty::Older } else { Novelty::New };
        assert_eq!(table.compare(ONE, &update(2, 9)), expected);
        assert_eq!(table.compare(ONE, &update(2, 10)), Novelty::New, "times may be rough");
        assert_eq!(table.compare(ONE, &of(2, 2, 9)), Novelty::New, "of another subscription");
        let undated = UpdateState { body: BodyState { hash: 2, updated_ms: None }, ..update(2, 0) };
        assert_eq!(table.compare(ONE, &undated), Novelty::New);
        deliver(&mut table, undated);
        assert_eq!(table.compare(ONE, &undated), Novelty::Same);
    }
}

#[test]
fn what_is_older_than_a_dropped_update_is_dropped() {
    let mut table = table(false);
    deliver(&mut table, update(1, 10));
    assert_eq!(table.compare(ONE, &update(1, 30)), Novelty::Same);
    // The backend knows no time after 10, and would take it for the newest.
    for ms in [10, 29, 5] {
        assert_eq!(table.compare(ONE, &update(2, ms)), Novelty::Older, "{ms}");
    }
    // It may show another part of the resource, which no other update shows.
    assert_eq!(table.compare(ONE, &of(2, 2, 20)), Novelty::New);
    // The same state harms nobody.
    assert_eq!(table.compare(ONE, &of(2, 1, 10)), Novelty::New);
    table.on_attempt(ONE, None, ACCEPTED_MS);
    assert_eq!(table.compare(ONE, &update(2, 20)), Novelty::Older, "also later");
    assert_eq!(table.compare(ONE, &update(2, 30)), Novelty::New);
}

#[test]
fn what_was_sent_and_failed_may_be_the_newest_state() {
    let mut table = table(false);
    // No answer came, and the update is given up.
    table.on_attempt(ONE, Some(update(2, 80)), ACCEPTED_MS);
    table.forget(ONE);
    deliver(&mut table, update(1, 60));
    assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::New, "the backend may have 2");
    deliver(&mut table, update(1, 90));
    assert_eq!(table.compare(ONE, &update(1, 95)), Novelty::Same);
}

#[test]
fn a_newer_time_that_failed_is_not_one_that_was_delivered() {
    let mut table = table(true);
    deliver(&mut table, update(1, 10));
    table.on_attempt(ONE, Some(of(2, 1, 20)), ACCEPTED_MS);
    assert_eq!(table.compare(ONE, &update(3, 15)), Novelty::New);
}

#[test]
fn an_old_state_that_was_delivered_is_not_taken_for_the_state() {
    let mut table = table(false);
    deliver(&mut table, update(1, 50));
    deliver(&mut table, update(2, 10));
    // A backend that compares times still has the first one.
    assert_eq!(table.compare(ONE, &update(2, 60)), Novelty::New);
    assert_eq!(table.compare(ONE, &update(1, 60)), Novelty::New, "any other has the second");
    deliver(&mut table, update(2, 60));
    assert_eq!(table.compare(ONE, &update(2, 70)), Novelty::Same);
}

#[test]
fn what_was_sent_without_a_time_is_as_new_as_its_acceptance() {
    let mut table = table(false);
    deliver(&mut table, update(1, 10));
    table.on_attempt(ONE, None, ACCEPTED_MS);
    // A backend that compares times may have ignored it.
    deliver(&mut table, update(1, ACCEPTED_MS - 1));
    assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::New);
    deliver(&mut table, update(1, ACCEPTED_MS));
    assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::Same);
}

#[test]
fn the_first_webhook_of_a_resource_may_show_its_newest_state() {
    let mut table = table(false);
    // A topic that is not compared, such as products/create.
    table.on_attempt(ONE, None, ACCEPTED_MS);
    deliver(&mut table, update(1, ACCEPTED_MS - 1));
    assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::New, "it may have been ignored");
    deliver(&mut table, update(1, ACCEPTED_MS));
    assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::Same);
}

#[test]
fn a_bound_is_no_time_of_a_delivered_update() {
    let mut table = table(true);
    let undated = UpdateState { body: BodyState { hash: 2, updated_ms: None }, ..update(2, 0) };
    table.on_attempt(ONE, None, ACCEPTED_MS);
    deliver(&mut table, undated);
    assert_eq!(table.compare(ONE, &undated), Novelty::Same);
    let late = update(1, ACCEPTED_MS - 1);
    assert_eq!(table.compare(ONE, &late), Novelty::New, "what was sent may be older");
    // What failed may not have arrived.
    table.on_attempt(ONE, Some(update(3, 80)), ACCEPTED_MS);
    table.forget(ONE);
    deliver(&mut table, undated);
    assert_eq!(table.compare(ONE, &update(1, 60)), Novelty::New, "nothing newer was delivered");
    deliver(&mut table, update(3, 80));
    assert_eq!(table.compare(ONE, &update(1, 60)), Novelty::Older);
}

#[test]
fn what_may_show_the_state_of_any_resource_leaves_none_known() {
    let mut table = table(false);
    let is_known = |table: &mut LastDelivered| table.compare(ONE, &update(1, 90)) == Novelty::Same;
    deliver(&mut table, update(1, 50));
    table.on_hiding(ACCEPTED_MS);
    assert!(!is_known(&mut table), "it may have arrived");
    deliver(&mut table, update(1, 50));
    assert!(!is_known(&mut table), "it may arrive later");
    let began_before = table.on_attempt(ONE, Some(update(1, 50)), ACCEPTED_MS);
    table.on_hidden();
    assert!(!is_known(&mut table));
    table.on_delivered(ONE, began_before.expect("it is compared"));
    assert!(!is_known(&mut table), "it began before the end");
    deliver(&mut table, update(1, 50));
    assert!(is_known(&mut table));
    // The time of what is dropped stays.
    table.on_hiding(0);
    table.on_hidden();
    assert_eq!(table.compare(ONE, &update(2, 60)), Novelty::Older);
}

#[test]
fn what_may_show_the_state_of_any_resource_is_as_new_as_its_acceptance() {
    let mut table = table(false);
    table.on_hiding(ACCEPTED_MS);
    table.on_hidden();
    // A backend that compares times may have ignored it.
    deliver(&mut table, update(1, ACCEPTED_MS - 1));
    assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::New);
    deliver(&mut table, update(1, ACCEPTED_MS));
    assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::Same);
}

#[test]
fn the_clock_that_dates_acceptance_may_be_behind() {
    const SKEW_MS: u64 = 100;
    let suppression = Suppression { bytes: ROOM, drops_stale: false, clock_skew_ms: SKEW_MS };
    let not_compared = |table: &mut LastDelivered| {
        table.on_attempt(ONE, None, ACCEPTED_MS);
    };
    let of_any_resource = |table: &mut LastDelivered| {
        table.on_hiding(ACCEPTED_MS);
        table.on_hidden();
    };
    let causes: [fn(&mut LastDelivered); 2] = [not_compared, of_any_resource];
    for cause in causes {
        let mut table = LastDelivered::new(suppression);
        cause(&mut table);
        let late = update(1, ACCEPTED_MS + SKEW_MS - 1);
        deliver(&mut table, late);
        assert_eq!(table.compare(ONE, &late), Novelty::New, "what was sent may be newer");
        let newer = update(1, ACCEPTED_MS + SKEW_MS);
        deliver(&mut table, newer);
        assert_eq!(table.compare(ONE, &newer), Novelty::Same);
    }
}

#[test]
fn memory_is_bounded_and_what_was_delivered_last_is_known() {
    let most = 100;
    let bytes = GENERATIONS * STATE_BYTES * most;
    let mut table = LastDelivered::new(Suppression { bytes, drops_stale: false, clock_skew_ms: 0 });
    for resource in 0..1_000 {
        table.on_delivered(resource, SentUpdate { update: update(1, 10), epoch: 0 });
        // It is delivered again and again.
        table.on_delivered(ONE, SentUpdate { update: update(2, 10), epoch: 0 });
    }
    assert!(table.newer.len() <= most && table.older.len() <= most);
    assert_eq!(table.compare(0, &update(1, 20)), Novelty::New);
    assert_eq!(table.compare(950, &update(1, 20)), Novelty::Same);
    assert_eq!(table.compare(ONE, &update(2, 20)), Novelty::Same);
}

#[test]
fn without_memory_nothing_is_compared() {
    let mut table = LastDelivered::new(Suppression::default());
    deliver(&mut table, update(1, 10));
    assert!(!table.is_on() && table.newer.is_empty());
}
