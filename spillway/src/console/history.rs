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

use bytes::Bytes;
use clap::Args;
use spillway_archive::args::ArchiveArgs;
use spillway_console::model::history::{HistoryQuery, MetricHistory, MetricSeries, MetricSource};
use spillway_console::model::overview::{CellOverview, ProcessOverview};
use spillway_process::Checker;
use tokio::time::{MissedTickBehavior, interval};

use super::overview::{OverviewFeed, TimedCount};
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
    /// Answers by their hours, for all who ask until the next sample.
    answers: Mutex<BTreeMap<u32, Bytes>>,
}

impl MetricStore {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self { samples: Mutex::new(VecDeque::new()), answers: Mutex::new(BTreeMap::new()) }
    }

    /// Takes samples again and again.
    pub(super) async fn run(&self, feed: &OverviewFeed, parts: &HistoryArgs) -> Infallible {
        let token_file = parts.metrics_token_file.clone();
        let mut scraper = Scraper::new(parts.endpoints.addresses(), token_file);
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before: Option<CellOverview> = None;
        loop {
            ticks.tick().await;
            let processes = scraper.processes().await;
            feed.note_processes(processes.clone());
            if let Ok(overview) = feed.current().await {
                self.keep(sample(&overview, before.as_ref(), &processes));
                before = Some(overview);
            }
        }
    }

    /// Metrics of the last hours as JSON. It is made once for all who ask between two samples.
    pub(super) fn recent_json(&self, query: &HistoryQuery) -> Bytes {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = answers.entry(hours_of(query)).or_insert_with(|| {
            let json = serde_json::to_vec(&self.recent(query));
            json.expect("BUG: a history has no map whose keys are no text").into()
        });
        answer.clone()
    }

    /// Metrics of the last hours.
    pub(super) fn recent(&self, query: &HistoryQuery) -> MetricHistory {
        let hours = hours_of(query);
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
        drop(samples);
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Hours that a question is for.
fn hours_of(query: &HistoryQuery) -> u32 {
    query.hours.unwrap_or(1).clamp(1, HOURS)
}

/// Values of an overview and of the processes. The rates are of the whole time since the sample `before`, and not of the
/// last second, as those of the overview.
fn sample(
    overview: &CellOverview,
    before: Option<&CellOverview>,
    processes: &[ProcessOverview],
) -> MetricSample {
    let mut sample = MetricSample { at_ms: overview.at_ms, values: BTreeMap::new() };
    let queue = &overview.queue;
    let per_second = |now: u64, count: &dyn Fn(&CellOverview) -> Option<u64>| {
        let before = before?;
        let before = TimedCount { at_ms: before.at_ms, count: count(before)? };
        TimedCount { at_ms: overview.at_ms, count: now }.per_second_since(before)
    };
    let accepted = per_second(queue.accepted, &|before| Some(before.queue.accepted));
    sample.note("accepted_per_second", "", "per_second", accepted);
    sample.note("memory_bytes", "", "bytes", Some(float(queue.memory_bytes)));
    for consumer in &overview.consumers {
        let name = &consumer.name;
        let settled = per_second(consumer.settled, &|before| {
            let same = before.consumers.iter().find(|before| before.name == *name);
            same.map(|before| before.settled)
        });
        sample.note("settled_per_second", name, "per_second", settled);
        sample.note("waiting", name, "webhooks", Some(float(consumer.waiting)));
        sample.note("in_lanes", name, "webhooks", Some(float(consumer.in_lanes)));
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
        store.keep(sample(&overview(10_000, 5), None, &[]));
        let process = ProcessOverview {
            name: "downstreamer".to_owned(),
            p99_seconds: Some(0.5),
            concurrency: Some(f64::NAN),
            ..ProcessOverview::default()
        };
        store.keep(sample(&overview(20_000, 6), None, &[process]));
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
    fn a_rate_is_of_the_whole_time_between_two_samples() {
        let flow = |at_ms: u64, accepted: u64| {
            let mut overview = overview(at_ms, 0);
            overview.queue.accepted = accepted;
            // A burst in the last second.
            overview.queue.accepted_per_second = Some(1_000.0);
            overview.consumers[0].settled = accepted / 2;
            overview.consumers[0].settled_per_second = Some(1_000.0);
            overview
        };
        let store = MetricStore::new();
        let first = flow(10_000, 100);
        store.keep(sample(&first, None, &[]));
        store.keep(sample(&flow(20_000, 1_100), Some(&first), &[]));
        let history = store.recent(&HistoryQuery::default());
        for (name, expected) in [("accepted_per_second", 100.0), ("settled_per_second", 50.0)] {
            let found = history.series.iter().find(|series| series.name == name);
            let values = found.map(|series| series.values.clone());
            assert_eq!(values, Some(vec![None, Some(expected)]), "{name}");
        }
    }

    #[test]
    fn an_answer_is_made_once_for_all_until_the_next_sample() {
        let store = MetricStore::new();
        store.keep(sample(&overview(10_000, 5), None, &[]));
        let hour = HistoryQuery::default();
        let first = store.recent_json(&hour);
        let expected = serde_json::to_vec(&store.recent(&hour)).expect("JSON");
        assert_eq!(first, expected);
        assert_eq!(store.recent_json(&hour).as_ptr(), first.as_ptr(), "the same bytes");
        store.recent_json(&HistoryQuery { hours: Some(99) });
        assert_eq!(store.answers.lock().expect("no panic").len(), 2);
        store.keep(sample(&overview(20_000, 6), None, &[]));
        assert_ne!(store.recent_json(&hour), first);
    }

    #[test]
    fn the_last_hours_are_kept_and_thinned_out() {
        let store = MetricStore::new();
        for number in 0..SAMPLES_KEPT as u64 + 10 {
            store.keep(sample(&overview(number * 10_000, number), None, &[]));
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
