//! Tickets of senders, and the batches that they wait in.
//!
//! A batch is open while webhooks are added to it, sealed when it is taken to be stored, and
//! completed with one answer for all tickets that are still undecided. A ticket is decided once, by
//! what comes first: its deadline, the completion of its batch, or the drop of the ticket. Sealing
//! drops the records of decided tickets. So a sender is never answered by a batch that does not
//! hold its record, in whatever order tasks run. A batch that is lost answers that nothing is
//! known. A batch also shows ([`Outlived`]) that a sender of one of its records does not wait any more.
//!
//! Pure, except for the locks, which the parent module names. The queue's lock is taken before a
//! batch's.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use super::sync::{Arc, AtomicBool, Mutex, MutexGuard};

/// Emptied contents that are kept for reuse: one batch is filled while another is stored.
const SPARE_MAX: usize = 2;

/// Contents of a batch: a record for each ticket, in the order of the tickets.
pub trait Contents: Default {
    /// Data that is added for a ticket.
    type Item<'a>;
    /// Value that is kept with a ticket, and returned when its record is stored.
    type Tag: Copy;
    /// Answer to the holder of a ticket.
    type Answer: Copy;
    /// Point in time.
    type Time: Copy + Ord;
    /// Answer if nothing is known of the record.
    const UNKNOWN: Self::Answer;

    /// Returns true if one more record fits in.
    fn has_room_for(&self, item: &Self::Item<'_>) -> bool;
    /// Adds a record after the others.
    fn add(&mut self, item: Self::Item<'_>);
    /// Drops each record for which `keep` returns false. `keep` is called once for each record, in
    /// their order.
    fn retain(&mut self, keep: impl FnMut() -> bool);
    /// Bytes of the records.
    fn bytes(&self) -> usize;
    /// Drops all records, and keeps the memory for others.
    fn clear(&mut self);
}

/// Open batches, and the tickets of sealed ones.
pub struct BatchQueue<C: Contents>(Mutex<QueuedBatches<C>>);

struct QueuedBatches<C: Contents> {
    open: VecDeque<Batch<C>>,
    sealed: Vec<Arc<Tickets<C>>>,
    spare: Vec<C>,
}

/// Records that are stored together, with their tickets.
pub struct Batch<C: Contents> {
    contents: C,
    tickets: Arc<Tickets<C>>,
}

/// Tickets of one batch.
struct Tickets<C: Contents>(Mutex<TicketStates<C>>);

struct TicketStates<C: Contents> {
    all: Vec<TicketState<C>>,
    is_completed: bool,
    outlived: Outlived,
}

/// Set while a batch holds a record whose sender was answered, or was seen to leave. That one may send
/// its webhook again, and later ones, to another shard. It is set before the sender is answered.
#[derive(Clone)]
pub struct Outlived(Arc<AtomicBool>);

struct TicketState<C: Contents> {
    tag: C::Tag,
    deadline: C::Time,
    has_record: bool,
    outcome: TicketOutcome<C::Answer>,
}

enum TicketOutcome<A> {
    Open(Waker),
    Decided(A),
    /// The holder has dropped the ticket.
    Left,
}

/// Place of one webhook in a batch.
pub struct Ticket<C: Contents> {
    tickets: Arc<Tickets<C>>,
    index: usize,
}

impl<C: Contents> Default for BatchQueue<C> {
    fn default() -> Self {
        let batches =
            QueuedBatches { open: VecDeque::new(), sealed: Vec::new(), spare: Vec::new() };
        Self(Mutex::new(batches))
    }
}

impl<C: Contents> BatchQueue<C> {
    /// Adds a record. Returns its ticket, and true if no batch was open before.
    pub fn push(
        &self,
        item: C::Item<'_>,
        tag: C::Tag,
        deadline: C::Time,
        waker: Waker,
    ) -> (Ticket<C>, bool) {
        let mut batches = self.lock();
        let is_first = batches.open.is_empty();
        let batch = batches.with_room_for(&item);
        batch.contents.add(item);
        let state =
            TicketState { tag, deadline, has_record: true, outcome: TicketOutcome::Open(waker) };
        let tickets = batch.tickets.clone();
        let index = tickets.add(state);
        (Ticket { tickets, index }, is_first)
    }

    /// Returns true if no batch is open.
    pub fn is_empty(&self) -> bool {
        self.lock().open.is_empty()
    }

    /// Returns true if no batch is open or sealed.
    pub fn is_idle(&self) -> bool {
        let batches = self.lock();
        batches.open.is_empty() && batches.sealed.is_empty()
    }

    /// Bytes of the records in open batches.
    pub fn bytes(&self) -> usize {
        self.lock().open.iter().map(|batch| batch.contents.bytes()).sum()
    }

    /// Takes the oldest batch with an undecided ticket. Drops the records of all decided tickets in
    /// it.
    pub fn seal(&self, now: C::Time) -> Option<Batch<C>> {
        let mut batches = self.lock();
        loop {
            let mut batch = batches.open.pop_front()?;
            if batch.cut(now) {
                batches.sealed.push(batch.tickets.clone());
                return Some(batch);
            }
            batches.recycle(std::mem::take(&mut batch.contents));
        }
    }

    /// Answers all undecided tickets of the batch. Calls `stored` with the tag of each record in
    /// it.
    pub fn complete(&self, mut batch: Batch<C>, answer: C::Answer, stored: impl FnMut(C::Tag)) {
        batch.tickets.complete(answer, stored);
        let mut batches = self.lock();
        batches.sealed.retain(|tickets| !Arc::ptr_eq(tickets, &batch.tickets));
        batches.recycle(std::mem::take(&mut batch.contents));
    }

    /// Decides the tickets whose deadline has come, and drops open batches without an undecided
    /// ticket.
    pub fn expire(&self, now: C::Time) {
        let mut batches = self.lock();
        batches.open.retain(|batch| batch.tickets.expire(now));
        batches.sealed.retain(|tickets| {
            tickets.expire(now);
            !tickets.lock().is_completed
        });
    }

    fn lock(&self) -> MutexGuard<'_, QueuedBatches<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Contents> QueuedBatches<C> {
    fn with_room_for(&mut self, item: &C::Item<'_>) -> &mut Batch<C> {
        let has_room = self.open.back().is_some_and(|last| last.contents.has_room_for(item));
        if !has_room {
            let contents = self.spare.pop().unwrap_or_default();
            self.open.push_back(Batch { contents, tickets: Arc::new(Tickets::new()) });
        }
        self.open.back_mut().expect("BUG: one was just there, or added")
    }

    fn recycle(&mut self, mut contents: C) {
        contents.clear();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(contents);
        }
    }
}

impl Default for Outlived {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }
}

