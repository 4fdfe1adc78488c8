//! Order of the webhooks of one resource, and the time that replays take.

use std::time::{Duration, Instant};

use super::*;
use crate::classified::Class;

const LANE: LaneKey = 0;

struct One {
    index: Index,
    window: Window,
    resource: ResourceKey,
}

fn at(ms: u64) -> Position {
    Position::new(StreamId { ms, seq: 0 }, 0)
}

impl One {
    fn new() -> Self {
        Self { index: Index::new(false), window: Window::default(), resource: 0 }
    }

    fn add(&mut self, ms: u64, replay: Option<u64>) -> Added {
        let classified = Classified {
            resource: 1,
            lane: 1,
            shop: 1,
            class: Class::Rest,
            is_barrier: false,
            coalesces: 0,
            fingerprint: None,
            expires_at_ms: None,
        };
        let replay = replay.map(|seq| StreamId { ms: 1, seq });
        let entry = IndexEntry { position: at(ms), classified, replay };
        let added = self.index.add(&entry, LANE, &mut self.window).expect("it is new");
        self.resource = added.resource;
        added
    }

    fn order(&self) -> Vec<u64> {
        let all = self.index.all_of(self.resource).into_iter();
        all.map(|node| self.index.node(node).position.ms).collect()
    }

    fn remove(&mut self, ms: u64) {
        let all = self.index.all_of(self.resource).into_iter();
        let node = all.into_iter().find(|node| self.index.node(*node).position == at(ms));
        self.index.remove(node.expect("it is there"), &mut self.window);
    }
}

#[test]
fn replays_go_to_their_places_in_whatever_order_they_come() {
    let mut one = One::new();
    for ms in [50, 60, 70] {
        one.add(ms, None);
    }
    for (seq, ms) in [(1, 20), (2, 40), (3, 10), (4, 30), (5, 65), (6, 45), (7, 80), (8, 55)] {
        one.add(ms, Some(seq));
    }
    assert_eq!(one.order(), [10, 20, 30, 40, 45, 50, 55, 60, 65, 70, 80]);
    // The replay that was added last goes, then the one before it, then a webhook amid them.
    one.remove(55);
    one.remove(80);
    one.remove(50);
    one.add(57, Some(9));
    one.remove(57);
    one.add(47, Some(10));
    one.add(46, Some(11));
    assert_eq!(one.order(), [10, 20, 30, 40, 45, 46, 47, 60, 65, 70]);
    assert_eq!(one.index.bytes(), one.index.recount());
}

#[test]
fn a_replay_goes_never_before_a_webhook_that_is_at_work() {
    let mut one = One::new();
    for ms in [20, 50] {
        one.add(ms, None);
    }
    one.index.set_state(one.resource, HeadState::Sending);
    for (seq, ms) in [(1, 10), (2, 15), (3, 30), (4, 12)] {
        assert!(!one.add(ms, Some(seq)).is_head);
    }
    assert_eq!(one.order(), [20, 10, 12, 15, 30, 50]);
}

#[test]
fn many_replays_of_a_resource_take_no_longer_if_many_of_its_webhooks_wait() {
    let took = |waiting: u64| {
        let mut one = One::new();
        for number in 0..waiting {
            one.add(1_000_000 + number, None);
        }
        let began = Instant::now();
        for number in 0..2_000 {
            one.add(number, Some(number));
        }
        let took = began.elapsed();
        assert!(one.order().is_sorted());
        took
    };
    let least = |waiting| (0..3).map(|_| took(waiting)).min().unwrap_or(Duration::ZERO);
    let (few, many) = (least(1_000), least(100_000));
    assert!(many < 20 * few, "{many:?} beside {few:?}");
}
