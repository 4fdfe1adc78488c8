//! Updates of one resource that show nothing new, step by step.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{
    AttemptEnd, Backoff, Class, Classified, Config, Content, Core, DedupWindow, Dispatch, Effect,
    Event, Loaded, Now, Outcome, PackRead, ReplayRead, ShopBounds, StateRole, Suppression, Tuning,
    UpdateState, Verdict,
};
use spillway_limiter::{Bounds, Signal};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;
use spillway_webhook::{BodyState, StreamId};

const SECOND: Duration = Duration::from_secs(1);
const EPOCH_MS: u64 = 1_000_000;

/// An update of the resource: the state that it shows, and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Update(char, u64);

#[derive(Debug, Clone)]
struct Updates(Rc<Vec<Update>>);

impl Content for Updates {
    type Evidence = ();
    type Filter = ();

    fn raw_bytes(&self) -> usize {
        self.0.len()
    }

    fn record_bytes(&self, _: u32) -> usize {
        1
    }

    fn pluck(&self, index: u32) -> Self {
        Self(Rc::new(vec![self.0[index as usize]]))
    }

    fn fingerprint(&self, _: u32) -> Option<Fingerprint> {
        None
    }

    fn update(&self, index: u32) -> Option<UpdateState> {
        let Update(state, updated_ms) = self.0[index as usize];
        let body = BodyState { hash: u128::from(state), updated_ms: Some(updated_ms) };
        Some(UpdateState { subscription: NonZeroU32::MIN, body })
    }

    fn shop_of((): &()) -> Option<u64> {
        None
    }

    fn is_matched(&self, _: u32, _: Position, (): &()) -> bool {
        false
    }

    fn dead_bytes(&self, _: u32, (): &()) -> u64 {
        1
    }
}

fn config(suppression: Suppression) -> Config {
    let mut config = Config {
        bounds: Bounds { concurrency_min: 1, concurrency_max: 4, rate_max: None },
        shop_bounds: ShopBounds { concurrency_max: 4, spacing: Duration::ZERO },
        backoff: Backoff { first: SECOND, longest: SECOND },
        retry_for: 3600 * SECOND,
        retry_refused_for: 3600 * SECOND,
        coalesce_wait_max: 600 * SECOND,
        park_after: 3600 * SECOND,
        index_bytes: 1 << 20,
        keeps_fingerprints: false,
        suppression,
        seed: 1,
        tuning: Tuning::default(),
    };
    config.tuning.settlements.every = Duration::ZERO;
    config
}

fn classified() -> Classified {
    Classified {
        resource: 1,
        lane: 2,
        shop: 3,
        class: Class::Rest,
        is_barrier: false,
        coalesces: 0,
        role: StateRole::Compared,
        fingerprint: None,
        expires_at_ms: None,
        is_excluded: false,
    }
}

struct World {
    core: Core<Updates>,
    now: Duration,
    entries: u64,
    /// Webhooks that were sent, with those that are under way.
    sent: Vec<Update>,
    under_way: Vec<Dispatch<Updates>>,
    outcomes: Vec<Outcome>,
}

impl World {
    fn new(drops_stale: bool) -> Self {
        Self::with(Suppression { bytes: 1 << 20, drops_stale, clock_skew_ms: 0 })
    }

    fn with(suppression: Suppression) -> Self {
        let seen = DedupWindow::new(Duration::ZERO, 0);
        let mut world = Self {
            core: Core::new(config(suppression), Loaded::default(), seen),
            now: Duration::ZERO,
            entries: 0,
            sent: Vec::new(),
            under_way: Vec::new(),
            outcomes: Vec::new(),
        };
        world.on(vec![Event::ReplaysLoaded]);
        world
    }

