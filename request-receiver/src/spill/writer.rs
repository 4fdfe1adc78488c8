//! The thread that writes to the disk: whatever is ready while one group is synced is the next one.

use std::io;

use spillway_service::background::EndGuard;
use spillway_spill::{WriteError, Writer};
use tokio::sync::{mpsc, oneshot};

/// More than there are shards, each with two packs on their way at most.
const JOBS_MAX: usize = 256;

/// A handle on the thread, which ends with the last of them.
pub struct Writing(mpsc::Sender<Job>);

enum Job {
    Write { pack: Vec<u8>, webhooks: u32, done: Waiter },
    Rotate,
    Probe { done: Waiter },
}

type Waiter = oneshot::Sender<Result<(), WriteError>>;
type Outcome = oneshot::Receiver<Result<(), WriteError>>;

impl Writing {
    /// Starts the thread, which owns `guard`.
    ///
    /// # Errors
    /// When there is none to be had.
    pub fn start(writer: Writer, guard: EndGuard) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel(JOBS_MAX);
        std::thread::Builder::new().name("spill".to_owned()).spawn(move || {
            let _guard = guard;
            run(writer, jobs);
        })?;
        Ok(Self(sender))
    }

    /// Writes a pack, and waits until it is synced.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn write(&self, pack: Vec<u8>, webhooks: u32) -> Result<(), WriteError> {
        let (done, outcome) = oneshot::channel();
        self.done(Job::Write { pack, webhooks, done }, outcome).await
    }

    /// Tries whether something would be written, without writing it.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn probe(&self) -> Result<(), WriteError> {
        let (done, outcome) = oneshot::channel();
        self.done(Job::Probe { done }, outcome).await
    }

    /// Has the next pack begin a segment, so that the ones before can be let go.
    pub fn rotate(&self) {
        // With so much to write there is no need to.
        self.0.try_send(Job::Rotate).ok();
    }

    async fn done(&self, job: Job, outcome: Outcome) -> Result<(), WriteError> {
        let ended = || WriteError::Unknown(io::Error::other("BUG: the spill's writer has ended"));
        self.0.send(job).await.map_err(|_| ended())?;
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn run(mut writer: Writer, mut jobs: mpsc::Receiver<Job>) {
    while let Some(first) = jobs.blocking_recv() {
        let (mut packs, mut waiters) = (Vec::new(), Vec::<Waiter>::new());
        let (mut probe, mut rotate) = (None, false);
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Write { pack, webhooks, done } => {
                    packs.push((pack, webhooks));
                    waiters.push(done);
                }
                Job::Rotate => rotate = true,
                Job::Probe { done } => probe = Some(done),
            }
            next = jobs.try_recv().ok();
        }
        if !packs.is_empty() {
            answer(waiters, writer.append(&packs));
        } else if rotate && let Err(error) = writer.rotate() {
            tracing::debug!(%error, "the spill's last segment is kept for now");
        }
        // After what may say the same.
        if let Some(waiter) = probe {
            answer(vec![waiter], writer.probe());
        }
    }
}

/// All of a group have one fate.
fn answer(waiters: Vec<Waiter>, outcome: Result<(), WriteError>) {
    for waiter in waiters {
        let copy = match &outcome {
            Ok(()) => Ok(()),
            Err(WriteError::Limit) => Err(WriteError::Limit),
            Err(WriteError::Full(error)) => Err(WriteError::Full(error.kind().into())),
            Err(WriteError::Failed(error)) => Err(WriteError::Failed(error.kind().into())),
            Err(WriteError::Unknown(error)) => Err(WriteError::Unknown(error.kind().into())),
        };
        // Nobody waits any more: it is on the disk all the same.
        waiter.send(copy).ok();
    }
}
