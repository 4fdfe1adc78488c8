//! Metrics of the last hours: sampled each ten seconds from the overview and from the processes' own metrics, and kept in
//! memory. With `PROMETHEUS_URL`, they are those of a Prometheus, which remembers them for longer.

pub(super) mod prometheus;
mod prometheus_args;
mod promql;
mod scrape;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use spillway_archive::args::ArchiveArgs;
use spillway_console::model::history::{HistoryQuery, MetricHistory, MetricSeries, MetricSource};
use spillway_console::model::overview::{CellOverview, ProcessOverview};
use spillway_process::Checker;
use tokio::time::{MissedTickBehavior, interval};

use super::overview::OverviewFeed;
use crate::doctor::endpoints::EndpointArguments;
use crate::forget::redact_within;
use crate::out::float;
use prometheus::PrometheusHistory;
use prometheus_args::PrometheusArgs;
use scrape::Scraper;

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(10);
/// Hours that are kept.
const HOURS: u32 = 6;
/// Samples that are kept.
const SAMPLES_KEPT: usize = 6 * 360;
const _: () = assert!(SAMPLES_KEPT as u64 * EVERY.as_secs() == HOURS as u64 * 3600, "six hours");
/// Samples of one answer: a plot has no more pixels.
const POINTS_MAX: usize = 720;
/// Series that are kept. Their number grows with the consumers.
const SERIES_MAX: usize = 200;

/// Parts of the cell beside its Redis.
#[derive(Debug, Clone, Args)]
pub(super) struct HistoryArgs {
    /// Admin addresses of the processes.
    #[command(flatten)]
    pub endpoints: EndpointArguments,

    /// The archive.
    #[command(flatten)]
    pub archive: ArchiveArgs,

    /// Directory of the receiver's overflow log, as in the receiver's settings
    #[arg(long, env = "SPILL_DIR", value_name = "DIRECTORY")]
    pub spill_dir: Option<PathBuf>,

    /// File with the token that the processes ask for at /metrics, as in their settings
    #[arg(long, env = "METRICS_TOKEN_FILE", value_name = "FILE")]
    pub metrics_token_file: Option<PathBuf>,

    /// Time after its delivery within which a redaction is carried out, as in the settings of the purge
    #[arg(long, env = "REDACT_WITHIN", value_name = "DURATION", default_value = "24h", value_parser = redact_within)]
    pub redact_within: Duration,

    /// The Prometheus that scrapes the cell.
    #[command(flatten)]
    pub prometheus: PrometheusArgs,
}

impl HistoryArgs {
    /// Checks the settings of the Prometheus; `None` if there is none.
    pub(super) fn prometheus(&self, checker: &mut Checker) -> Option<PrometheusHistory> {
        self.prometheus.check(checker).map(PrometheusHistory::new)
    }
}

/// Name, consumer and unit of a series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SeriesKey {
    name: &'static str,
    consumer: String,
    unit: &'static str,
}

/// Values at one time.
#[derive(Debug, Default)]
struct MetricSample {
    at_ms: u64,
    values: BTreeMap<SeriesKey, f64>,
}

/// Metrics of the last hours.
pub(super) struct MetricStore {
    samples: Mutex<VecDeque<MetricSample>>,
}

