//! Group commit: whatever arrives while one pack is written becomes the next.
//!
//! Invariants: one pack is in flight at a time; a webhook's waiter hears `Ok` only after Redis
//! confirmed its pack; every waiter hears something by its deadline; dropping a waiter's resolver
//! means "not known to be stored", never silence. Bounded by the permits that travel with the
//! webhooks.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use spillway_queue::QueueError;
use spillway_queue::append::{AppendError, Appender};
use spillway_service::error::chain;
use spillway_webhook::pack::{PackWriter, RAW_BYTES_TARGET};
use spillway_webhook::{Verified, Webhook};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::admit::Permit;
use crate::metrics::{Metrics, TopicCounters, Topics};
use crate::queue_state::{Health, QueueState};
use crate::reply::Refusal;
use crate::settings::Settings;

/// Webhooks between the connections and the batcher. The permits bound their bytes; this bounds
/// their number where bodies are tiny.
const WAITING_MAX: usize = 1 << 16;
/// How often deadlines are looked at while Redis is slow: a webhook is answered at most this late.
const DEADLINE_TICK: Duration = Duration::from_millis(20);

/// The receiving end of a webhook's fate.
type Answer = Result<(), Refusal>;

/// Hands webhooks to the batcher.
#[derive(Debug, Clone)]
pub struct Enqueue {
    waiting: mpsc::Sender<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    webhook: Verified<Webhook>,
    waiter: Waiter,
}

#[derive(Debug)]
struct Waiter {
    answer: oneshot::Sender<Answer>,
    deadline: Instant,
    _permit: Permit,
}

struct Batcher {
    arriving: mpsc::Receiver<Waiting>,
    waiting: VecDeque<Waiting>,
    writer: PackWriter,
    appender: Appender,
    state: QueueState,
    topics: Topics,
    metrics: Metrics,
    ack_timeout: Duration,
    generation: u64,
}

/// The webhooks of the pack that is being written.
struct InFlight {
    waiters: Vec<Waiter>,
    topics: Vec<TopicCounters>,
    sent_at: Instant,
}

impl Enqueue {
    /// Starts the batcher; it ends once every `Enqueue` is gone and what they brought is resolved.
    pub fn start(
        settings: &Settings,
        state: QueueState,
        metrics: &Metrics,
    ) -> (Self, JoinHandle<()>) {
        let (sender, arriving) = mpsc::channel(WAITING_MAX);
        let batcher = Batcher {
            arriving,
            waiting: VecDeque::new(),
            writer: PackWriter::new(),
            appender: Appender::new(settings.common.redis.clone()),
            state,
            topics: metrics.topics(),
            metrics: metrics.clone(),
            ack_timeout: settings.ack_timeout,
            generation: 0,
        };
        (Self { waiting: sender }, tokio::spawn(batcher.run()))
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
    ) -> Result<(), Refusal> {
        let (answer, heard) = oneshot::channel();
        let waiter = Waiter { answer, deadline, _permit: permit };
        self.waiting.try_send(Waiting { webhook, waiter }).map_err(|_| Refusal::Overloaded)?;
        heard.await.unwrap_or(Err(Refusal::AckTimeout))
    }
}

impl Batcher {
    async fn run(mut self) {
        while self.gather().await {
            self.write_one_pack().await;
        }
    }

    /// Waits for at least one webhook; `false` when there will be none.
    async fn gather(&mut self) -> bool {
        if self.waiting.is_empty() {
            match self.arriving.recv().await {
                Some(first) => self.waiting.push_back(first),
                None => return false,
            }
        }
        // What lies in the sockets by now comes along: a fuller pack is a sync saved.
        tokio::task::yield_now().await;
        take_arrived(&mut self.arriving, &mut self.waiting);
        true
    }

