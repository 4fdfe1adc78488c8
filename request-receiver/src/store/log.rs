//! Overflow log as the store sees it: where batches are written while the queue takes none.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGauge};
use tokio_util::sync::CancellationToken;

use crate::reply::Refusal;
use crate::store::gate::Gate;

/// A log on this machine's disk, which is restored to the queue in order.
pub trait OverflowLog: Send + Sync {
    /// Writes a pack of so many webhooks; `Ok` once it survives a power cut.
    ///
    /// # Errors
    /// What those who wait for it are answered.
    fn write(&self, pack: Vec<u8>, webhooks: u32) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Whether a pack would be taken, as far as is known.
    ///
    /// # Errors
    /// What is answered instead.
    fn takes(&self) -> Result<(), Refusal>;

    /// What keeps it from taking packs, for an operator.
    fn trouble(&self) -> Option<&'static str>;

    /// Cancelled once it is known whether anything lies in it that Redis does not have.
    fn settled(&self) -> &CancellationToken;

    /// Device that it lies on, if that can be told.
    fn device(&self) -> Option<u64>;

    /// What is shown of it.
    fn figures(&self) -> LogFigures;
}

/// Figures of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogFigures {
    /// Webhooks in it; fewer until what a start has found there is counted.
    pub webhooks: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub limit_bytes: u64,
    /// Webhooks written since the start.
    pub written: u64,
    /// Writes that failed, damage that was met, and packs that Redis forgot.
    pub errors: u64,
}

/// Metrics of the log, read when they are scraped; all zero without one.
#[derive(Clone)]
pub struct LogMetrics {
    log: Option<(Arc<Gate>, Arc<dyn OverflowLog>)>,
    webhooks: IntGauge,
    bytes: IntGauge,
    limit_bytes: IntGauge,
    spilling: IntGauge,
    spilled: IntCounter,
    errors: IntCounter,
}

impl LogMetrics {
    /// Metrics of this log.
    pub fn new(log: Option<(Arc<Gate>, Arc<dyn OverflowLog>)>) -> Self {
        let gauge = |name, help| IntGauge::new(name, help).expect("BUG: a constant name is valid");
        let counter =
            |name, help| IntCounter::new(name, help).expect("BUG: a constant name is valid");
        Self {
            log,
            webhooks: gauge("spillway_spill_webhooks", "Webhooks in SPILL_DIR, not fed to Redis."),
            bytes: gauge("spillway_spill_bytes", "Bytes in SPILL_DIR."),
            limit_bytes: gauge("spillway_spill_limit_bytes", "SPILL_MAX; 0 without SPILL_DIR."),
            spilling: gauge(
                "spillway_spilling",
                "1 while webhooks go to SPILL_DIR: Redis takes none, or what was spilled is fed first.",
            ),
            spilled: counter("spillway_spilled_total", "Webhooks stored in SPILL_DIR."),
            errors: counter(
                "spillway_spill_errors_total",
                "Writes that failed, damage that was met, and packs that Redis forgot.",
            ),
        }
    }

    fn all(&self) -> [&dyn Collector; 6] {
        [
            &self.webhooks,
            &self.bytes,
            &self.limit_bytes,
            &self.spilling,
            &self.spilled,
            &self.errors,
        ]
    }
}

impl Collector for LogMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some((gate, log)) = &self.log {
            let figures = log.figures();
            self.webhooks.set(figures.webhooks.cast_signed());
            self.bytes.set(figures.bytes.cast_signed());
            self.limit_bytes.set(figures.limit_bytes.cast_signed());
            self.spilling.set(gate.is_spilling().into());
            // Both only grow.
            self.spilled.inc_by(figures.written.saturating_sub(self.spilled.get()));
            self.errors.inc_by(figures.errors.saturating_sub(self.errors.get()));
        }
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}