impl Outlived {
    /// True if it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, is_set: bool) {
        self.0.store(is_set, Ordering::SeqCst);
    }
}

impl<C: Contents> Batch<C> {
    /// Records of the batch.
    pub fn contents(&self) -> &C {
        &self.contents
    }

    /// Shows, now and later, that a sender of one of its records does not wait any more.
    pub fn outlived(&self) -> Outlived {
        self.tickets.lock().outlived.clone()
    }

    /// Drops the records of decided tickets. Returns true if any ticket is undecided.
    pub fn cut(&mut self, now: C::Time) -> bool {
        self.tickets.expire(now);
        let mut states = self.tickets.lock();
        if states.all.iter().any(TicketState::is_record_void) {
            let mut with_record = states.all.iter_mut().filter(|ticket| ticket.has_record);
            self.contents.retain(|| {
                let ticket = with_record.next().expect("BUG: each record has a ticket");
                ticket.has_record = ticket.is_undecided();
                ticket.has_record
            });
            states.outlived.set(false);
        }
        states.all.iter().any(TicketState::is_undecided)
    }
}

impl<C: Contents> Drop for Batch<C> {
    fn drop(&mut self) {
        self.tickets.complete(C::UNKNOWN, |_| {});
    }
}

impl<C: Contents> Tickets<C> {
    fn new() -> Self {
        let outlived = Outlived::default();
        Self(Mutex::new(TicketStates { all: Vec::new(), is_completed: false, outlived }))
    }

    fn add(&self, state: TicketState<C>) -> usize {
        let mut states = self.lock();
        states.all.push(state);
        states.all.len() - 1
    }

    /// Decides the tickets that are due. Returns true if any is still undecided.
    fn expire(&self, now: C::Time) -> bool {
        let (wakers, is_any_open) = {
            let mut states = self.lock();
            let due = states.all.iter_mut().filter(|ticket| ticket.deadline <= now);
            let wakers: Vec<_> = due.filter_map(|ticket| ticket.decide(C::UNKNOWN)).collect();
            if !wakers.is_empty() {
                states.outlived.set(true);
            }
            (wakers, states.all.iter().any(TicketState::is_undecided))
        };
        wakers.into_iter().for_each(Waker::wake);
        is_any_open
    }

    /// Answers all undecided tickets. Only the first completion counts.
    fn complete(&self, answer: C::Answer, mut stored: impl FnMut(C::Tag)) {
        let wakers: Vec<_> = {
            let mut states = self.lock();
            if std::mem::replace(&mut states.is_completed, true) {
                return;
            }
            states
                .all
                .iter()
                .filter(|ticket| ticket.has_record)
                .for_each(|ticket| stored(ticket.tag));
            states.outlived.set(true);
            states.all.iter_mut().filter_map(|ticket| ticket.decide(answer)).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, TicketStates<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Contents> TicketState<C> {
    fn is_undecided(&self) -> bool {
        matches!(self.outcome, TicketOutcome::Open(_))
    }

    /// Returns true if the record need not be stored.
    fn is_record_void(&self) -> bool {
        self.has_record && !self.is_undecided()
    }

    /// Decides the ticket, unless it is decided. Returns the waker of its holder.
    fn decide(&mut self, answer: C::Answer) -> Option<Waker> {
        if !self.is_undecided() {
            return None;
        }
        match std::mem::replace(&mut self.outcome, TicketOutcome::Decided(answer)) {
            TicketOutcome::Open(waker) => Some(waker),
            TicketOutcome::Decided(_) | TicketOutcome::Left => None,
        }
    }
}

impl<C: Contents> Ticket<C> {
    /// Returns the answer as soon as there is one.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<C::Answer> {
        let mut states = self.tickets.lock();
        match &mut states.all[self.index].outcome {
            TicketOutcome::Decided(answer) => Poll::Ready(*answer),
            TicketOutcome::Open(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            TicketOutcome::Left => Poll::Ready(C::UNKNOWN),
        }
    }
}

impl<C: Contents> Drop for Ticket<C> {
    fn drop(&mut self) {
        let mut states = self.tickets.lock();
        if states.all[self.index].is_undecided() {
            states.all[self.index].outcome = TicketOutcome::Left;
            states.outlived.set(true);
        }
    }
}