    async fn write_one_pack(&mut self) {
        let mut in_flight = self.fill();
        let count = self.writer.count();
        if count == 0 {
            return;
        }
        let pack = self.writer.finish();
        self.follow_reconnect();
        in_flight.sent_at = Instant::now();
        let outcome = {
            let mut append = pin!(self.appender.append(&pack, count));
            let mut tick = tokio::time::interval_at(Instant::now() + DEADLINE_TICK, DEADLINE_TICK);
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut append => break outcome,
                    // What arrives meanwhile stays in the channel: to be woken for each webhook
                    // would cost more than all else the batcher does.
                    _ = tick.tick() => {
                        in_flight.expire();
                        take_arrived(&mut self.arriving, &mut self.waiting);
                        expire(&mut self.waiting);
                        // Past this, nothing that arrives now would be answered in time.
                        self.state.set_stalled(in_flight.sent_at.elapsed() > self.ack_timeout);
                    }
                }
            }
        };
        self.state.set_stalled(false);
        self.resolve(in_flight, outcome.map(|_| ()), count);
    }

    /// A connection from before Redis went would break with the pack on it, and leave its outcome
    /// unknown. The append connects anew, while its webhooks' deadlines are kept.
    fn follow_reconnect(&mut self) {
        let generation = self.state.generation();
        if generation != self.generation {
            self.generation = generation;
            self.appender.disconnect();
        }
    }

    /// Fills the writer from those waiting, oldest first. Those past their deadline were answered
    /// already and are known not to be stored.
    fn fill(&mut self) -> InFlight {
        expire(&mut self.waiting);
        let mut in_flight =
            InFlight { waiters: Vec::new(), topics: Vec::new(), sent_at: Instant::now() };
        while let Some(next) = self.waiting.front() {
            let raw_bytes = self.writer.raw_bytes() + next.webhook.get().body.len();
            if raw_bytes > RAW_BYTES_TARGET && self.writer.count() > 0 {
                break;
            }
            let Some(Waiting { webhook, waiter }) = self.waiting.pop_front() else { break };
            self.writer.push(webhook.get());
            in_flight.topics.push(self.topics.of(webhook.get()));
            in_flight.waiters.push(waiter);
        }
        in_flight
    }

    fn resolve(&mut self, in_flight: InFlight, outcome: Result<(), AppendError>, count: u32) {
        let answer = match &outcome {
            Ok(()) => {
                self.metrics.packed(count);
                in_flight.topics.iter().for_each(TopicCounters::accepted);
                Ok(())
            }
            Err(error) => {
                tracing::debug!(error = chain(error), webhooks = count, "pack refused");
                let (health, refusal) = judge(error);
                self.state.failed(health, error);
                Err(refusal)
            }
        };
        for waiter in in_flight.waiters {
            // A waiter that is gone has hung up: its sender will ask again.
            waiter.answer.send(answer).ok();
        }
    }
}

impl InFlight {
    /// Tells those past their deadline that nothing is known. Their permits stay with the pack.
    fn expire(&mut self) {
        let now = Instant::now();
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.deadline <= now) {
            if !waiter.answer.is_closed() {
                let (closed, _) = oneshot::channel();
                let answer = std::mem::replace(&mut waiter.answer, closed);
                answer.send(Err(Refusal::AckTimeout)).ok();
            }
        }
    }
}

fn take_arrived(arriving: &mut mpsc::Receiver<Waiting>, waiting: &mut VecDeque<Waiting>) {
    while waiting.len() < WAITING_MAX
        && let Ok(next) = arriving.try_recv()
    {
        waiting.push_back(next);
    }
}

/// Drops the webhooks that are past their deadline, or whose sender hung up, unsent.
fn expire(waiting: &mut VecDeque<Waiting>) {
    let now = Instant::now();
    let is_due =
        |waiting: &Waiting| waiting.waiter.deadline <= now || waiting.waiter.answer.is_closed();
    if !waiting.iter().any(is_due) {
        return;
    }
    for due in std::mem::take(waiting) {
        if is_due(&due) {
            due.waiter.answer.send(Err(Refusal::AckTimeout)).ok();
        } else {
            waiting.push_back(due);
        }
    }
}

/// What a failed append says about the queue, and to those who waited for it.
fn judge(error: &AppendError) -> (Health, Refusal) {
    match error {
        AppendError::NotStored(QueueError::Full(_)) => (Health::Full, Refusal::QueueFull),
        AppendError::NotStored(_) => (Health::Unavailable, Refusal::QueueUnavailable),
        AppendError::Unknown(_) => (Health::Unavailable, Refusal::AckTimeout),
    }
}
