//! State that a process keeps while leaders change.

use std::sync::Arc;

use spillway_process::Readiness;

use crate::metrics::ArchiverMetrics;
use crate::settings::ArchiverSettings;

/// State that an instance keeps while leaders change.
#[derive(Clone)]
pub(crate) struct ArchiverInstance {
    /// Settings of the process.
    pub settings: Arc<ArchiverSettings>,
    /// Metrics of the process.
    pub metrics: Arc<ArchiverMetrics>,
    /// Readiness that `/readyz` shows.
    pub readiness: Readiness,
}
