//! Models of the batch queue: loom tries every interleaving of a few threads over its locks.
//!
//! The source is the receiver's own, with loom's locks in place of std's.

mod sync {
    pub(crate) use loom::sync::atomic::AtomicBool;
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}

#[allow(
    dead_code,
    unreachable_pub,
    reason = "not all of the queue has a model, and its crate exports it"
)]
#[path = "../src/batch/tickets.rs"]
mod tickets;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Arc;
use loom::thread;
use tickets::{Batch, BatchQueue, Contents, Ticket};

/// Records of a model: numbers, two to a batch.
#[derive(Default)]
struct Numbers(Vec<u8>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Stored,
    Unknown,
}

impl Contents for Numbers {
    type Item<'a> = u8;
    type Tag = u8;
    type Answer = Answer;
    type Time = u8;
    const UNKNOWN: Answer = Answer::Unknown;

    fn has_room_for(&self, _: &u8) -> bool {
        self.0.len() < 2
    }

    fn add(&mut self, number: u8) {
        self.0.push(number);
    }

    fn retain(&mut self, mut keep: impl FnMut() -> bool) {
        self.0.retain(|_| keep());
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Counts how often a task was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Deadline of a webhook, and times before and after it.
const BEFORE: u8 = 1;
const DEADLINE: u8 = 2;
const AFTER: u8 = 3;
/// Deadline that never comes.
const NEVER: u8 = 9;

fn push(queue: &BatchQueue<Numbers>, number: u8, deadline: u8) -> Ticket<Numbers> {
    queue.push(number, number, deadline, Waker::noop().clone()).0
}

fn answer(ticket: &Ticket<Numbers>) -> Poll<Answer> {
    ticket.poll(&Context::from_waker(Waker::noop()))
}

/// Stores a batch. Returns what was in it.
fn store(queue: &BatchQueue<Numbers>, batch: Batch<Numbers>) -> Vec<u8> {
    let records = batch.contents().0.clone();
    let mut counted = Vec::new();
    queue.complete(batch, Answer::Stored, |number| counted.push(number));
    assert_eq!(counted, records, "a tag for each record");
    records
}

/// Stores all that is open. Returns the records.
fn store_all(queue: &BatchQueue<Numbers>, now: u8) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(batch) = queue.seal(now) {
        all.extend(store(queue, batch));
    }
    all
}

/// A queue in which one webhook has a deadline, and another has none.
fn one_of_two_expires() -> (Arc<BatchQueue<Numbers>>, Ticket<Numbers>, Ticket<Numbers>) {
    let queue = Arc::new(BatchQueue::<Numbers>::default());
    let (soon, later) = (push(&queue, 1, DEADLINE), push(&queue, 2, NEVER));
    (queue, soon, later)
}

/// Does something in another thread.
fn beside<T: 'static>(
    queue: &Arc<BatchQueue<Numbers>>,
    work: impl FnOnce(&BatchQueue<Numbers>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let queue = queue.clone();
    thread::spawn(move || work(&queue))
}

/// Checks that a webhook that is answered as stored is stored. One that is not may be.
fn check(ticket: &Ticket<Numbers>, number: u8, stored: &[u8]) {
    let answer = answer(ticket);
    if answer == Poll::Ready(Answer::Stored) {
        assert!(stored.contains(&number), "{number} is answered and not stored");
    }
}

#[test]
fn a_webhook_that_expires_while_its_batch_is_sealed_and_stored() {
    loom::model(|| {
        let (queue, soon, later) = one_of_two_expires();
        let expiring = beside(&queue, |queue| queue.expire(AFTER));
        let stored = store_all(&queue, BEFORE);
        expiring.join().expect("it ends");
        check(&soon, 1, &stored);
        assert!(answer(&soon).is_ready());
        assert_eq!(answer(&later), Poll::Ready(Answer::Stored));
        assert!(stored.contains(&2) && queue.is_idle());
    });
}

#[test]
fn a_webhook_that_is_late_when_its_batch_is_sealed_and_polled_while_it_is_stored() {
    loom::model(|| {
        let (queue, soon, later) = one_of_two_expires();
        let storing = beside(&queue, |queue| store_all(queue, AFTER));
        let polled = answer(&soon);
        let stored = storing.join().expect("it ends");
        assert!(polled != Poll::Ready(Answer::Stored));
        assert_eq!(answer(&soon), Poll::Ready(Answer::Unknown), "its record was cut out");
        assert_eq!((stored, answer(&later)), (vec![2], Poll::Ready(Answer::Stored)));
    });
}

#[test]
fn a_sender_that_leaves_while_its_batch_is_sealed_and_stored() {
    loom::model(|| {
        let queue = Arc::new(BatchQueue::<Numbers>::default());
        let (gone, stays) = (push(&queue, 1, NEVER), push(&queue, 2, NEVER));
        let leaving = thread::spawn(move || drop(gone));
        let stored = store_all(&queue, BEFORE);
        leaving.join().expect("it ends");
        assert!(stored == [1, 2] || stored == [2], "{stored:?}");
        assert_eq!(answer(&stays), Poll::Ready(Answer::Stored));
    });
}

#[test]
fn a_webhook_that_comes_while_a_batch_is_sealed_is_in_this_batch_or_the_next() {
    loom::model(|| {
        let queue = Arc::new(BatchQueue::<Numbers>::default());
        let first = push(&queue, 1, NEVER);
        let pushing = beside(&queue, |queue| push(queue, 2, NEVER));
        let mut stored = store_all(&queue, BEFORE);
        let second = pushing.join().expect("it ends");
        if !stored.contains(&2) {
            assert!(answer(&second).is_pending());
        }
        stored.extend(store_all(&queue, BEFORE));
        assert_eq!(stored, [1, 2], "each once, in order");
        for ticket in [&first, &second] {
            assert_eq!(answer(ticket), Poll::Ready(Answer::Stored));
        }
    });
}

#[test]
fn two_that_store_at_once_share_the_batches() {
    loom::model(|| {
        let queue = Arc::new(BatchQueue::<Numbers>::default());
        let tickets: Vec<_> = (1..=3).map(|number| push(&queue, number, NEVER)).collect();
        let storing = beside(&queue, |queue| store_all(queue, BEFORE));
        let mut stored = store_all(&queue, BEFORE);
        stored.extend(storing.join().expect("it ends"));
        stored.sort_unstable();
        assert_eq!(stored, [1, 2, 3]);
        for ticket in &tickets {
            assert_eq!(answer(ticket), Poll::Ready(Answer::Stored));
        }
    });
}

#[test]
fn a_batch_that_is_lost_while_one_of_its_webhooks_expires() {
    loom::model(|| {
        let (queue, soon, later) = one_of_two_expires();
        let expiring = beside(&queue, |queue| queue.expire(AFTER));
        drop(queue.seal(BEFORE));
        expiring.join().expect("it ends");
        for ticket in [&soon, &later] {
            assert_eq!(answer(ticket), Poll::Ready(Answer::Unknown));
        }
        queue.expire(AFTER);
        assert!(queue.is_idle());
    });
}

#[test]
fn a_batch_that_is_cut_again_on_its_way_to_another_place() {
    loom::model(|| {
        let (queue, soon, later) = one_of_two_expires();
        let mut batch = queue.seal(BEFORE).expect("two wait");
        let expiring = beside(&queue, |queue| queue.expire(AFTER));
        assert!(batch.cut(BEFORE), "one waits in any case");
        let stored = store(&queue, batch);
        expiring.join().expect("it ends");
        check(&soon, 1, &stored);
        assert_eq!(answer(&later), Poll::Ready(Answer::Stored));
    });
}

#[test]
fn a_webhook_that_comes_after_its_deadline_is_not_stored_and_its_sender_is_told() {
    loom::model(|| {
        let queue = BatchQueue::<Numbers>::default();
        let woken = std::sync::Arc::new(Woken::default());
        let (ticket, _) = queue.push(1, 1, DEADLINE, Waker::from(woken.clone()));
        assert!(answer(&ticket).is_pending());
        let waker = Waker::from(woken.clone());
        assert!(ticket.poll(&Context::from_waker(&waker)).is_pending());
        assert!(queue.seal(AFTER).is_none(), "its record is not stored");
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert_eq!(answer(&ticket), Poll::Ready(Answer::Unknown));
    });
}

#[test]
fn whoever_waits_when_it_is_decided_is_woken() {
    loom::model(|| {
        let queue = Arc::new(BatchQueue::<Numbers>::default());
        let ticket = push(&queue, 1, NEVER);
        let storing = beside(&queue, |queue| store_all(queue, BEFORE));
        let woken = std::sync::Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let polled = ticket.poll(&Context::from_waker(&waker));
        storing.join().expect("it ends");
        assert!(polled.is_ready() || woken.0.load(Ordering::SeqCst) == 1);
        assert_eq!(answer(&ticket), Poll::Ready(Answer::Stored));
    });
}
