//! Metrics of the last hours.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Question for the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryQuery {
    /// Hours back from now: up to 6 of those in memory, up to 744 from Prometheus; 1 without it.
    #[serde(default)]
    pub hours: Option<u32>,
}

/// Metrics of the last hours, for a plot: one column of times, up to 720, and a column of values for each series.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct MetricHistory {
    /// Times, in milliseconds since the Unix epoch.
    pub at_ms: Vec<u64>,
    /// Series.
    pub series: Vec<MetricSeries>,
    /// Source of the values.
    pub source: MetricSource,
    /// Sentence about why Prometheus could not be read, and the values are those in memory; none if nothing is wrong.
    pub problem: Option<String>,
}

/// Source of metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricSource {
    /// Memory of the console, which has them from its start on.
    #[default]
    Memory,
    /// The Prometheus of the console's settings.
    Prometheus,
}

/// One series of a plot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct MetricSeries {
    /// Name, such as `accepted_per_second`, `waiting`, `in_lanes`, `p99_seconds` or `concurrency`.
    pub name: String,
    /// Consumer or process that it is of; empty if it is of the cell.
    pub consumer: String,
    /// Unit: `per_second`, `webhooks`, `seconds`, `bytes` or `count`.
    pub unit: String,
    /// Values at the times; none where nothing is known.
    pub values: Vec<Option<f64>>,
}
