//! The batcher of a receiver that can spill: to Redis as long as it takes packs in good time, to the
//! disk else.
//!
//! An append that hangs is left to itself, with its batch: what comes after it goes to the disk, and
//! is fed once that append's outcome is known. What Redis refused for certain goes to the disk too.
//! What may have been stored keeps its meaning: it is nobody's 200, and is not written again.

use std::pin::Pin;
use std::sync::Arc;

use spillway_queue::append::{AppendError, Appender, Fence};
use spillway_webhook::StreamId;
use spillway_webhook::pack::Packer;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Batcher, close, given_up, told, unless_dead};
use crate::metrics::Metrics;
use crate::queue_state::QueueState;
use crate::reply::Refusal;
use crate::spill::Spill;
use crate::spill::gate::{AppendPass, Passed, WritePass};
use crate::waiting::{Answer, Batch, Waiting};

type Outcome = Result<StreamId, AppendError>;
/// An append, with the connection it is made on.
type Appending = Pin<Box<dyn Future<Output = (Appender, Outcome)> + Send>>;

/// An append that hangs, and whose batch it is.
struct Late {
    append: Appending,
    fence: Fence,
    batch: Batch,
    /// Of its pack.
    bytes: usize,
    pass: AppendPass,
    spill: Arc<Spill>,
    waiting: Arc<Waiting>,
    state: QueueState,
    metrics: Metrics,
}

impl Batcher {
    /// Stores a batch, whichever way it has to go.
    pub(super) async fn store_either_way(&mut self, batch: Batch, spill: &Arc<Spill>) {
        match spill.pass().await {
            Passed::Append(pass) => self.append_unless_it_hangs(batch, pass, spill).await,
            Passed::Write(pass) => self.spill(batch, pass, spill).await,
            Passed::Refused => self.waiting.resolve(batch, Err(Refusal::QueueUnavailable)),
        }
    }

    async fn append_unless_it_hangs(
        &mut self,
        batch: Batch,
        mut pass: AppendPass,
        spill: &Arc<Spill>,
    ) {
        let count = batch.records().count();
        let pack = self.packer.pack(batch.records());
        let bytes = pack.len();
        let append = self.appender.prepare(pack, count);
        self.connect_anew_if_redis_went();
        let redis = self.redis.clone();
        let mut appender = std::mem::replace(&mut self.appender, Appender::new(redis));
        let fence = appender.fence();
        let mut append: Appending = Box::pin(async move {
            let outcome = appender.send(append).await;
            (appender, outcome)
        });
        match timeout(spill.stall_after(), &mut append).await {
            Ok((appender, outcome)) => {
                self.appender = appender;
                let (refused, known) = (is_refused(&outcome), is_known(&outcome));
                let answer = told(outcome, count, &self.state, &self.metrics);
                if !refused {
                    pass.ended(known);
                    return self.waiting.resolve(batch, answer);
                }
                match pass.refused() {
                    Some(pass) => self.spill(batch, pass, spill).await,
                    None => self.waiting.resolve(batch, answer),
                }
            }
            Err(_) => {
                pass.hangs();
                self.state.look();
                let (waiting, state) = (self.waiting.clone(), self.state.clone());
                let (spill, metrics) = (spill.clone(), self.metrics.clone());
                let late =
                    Late { append, fence, batch, bytes, pass, spill, waiting, state, metrics };
                self.late.spawn(late.settle());
            }
        }
    }

    async fn spill(&mut self, mut batch: Batch, pass: WritePass, spill: &Spill) {
        // Those who were told already may have sent it again, and what came after it.
        if !batch.drop_expired(Instant::now()) {
            return self.waiting.resolve(batch, Err(Refusal::AckTimeout));
        }
        let count = batch.records().count();
        let pack = self.packer.pack(batch.records()).to_vec();
        let mut write = std::pin::pin!(spill.write(&pass, pack, count));
        let (mut is_stalled, too_late) = (false, Instant::now() + self.ack_timeout);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut write => break outcome,
                // However long the disk takes, a restart would not mend it.
                () = self.pulse.asked() => self.pulse.answer(),
                () = sleep_until(too_late), if !is_stalled => {
                    // Nothing that arrives now would be answered in time.
                    is_stalled = true;
                    self.state.set_stalled(true);
                }
            }
        };
        self.state.set_stalled(false);
        self.waiting.resolve(batch, spilled(outcome, count, &self.metrics));
    }
}

impl Late {
    /// Waits for the outcome for as long as the connection may live.
    async fn settle(self) {
        let Self { append, fence, mut batch, bytes, pass, spill, waiting, state, metrics } = self;
        let count = batch.records().count();
        let (outcome, is_known) = match unless_dead(&state, bytes, append).await {
            Some((_, outcome)) => {
                let is_known = is_known(&outcome);
                (outcome, is_known)
            }
            None => {
                close(&fence).await;
                (Err(given_up()), true)
            }
        };
        let is_refused = is_refused(&outcome);
        let answer = told(outcome, count, &state, &metrics);
        if !is_refused {
            pass.ended(is_known);
            return waiting.resolve(batch, answer);
        }
        let Some(pass) = pass.refused() else { return waiting.resolve(batch, answer) };
        if !batch.drop_expired(Instant::now()) {
            return waiting.resolve(batch, Err(Refusal::AckTimeout));
        }
        let count = batch.records().count();
        let pack = Packer::new().pack(batch.records()).to_vec();
        let outcome = spill.write(&pass, pack, count).await;
        waiting.resolve(batch, spilled(outcome, count, &metrics));
    }
}

/// True if an append was answered: it can't take effect later.
fn is_known(outcome: &Outcome) -> bool {
    !matches!(outcome, Err(AppendError::Unknown(_)))
}

/// Whether a pack is not stored for certain.
fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Err(AppendError::NotStored(_)))
}

fn spilled(outcome: Result<(), Refusal>, count: u32, metrics: &Metrics) -> Answer {
    if outcome.is_ok() {
        metrics.packed(count);
    }
    outcome
}
