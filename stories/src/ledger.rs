//! The ledger: what was sent and what was promised for it, recorded by the senders.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::receipt::BodyHash;
use crate::until::until;

/// One event of one resource. Its webhook id contains both numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event {
    /// The resource, a product id.
    pub resource: u64,
    /// Position among the events of the resource, from 1.
    pub sequence: u64,
}

/// Outcome of one attempt to send a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 200: promised.
    Stored,
    /// A 4xx: will never arrive.
    Refused(u16),
    /// A 503: may arrive once.
    Later,
    /// The connection broke before any answer: may arrive once.
    Unanswered,
    /// The connection broke within the answer: may arrive once. Only the test causes this.
    CutInAnswer,
    /// No connection: will not arrive.
    NotSent,
}

/// One attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Time at which its first byte was sent.
    pub began: Instant,
    /// Time until its outcome.
    pub took: Duration,
    /// Outcome.
    pub outcome: Outcome,
}

/// One webhook and all the attempts to send it.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Hash of the body.
    pub body_hash: BodyHash,
    /// The attempts, in order.
    pub attempts: Vec<Attempt>,
}

/// Everything that was sent.
#[derive(Debug, Default)]
pub struct Ledger {
    sent: Mutex<HashMap<Event, Sent>>,
    /// Stored events in the order in which they were promised. They are kept in addition to the
    /// entries, because tests read them every few milliseconds under load.
    stored: Mutex<Vec<Event>>,
}

impl Event {
    /// The webhook id, in the form of a UUID.
    pub fn webhook_id(self) -> String {
        format!("{:08x}-0000-4000-8000-{:012x}", self.resource, self.sequence)
    }

    /// The event of a webhook id, if it is an event of a test.
    pub fn of(webhook_id: &str) -> Option<Self> {
        let (resource, rest) = webhook_id.split_once('-')?;
        let (_, sequence) = rest.rsplit_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        let event = Self { resource: number(resource)?, sequence: number(sequence)? };
        (event.webhook_id() == webhook_id).then_some(event)
    }
}

impl Sent {
    /// True if an attempt was answered 200.
    pub fn stored(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.outcome == Outcome::Stored)
    }

    /// Time at which it was promised: the end of the first answer with 200.
    pub fn accepted_at(&self) -> Option<Instant> {
        let mut stored = self.attempts.iter().filter(|attempt| attempt.outcome == Outcome::Stored);
        stored.next().map(|attempt| attempt.began + attempt.took)
    }

    /// Maximum number of copies that may arrive, without repeats after a crash.
    pub fn copies_max(&self) -> usize {
        let may_arrive = |attempt: &&Attempt| match attempt.outcome {
            Outcome::Stored | Outcome::Later | Outcome::Unanswered | Outcome::CutInAnswer => true,
            Outcome::Refused(_) | Outcome::NotSent => false,
        };
        self.attempts.iter().filter(may_arrive).count()
    }
}

impl Ledger {
    /// Records one attempt.
    pub fn note(&self, event: Event, body_hash: BodyHash, attempt: Attempt) {
        let mut sent = self.entries();
        let entry = sent.entry(event).or_insert_with(|| Sent { body_hash, attempts: Vec::new() });
        if attempt.outcome == Outcome::Stored && !entry.stored() {
            self.promised().push(event);
        }
        entry.attempts.push(attempt);
    }

    /// Adds the entries of another ledger, which has other events.
    pub fn absorb(&self, other: &Self) {
        let taken: Vec<_> = other.entries().drain().collect();
        self.promised().append(&mut other.promised());
        self.entries().extend(taken);
    }

    /// All entries.
    pub fn entries(&self) -> MutexGuard<'_, HashMap<Event, Sent>> {
        self.sent.lock().expect("no book-keeper panicked")
    }

    /// All attempts.
    pub fn attempts(&self) -> Vec<Attempt> {
        self.entries().values().flat_map(|sent| sent.attempts.iter().copied()).collect()
    }

    /// Events answered 200, in the order of their first such answer.
    pub fn stored(&self) -> Vec<Event> {
        self.stored_after(0)
    }

    /// Same as [`stored`](Self::stored), without the first `seen`.
    pub fn stored_after(&self, seen: usize) -> Vec<Event> {
        self.promised()[seen..].to_vec()
    }

    /// Number of events answered 200.
    pub fn stored_count(&self) -> usize {
        self.promised().len()
    }

    fn promised(&self) -> MutexGuard<'_, Vec<Event>> {
        self.stored.lock().expect("no book-keeper panicked")
    }

    /// Number of attempts with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.attempts().iter().filter(|attempt| attempt.outcome == outcome).count()
    }

    /// Waits until the backend has acknowledged every event answered 200.
    pub async fn delivered_to(&self, backend: &Backend, within: Duration) {
        let stored: Vec<String> = self.stored().into_iter().map(Event::webhook_id).collect();
        let what = format!("{} stored webhooks are delivered", stored.len());
        let mut done = 0;
        until(&what, within, async || {
            // Delivered events are not checked again, because each check locks the backend's books.
            while done < stored.len() && backend.has_delivered(&stored[done]) {
                done += 1;
            }
            done == stored.len()
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::Event;

    #[test]
    fn a_webhook_id_tells_its_event() {
        let event = Event { resource: 0xabc, sequence: 0x1234 };
        assert_eq!(event.webhook_id(), "00000abc-0000-4000-8000-000000001234");
        assert_eq!(Event::of(&event.webhook_id()), Some(event));
        assert_eq!(Event::of("nonsense"), None);
    }
}