    /// Passes events to the core, and applies its settlements, until nothing follows.
    fn on(&mut self, mut events: Vec<Event<Updates>>) {
        for _ in 0..100 {
            self.now += SECOND;
            let until = self.now + 10 * SECOND;
            events.insert(0, Event::Lease { until, dead_room: 1 << 20, may_move: true });
            let passed_ms = u64::try_from(self.now.as_millis()).expect("it is short");
            let now = Now { at: self.now, wall_ms: EPOCH_MS + passed_ms };
            let mut next = Vec::new();
            for effect in self.core.on(events, now) {
                match effect {
                    Effect::Send(dispatch) => {
                        self.sent.push(dispatch.content.0[dispatch.record_index as usize]);
                        self.under_way.push(*dispatch);
                    }
                    Effect::Settle(settlement) => {
                        self.outcomes.extend(settlement.records.iter().map(|one| one.outcome));
                        next.push(Event::Settled);
                    }
                    other => panic!("unexpected: {other:?}"),
                }
            }
            if next.is_empty() {
                return;
            }
            events = next;
        }
        panic!("the core settles for ever");
    }

    /// Stores updates in one pack.
    fn store(&mut self, updates: &[Update], classified: Classified) {
        self.entries += 1;
        self.on(vec![Event::Pack(PackRead {
            entry: StreamId { ms: EPOCH_MS + self.entries, seq: 0 },
            classified: vec![classified; updates.len()],
            content: Updates(Rc::new(updates.to_vec())),
        })]);
    }

    /// Ends the attempt that is under way.
    fn end(&mut self, verdict: Verdict) {
        assert_eq!(self.under_way.len(), 1, "one attempt at a time");
        let dispatch = self.under_way.remove(0);
        let signal = if verdict == Verdict::Delivered { Signal::Done } else { Signal::Failed };
        self.on(vec![Event::Ended(AttemptEnd {
            id: dispatch.id,
            verdict,
            signal,
            is_unconnected: false,
            took: SECOND / 100,
            fetching: Duration::ZERO,
            evidence: (),
        })]);
    }

    /// Stores an update, and lets the backend accept it if it is sent.
    fn deliver(&mut self, update: Update) {
        self.store(&[update], classified());
        if !self.under_way.is_empty() {
            self.end(Verdict::Delivered);
        }
    }

    fn check_sent(&self, expected: &str) {
        let sent: String = self.sent.iter().map(|update| update.0).collect();
        assert_eq!(sent, expected, "{:?}", self.outcomes);
    }
}

const DEAD: Verdict = Verdict::Dead { reason: "status", is_refusal: false };

#[test]
fn an_update_that_shows_nothing_new_is_dropped_and_each_change_is_sent() {
    let mut world = World::new(false);
    for (state, ms) in [('a', 1), ('a', 2), ('b', 3), ('a', 4), ('a', 5)] {
        world.deliver(Update(state, ms));
    }
    world.check_sent("aba");
    let expected = [
        Outcome::Delivered,
        Outcome::Suppressed,
        Outcome::Delivered,
        Outcome::Delivered,
        Outcome::Suppressed,
    ];
    assert_eq!(world.outcomes, expected);
    assert_eq!(world.core.counts().undelivered.suppressed, 2);
    // Another leader has sent nothing yet.
    let mut next = World::new(false);
    next.deliver(Update('a', 6));
    next.check_sent("a");
}

#[test]
fn without_memory_everything_is_sent() {
    let mut world = World::with(Suppression::default());
    (1..=3).for_each(|ms| world.deliver(Update('a', ms)));
    world.check_sent("aaa");
}

#[test]
fn an_update_is_compared_once_the_one_before_it_is_settled() {
    let mut world = World::new(false);
    world.deliver(Update('a', 1));
    world.store(&[Update('b', 2)], classified());
    world.store(&[Update('a', 3)], classified());
    world.check_sent("ab");
    world.end(Verdict::Delivered);
    world.check_sent("aba");
}

#[test]
fn after_a_dead_letter_nothing_is_known() {
    let mut world = World::new(true);
    world.deliver(Update('a', 1));
    world.store(&[Update('b', 2)], classified());
    world.end(DEAD);
    world.deliver(Update('a', 3));
    world.deliver(Update('a', 4));
    world.check_sent("aba");
}

