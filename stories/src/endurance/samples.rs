//! Samples of a cell while a measurement runs: the main stream, the lanes, memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::get;
use crate::endurance::record::Record;
use crate::redis_server::connect;
use crate::service::sample;

const EVERY: Duration = Duration::from_secs(1);
const QUEUE: &str = "{spillway}:in";
/// Sampled gauges of the downstreamer, and their names in the results.
const GAUGES: [(&str, &str); 5] = [
    ("spillway_index_bytes", "index_bytes"),
    ("spillway_lane_webhooks", "lane_webhooks"),
    ("spillway_lanes_blocked", "lanes_blocked"),
    ("process_resident_memory_bytes", "resident_bytes"),
    ("spillway_concurrency_limit", "concurrency_limit"),
];

/// One sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time since the record began.
    pub at: Duration,
    /// Entries of the main stream.
    pub packs: u64,
    /// Size of the main stream in Redis, in bytes.
    pub stream_bytes: u64,
    /// Packs appended so far.
    pub appended: u64,
    /// Gauges by name; empty while the downstreamer does not answer.
    pub gauges: Vec<(&'static str, f64)>,
}

/// Takes samples until dropped.
#[derive(Debug)]
pub struct Sampler {
    samples: Arc<Mutex<Vec<Sample>>>,
    task: JoinHandle<()>,
}

impl Sampler {
    /// Starts to sample a Redis, and the downstreamer with this admin address.
    pub fn start(socket: PathBuf, admin: SocketAddr, record: Arc<Record>) -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&samples);
        let task = tokio::spawn(async move {
            let mut redis = connect(&socket).await.expect("redis is there");
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let sample = look(&mut redis, admin, &record).await;
                taken.lock().expect("no sampler panicked").push(sample);
            }
        });
        Self { samples, task }
    }

    /// Stops and returns the samples.
    pub fn stop(self) -> Vec<Sample> {
        self.samples.lock().expect("no sampler panicked").clone()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sample {
    /// Value of a gauge.
    pub fn gauge(&self, name: &str) -> Option<f64> {
        self.gauges.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    /// The sample as JSON for the results.
    pub fn value(&self) -> Value {
        let mut value = json!({
            "at": self.at.as_secs_f64(), "packs": self.packs, "stream_bytes": self.stream_bytes,
            "appended": self.appended,
        });
        for (name, gauge) in &self.gauges {
            value[*name] = json!(gauge);
        }
        value
    }
}

/// Largest value of these samples; 0 if there are none.
pub fn largest(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> f64 {
    samples.iter().filter_map(value).fold(0.0, f64::max)
}

async fn look(redis: &mut MultiplexedConnection, admin: SocketAddr, record: &Record) -> Sample {
    let mut pipe = redis::pipe();
    pipe.cmd("XLEN").arg(QUEUE).cmd("MEMORY").arg("USAGE").arg(QUEUE);
    let (packs, stream_bytes): (u64, Option<u64>) =
        pipe.query_async(redis).await.expect("redis answers");
    let page = get(admin, "/metrics").await.map(|answer| answer.text()).unwrap_or_default();
    let gauge = |(name, short): (&str, &'static str)| {
        let value = page.lines().find_map(|line| sample(line, name))?;
        Some((short, value))
    };
    Sample {
        at: record.elapsed(),
        packs,
        stream_bytes: stream_bytes.unwrap_or(0),
        appended: appended(redis).await,
        gauges: GAUGES.into_iter().filter_map(gauge).collect(),
    }
}

async fn appended(redis: &mut MultiplexedConnection) -> u64 {
    let info: redis::RedisResult<std::collections::HashMap<String, redis::Value>> =
        redis::cmd("XINFO").arg("STREAM").arg(QUEUE).query_async(redis).await;
    let added = info.ok().and_then(|info| match info.get("entries-added") {
        Some(redis::Value::Int(added)) => u64::try_from(*added).ok(),
        _ => None,
    });
    added.unwrap_or(0)
}
