//! Scenario files: a backend, what happens to it, what is to be expected.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;

use crate::figure::Expectation;

/// One file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of its file, without the ending.
    #[serde(skip)]
    pub name: String,
    /// One sentence.
    pub about: String,
    /// How long it lasts.
    pub seconds: f64,
    /// It is run once with each.
    #[serde(default = "seeds")]
    pub seeds: Vec<u64>,
    /// The drain.
    #[serde(default)]
    pub client: Client,
    /// The backend at the beginning.
    pub server: Server,
    /// What happens to it, in order.
    #[serde(default, rename = "change")]
    pub changes: Vec<Change>,
    /// What must hold for our algorithm, with every seed.
    #[serde(default, rename = "expect")]
    pub expectations: Vec<Expectation>,
}

/// The drain, and what it is told.
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
    /// It looks at answers, and sends, only so often; 0 = at once.
    pub tick_ms: f64,
    /// Webhooks that come in a second, at random; without it there is always one waiting.
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

/// The backend.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Requests it works on at once.
    pub workers: f64,
    /// How long one takes on the average.
    pub service_ms: f64,
    /// How that varies.
    #[serde(default)]
    pub distribution: Distribution,
    /// Deviation of the logarithm, if lognormal.
    #[serde(default = "sigma")]
    pub sigma: f64,
    /// There and back.
    #[serde(default)]
    pub network_ms: f64,
    /// Requests that may wait for a worker; one more is answered `full`. Without it: any.
    pub queue_max: Option<usize>,
    /// 503, if nothing else is said.
    #[serde(default = "unavailable")]
    pub full: Answer,
    /// Requests a second; more are answered 429.
    pub quota: Option<Quota>,
    /// Requests that end without any work.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Fault>,
    /// How the machine itself varies.
    pub noise: Option<Noise>,
    /// How the capacity comes and goes.
    pub drift: Option<Drift>,
    /// What it does with requests.
    #[serde(default)]
    pub mode: Mode,
    /// The `Retry-After` of its 429 and 503.
    pub retry_after_s: Option<f64>,
}

/// How the time of one request varies.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Not.
    #[default]
    Constant,
    /// As of a queue's textbook.
    Exponential,
    /// As of most backends.
    Lognormal,
}

/// What the backend does with requests.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Works.
    #[default]
    Serve,
    /// Takes them and never answers: a black hole.
    Hang,
    /// Refuses the connection.
    Refuse,
    /// Answers 503.
    Unavailable,
}

/// A hard limit of the rate.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Requests.
    pub per_second: f64,
    /// How many may come at once, as of a token bucket. 0: counted anew each second instead.
    pub burst: f64,
}

/// A part of the requests that ends at once.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// How large a part.
    pub share: f64,
    /// How they end.
    pub answer: Answer,
}

/// How a request ends.
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
    /// Reset.
    Broken,
    /// By the client.
    TimedOut,
}

/// Service times are multiplied by a factor in 1 ± `spread`, drawn anew every `period_ms`, or for
/// each request if that is 0.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// 0.3 is ± 30 %.
    pub spread: f64,
    /// How long a factor holds.
    #[serde(default)]
    pub period_ms: f64,
}

/// The capacity swings like a sine.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// 0.3 is ± 30 %.
    pub swing: f64,
    /// From top to top.
    pub period_s: f64,
    /// By the time of each request, not the number of workers.
    #[serde(default)]
    pub of_service: bool,
}

/// Something happens to the backend.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// When, in seconds.
    pub at: f64,
    /// From then on.
    pub workers: Option<f64>,
    /// From then on.
    pub service_ms: Option<f64>,
    /// From then on.
    pub mode: Option<Mode>,
    /// Of the client, from then on.
    pub offered: Option<f64>,
}

impl Scenario {
    /// Reads one file.
    ///
    /// # Errors
    /// If it can't be read or isn't a scenario; says which and where.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut scenario: Self =
            toml::from_str(&text).with_context(|| path.display().to_string())?;
        scenario.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(scenario)
    }

    /// Reads all files of a directory, by name.
    ///
    /// # Errors
    /// As [`Scenario::read`].
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

    /// How long it lasts.
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