#[test]
fn another_topic_of_the_resource_and_a_replay_are_sent_and_leave_nothing_known() {
    let mut world = World::new(true);
    world.deliver(Update('a', 1));
    world.store(&[Update('a', 1)], Classified { role: StateRole::MayShow, ..classified() });
    world.end(Verdict::Delivered);
    // What is not compared has a time of up to its acceptance.
    world.deliver(Update('a', 2));
    world.check_sent("aaa");
    world.deliver(Update('a', 2 * EPOCH_MS));
    world.deliver(Update('a', 3 * EPOCH_MS));
    world.check_sent("aaaa");
    let position = Position::new(StreamId { ms: EPOCH_MS, seq: 0 }, 0);
    let content = Updates(Rc::new(vec![Update('a', 0)]));
    let id = StreamId { ms: EPOCH_MS + 100, seq: 0 };
    world.on(vec![Event::Replay(ReplayRead { id, position, classified: classified(), content })]);
    world.check_sent("aaaaa");
    world.end(Verdict::Delivered);
    world.deliver(Update('a', 4 * EPOCH_MS));
    world.check_sent("aaaaaa");
}

#[test]
fn a_resource_begins_with_a_topic_that_is_not_compared() {
    let mut world = World::new(false);
    world.store(&[Update('x', 0)], Classified { role: StateRole::MayShow, ..classified() });
    world.end(Verdict::Delivered);
    // It is late: a backend that compares times has what came before.
    world.deliver(Update('a', 5));
    world.deliver(Update('a', 2 * EPOCH_MS));
    world.deliver(Update('a', 3 * EPOCH_MS));
    world.check_sent("xaa");
}

#[test]
fn what_may_show_any_resource_leaves_none_known() {
    let other = Classified { resource: 9, role: StateRole::HidesAll, ..classified() };
    let mut world = World::new(false);
    world.deliver(Update('a', 2 * EPOCH_MS));
    world.deliver(Update('a', 3 * EPOCH_MS));
    world.check_sent("a");
    for (verdict, ms, expected) in [(Verdict::Delivered, 4, "axa"), (DEAD, 6, "axaxa")] {
        world.store(&[Update('x', 0)], other);
        world.end(verdict);
        world.deliver(Update('a', ms * EPOCH_MS));
        // It has ended, so what was delivered since is known.
        world.deliver(Update('a', (ms + 1) * EPOCH_MS));
        world.check_sent(expected);
    }
}

#[test]
fn an_older_update_is_dropped_if_that_is_set() {
    for drops_stale in [false, true] {
        let mut world = World::new(drops_stale);
        world.deliver(Update('b', 5));
        world.deliver(Update('a', 4));
        world.check_sent(if drops_stale { "b" } else { "ba" });
        let stale = world.core.counts().undelivered.stale;
        assert_eq!(stale, u64::from(drops_stale));
    }
}

#[test]
fn an_update_that_is_older_than_a_dropped_one_is_dropped() {
    let mut world = World::new(false);
    world.deliver(Update('a', 1));
    world.deliver(Update('a', 5));
    world.deliver(Update('b', 3));
    world.deliver(Update('b', 6));
    world.check_sent("ab");
    let expected = [Outcome::Delivered, Outcome::Suppressed, Outcome::Stale, Outcome::Delivered];
    assert_eq!(world.outcomes, expected);
}

#[test]
fn a_lead_that_shows_nothing_new_ends_its_run_and_an_old_one_is_sent() {
    let coalesced = Classified { coalesces: 1, ..classified() };
    let mut world = World::new(true);
    world.deliver(Update('a', 5));
    world.store(&[Update('b', 6), Update('a', 7)], coalesced);
    world.check_sent("a");
    assert_eq!(world.outcomes, [Outcome::Delivered, Outcome::Coalesced, Outcome::Suppressed]);
    // The first of these is newer than what was delivered.
    world.store(&[Update('b', 9), Update('c', 1)], coalesced);
    world.check_sent("ac");
}

#[test]
fn a_failed_attempt_may_have_arrived() {
    let mut world = World::new(false);
    world.deliver(Update('a', 1));
    world.store(&[Update('b', 9)], classified());
    let retry = Verdict::Retry { pause: Duration::ZERO, scope: None, is_refusal: false };
    world.end(retry);
    // The next attempt is due.
    (0..5).for_each(|_| world.on(vec![Event::Tick]));
    world.check_sent("abb");
    world.end(DEAD);
    world.deliver(Update('a', 8));
    // A backend that compares times may have the failed update.
    world.deliver(Update('a', 10));
    world.deliver(Update('a', 11));
    world.check_sent("abbaa");
}
