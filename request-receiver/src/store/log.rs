//! Overflow log as the store sees it: takes packs while the queue takes none.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGauge};
use tokio_util::sync::CancellationToken;

use crate::reply::Refusal;
use crate::store::gate::Gate;

/// Log on this machine's disk, which is restored to the queue in order.
pub trait OverflowLog: Send + Sync {
    /// Writes a pack of `webhooks` webhooks. Returns `Ok` once it survives a power cut.
    ///
    /// # Errors
    /// The answer to the senders that wait for it.
    fn write(&self, pack: Vec<u8>, webhooks: u32) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Checks if a pack would be taken, as far as is known.
    ///
    /// # Errors
    /// The answer to a webhook, if it would not.
    fn takes(&self) -> Result<(), Refusal>;

    /// Reason for which the log takes no packs, for an operator. `None` if it takes them.
    fn trouble(&self) -> Option<&'static str>;

    /// Token that is cancelled after the first look for what the log holds and Redis does not have,
    /// whatever it found.
    fn first_turn_over(&self) -> &CancellationToken;

    /// Device of the log's files, if known.
    fn device(&self) -> Option<u64>;

    /// Figures for the metrics.
    fn figures(&self) -> LogFigures;
}

/// Figures of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogFigures {
    /// Webhooks in the log. Too few until those of earlier processes are counted.
    pub webhooks: u64,
    /// Bytes of the log.
    pub bytes: u64,
    /// Most bytes of the log.
    pub limit_bytes: u64,
    /// Last 32 bits of the log's id, which a metric holds exactly.
    pub id: u32,
    /// Webhooks written since the start.
    pub written: u64,
    /// Writes that failed, damage that was found, and packs that Redis has lost.
    pub errors: u64,
}

/// Metrics of the log, read when they are scraped. All zero without a log.
#[derive(Clone)]
pub struct LogMetrics {
    log: Option<(Arc<Gate>, Arc<dyn OverflowLog>)>,
    webhooks: IntGauge,
    bytes: IntGauge,
    limit_bytes: IntGauge,
    id: IntGauge,
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
            webhooks: gauge(
                "spillway_spill_webhooks",
                "Webhooks in SPILL_DIR that are not restored yet.",
            ),
            bytes: gauge("spillway_spill_bytes", "Bytes in SPILL_DIR."),
            limit_bytes: gauge("spillway_spill_limit_bytes", "SPILL_MAX; 0 without SPILL_DIR."),
            id: gauge(
                "spillway_spill_log",
                "Last 32 bits of the id of the log in SPILL_DIR; 0 without SPILL_DIR.",
            ),
            spilling: gauge(
                "spillway_spilling",
                "1 while webhooks do not go to Redis directly: it takes none, or the overflow is restored first.",
            ),
            spilled: counter("spillway_spilled_total", "Webhooks stored in SPILL_DIR."),
            errors: counter(
                "spillway_spill_errors_total",
                "Failed writes, damaged records, and packs that Redis lost.",
            ),
        }
    }

    fn all(&self) -> [&dyn Collector; 7] {
        [
            &self.webhooks,
            &self.bytes,
            &self.limit_bytes,
            &self.id,
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
            self.id.set(figures.id.into());
            self.spilling.set(gate.is_spilling().into());
            // Both figures only grow.
            self.spilled.inc_by(figures.written.saturating_sub(self.spilled.get()));
            self.errors.inc_by(figures.errors.saturating_sub(self.errors.get()));
        }
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}
