//! How long scripts hold Redis, by its slow log.

use std::time::Duration;

use crate::redis_server::RedisServer;

/// Options of a Redis that logs each command of a millisecond and more.
pub const LOGGED: [&str; 4] = ["--slowlog-log-slower-than", "1000", "--slowlog-max-len", "100000"];
/// A key that only a settlement writes.
const SETTLED: &[u8] = b"spillway:http:settled";

/// The longest settlements since the log was read last, longest first.
#[derive(Clone, Debug, Default)]
pub struct Slowest {
    /// Settlements of a millisecond and more.
    pub settlements: Vec<Duration>,
    /// The longest other command, and what it was.
    pub other: (Duration, String),
}

impl Slowest {
    /// Reads the slow log and clears it.
    pub async fn take(redis: &RedisServer) -> Self {
        type Row = (u64, u64, u64, Vec<Vec<u8>>, String, String);
        let rows: Vec<Row> = redis.command(&["SLOWLOG", "GET", "-1"]).await;
        let _: String = redis.command(&["SLOWLOG", "RESET"]).await;
        let mut slowest = Self::default();
        for (_, _, micros, words, _, _) in rows {
            let took = Duration::from_micros(micros);
            if words.iter().any(|word| word == SETTLED) {
                slowest.settlements.push(took);
            } else if took > slowest.other.0 {
                let words = words.iter().take(5).map(|word| String::from_utf8_lossy(word));
                slowest.other = (took, words.collect::<Vec<_>>().join(" "));
            }
        }
        slowest.settlements.sort_unstable_by_key(|took| std::cmp::Reverse(*took));
        slowest
    }

    /// The longest settlement; a millisecond where none was as long.
    pub fn settlement(&self) -> Duration {
        self.settlements.first().copied().unwrap_or(Duration::from_millis(1))
    }
}
