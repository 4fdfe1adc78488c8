//! State that all handlers share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::history::prometheus::PrometheusHistory;
use super::history::{HistoryArgs, MetricStore};
use super::jobs::Jobs;
use super::links::CellLinks;
use super::overview::OverviewFeed;
use crate::audited;
use crate::place::CellArgs;

/// State as the handlers get it.
pub(super) type ConsoleState = Arc<Console>;

/// A running console.
pub(super) struct Console {
    /// The cell, with the access to Redis that the console has.
    pub place: CellArgs,
    /// Overview of the cell, read once for all who watch.
    pub overview: OverviewFeed,
    /// Counts, replays and drops that take some time.
    pub jobs: Jobs,
    /// Metrics of the last hours.
    pub history: MetricStore,
    /// The same from Prometheus, if one is set.
    pub prometheus: Option<PrometheusHistory>,
    /// Ways to the cell, which all requests share.
    pub links: CellLinks,
    /// Other parts of the cell: its processes, its archive.
    pub parts: HistoryArgs,
    /// Cancelled when the process stops: every stream of events ends then.
    pub stop: CancellationToken,
}

impl Console {
    /// A console of this cell, which has not looked at it yet.
    pub(super) fn new(place: CellArgs, stop: CancellationToken, parts: HistoryArgs) -> Self {
        Self {
            place,
            overview: OverviewFeed::new(),
            jobs: Jobs::new(),
            history: MetricStore::new(),
            prometheus: None,
            links: CellLinks::new(),
            parts,
            stop,
        }
    }

    /// Reads the metrics of the last hours from a Prometheus.
    pub(super) fn with_prometheus(self, prometheus: Option<PrometheusHistory>) -> Self {
        Self { prometheus, ..self }
    }

    /// Looks at the cell, keeps its metrics, and has the audit forget what is old, until the process stops.
    pub(super) async fn observe(&self) {
        let looking = self.overview.run(&self.place);
        let keeping = self.history.run(&self.overview, &self.parts);
        let trimming = audited::keep_trimmed(&self.place);
        self.stop.run_until_cancelled(async { tokio::join!(looking, keeping, trimming) }).await;
    }
}
