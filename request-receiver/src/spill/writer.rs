//! Thread that writes to the disk, with group commit: jobs that arrive during a sync form the next
//! group.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spillway_process::background::EndGuard;
use spillway_spill::{WriteError, Writer};
use tokio::sync::{mpsc, oneshot};

/// More than the shards need: each has at most two packs on their way.
const JOBS_MAX: usize = 256;

/// Handle of the thread, which ends with the last handle.
pub struct Writing {
    jobs: mpsc::Sender<WriteJob>,
    work: Arc<WriterWork>,
}

/// Work of the thread.
struct WriterWork {
    began: Instant,
    /// Time at which the current work began, in ms since `began`. [`IDLE`] if there is none.
    since_ms: AtomicU64,
}

const IDLE: u64 = u64::MAX;

enum WriteJob {
    Write { pack: Vec<u8>, webhooks: u32, done: Waiter },
    Rotate { done: Waiter },
    Probe { done: Waiter },
}

type Waiter = oneshot::Sender<Result<(), WriteError>>;
type WriteOutcome = oneshot::Receiver<Result<(), WriteError>>;

impl Writing {
    /// Starts the thread, which owns `guard`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(writer: Writer, guard: EndGuard) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel(JOBS_MAX);
        let work = Arc::new(WriterWork { began: Instant::now(), since_ms: AtomicU64::new(IDLE) });
        std::thread::Builder::new().name("spill".to_owned()).spawn({
            let work = work.clone();
            move || {
                let _guard = guard;
                run(writer, jobs, &work);
            }
        })?;
        Ok(Self { jobs: sender, work })
    }

    /// Time since the disk began the current work. Zero if there is none.
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
        self.done(WriteJob::Write { pack, webhooks, done }, outcome).await
    }

    /// Checks if a write would succeed, without writing anything.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn probe(&self) -> Result<(), WriteError> {
        let (done, outcome) = oneshot::channel();
        self.done(WriteJob::Probe { done }, outcome).await
    }

    /// Begins a segment, so that those before it can be freed.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn rotate(&self) -> Result<(), WriteError> {
        let (done, outcome) = oneshot::channel();
        self.done(WriteJob::Rotate { done }, outcome).await
    }

    async fn done(&self, job: WriteJob, outcome: WriteOutcome) -> Result<(), WriteError> {
        let ended = || WriteError::Unknown(io::Error::other("BUG: the spill's writer has ended"));
        self.jobs.send(job).await.map_err(|_| ended())?;
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl WriterWork {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(IDLE - 1)
    }
}

fn run(mut writer: Writer, mut jobs: mpsc::Receiver<WriteJob>, work: &WriterWork) {
    while let Some(first) = jobs.blocking_recv() {
        work.since_ms.store(work.now_ms(), Ordering::Relaxed);
        let mut packs = Vec::new();
        let mut waiters = Vec::<Waiter>::new();
        let mut probe = None;
        let mut rotate = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                WriteJob::Write { pack, webhooks, done } => {
                    packs.push((pack, webhooks));
                    waiters.push(done);
                }
                WriteJob::Rotate { done } => rotate.push(done),
                WriteJob::Probe { done } => probe = Some(done),
            }
            next = jobs.try_recv().ok();
        }
        // First, since otherwise old and new records would share a segment and be freed together or
        // not at all.
        if !rotate.is_empty() {
            answer(rotate, writer.rotate());
        }
        if !packs.is_empty() {
            answer(waiters, writer.append(&packs));
        }
        // After the writes, which may end with the same error.
        if let Some(waiter) = probe {
            answer(vec![waiter], writer.probe());
        }
        work.since_ms.store(IDLE, Ordering::Relaxed);
    }
}

/// Answers all jobs of a group with the same outcome.
fn answer(waiters: Vec<Waiter>, outcome: Result<(), WriteError>) {
    for waiter in waiters {
        let copy = match &outcome {
            Ok(()) => Ok(()),
            Err(WriteError::Limit) => Err(WriteError::Limit),
            Err(WriteError::Full(error)) => Err(WriteError::Full(error.kind().into())),
            Err(WriteError::Failed(error)) => Err(WriteError::Failed(error.kind().into())),
            Err(WriteError::Unknown(error)) => Err(WriteError::Unknown(error.kind().into())),
        };
        // Without effect if nobody waits any more. The pack is on the disk all the same.
        waiter.send(copy).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use spillway_process::Background;
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

        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(path)
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
