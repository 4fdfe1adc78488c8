//! State that a process keeps while leaders change.

use std::sync::Arc;

use spillway_consumer::Routes;
use spillway_process::Readiness;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::metrics::ProducerMetrics;
use crate::settings::ProducerSettings;

/// Threads at a time: one that works, and others that hang in librdkafka. Each holds a producer
/// with its own threads.
const THREADS_MAX: usize = 4;

/// State that an instance keeps while leaders change.
pub(crate) struct ProducerInstance {
    /// Settings of the process.
    pub settings: Arc<ProducerSettings>,
    /// Metrics of the process.
    pub metrics: Arc<ProducerMetrics>,
    /// The consumer, its filter and those of the others.
    pub routes: Arc<Routes>,
    /// Readiness that `/readyz` shows.
    pub readiness: Readiness,
    /// A permit for each thread, also for one that was left running.
    pub(crate) threads: Arc<Semaphore>,
    /// Cancelled when there is no permit left.
    pub(crate) hanging: CancellationToken,
}

impl ProducerInstance {
    /// Instance that does not lead yet.
    pub(crate) fn new(
        settings: Arc<ProducerSettings>,
        metrics: Arc<ProducerMetrics>,
        routes: Arc<Routes>,
        readiness: Readiness,
    ) -> Self {
        let threads = Arc::new(Semaphore::new(THREADS_MAX));
        let hanging = CancellationToken::new();
        Self { settings, metrics, routes, readiness, threads, hanging }
    }
}
