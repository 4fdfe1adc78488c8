//! Batches of one shard: verified webhooks that are stored together.
//!
//! A webhook is written into its batch once. Who pushes it drops its headers and body then, so that
//! the connection can reuse its read buffer. Only a [`Verified`] webhook gets in. The permits that the
//! batches hold bound their memory. [`tickets`] decides the answer of each sender.

pub mod tickets;

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use spillway_webhook::Verified;
use spillway_webhook::pack::{RAW_BYTES_TARGET, Records};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::admit::Permit;
use crate::batch::tickets::{BatchQueue, Contents};
use crate::reply::Refusal;
// `tickets` imports the locks by this path.
use crate::sync;
use crate::topics::{TopicIndex, TopicMetrics};

/// Answer to the sender of a webhook.
pub type Answer = Result<(), Refusal>;

/// Webhooks that are stored together.
pub type Batch = tickets::Batch<Webhooks>;
pub use tickets::Outlived;

/// Time between looks at the deadlines. An answer is late by about this much at most.
const DEADLINE_TICK: Duration = Duration::from_millis(20);

/// Batches of one shard that wait to be stored.
pub struct Batches {
    queue: BatchQueue<Webhooks>,
    topics: TopicMetrics,
    arrived: Notify,
    closed: CancellationToken,
}

/// Place of one webhook in a batch.
pub struct Ticket(tickets::Ticket<Webhooks>);

/// Webhooks of a batch, with the permit for the memory that they hold.
#[derive(Default)]
pub struct Webhooks {
    records: Records,
    permit: Option<Permit>,
}

impl Contents for Webhooks {
    type Item<'a> = (Verified<'a>, Permit);
    type Tag = TopicIndex;
    type Answer = Answer;
    type Time = Instant;
    const UNKNOWN: Answer = Err(Refusal::AckTimeout);

    fn has_room_for(&self, (webhook, _): &Self::Item<'_>) -> bool {
        self.records.bytes() + webhook.webhook().body.len() <= RAW_BYTES_TARGET
    }

    fn add(&mut self, (webhook, permit): Self::Item<'_>) {
        self.records.push(webhook.webhook());
        match &mut self.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
    }

    fn retain(&mut self, mut keep: impl FnMut() -> bool) {
        self.records.retain(|_| keep());
    }

    fn bytes(&self) -> usize {
        self.records.bytes()
    }

    fn clear(&mut self) {
        self.records.clear();
        self.permit = None;
    }
}

impl Batch {
    /// Records of the webhooks.
    pub fn records(&self) -> &Records {
        &self.contents().records
    }
}

impl Ticket {
    /// Waits until the webhook is stored.
    ///
    /// # Errors
    /// [`Refusal`] if it is not stored, or not known to be stored, by its deadline.
    pub async fn answer(self) -> Answer {
        poll_fn(|cx| self.0.poll(cx)).await
    }
}

