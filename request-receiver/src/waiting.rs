//! What a shard has verified and not yet stored: records ready to be packed, and who waits for them.
//!
//! A webhook is written into its batch once; its headers and body are let go of then, so that the
//! connection's read buffer can be used again. Invariants: a batch that is dropped tells its waiters
//! "not known to be stored", never silence; only a [`Verified`] webhook gets in. Bounded by the
//! permits that the batches hold.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_webhook::pack::{RAW_BYTES_TARGET, Records};
use spillway_webhook::{Verified, Webhook};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::admit::Permit;
use crate::reply::Refusal;
use crate::topics::{TopicIndex, Topics};

/// What a webhook's sender is to be told.
pub type Answer = Result<(), Refusal>;

/// How often deadlines are looked at: a webhook is answered about this late at most.
const DEADLINE_TICK: Duration = Duration::from_millis(20);
/// Emptied buffers that are kept: one is filled while another is sent.
const SPARE_MAX: usize = 2;

/// One shard's webhooks that wait to be stored.
pub struct Waiting {
    inner: Mutex<Inner>,
    arrived: Notify,
}

struct Inner {
    batches: VecDeque<Batch>,
    /// Of what was taken and is not resolved.
    away: Vec<Arc<Fate>>,
    spare: Vec<Records>,
    topics: Topics,
    is_closed: bool,
}

/// Webhooks that will be stored together.
pub struct Batch {
    records: Records,
    fate: Arc<Fate>,
    permit: Permit,
}

/// What comes of a batch, and who wants to know.
#[derive(Default)]
struct Fate(Mutex<FateInner>);

#[derive(Default)]
struct FateInner {
    answer: Option<Answer>,
    /// By the webhook's place in its batch.
    waiters: Vec<Waiter>,
    /// Places whose records were taken out of the batch before it was sent: its answer is not theirs.
    without_record: BTreeSet<usize>,
}

struct Waiter {
    deadline: Instant,
    topic: TopicIndex,
    /// None: it was told already, or has hung up.
    waker: Option<Waker>,
    /// Whether its record is still in the batch.
    has_record: bool,
}

/// One webhook's place in its batch; says at its end that nobody waits there any more.
struct Place {
    fate: Arc<Fate>,
    index: usize,
    deadline: Instant,
}

impl Waiting {
    /// Nothing waits; `topics` counts what is stored.
    pub fn new(topics: Topics) -> Self {
        let inner = Inner {
            batches: VecDeque::new(),
            away: Vec::new(),
            spare: Vec::new(),
            topics,
            is_closed: false,
        };
        Self { inner: Mutex::new(inner), arrived: Notify::new() }
    }

    /// Waits until `webhook` is stored.
    ///
    /// # Errors
    /// [`Refusal`] when it is not, or not known to be, by `deadline`.
    pub async fn push(
        &self,
        webhook: Verified<Webhook>,
        permit: Permit,
        deadline: Instant,
    ) -> Answer {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let place = self.add(&webhook, permit, deadline, waker);
        // Before the wait: its headers and body lie in the connection's read buffer.
        drop(webhook);
        poll_fn(|cx| place.poll(cx)).await
    }

