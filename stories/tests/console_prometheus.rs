//! The console reads the metrics of the last hours from a real Prometheus: with the same values as from memory, also
//! after its restart, and from memory while Prometheus is away.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stories::backend::Backend;
use stories::cell::Cell;
use stories::console::ConsoleServer;
use stories::feed::{Feed, Trickle};
use stories::ledger::Ledger;
use stories::prometheus::Prometheus;
use stories::report::say;
use stories::until::{until, until_some};

const SOON: Duration = Duration::from_secs(90);
const METRICS: &str = "/api/v1/metrics";
const ONE: (&str, &str) = ("PROMETHEUS_SELECTOR", "cell=\"one\"");
const VIEWER: (&str, &str) = ("CONSOLE_ANONYMOUS_ROLE", "viewer");

/// 100 webhooks per second of ten shops.
const SHOPS: Trickle = Trickle {
    shops: 1..11,
    topics: &["products/update", "orders/create"],
    every: Duration::from_millis(200),
    first_resource: 1,
};

/// Known values of a series.
fn values(history: &Value, name: &str, consumer: &str) -> Vec<f64> {
    let all = history["series"].as_array().expect("series").iter();
    let mut found = all.filter(|one| one["name"] == name && one["consumer"] == consumer);
    let values = found.next().and_then(|series| series["values"].as_array());
    values.into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// Mean of the rates at which webhooks were accepted, from the second one on: the first may be of a time in which
/// some came and some did not. `None` if there are too few.
fn accepted(history: &Value) -> Option<f64> {
    let rates = values(history, "accepted_per_second", "");
    let rates: Vec<f64> = rates.into_iter().filter(|rate| *rate > 0.0).skip(1).collect();
    (rates.len() >= 2).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

/// Two cells, which are the same one.
fn configuration(targets: [std::net::SocketAddr; 2]) -> String {
    let jobs = [("request-receiver", targets[0]), ("downstreamer", targets[1])].map(|(job, at)| {
        format!(
            "  - job_name: {job}\n    static_configs:\n\
             \x20     - targets: [\"{at}\"]\n        labels: {{cell: one}}\n\
             \x20     - targets: [\"{at}\"]\n        labels: {{cell: two}}\n"
        )
    });
    format!("global:\n  scrape_interval: 1s\nscrape_configs:\n{}", jobs.concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_curves_are_those_in_memory_and_outlive_the_console() {
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    downstreamer.leads().await;
    let targets = [receiver.admin_address(), downstreamer.admin_address()];
    let prometheus = Prometheus::start(cell.directory(), &configuration(targets)).await;
    let url = prometheus.url();
    let settings = [VIEWER, ONE, ("PROMETHEUS_URL", url.as_str())];
    let traffic = Feed::to(receiver.address(), &Arc::new(Ledger::default())).trickle(&SHOPS);
    let by_memory = ConsoleServer::start(&cell, &[VIEWER]).await;
    let mut by_prometheus = ConsoleServer::start(&cell, &settings).await;

    let kept = until_some("there are rates in memory", SOON, async || {
        let history = by_memory.nobody().json(METRICS).await;
        assert_eq!(history["source"], "memory");
        accepted(&history).map(|rate| (rate, history))
    })
    .await;
    let read = until_some("there are rates in prometheus", SOON, async || {
        let history = by_prometheus.nobody().json(METRICS).await;
        (history["source"] == "prometheus").then_some(())?;
        accepted(&history).map(|rate| (rate, history))
    })
    .await;
    say(&format!("console: {:.1}/s in memory, {:.1}/s in prometheus", kept.0, read.0));
    let ratio = read.0 / kept.0;
    assert!((0.6..1.7).contains(&ratio), "{} in memory, {} in prometheus", kept.0, read.0);
    assert_eq!(read.1["problem"], Value::Null);
    for (name, part) in [
        ("memory_bytes", ""),
        ("settled_per_second", "http"),
        ("waiting", "http"),
        ("in_lanes", "http"),
        ("dead_letters", "http"),
        ("oldest_seconds", "http"),
        ("p99_seconds", "downstreamer"),
        ("concurrency", "downstreamer"),
        ("spilled", "receiver"),
    ] {
        assert!(!values(&read.1, name, part).is_empty(), "{name} of {part}: {}", read.1);
    }
    traffic.stop().await;

    let without_matchers = [VIEWER, ("PROMETHEUS_URL", url.as_str())];
    let of_both = ConsoleServer::start(&cell, &without_matchers).await;
    let history = of_both.nobody().json(METRICS).await;
    let problem = history["problem"].as_str().unwrap_or_default();
    assert!(problem.contains("has 2 cells") && history["source"] == "memory", "{history}");
    assert!(of_both.nobody().page("/").await.contains("has 2 cells"), "the page says it");

    by_prometheus.kill9();
    by_prometheus.restart();
    until("the console has its curves again", SOON, async || {
        let Some(answer) = by_prometheus.nobody().try_get(METRICS).await else { return false };
        let history: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let is_read = answer.status == 200 && history["source"] == "prometheus";
        is_read && accepted(&history).is_some()
    })
    .await;
    let page = by_prometheus.nobody().page("/?hours=168").await;
    assert!(page.contains("From Prometheus"), "{page}");
    drop(prometheus);
    until("what is in memory is shown", SOON, async || {
        let history = by_prometheus.nobody().json(METRICS).await;
        let problem = history["problem"].as_str().unwrap_or_default();
        history["source"] == "memory" && problem.contains(&url)
    })
    .await;
}
