//! The thread that writes to the disk: whatever is ready while one group is synced is the next one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spillway_service::background::EndGuard;
use spillway_spill::{WriteError, Writer};
use tokio::sync::{mpsc, oneshot};

/// More than there are shards, each with two packs on their way at most.
const JOBS_MAX: usize = 256;

/// A handle on the thread, which ends with the last of them.
pub struct Writing {
    jobs: mpsc::Sender<Job>,
    work: Arc<Work>,
}

/// Work of the thread.
struct Work {
    began: Instant,
    /// When the disk was asked for what it has not done yet, in ms since `began`; [`IDLE`] if it has done all.
    since_ms: AtomicU64,
}

const IDLE: u64 = u64::MAX;

enum Job {
    Write { pack: Vec<u8>, webhooks: u32, done: Waiter },
    Rotate { done: Waiter },
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
        let work = Arc::new(Work { began: Instant::now(), since_ms: AtomicU64::new(IDLE) });
        std::thread::Builder::new().name("spill".to_owned()).spawn({
            let work = work.clone();
            move || {
                let _guard = guard;
                run(writer, jobs, &work);
            }
        })?;
        Ok(Self { jobs: sender, work })
    }

    /// Time for which the disk has not done what it was asked for.
    pub fn waits_for(&self) -> Duration {
        match self.work.since_ms.load(Ordering::Relaxed) {
            IDLE => Duration::ZERO,
            since => Duration::from_millis(self.work.now_ms().saturating_sub(since)),
        }
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

    /// Begins a segment, so that the ones before can be let go.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn rotate(&self) -> Result<(), WriteError> {
        let (done, outcome) = oneshot::channel();
        self.done(Job::Rotate { done }, outcome).await
    }

    async fn done(&self, job: Job, outcome: Outcome) -> Result<(), WriteError> {
        let ended = || WriteError::Unknown(io::Error::other("BUG: the spill's writer has ended"));
        self.jobs.send(job).await.map_err(|_| ended())?;
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Work {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(IDLE - 1)
    }
}

fn run(mut writer: Writer, mut jobs: mpsc::Receiver<Job>, work: &Work) {
    while let Some(first) = jobs.blocking_recv() {
        work.since_ms.store(work.now_ms(), Ordering::Relaxed);
        let (mut packs, mut waiters) = (Vec::new(), Vec::<Waiter>::new());
        let (mut probe, mut rotate) = (None, Vec::new());
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Write { pack, webhooks, done } => {
                    packs.push((pack, webhooks));
                    waiters.push(done);
                }
                Job::Rotate { done } => rotate.push(done),
                Job::Probe { done } => probe = Some(done),
            }
            next = jobs.try_recv().ok();
        }
        // First: what is fed and what is new would else share a segment, and be freed together or not at all.
        if !rotate.is_empty() {
            answer(rotate, writer.rotate());
        }
        if !packs.is_empty() {
            answer(waiters, writer.append(&packs));
        }
        // After what may say the same.
        if let Some(waiter) = probe {
            answer(vec![waiter], writer.probe());
        }
        work.since_ms.store(IDLE, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use spillway_service::Background;
    use spillway_spill::disk::{Disk, DiskFile, RealDisk};
    use spillway_spill::{Directory, Limits};

    use super::*;

    /// A disk that syncs nothing while this is set.
    #[derive(Clone)]
    struct Stalling(Arc<AtomicBool>);

    struct StallingFile(Box<dyn DiskFile>, Stalling);

    impl Disk for Stalling {
        fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            Ok(Box::new(StallingFile(RealDisk.create(path)?, self.clone())))
        }

        fn sync_directory(&self, directory: &Path) -> io::Result<()> {
            RealDisk.sync_directory(directory)
        }
    }

    impl DiskFile for StallingFile {
        fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            self.0.write_at(bytes, offset)
        }

        fn sync(&mut self) -> io::Result<()> {
            while self.1.0.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.0.sync()
        }

        fn truncate(&mut self, end: u64) -> io::Result<()> {
            self.0.truncate(end)
        }
    }

    async fn until(is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("in time");
    }

    #[tokio::test]
    async fn a_disk_that_stalls_is_told_from_one_that_has_nothing_to_do() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::take(place.path()).unwrap();
        let stall = Arc::new(AtomicBool::new(false));
        let limits = Limits { bytes_max: 1 << 20, segment_bytes: 1 << 16 };
        let disk = Box::new(Stalling(stall.clone()));
        let (_, writer) = spillway_spill::open(directory, disk, limits, 0).unwrap();
        let writing = Writing::start(writer, Background::default().guard("a writer")).unwrap();
        assert_eq!(writing.waits_for(), Duration::ZERO);
        let writing = Arc::new(writing);
        stall.store(true, Ordering::Relaxed);
        let write = tokio::spawn({
            let writing = writing.clone();
            async move { writing.write(b"pack".to_vec(), 1).await }
        });
        until(|| writing.waits_for() >= Duration::from_millis(30)).await;
        stall.store(false, Ordering::Relaxed);
        write.await.unwrap().unwrap();
        until(|| writing.waits_for() == Duration::ZERO).await;
    }
}
