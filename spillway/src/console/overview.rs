//! The overview: one task reads the cell, whatever the number of people who watch.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use spillway_console::ProblemDetails;
use spillway_console::model::overview::{
    CellOverview, ConsumerOverview, PauseOverview, ProcessOverview, QueueOverview,
};
use spillway_console::pages::overview as page;
use spillway_queue::status::{CellStatus, ConsumerStatus, read};
use spillway_queue::{Connection, Redis};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::problem::problem_of;
use crate::failure::Failure;
use crate::out::float;
use crate::place::CellArgs;
use crate::status::state_of;

/// Least time between two looks at the cell, and the time between them while somebody watches.
const LIVE_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks while nobody watches. The rates are of this time then.
const IDLE_EVERY: Duration = Duration::from_secs(15);
/// Age up to which an overview is new enough to answer with.
const FRESH: Duration = Duration::from_secs(2);
/// Time for which a request waits for a new overview.
const WITHIN: Duration = Duration::from_secs(3);

/// The latest overview, for all who ask.
pub(super) struct OverviewFeed {
    latest: watch::Sender<LatestOverview>,
    wanted: Notify,
    processes: Mutex<Vec<ProcessOverview>>,
}

/// The latest overview; `None` before the first look.
pub(super) type LatestOverview = Option<Arc<OverviewSnapshot>>;

/// One look at the cell.
pub(super) struct OverviewSnapshot {
    at: Instant,
    /// The overview, or the problem because of which there is none.
    found: Result<CellOverview, ProblemDetails>,
    /// The status that the overview is of.
    status: Option<Arc<CellStatus>>,
    /// Part of the page that shows it, rendered once for all.
    pub part: String,
}

impl OverviewFeed {
    /// A feed that has not looked yet.
    pub(super) fn new() -> Self {
        Self {
            latest: watch::Sender::new(None),
            wanted: Notify::new(),
            processes: Mutex::new(Vec::new()),
        }
    }

    /// Looks at the cell again and again. While somebody watches, once a second.
    pub(super) async fn run(&self, place: &CellArgs) -> Infallible {
        let mut link = None;
        let mut before: Option<Arc<CellStatus>> = None;
        loop {
            let at = Instant::now();
            let found = match look(place, &mut link).await {
                Ok(status) => {
                    let status = Arc::new(status);
                    let mut overview = overview_of(&status, before.as_deref());
                    overview.processes = self.processes();
                    before = Some(status.clone());
                    Ok((overview, status))
                }
                Err(failure) => {
                    link = None;
                    Err(problem_of(&failure))
                }
            };
            self.latest.send_replace(Some(Arc::new(OverviewSnapshot::new(at, found))));
            sleep(LIVE_EVERY).await;
            if self.latest.receiver_count() == 0 {
                tokio::select! {
                    () = sleep(IDLE_EVERY) => {}
                    () = self.wanted.notified() => {}
                }
            }
        }
    }

    /// Watches the overview. The first change comes at once, or with the first look.
    pub(super) fn watch(&self) -> watch::Receiver<LatestOverview> {
        let mut latest = self.latest.subscribe();
        latest.mark_changed();
        self.wanted.notify_one();
        latest
    }

    /// An overview that is new enough to answer with.
    pub(super) async fn current(&self) -> Result<CellOverview, ProblemDetails> {
        self.snapshot().await?.found.clone()
    }

    /// The status of the cell, as the overview has it.
    pub(super) async fn status(&self) -> Result<Arc<CellStatus>, ProblemDetails> {
        let snapshot = self.snapshot().await?;
        match (&snapshot.status, &snapshot.found) {
            (Some(status), _) => Ok(status.clone()),
            (None, Err(problem)) => Err(problem.clone()),
            (None, Ok(_)) => Err(ProblemDetails::unavailable("redis was not reached yet")),
        }
    }

    /// Notes what the processes told of themselves.
    pub(super) fn note_processes(&self, processes: Vec<ProcessOverview>) {
        *self.processes.lock().unwrap_or_else(PoisonError::into_inner) = processes;
    }

    fn processes(&self) -> Vec<ProcessOverview> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn snapshot(&self) -> Result<Arc<OverviewSnapshot>, ProblemDetails> {
        let mut latest = self.latest.subscribe();
        let is_fresh =
            |known: &LatestOverview| known.as_ref().is_some_and(|known| known.at.elapsed() < FRESH);
        if !is_fresh(&latest.borrow_and_update()) {
            self.wanted.notify_one();
            // The next one is taken whatever its age: on a busy machine a look itself may last longer.
            let looked = timeout(WITHIN, latest.changed()).await;
            looked
                .map_err(|_| ProblemDetails::unavailable("redis does not answer"))?
                .map_err(|_| ProblemDetails::unavailable("the console is stopping"))?;
        }
        let known = latest.borrow().clone();
        known.ok_or_else(|| ProblemDetails::unavailable("redis was not reached yet"))
    }
}

