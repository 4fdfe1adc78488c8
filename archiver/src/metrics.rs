//! Metrics of the archiver. Every label set is closed.
//!
//! The lag of the archive is `spillway_queue_oldest_age_seconds{consumer="archive"}`: a webhook is settled once it
//! is in the archive, and every process shows that age, also while no archiver runs.

use std::sync::Arc;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use spillway_archive::SealedObject;
use spillway_archive::error::FAILURE_KINDS;
use spillway_consumer::gauges::{
    PauseGauges, QueueGauges, corrupt_packs, counter, counters, gauge, histogram,
};
use spillway_process::metrics::registry;
use spillway_queue::consumers::ConsumerName;

/// All metrics of an archiver.
pub(crate) struct ArchiverMetrics {
    /// Registry of all these metrics.
    pub registry: Registry,
    /// Gauges of leadership and of the queue in Redis.
    pub queue: Arc<QueueGauges>,
    /// Packs that could not be decoded.
    pub corrupt: IntCounter,
    /// Pauses in force that an operator set.
    pub pauses: PauseGauges,
    /// Objects that were deleted because they were old, or lay within others.
    pub deleted: IntCounterVec,
    /// Seconds from the first attempt of a put to its confirmation.
    pub put_seconds: Histogram,
    /// Unix time at which the checkpoint in the archive was the state of the consumers.
    pub checkpoint: IntGauge,
    /// Objects that were written under another name.
    pub renamed: IntCounter,
    archived: IntCounter,
    objects: IntCounter,
    bytes: IntCounter,
    failures: IntCounterVec,
}

/// Reasons for which an object is deleted.
const DELETED: [&str; 2] = ["expired", "redundant"];

impl ArchiverMetrics {
    /// Registers all metrics.
    pub(crate) fn new(consumer: &ConsumerName) -> Self {
        let registry = registry("archiver");
        let failures = counters(
            &registry,
            "spillway_archive_failures_total",
            "Requests to the archive that failed, by kind. They are repeated.",
            "kind",
        );
        FAILURE_KINDS.iter().for_each(|kind| failures.with_label_values(&[kind]).inc_by(0));
        let deleted = counters(
            &registry,
            "spillway_archive_deleted_total",
            "Objects of the archive that were deleted, by reason.",
            "reason",
        );
        DELETED.iter().for_each(|reason| deleted.with_label_values(&[reason]).inc_by(0));
        Self {
            queue: Arc::new(QueueGauges::new(&registry, consumer)),
            corrupt: corrupt_packs(&registry),
            pauses: PauseGauges::new(&registry),
            put_seconds: histogram(
                &registry,
                "spillway_archive_put_seconds",
                "From the first attempt to write an object to its confirmation.",
                &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0],
            ),
            checkpoint: gauge(
                &registry,
                "spillway_archive_checkpoint_timestamp_seconds",
                "Of which time the consumers' checkpoint in the archive is, as a Unix time; 0 = this instance wrote none.",
            ),
            renamed: counter(
                &registry,
                "spillway_archive_renamed_total",
                "Objects that were written under another name, because one of theirs is damaged and cannot be written over.",
            ),
            archived: counter(
                &registry,
                "spillway_archived_total",
                "Webhooks in objects that were written to the archive.",
            ),
            objects: counter(
                &registry,
                "spillway_archive_objects_total",
                "Objects that were written to the archive.",
            ),
            bytes: counter(
                &registry,
                "spillway_archive_bytes_total",
                "Bytes of the objects that were written to the archive.",
            ),
            failures,
            deleted,
            registry,
        }
    }

    /// Counts a request that failed.
    pub(crate) fn failed(&self, kind: &'static str) {
        self.failures.with_label_values(&[kind]).inc();
    }

    /// Counts an object that is stored.
    pub(crate) fn wrote(&self, object: &SealedObject) {
        self.objects.inc();
        self.bytes.inc_by(object.bytes);
        self.archived.inc_by(object.name.webhooks);
    }
}
