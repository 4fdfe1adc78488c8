//! Scenario files: a backend, the changes that happen to it, and the expectations.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;

use crate::figure::Expectation;

/// Contents of one scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the file without its extension.
    #[serde(skip)]
    pub name: String,
    /// Description in one sentence.
    pub about: String,
    /// Duration.
    pub seconds: f64,
    /// Seeds. The scenario runs once with each.
    #[serde(default = "seeds")]
    pub seeds: Vec<u64>,
    /// Settings of the consumer.
    #[serde(default)]
    pub client: Client,
    /// Backend at the start.
    pub server: Server,
    /// Changes of the backend, in order.
    #[serde(default, rename = "change")]
    pub changes: Vec<Change>,
    /// Expectations for the downstreamer's algorithm, with every seed.
    #[serde(default, rename = "expect")]
    pub expectations: Vec<Expectation>,
}

/// Settings of the consumer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Client {
    /// `MIN_CONCURRENCY`.
    pub concurrency_min: usize,
    /// `MAX_CONCURRENCY`.
    pub concurrency_max: usize,
    /// `MAX_RATE`.
    pub rate_max: Option<f64>,
    /// `DELIVERY_TIMEOUT`.
    pub timeout_ms: f64,
    /// Interval at which it processes answers and sends, in milliseconds; 0 for at once.
    pub tick_ms: f64,
    /// Webhooks that arrive per second, at random times. Without it one always waits.
    pub offered: Option<f64>,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            concurrency_min: 1,
            concurrency_max: 512,
            rate_max: None,
            timeout_ms: 30_000.0,
            tick_ms: 0.0,
            offered: None,
        }
    }
}

/// Settings of the backend.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Number of requests that it processes at once.
    pub workers: f64,
    /// Mean processing time of a request.
    pub service_ms: f64,
    /// Distribution of the processing time.
    #[serde(default)]
    pub distribution: Distribution,
    /// Deviation of the logarithm of the processing time, if lognormal.
    #[serde(default = "sigma")]
    pub sigma: f64,
    /// Network time of a request and its answer together.
    #[serde(default)]
    pub network_ms: f64,
    /// Requests that may wait for a worker. Further ones are answered `full`. Without it there is
    /// no limit.
    pub queue_max: Option<usize>,
    /// Answer while the queue is full; 503 by default.
    #[serde(default = "unavailable")]
    pub full: Answer,
    /// Limit of requests per second. Further ones are answered 429.
    pub quota: Option<Quota>,
    /// Requests that end without processing.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Fault>,
    /// Random variation of the machine's speed.
    pub noise: Option<Noise>,
    /// Periodic variation of the capacity.
    pub drift: Option<Drift>,
    /// Handling of requests.
    #[serde(default)]
    pub mode: Mode,
    /// `Retry-After` of the answers 429 and 503, in seconds.
    pub retry_after_s: Option<f64>,
}

/// Distribution of the processing time of one request.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Constant time.
    #[default]
    Constant,
    /// Exponential, as in queueing theory.
    Exponential,
    /// Lognormal, as in most backends.
    Lognormal,
}

/// Handling of requests by the backend.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Processes requests.
    #[default]
    Serve,
    /// Accepts requests and never answers.
    Hang,
    /// Refuses connections.
    Refuse,
    /// Answers 503.
    Unavailable,
}

/// Hard limit of the rate.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Requests per second.
    pub per_second: f64,
    /// Requests that may arrive at once, as in a token bucket. With 0, each second is counted
    /// separately.
    pub burst: f64,
}

/// A fraction of the requests that ends at once.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Fraction of the requests.
    pub share: f64,
    /// Answer to these requests.
    pub answer: Answer,
}

/// End of a request.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// 200.
    Done,
    /// 500.
    Failed,
    /// 429.
    Overloaded,
    /// 503.
    Unavailable,
    /// Connection reset.
    Broken,
    /// The client's timeout.
    TimedOut,
}

/// Service times are multiplied by a factor in 1 ± `spread`. It is drawn every `period_ms`, or for
/// each request if that is 0.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Size of the variation; 0.3 is ± 30 %.
    pub spread: f64,
    /// Time for which a factor is valid.
    #[serde(default)]
    pub period_ms: f64,
}

/// Sinusoidal variation of the capacity.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// Size of the variation; 0.3 is ± 30 %.
    pub swing: f64,
    /// Time from one maximum to the next.
    pub period_s: f64,
    /// True if the service time varies instead of the number of workers.
    #[serde(default)]
    pub of_service: bool,
}

/// A change of the backend or of the load.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Time of the change, in seconds.
    pub at: f64,
    /// New number of workers.
    pub workers: Option<f64>,
    /// New mean processing time.
    pub service_ms: Option<f64>,
    /// New handling of requests.
    pub mode: Option<Mode>,
    /// New rate of arriving webhooks.
    pub offered: Option<f64>,
}

impl Scenario {
    /// Reads one scenario file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a scenario. The error names the file and the position.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut scenario: Self =
            toml::from_str(&text).with_context(|| path.display().to_string())?;
        scenario.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(scenario)
    }

    /// Reads all scenario files of a directory, sorted by name.
    ///
    /// # Errors
    /// As for [`Scenario::read`].
    pub fn read_all(directory: &Path) -> anyhow::Result<Vec<Self>> {
        let entries = std::fs::read_dir(directory)
            .with_context(|| directory.display().to_string())?
            .map(|entry| Ok(entry?.path()))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut paths: Vec<_> = entries
            .into_iter()
            .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
            .collect();
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// Duration of the scenario.
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

fn seeds() -> Vec<u64> {
    vec![1, 2, 3]
}

fn unavailable() -> Answer {
    Answer::Unavailable
}

fn sigma() -> f64 {
    0.5
}
