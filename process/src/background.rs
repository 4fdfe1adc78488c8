//! Tasks and threads that run as long as their process. The end of one ends the process, so that
//! its supervisor starts it again. Each task is watched: one that blocks its thread is stuck.
//!
//! Without this, a task that ends unnoticed leaves a process that is alive and does only part of
//! its work.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, OnceLock};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::supervisor::{Pulse, Watchdog};

/// A task or thread returned or panicked before the process was told to stop.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("BUG: {0} ended before the process was told to stop")]
pub struct TaskEnded(&'static str);

/// Set of the tasks and threads that must not end before the process is asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Background {
    first_end: Arc<FirstEnd>,
    watchdog: Watchdog,
}

/// Guard that reports the end of the task or thread that owns it, in whatever way it ends.
#[derive(Debug)]
pub struct EndGuard {
    name: &'static str,
    first_end: Arc<FirstEnd>,
}

/// The first task or thread that ended, if any.
#[derive(Debug, Default)]
struct FirstEnd {
    has_happened: CancellationToken,
    name: OnceLock<&'static str>,
}

impl Background {
    /// Creates an empty set, and starts to ask its tasks for answers.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start() -> io::Result<Self> {
        Ok(Self { first_end: Arc::default(), watchdog: Watchdog::start()? })
    }

    /// Watches one more task or thread, which is not part of the set.
    pub fn watch(&self, name: impl Into<Cow<'static, str>>) -> Pulse {
        self.watchdog.watch(name)
    }

    /// Names the tasks that are stuck.
    pub(crate) fn stuck(&self) -> Vec<String> {
        self.watchdog.stuck()
    }

    /// Spawns a task that must not end before the process.
    pub fn spawn<F>(&self, name: &'static str, work: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let guard = self.guard(name);
        let pulse = self.watchdog.watch(name);
        tokio::spawn(async move {
            let _guard = guard;
            pulse.attend(work).await;
        })
    }

    /// Creates a guard for a thread or task that is spawned elsewhere. Move the guard into it.
    pub fn guard(&self, name: &'static str) -> EndGuard {
        EndGuard { name, first_end: self.first_end.clone() }
    }

    /// Runs `work` to its end. If one of the tasks ends before that, cancels `shutdown` and gives
    /// `work` time to stop.
    ///
    /// # Errors
    /// [`TaskEnded`] when a task ended before `work` and before `shutdown`.
    pub async fn supervise<T>(
        &self,
        shutdown: &CancellationToken,
        work: impl Future<Output = T>,
    ) -> Result<T, TaskEnded> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => Ok(done),
            () = shutdown.cancelled() => Ok(work.await),
            ended = self.ended() => {
                tracing::error!(error = %ended, "exiting, so that the supervisor restarts this process");
                shutdown.cancel();
                work.await;
                Err(ended)
            }
        }
    }

    /// Waits until one of the tasks has ended.
    pub async fn ended(&self) -> TaskEnded {
        self.first_end.has_happened.cancelled().await;
        TaskEnded(self.first_end.name.get().copied().unwrap_or_default())
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        // The first one is kept: it explains more than those that end because of it.
        self.first_end.name.set(self.name).ok();
        self.first_end.has_happened.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_task_that_returns_is_noticed() {
        let background = Background::default();
        let _running = background.spawn("another", std::future::pending());
        assert!(timeout(Duration::from_millis(20), background.ended()).await.is_err());
        let _returned = background.spawn("the watch", async {});
        assert_eq!(background.ended().await, TaskEnded("the watch"));
        assert_eq!(background.ended().await, TaskEnded("the watch"), "it stays known");
    }

    #[tokio::test]
    async fn a_task_that_panics_is_noticed() {
        let background = Background::default();
        let panicked = background.spawn("the feeder", async { panic!("as a test asks for") });
        assert!(panicked.await.is_err());
        assert_eq!(background.ended().await, TaskEnded("the feeder"));
    }

    #[tokio::test]
    async fn the_end_of_a_task_stops_the_work_and_is_its_error() {
        let background = Background::default();
        let shutdown = CancellationToken::new();
        let work = async {
            shutdown.cancelled().await;
            "stopped in its own time"
        };
        background.spawn("the watch", async {});
        assert_eq!(background.supervise(&shutdown, work).await, Err(TaskEnded("the watch")));
        // Once the process is asked to stop, tasks are expected to end.
        assert_eq!(background.supervise(&shutdown, async { 1 }).await, Ok(1));
    }

    #[tokio::test]
    async fn a_thread_that_ends_is_noticed() {
        let background = Background::default();
        let guard = background.guard("the writer");
        std::thread::spawn(move || drop(guard)).join().expect("it does not panic");
        assert_eq!(background.ended().await, TaskEnded("the writer"));
    }
}