    /// Waits for something to store; `false` once there will be nothing more.
    pub async fn arrived(&self) -> bool {
        loop {
            {
                let inner = self.lock();
                if !inner.batches.is_empty() {
                    return true;
                }
                if inner.is_closed {
                    return false;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Nothing more will arrive.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.arrived.notify_one();
    }

    /// Uncompressed bytes that wait.
    pub fn bytes(&self) -> usize {
        self.lock().batches.iter().map(|batch| batch.records.bytes()).sum()
    }

    /// The oldest batch, without what need not be sent any more.
    pub fn take(&self) -> Option<Batch> {
        let mut inner = self.lock();
        let now = Instant::now();
        loop {
            let mut first = inner.batches.pop_front()?;
            if first.drop_expired(now) {
                inner.away.push(first.fate.clone());
                return Some(first);
            }
        }
    }

    /// Keeps the deadlines, for as long as the shard lives.
    pub async fn keep_deadlines(&self) {
        let mut tick = interval(DEADLINE_TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.expire();
        }
    }

    /// Tells those who wait for `batch` what came of it, and counts what was stored.
    pub fn resolve(&self, mut batch: Batch, answer: Answer) {
        let waiters = batch.fate.resolve(answer);
        let mut inner = self.lock();
        inner.away.retain(|fate| !Arc::ptr_eq(fate, &batch.fate));
        if answer.is_ok() {
            let stored = waiters.iter().filter(|waiter| waiter.has_record);
            inner.topics.stored(stored.map(|waiter| waiter.topic));
        }
        if inner.spare.len() < SPARE_MAX {
            let mut records = std::mem::take(&mut batch.records);
            records.clear();
            inner.spare.push(records);
        }
    }

    /// Tells those past their deadline that nothing is known of their webhook; drops those not sent
    /// yet, and those for whom nobody waits any more.
    fn expire(&self) {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.batches.retain_mut(|batch| batch.drop_expired(now));
        inner.away.iter().for_each(|fate| fate.tell_expired(now));
    }

    fn add(
        &self,
        webhook: &Verified<Webhook>,
        permit: Permit,
        deadline: Instant,
        waker: Waker,
    ) -> Place {
        let mut inner = self.lock();
        let is_first = inner.batches.is_empty();
        let topic = inner.topics.index_of(webhook.get());
        let batch = inner.open_batch(webhook.get().body.len(), permit);
        batch.records.push(webhook.get());
        let fate = batch.fate.clone();
        let waiter = Waiter { deadline, topic, waker: Some(waker), has_record: true };
        let index = fate.add(waiter);
        drop(inner);
        if is_first {
            self.arrived.notify_one();
        }
        Place { fate, index, deadline }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The batch to which a webhook with so long a body goes; it takes over the permit.
    fn open_batch(&mut self, body_bytes: usize, permit: Permit) -> &mut Batch {
        let is_room = self
            .batches
            .back()
            .is_some_and(|last| last.records.bytes() + body_bytes <= RAW_BYTES_TARGET);
        if is_room {
            let last = self.batches.back_mut().expect("BUG: it was just there");
            last.permit.merge(permit);
            last
        } else {
            let records = self.spare.pop().unwrap_or_default();
            self.batches.push_back_mut(Batch { records, fate: Arc::default(), permit })
        }
    }
}

impl Batch {
    /// What it holds.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Drops what need not be sent; `false` if nothing is left. Permits stay with the batch.
    pub fn drop_expired(&mut self, now: Instant) -> bool {
        self.fate.tell_expired(now);
        let mut fate = self.fate.lock();
        let FateInner { waiters, without_record, .. } = &mut *fate;
        let is_void = |waiter: &Waiter| waiter.has_record && waiter.waker.is_none();
        if waiters.iter().any(is_void) {
            let all = waiters.iter_mut().enumerate();
            let mut with_record = all.filter(|(_, waiter)| waiter.has_record);
            self.records.retain(|_| {
                let (place, waiter) = with_record.next().expect("BUG: every record has a waiter");
                waiter.has_record = waiter.waker.is_some();
                if !waiter.has_record {
                    without_record.insert(place);
                }
                waiter.has_record
            });
        }
        self.records.count() > 0
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.fate.resolve(Err(Refusal::AckTimeout));
    }
}

impl Fate {
    fn add(&self, waiter: Waiter) -> usize {
        let mut inner = self.lock();
        inner.waiters.push(waiter);
        inner.waiters.len() - 1
    }

    /// The first answer counts. Returns those who waited.
    fn resolve(&self, answer: Answer) -> Vec<Waiter> {
        let mut waiters = {
            let mut inner = self.lock();
            inner.answer.get_or_insert(answer);
            std::mem::take(&mut inner.waiters)
        };
        waiters.iter_mut().filter_map(|waiter| waiter.waker.take()).for_each(Waker::wake);
        waiters
    }

    fn tell_expired(&self, now: Instant) {
        let wakers: Vec<_> = {
            let mut inner = self.lock();
            let due = inner.waiters.iter_mut().filter(|waiter| waiter.deadline <= now);
            due.filter_map(|waiter| waiter.waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, FateInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut inner = self.fate.lock();
        let is_out = inner.without_record.contains(&self.index);
        if let Some(answer) = inner.answer.filter(|_| !is_out) {
            return Poll::Ready(answer);
        }
        if is_out || Instant::now() >= self.deadline {
            return Poll::Ready(Err(Refusal::AckTimeout));
        }
        if let Some(waker) = &mut inner.waiters[self.index].waker {
            waker.clone_from(cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(waiter) = self.fate.lock().waiters.get_mut(self.index) {
            waiter.waker = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::time::Duration;

    use bytes::Bytes;
    use http::uri::PathAndQuery;
    use http::{HeaderMap, HeaderValue};
    use spillway_webhook::Secrets;
    use zeroize::Zeroizing;

    use super::*;
    use crate::admit::Admission;
    use crate::metrics::Metrics;
    use crate::secrets::Source;

    const SECOND: Duration = Duration::from_secs(1);

    type Pushed<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

    fn waiting() -> (Waiting, Admission) {
        let metrics = Metrics::new(Source::new(&[], None).matches());
        (Waiting::new(Topics::new(metrics.topics.clone())), Admission::new(64 << 20))
    }

    /// A webhook that waits from now on, for at most `time`.
    fn push<'a>(
        waiting: &'a Waiting,
        admission: &Admission,
        body: &[u8],
        time: Duration,
    ) -> Pushed<'a> {
        let secrets = Secrets::new(&[Zeroizing::new("hush".to_owned())]);
        let mut headers = HeaderMap::new();
        let signature = HeaderValue::try_from(secrets.sign(body)).unwrap();
        headers.insert("x-shopify-hmac-sha256", signature);
        let target = PathAndQuery::from_static("/");
        let body = Bytes::copy_from_slice(body);
        let permit = admission.admit(0, body.len()).unwrap();
        let webhook = Webhook { received_at_ms: 1, target, headers, body };
        let verified = secrets.verify(webhook).unwrap();
        let mut pushed: Pushed<'a> =
            Box::pin(waiting.push(verified, permit, Instant::now() + time));
        assert!(poll(&mut pushed).is_pending());
        pushed
    }

    fn poll(pushed: &mut Pushed<'_>) -> Poll<Answer> {
        pushed.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn all_of_a_batch_hear_what_came_of_it() {
        let (waiting, admission) = waiting();
        let mut all: Vec<_> = (0..3).map(|_| push(&waiting, &admission, b"{}", SECOND)).collect();
        let batch = waiting.take().unwrap();
        assert_eq!(batch.records().count(), 3);
        let mut late = push(&waiting, &admission, b"{}", SECOND);
        waiting.resolve(batch, Err(Refusal::QueueFull));
        for pushed in &mut all {
            assert_eq!(poll(pushed), Poll::Ready(Err(Refusal::QueueFull)));
        }
        assert!(poll(&mut late).is_pending());
        let batch = waiting.take().unwrap();
        waiting.resolve(batch, Ok(()));
        assert_eq!(poll(&mut late), Poll::Ready(Ok(())));
        assert_eq!(admission.in_flight_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_past_its_deadline_is_told_and_not_sent() {
        let (waiting, admission) = waiting();
        let mut soon = push(&waiting, &admission, b"{\"soon\":1}", SECOND);
        let mut later = push(&waiting, &admission, b"{}", 3 * SECOND);
        tokio::time::advance(2 * SECOND).await;
        waiting.expire();
        assert_eq!(poll(&mut soon), Poll::Ready(Err(Refusal::AckTimeout)));
        // Into the batch that lost one.
        let mut last = push(&waiting, &admission, b"{}", 3 * SECOND);
        let batch = waiting.take().unwrap();
        assert_eq!(batch.records().count(), 2);
        // In flight, it is told too, and sent nevertheless.
        tokio::time::advance(2 * SECOND).await;
        waiting.expire();
        assert_eq!(poll(&mut later), Poll::Ready(Err(Refusal::AckTimeout)));
        waiting.resolve(batch, Ok(()));
        assert_eq!(poll(&mut last), Poll::Ready(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_out_of_a_batch_is_not_answered_as_the_batch_is() {
        let (waiting, admission) = waiting();
        let mut soon = push(&waiting, &admission, b"{\"soon\":1}", SECOND);
        let mut later = push(&waiting, &admission, b"{}", 3 * SECOND);
        tokio::time::advance(2 * SECOND).await;
        // It is woken, and polled only after the batch is stored without it.
        let batch = waiting.take().unwrap();
        assert_eq!(batch.records().count(), 1);
        waiting.resolve(batch, Ok(()));
        assert_eq!(poll(&mut soon), Poll::Ready(Err(Refusal::AckTimeout)));
        assert_eq!(poll(&mut later), Poll::Ready(Ok(())));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_sent() {
        let (waiting, admission) = waiting();
        drop(push(&waiting, &admission, b"{}", SECOND));
        assert!(waiting.take().is_none());
        assert_eq!(admission.in_flight_bytes(), 0);
    }

    #[tokio::test]
    async fn a_batch_that_is_lost_tells_that_nothing_is_known() {
        let (waiting, admission) = waiting();
        let mut pushed = push(&waiting, &admission, b"{}", SECOND);
        drop(waiting.take());
        assert_eq!(poll(&mut pushed), Poll::Ready(Err(Refusal::AckTimeout)));
    }

    #[tokio::test]
    async fn a_batch_takes_no_more_than_a_pack_holds_but_one_huge_webhook() {
        let (waiting, admission) = waiting();
        let sizes = [RAW_BYTES_TARGET / 2, RAW_BYTES_TARGET / 3, 3 * RAW_BYTES_TARGET, 10, 10];
        let all: Vec<_> = sizes
            .iter()
            .map(|size| push(&waiting, &admission, &vec![b' '; *size], SECOND))
            .collect();
        let counts: Vec<_> =
            std::iter::from_fn(|| waiting.take()).map(|batch| batch.records().count()).collect();
        assert_eq!(counts, [2, 1, 2]);
        drop(all);
    }

    #[tokio::test]
    async fn it_ends_when_it_is_closed_and_empty() {
        let (waiting, admission) = waiting();
        let pushed = push(&waiting, &admission, b"{}", SECOND);
        waiting.close();
        assert!(waiting.arrived().await);
        waiting.take();
        assert!(!waiting.arrived().await);
        drop(pushed);
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_are_kept_while_a_batch_is_on_its_way() {
        let (waiting, admission) = waiting();
        let waiting = Arc::new(waiting);
        let keeper = waiting.clone();
        tokio::spawn(async move { keeper.keep_deadlines().await });
        let mut soon = push(&waiting, &admission, b"{}", SECOND);
        let mut later = push(&waiting, &admission, b"{}", 3 * SECOND);
        let batch = waiting.take().unwrap();
        tokio::time::sleep(SECOND + 2 * DEADLINE_TICK).await;
        assert_eq!(poll(&mut soon), Poll::Ready(Err(Refusal::AckTimeout)));
        waiting.resolve(batch, Ok(()));
        assert_eq!(poll(&mut later), Poll::Ready(Ok(())));
        assert_eq!(admission.in_flight_bytes(), 0);
        assert!(waiting.lock().away.is_empty());
    }
}
