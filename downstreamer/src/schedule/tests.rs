//! Turns over shops, their bounds, and what barriers hold back.

use spillway_webhook::StreamId;

use super::*;

const NOW: Duration = Duration::from_secs(1);
const FREE: ShopBounds = ShopBounds { concurrency_max: u32::MAX, spacing: Duration::ZERO };

fn at(seq: u64) -> Position {
    (StreamId { ms: 1, seq }, 0)
}

/// Webhook `number` of `shop`, ready; its resource is `1000 × shop + number`.
fn add(schedule: &mut Schedule, shop: u64, number: u64, class: Class) -> ShopKey {
    let key = schedule.add(shop, at(number), false, |_| HashSet::new());
    let place = Place { pack: 0, index: number as u32 };
    schedule.push(key, class, place, 1000 * shop + number);
    key
}

fn deliver(schedule: &mut Schedule, count: usize, took: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut shops = Vec::new();
    for _ in 0..count {
        let turn = schedule.pick(NOW).unwrap();
        let shop = turn.resource / 1000;
        schedule.began(turn.shop, NOW);
        schedule.ended(turn.shop, Duration::from_millis(took(shop)));
        schedule.left(turn.shop, at(turn.resource % 1000), NOW);
        shops.push(shop);
    }
    shops
}

fn ready(schedule: &Schedule) -> usize {
    let ready = schedule.shops.iter().flat_map(|(_, shop)| &shop.ready);
    ready.map(BinaryHeap::len).sum()
}

#[test]
fn a_flood_waits_for_the_others() {
    let mut schedule = Schedule::new(FREE);
    for number in 0..100 {
        add(&mut schedule, 1, number, Class::Rest);
    }
    for shop in 2..5 {
        add(&mut schedule, shop, 200, Class::Rest);
    }
    assert_eq!(deliver(&mut schedule, 6, |_| 50), [1, 2, 3, 4, 1, 1]);
    assert_eq!(ready(&schedule), 97);
}

#[test]
fn the_rest_has_one_turn_in_five() {
    let mut schedule = Schedule::new(FREE);
    for number in 0..50 {
        add(&mut schedule, 1, number, Class::Priority);
        add(&mut schedule, 2, number, Class::Rest);
    }
    let shops = deliver(&mut schedule, 50, |_| 50);
    assert_eq!(shops.iter().filter(|shop| **shop == 2).count(), 10);
}

#[test]
fn a_shop_whose_deliveries_take_long_pays_with_its_turns() {
    let mut schedule = Schedule::new(FREE);
    for number in 0..900 {
        add(&mut schedule, 1, number, Class::Rest);
        add(&mut schedule, 2, number, Class::Rest);
    }
    let shops = deliver(&mut schedule, 900, |shop| if shop == 1 { 50 } else { 200 });
    let slow = shops[300..].iter().filter(|shop| **shop == 2).count();
    // Four times as long: a fifth of the deliveries is half of the time.
    assert!((100..=150).contains(&slow), "{slow}");
}

#[test]
fn a_shop_takes_no_more_than_its_own_bounds() {
    let spacing = Duration::from_millis(100);
    let mut schedule = Schedule::new(ShopBounds { concurrency_max: 2, spacing });
    let key = add(&mut schedule, 1, 0, Class::Rest);
    for number in 1..5 {
        add(&mut schedule, 1, number, Class::Rest);
    }
    let begin = |schedule: &mut Schedule, now: Duration| {
        let turn = schedule.pick(now);
        turn.into_iter().for_each(|turn| schedule.began(turn.shop, now));
        turn.is_some()
    };
    assert!(begin(&mut schedule, NOW) && !begin(&mut schedule, NOW));
    assert_eq!(schedule.wakes_at(), Some(NOW + spacing));
    assert!(begin(&mut schedule, NOW + spacing));
    assert!(!begin(&mut schedule, NOW + 3 * spacing));
    schedule.ended(key, NOW);
    assert!(begin(&mut schedule, NOW + 3 * spacing));
    schedule.pause(key, NOW + 50 * spacing);
    schedule.ended(key, NOW);
    assert!(!begin(&mut schedule, NOW + 49 * spacing));
    assert!(begin(&mut schedule, NOW + 50 * spacing));
}

#[test]
fn a_starved_shop_takes_no_turn_and_keeps_its_place_within() {
    let mut schedule = Schedule::new(FREE);
    let key = add(&mut schedule, 1, 1, Class::Rest);
    add(&mut schedule, 1, 2, Class::Rest);
    add(&mut schedule, 2, 1, Class::Rest);
    let turn = schedule.pick(NOW).unwrap();
    schedule.push(key, Class::Rest, Place { pack: 0, index: 1 }, turn.resource);
    schedule.starve(key);
    assert_eq!(deliver(&mut schedule, 1, |_| 50), [2]);
    assert!(schedule.pick(NOW).is_none() && ready(&schedule) == 2);
    schedule.feed(key);
    assert_eq!(schedule.pick(NOW), Some(turn));
}

#[test]
fn a_shop_without_anything_is_forgotten() {
    let mut schedule = Schedule::new(FREE);
    for shop in 1..50 {
        add(&mut schedule, shop, 1, Class::Rest);
    }
    deliver(&mut schedule, 49, |_| 50);
    assert!(schedule.shops.is_empty() && schedule.by_hash.is_empty());
    assert!(schedule.pick(NOW).is_none());
}

#[test]
fn what_a_barrier_holds_is_handed_out_in_order() {
    let mut schedule = Schedule::new(FREE);
    let shop = schedule.add(7, at(1), false, |_| HashSet::new());
    schedule.add(7, at(2), true, |_| HashSet::new());
    schedule.add(7, at(3), false, |_| HashSet::new());
    assert!(schedule.is_open(shop, at(1)));
    for number in [2, 3] {
        assert!(!schedule.is_open(shop, at(number)));
        schedule.hold(shop, at(number), number);
    }
    assert_eq!(schedule.stuck().collect::<Vec<_>>(), [2, 3]);
    assert_eq!(schedule.left(shop, at(1), NOW), [2]);
    assert_eq!(schedule.left(shop, at(2), NOW), [3]);
    assert!(schedule.is_open(shop, at(3)) && schedule.barred.is_empty());
}

#[test]
fn a_stopped_shop_has_no_turns_until_it_goes_on() {
    let mut schedule = Schedule::new(FREE);
    for number in 0..4 {
        add(&mut schedule, 1, number, Class::Rest);
        add(&mut schedule, 2, number, Class::Rest);
    }
    schedule.stop(HashSet::from([1, 3]));
    // One that was not there yet.
    let third = add(&mut schedule, 3, 9, Class::Priority);
    assert!(schedule.is_stopped(third));
    assert_eq!(deliver(&mut schedule, 4, |_| 50), [2, 2, 2, 2]);
    assert_eq!(schedule.pick(NOW), None);
    schedule.stop(HashSet::from([3]));
    assert_eq!(deliver(&mut schedule, 4, |_| 50), [1, 1, 1, 1]);
    assert_eq!(schedule.pick(NOW), None);
    schedule.stop(HashSet::new());
    assert_eq!(deliver(&mut schedule, 1, |_| 50), [3]);
}