impl MetricStore {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self { samples: Mutex::new(VecDeque::new()) }
    }

    /// Takes samples again and again.
    pub(super) async fn run(&self, feed: &OverviewFeed, parts: &HistoryArgs) -> Infallible {
        let token_file = parts.metrics_token_file.clone();
        let mut scraper = Scraper::new(parts.endpoints.addresses(), token_file);
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let processes = scraper.processes().await;
            feed.note_processes(processes.clone());
            if let Ok(overview) = feed.current().await {
                self.keep(sample(&overview, &processes));
            }
        }
    }

    /// Metrics of the last hours.
    pub(super) fn recent(&self, query: &HistoryQuery) -> MetricHistory {
        let hours = query.hours.unwrap_or(1).clamp(1, HOURS);
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let newest_ms = samples.back().map_or(0, |newest| newest.at_ms);
        let from_ms = newest_ms.saturating_sub(u64::from(hours) * 3_600_000);
        let recent: Vec<&MetricSample> =
            samples.iter().filter(|sample| sample.at_ms >= from_ms).collect();
        let step = recent.len().div_ceil(POINTS_MAX).max(1);
        // The newest one is always there.
        let mut chosen: Vec<&MetricSample> = recent.into_iter().rev().step_by(step).collect();
        chosen.reverse();
        let mut keys: Vec<&SeriesKey> =
            chosen.iter().flat_map(|sample| sample.values.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        let series = keys.into_iter().map(|key| MetricSeries {
            name: key.name.to_owned(),
            consumer: key.consumer.clone(),
            unit: key.unit.to_owned(),
            values: chosen.iter().map(|sample| sample.values.get(key).copied()).collect(),
        });
        MetricHistory {
            series: series.collect(),
            at_ms: chosen.iter().map(|sample| sample.at_ms).collect(),
            source: MetricSource::Memory,
            problem: None,
        }
    }

    fn keep(&self, sample: MetricSample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() >= SAMPLES_KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

/// Values of an overview and of the processes.
fn sample(overview: &CellOverview, processes: &[ProcessOverview]) -> MetricSample {
    let mut sample = MetricSample { at_ms: overview.at_ms, values: BTreeMap::new() };
    let queue = &overview.queue;
    sample.note("accepted_per_second", "", "per_second", queue.accepted_per_second);
    sample.note("memory_bytes", "", "bytes", Some(float(queue.memory_bytes)));
    for consumer in &overview.consumers {
        let name = &consumer.name;
        sample.note("settled_per_second", name, "per_second", consumer.settled_per_second);
        sample.note("waiting", name, "webhooks", Some(float(consumer.waiting)));
        sample.note("parked", name, "webhooks", Some(float(consumer.parked)));
        sample.note("dead_letters", name, "webhooks", Some(float(consumer.dead_letters)));
        // Of a Kafka producer or an archiver, this is the lag.
        let oldest = consumer.oldest_age_seconds.unwrap_or(0.0);
        sample.note("oldest_seconds", name, "seconds", Some(oldest));
    }
    for process in processes {
        let name = &process.name;
        sample.note("p50_seconds", name, "seconds", process.p50_seconds);
        sample.note("p99_seconds", name, "seconds", process.p99_seconds);
        sample.note("concurrency", name, "count", process.concurrency);
        sample.note("concurrency_limit", name, "count", process.concurrency_limit);
        sample.note("lanes_blocked", name, "count", process.lanes_blocked);
        sample.note("spilled", name, "webhooks", process.spilled);
    }
    sample
}

impl MetricSample {
    fn note(&mut self, name: &'static str, of: &str, unit: &'static str, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        if self.values.len() < SERIES_MAX {
            self.values.insert(SeriesKey { name, consumer: of.to_owned(), unit }, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_console::model::overview::ConsumerOverview;

    use super::*;

    fn overview(at_ms: u64, waiting: u64) -> CellOverview {
        let name = "http".to_owned();
        let consumer = ConsumerOverview { name, waiting, ..ConsumerOverview::default() };
        CellOverview { at_ms, consumers: vec![consumer], ..CellOverview::default() }
    }

    #[test]
    fn a_series_has_a_value_or_a_hole_for_each_time() {
        let store = MetricStore::new();
        store.keep(sample(&overview(10_000, 5), &[]));
        let process = ProcessOverview {
            name: "downstreamer".to_owned(),
            p99_seconds: Some(0.5),
            concurrency: Some(f64::NAN),
            ..ProcessOverview::default()
        };
        store.keep(sample(&overview(20_000, 6), &[process]));
        let history = store.recent(&HistoryQuery::default());
        assert_eq!(history.at_ms, [10_000, 20_000]);
        let values = |name: &str| {
            let found = history.series.iter().find(|series| series.name == name);
            found.map(|series| series.values.clone())
        };
        assert_eq!(values("waiting"), Some(vec![Some(5.0), Some(6.0)]));
        assert_eq!(values("p99_seconds"), Some(vec![None, Some(0.5)]));
        assert_eq!(values("concurrency"), None, "not a number is nothing known");
    }

    #[test]
    fn the_last_hours_are_kept_and_thinned_out() {
        let store = MetricStore::new();
        for number in 0..SAMPLES_KEPT as u64 + 10 {
            store.keep(sample(&overview(number * 10_000, number), &[]));
        }
        let newest = (SAMPLES_KEPT as u64 + 9) * 10_000;
        let hour = store.recent(&HistoryQuery { hours: None });
        assert_eq!(hour.at_ms.last(), Some(&newest));
        assert_eq!(hour.at_ms.first(), Some(&(newest - 3_600_000)));
        let all = store.recent(&HistoryQuery { hours: Some(99) });
        assert_eq!(all.at_ms.len(), POINTS_MAX);
        assert_eq!(all.at_ms.last(), Some(&newest));
    }
}
