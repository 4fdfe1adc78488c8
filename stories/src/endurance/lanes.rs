//! Data of the downstreamer's lanes in Redis, and what is left of it.

use crate::redis_server::RedisServer;
use crate::service::Service;

/// Keys that exist only while something waits outside the main stream or is partly settled.
const KEYS: [&str; 9] = [
    "{spillway}:http:chunks",
    "{spillway}:http:chunks:done",
    "{spillway}:http:lanes",
    "{spillway}:http:barriers",
    "{spillway}:http:leads",
    "{spillway}:http:retries",
    "{spillway}:http:retries:main",
    "{spillway}:http:done",
    "{spillway}:http:replays",
];

/// Returns the keys of this list that exist.
pub async fn left_over(redis: &RedisServer) -> Vec<&'static str> {
    let mut left = Vec::new();
    for key in KEYS {
        let count: u64 = redis.command(&["EXISTS", key]).await;
        left.extend((count > 0).then_some(key));
    }
    left
}

/// Memory that Redis uses for all its data.
pub async fn redis_bytes(redis: &RedisServer) -> u64 {
    let info: String = redis.command(&["INFO", "memory"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|bytes| bytes.trim().parse().ok()).expect("used_memory in INFO")
}

/// A gauge of the downstreamer; 0 if it is not shown.
pub async fn gauge(downstreamer: &Service, name: &str) -> f64 {
    downstreamer.metric(name).await.unwrap_or(0.0)
}