impl Batches {
    /// No batches yet. `topics` counts the stored webhooks.
    pub fn new(topics: TopicMetrics) -> Self {
        Self {
            queue: BatchQueue::default(),
            topics,
            arrived: Notify::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Copies `webhook`, whose topic has the index `topic`, into a batch, for a sender that waits until
    /// `deadline`. The ticket wakes the task that calls this.
    pub async fn push(
        &self,
        webhook: Verified<'_>,
        topic: TopicIndex,
        permit: Permit,
        deadline: Instant,
    ) -> Ticket {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let (ticket, is_first) = self.queue.push((webhook, permit), topic, deadline, waker);
        if is_first {
            self.arrived.notify_one();
        }
        Ticket(ticket)
    }

    /// Waits for something to store. Returns `false` once the batches are closed and empty.
    pub async fn arrived(&self) -> bool {
        loop {
            if !self.queue.is_empty() {
                return true;
            }
            if self.closed.is_cancelled() {
                return false;
            }
            self.arrived.notified().await;
        }
    }

    /// Closes the batches: nothing more will arrive.
    pub fn close(&self) {
        self.closed.cancel();
        self.arrived.notify_one();
    }

    /// Uncompressed bytes of the records that wait.
    pub fn bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Seals the oldest batch and takes it, without the records that nobody waits for any more.
    pub fn seal(&self) -> Option<Batch> {
        self.queue.seal(Instant::now())
    }

    /// Answers all senders that wait in `batch`, and counts the stored webhooks.
    pub fn complete(&self, batch: Batch, answer: Answer) {
        if answer.is_err() {
            return self.queue.complete(batch, answer, |_| {});
        }
        let mut stored = Vec::with_capacity(batch.records().count() as usize);
        self.queue.complete(batch, answer, |topic| stored.push(topic));
        self.topics.stored(stored.into_iter());
    }

    /// Enforces the deadlines for as long as it is polled.
    pub async fn keep_deadlines(&self) {
        let mut tick = interval(DEADLINE_TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.queue.expire(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use bytes::Bytes;
    use http::uri::PathAndQuery;
    use http::{HeaderMap, HeaderValue};
    use spillway_webhook::{Secrets, Webhook};
    use zeroize::Zeroizing;

    use super::*;
    use crate::admit::Admission;
    use crate::topics::TopicClaim;

    const SECOND: Duration = Duration::from_secs(1);

    type Pushed<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

    fn batches() -> (Batches, Admission) {
        let topics = TopicMetrics::new(&prometheus::Registry::new());
        (Batches::new(topics), Admission::new(64 << 20))
    }

    /// Pushes a webhook that waits for at most `time` from now on.
    fn push<'a>(
        batches: &'a Batches,
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
        let topic = batches.topics.verified(TopicClaim::Missing, &webhook.headers);
        let deadline = Instant::now() + time;
        let mut pushed: Pushed<'a> = Box::pin(async move {
            let verified = secrets.verify(&webhook).unwrap();
            batches.push(verified, topic, permit, deadline).await.answer().await
        });
        assert!(poll(&mut pushed).is_pending());
        pushed
    }

    fn poll(pushed: &mut Pushed<'_>) -> Poll<Answer> {
        pushed.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn all_who_wait_in_a_batch_are_answered_alike() {
        let (batches, admission) = batches();
        let mut all: Vec<_> = (0..3).map(|_| push(&batches, &admission, b"{}", SECOND)).collect();
        let batch = batches.seal().unwrap();
        assert_eq!(batch.records().count(), 3);
        let mut late = push(&batches, &admission, b"{}", SECOND);
        batches.complete(batch, Err(Refusal::QueueFull));
        for pushed in &mut all {
            assert_eq!(poll(pushed), Poll::Ready(Err(Refusal::QueueFull)));
        }
        assert!(poll(&mut late).is_pending());
        let batch = batches.seal().unwrap();
        batches.complete(batch, Ok(()));
        assert_eq!(poll(&mut late), Poll::Ready(Ok(())));
        assert_eq!(admission.in_flight_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_past_its_deadline_is_told_and_not_sent() {
        let (batches, admission) = batches();
        let mut soon = push(&batches, &admission, b"{\"soon\":1}", SECOND);
        let mut later = push(&batches, &admission, b"{}", 3 * SECOND);
        tokio::time::advance(2 * SECOND).await;
        batches.queue.expire(Instant::now());
        assert_eq!(poll(&mut soon), Poll::Ready(Err(Refusal::AckTimeout)));
        // Goes into the batch that lost a record.
        let mut last = push(&batches, &admission, b"{}", 3 * SECOND);
        let batch = batches.seal().unwrap();
        assert_eq!(batch.records().count(), 2);
        // A webhook in flight is answered, too, and is stored nevertheless.
        tokio::time::advance(2 * SECOND).await;
        batches.queue.expire(Instant::now());
        assert_eq!(poll(&mut later), Poll::Ready(Err(Refusal::AckTimeout)));
        batches.complete(batch, Ok(()));
        assert_eq!(poll(&mut last), Poll::Ready(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_out_of_a_batch_is_not_answered_as_the_batch_is() {
        let (batches, admission) = batches();
        let mut soon = push(&batches, &admission, b"{\"soon\":1}", SECOND);
        let mut later = push(&batches, &admission, b"{}", 3 * SECOND);
        tokio::time::advance(2 * SECOND).await;
        // The sender is woken, but polls only after the batch is stored without its webhook.
        let batch = batches.seal().unwrap();
        assert_eq!(batch.records().count(), 1);
        batches.complete(batch, Ok(()));
        assert_eq!(poll(&mut soon), Poll::Ready(Err(Refusal::AckTimeout)));
        assert_eq!(poll(&mut later), Poll::Ready(Ok(())));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_sent() {
        let (batches, admission) = batches();
        drop(push(&batches, &admission, b"{}", SECOND));
        assert!(batches.seal().is_none());
        assert_eq!(admission.in_flight_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_shows_that_a_sender_does_not_wait_any_more_until_its_record_is_cut_out() {
        let (batches, admission) = batches();
        let _soon = push(&batches, &admission, b"{}", SECOND);
        let leaves = push(&batches, &admission, b"{}", 3 * SECOND);
        let _last = push(&batches, &admission, b"{}", 3 * SECOND);
        let mut batch = batches.seal().unwrap();
        let outlived = batch.outlived();
        assert!(!outlived.is_set());
        tokio::time::advance(2 * SECOND).await;
        batches.queue.expire(Instant::now());
        assert!(outlived.is_set(), "a sender was answered");
        assert!(batch.cut(Instant::now()) && !outlived.is_set());
        drop(leaves);
        assert!(outlived.is_set(), "a sender has left");
        assert!(batch.cut(Instant::now()) && !outlived.is_set());
        batches.complete(batch, Err(Refusal::AckTimeout));
        assert!(outlived.is_set(), "all senders were answered");
    }

    #[tokio::test]
    async fn a_batch_that_is_lost_tells_that_nothing_is_known() {
        let (batches, admission) = batches();
        let mut pushed = push(&batches, &admission, b"{}", SECOND);
        drop(batches.seal());
        assert_eq!(poll(&mut pushed), Poll::Ready(Err(Refusal::AckTimeout)));
    }

    #[tokio::test]
    async fn a_batch_takes_no_more_than_a_pack_holds_but_one_huge_webhook() {
        let (batches, admission) = batches();
        let sizes = [RAW_BYTES_TARGET / 2, RAW_BYTES_TARGET / 3, 3 * RAW_BYTES_TARGET, 10, 10];
        let all: Vec<_> = sizes
            .iter()
            .map(|size| push(&batches, &admission, &vec![b' '; *size], SECOND))
            .collect();
        let counts: Vec<_> =
            std::iter::from_fn(|| batches.seal()).map(|batch| batch.records().count()).collect();
        assert_eq!(counts, [2, 1, 2]);
        drop(all);
    }

    #[tokio::test]
    async fn it_ends_when_it_is_closed_and_empty() {
        let (batches, admission) = batches();
        let pushed = push(&batches, &admission, b"{}", SECOND);
        batches.close();
        assert!(batches.arrived().await);
        batches.seal();
        assert!(!batches.arrived().await);
        drop(pushed);
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_are_kept_while_a_batch_is_on_its_way() {
        let (batches, admission) = batches();
        let batches = Arc::new(batches);
        let keeper = batches.clone();
        tokio::spawn(async move { keeper.keep_deadlines().await });
        let mut soon = push(&batches, &admission, b"{}", SECOND);
        let mut later = push(&batches, &admission, b"{}", 3 * SECOND);
        let batch = batches.seal().unwrap();
        tokio::time::sleep(SECOND + 2 * DEADLINE_TICK).await;
        assert_eq!(poll(&mut soon), Poll::Ready(Err(Refusal::AckTimeout)));
        batches.complete(batch, Ok(()));
        assert_eq!(poll(&mut later), Poll::Ready(Ok(())));
        assert_eq!(admission.in_flight_bytes(), 0);
        assert!(batches.queue.is_idle());
    }
}