impl OverviewSnapshot {
    fn new(at: Instant, found: Result<(CellOverview, Arc<CellStatus>), ProblemDetails>) -> Self {
        let (found, status) = match found {
            Ok((overview, status)) => (Ok(overview), Some(status)),
            Err(problem) => (Err(problem), None),
        };
        let part = match &found {
            Ok(overview) => page::part(overview),
            Err(problem) => page::unknown(&problem.detail),
        };
        Self { at, found, status, part: part.into_string() }
    }
}

async fn look(
    place: &CellArgs,
    link: &mut Option<(Redis, Connection)>,
) -> Result<CellStatus, Failure> {
    let (redis, connection) = match link {
        Some(link) => link,
        None => link.insert(place.connect().await?),
    };
    Ok(read(redis, connection).await?)
}

/// A count at a time by Redis' clock, in milliseconds: the time at which it was read there, however long the answer took.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimedCount {
    pub at_ms: u64,
    pub count: u64,
}

impl TimedCount {
    /// Increase per second since an earlier time. Counts go down where a queue was restored or a consumer was registered
    /// again: then it is not known.
    pub(super) fn per_second_since(self, before: Self) -> Option<f64> {
        let more = self.count.checked_sub(before.count)?;
        let since_ms = self.at_ms.checked_sub(before.at_ms).filter(|ms| *ms > 0)?;
        Some(float(more) * 1_000.0 / float(since_ms))
    }
}

/// Overview of a status, with the rates since an earlier one.
fn overview_of(status: &CellStatus, before: Option<&CellStatus>) -> CellOverview {
    let queue = &status.queue;
    let per_second = |now: u64, count: &dyn Fn(&CellStatus) -> Option<u64>| {
        let before = before?;
        let before = TimedCount { at_ms: before.now_ms, count: count(before)? };
        TimedCount { at_ms: status.now_ms, count: now }.per_second_since(before)
    };
    let consumer = |known: &ConsumerStatus| ConsumerOverview {
        name: known.name.clone(),
        state: state_of(known)
            .unwrap_or(if known.has_live_leader() { "-" } else { "no leader" })
            .to_owned(),
        has_live_leader: known.has_live_leader(),
        waiting: known.waiting,
        oldest_age_seconds: known.oldest_age_seconds,
        in_lanes: known.parked,
        settled: known.settled,
        settled_per_second: per_second(known.settled, &|before| {
            let same = before.consumers.iter().find(|before| before.name == known.name);
            same.map(|before| before.settled)
        }),
        dead_letters: known.dead.letters,
        pauses: known
            .pauses
            .iter()
            .map(|pause| PauseOverview {
                filter: pause.filter.to_string(),
                since_ms: pause.since_ms,
            })
            .collect(),
    };
    CellOverview {
        at_ms: status.now_ms,
        queue: QueueOverview {
            accepted: queue.accepted,
            accepted_per_second: per_second(queue.accepted, &|before| Some(before.queue.accepted)),
            webhooks: queue.webhooks,
            packs: queue.packs,
            memory_bytes: queue.bytes,
            memory_limit_bytes: Some(queue.limit_bytes).filter(|limit| *limit > 0),
        },
        consumers: status.consumers.iter().map(consumer).collect(),
        processes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use spillway_queue::status::QueueStatus;

    use super::*;

    fn status(now_ms: u64, accepted: u64, settled: u64) -> CellStatus {
        let consumer =
            ConsumerStatus { name: "http".to_owned(), settled, ..ConsumerStatus::default() };
        let queue = QueueStatus { accepted, ..QueueStatus::default() };
        CellStatus { queue, consumers: vec![consumer], now_ms }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks_by_the_clock_of_the_counts() {
        let before = status(7_000, 100, 90);
        let overview = overview_of(&status(9_000, 110, 95), Some(&before));
        assert_eq!(overview.queue.accepted_per_second, Some(5.0));
        assert_eq!(overview.consumers[0].settled_per_second, Some(2.5));
        assert_eq!(overview.consumers[0].state, "no leader");
        let restored = overview_of(&status(9_000, 10, 5), Some(&before));
        assert_eq!(restored.queue.accepted_per_second, None, "the count went down");
        for not_later in [7_000, 6_000] {
            let overview = overview_of(&status(not_later, 110, 95), Some(&before));
            assert_eq!(overview.queue.accepted_per_second, None, "the clock was set back");
        }
        assert_eq!(overview_of(&before, None).queue.accepted_per_second, None);
    }

    #[tokio::test]
    async fn without_redis_the_reason_is_shown_to_all() {
        let place = CellArgs::new("unix:///nonexistent/redis.sock".to_owned(), "x:".to_owned());
        let feed = Arc::new(OverviewFeed::new());
        let mut watched = feed.watch();
        let looking = {
            let feed = feed.clone();
            tokio::spawn(async move { feed.run(&place).await })
        };
        let problem = feed.current().await.expect_err("there is no Redis");
        assert_eq!(problem.code, "unavailable");
        let shown = watched.wait_for(Option::is_some).await.expect("the feed lives").clone();
        let part = &shown.expect("it was waited for").part;
        assert!(part.contains("/nonexistent/redis.sock"), "{part}");
        looking.abort();
    }
}
