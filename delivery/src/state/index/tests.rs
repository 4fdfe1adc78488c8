//! Order of the webhooks of one resource, and the time that replays take.

use std::time::{Duration, Instant};

use spillway_webhook::fingerprint::Fingerprint;

use super::*;
use crate::classified::{Class, StateRole};

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
        self.add_with(ms, replay, None)
    }

    fn add_with(
        &mut self,
        ms: u64,
        replay: Option<u64>,
        fingerprint: Option<Fingerprint>,
    ) -> Added {
        let classified = Classified {
            resource: 1,
            lane: 1,
            shop: 1,
            class: Class::Rest,
            is_barrier: false,
            coalesces: 0,
            role: StateRole::None,
            fingerprint,
            expires_at_ms: None,
            is_excluded: false,
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
fn a_recorded_lead_stands_for_no_replay() {
    // The lead was recorded by the leader before, and by this one.
    for (before, after) in [(vec![22, 24], vec![]), (vec![], vec![10, 22]), (vec![24], vec![10])] {
        for later in [vec![], vec![30]] {
            let mut one = One::new();
            [20, 23, 25]
                .iter()
                .chain(&later)
                .for_each(|ms| assert!(!one.add(*ms, None).is_new || *ms == 20));
            let seqs = |all: &[u64]| (1..).zip(all.to_vec()).collect::<Vec<_>>();
            for (seq, ms) in seqs(&before) {
                one.add(ms, Some(seq));
            }
            assert_eq!(one.index.lead_up_to(one.resource, at(25), |_| false), 3);
            one.index.set_state(one.resource, HeadState::Sending);
            for (seq, ms) in seqs(&after) {
                one.add(ms, Some(seq));
            }
            one.index.set_state(one.resource, HeadState::Retrying);
            assert_eq!(one.index.lead_up_to(one.resource, at(25), |_| false), 3);
            let run = one.index.run(one.resource).into_iter();
            let run: Vec<u64> = run.map(|node| one.index.node(node).position.ms).collect();
            assert_eq!(run, [20, 23, 25]);
            let mut replays = [before.as_slice(), after.as_slice()].concat();
            replays.sort_unstable();
            assert_eq!(one.order(), [&run[..], &replays, &later].concat());
            let tail = one.index.resource(one.resource).expect("it is there").tail;
            assert_eq!(Some(&tail), one.index.all_of(one.resource).last());
            one.remove(25);
            one.add(40, None);
            assert_eq!(one.order().last(), Some(&40));
        }
    }
    let mut one = One::new();
    one.add(20, None);
    one.add(10, Some(1));
    assert_eq!(
        one.index.lead_up_to(one.resource, at(15), |_| false),
        0,
        "only a replay is before it"
    );
}

#[test]
fn a_webhook_goes_to_its_place_among_those_for_which_a_head_that_waits_stands() {
    // The first takes the place of the head; a replay and an event of another lane come later.
    for (ms, replay, is_head) in [(10, Some(2), true), (21, Some(2), false), (22, None, false)] {
        let mut one = One::new();
        for ms in [20, 25, 30] {
            one.add(ms, None);
        }
        one.add(24, Some(1));
        assert_eq!(one.index.lead_up_to(one.resource, at(25), |_| false), 2);
        assert_eq!(one.order(), [20, 25, 24, 30]);
        assert_eq!(one.add(ms, replay).is_head, is_head);
        let mut sorted = vec![20, 24, 25, 30, ms];
        sorted.sort_unstable();
        assert_eq!(one.order(), sorted);
        assert_eq!(one.index.lead(one.resource), one.index.all_of(one.resource).first().copied());
    }
}

#[test]
fn an_event_after_those_for_which_a_head_stands_leaves_the_choice_as_it_is() {
    let mut one = One::new();
    for ms in [20, 25, 30] {
        one.add(ms, None);
    }
    one.add(24, Some(1));
    assert_eq!(one.index.lead_up_to(one.resource, at(25), |_| false), 2);
    let lead = one.index.lead(one.resource);
    for (ms, replay) in [(40, None), (26, Some(2)), (28, None)] {
        assert!(!one.add(ms, replay).is_head);
    }
    assert_eq!(one.order(), [20, 25, 24, 26, 28, 30, 40]);
    assert_eq!(one.index.lead(one.resource), lead);
}

#[test]
fn replays_go_before_a_head_whose_choice_is_undone() {
    let undo: [fn(&mut One) -> bool; 2] = [
        |one| one.index.undo_choice(one.resource),
        // An older webhook, which is not the new head itself.
        |one| one.add(15, Some(2)).is_head,
    ];
    for undo in undo {
        let mut one = One::new();
        for ms in [20, 25] {
            one.add(ms, None);
        }
        assert!(!one.index.undo_choice(one.resource), "nothing is chosen");
        assert_eq!(one.index.lead_up_to(one.resource, at(25), |_| false), 2);
        one.index.set_state(one.resource, HeadState::Recording);
        assert!(!one.add(10, Some(1)).is_head);
        assert_eq!(one.order(), [20, 25, 10]);
        one.index.set_state(one.resource, HeadState::Ready);
        assert!(undo(&mut one));
        let order: Vec<u64> = one.order().into_iter().filter(|ms| *ms != 15).collect();
        assert_eq!(order, [10, 20, 25]);
        assert!(!one.index.undo_choice(one.resource));
    }
}

#[test]
fn no_copy_of_an_older_event_takes_the_place_of_a_recorded_lead_that_is_gone() {
    // Fingerprints of the events at 10, 20 and so on; what was delivered before; and the lead. It was
    // recorded at 40, and is gone unless there are four.
    for (all, seen, lead) in [
        (vec![1, 2, 1], None, 20),
        (vec![1, 2, 3], None, 30),
        (vec![1, 2, 3], Some(3), 20),
        (vec![1, 2, 2], None, 20),
        (vec![2, 1], Some(1), 10),
        (vec![1, 1], Some(1), 10),
        (vec![1, 2, 3, 1], None, 40),
        (vec![1, 2, 3, 4], Some(4), 30),
    ] {
        let mut one = One { index: Index::new(true), ..One::new() };
        for (ms, fingerprint) in (10..).step_by(10).zip(&all) {
            one.add_with(ms, None, Some(*fingerprint));
        }
        one.add_with(50, None, Some(9));
        let count = one.index.lead_up_to(one.resource, at(40), |of| Some(of) == seen);
        let sent = one.index.lead(one.resource).map(|lead| one.index.node(lead).position);
        assert_eq!((sent, u64::from(count)), (Some(at(lead)), lead / 10), "{all:?} {seen:?}");
    }
}

#[test]
fn without_fingerprints_the_head_alone_takes_the_place_of_a_recorded_lead_that_is_gone() {
    let mut one = One::new();
    for ms in [10, 20, 30, 50] {
        one.add(ms, None);
    }
    for (recorded, count) in [(40, 1), (30, 3)] {
        assert_eq!(one.index.lead_up_to(one.resource, at(recorded), |_| false), count);
    }
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
