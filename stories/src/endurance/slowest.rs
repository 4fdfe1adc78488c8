//! Measures how long scripts block Redis, from its slow log.

use std::time::Duration;

use crate::redis_server::RedisServer;

/// Options of a Redis that logs every command of 1 ms or more.
pub const LOGGED: [&str; 4] = ["--slowlog-log-slower-than", "1000", "--slowlog-max-len", "100000"];
/// A key that only a settlement writes.
const SETTLED: &[u8] = b"{spillway}:http:settled";

/// The longest settlements since the log was last read, longest first.
#[derive(Clone, Debug, Default)]
pub struct Slowest {
    /// Settlements that took 1 ms or more.
    pub settlements: Vec<Duration>,
    /// Number of scripts that ran. Most of them are settlements.
    pub scripts: usize,
    /// The longest other command, and its text.
    pub other: (Duration, String),
}

impl Slowest {
    /// Reads the slow log and clears it.
    pub async fn take(redis: &RedisServer) -> Self {
        type Row = (u64, u64, u64, Vec<Vec<u8>>, String, String);
        let rows: Vec<Row> = redis.command(&["SLOWLOG", "GET", "-1"]).await;
        let _: String = redis.command(&["SLOWLOG", "RESET"]).await;
        let stats: String = redis.command(&["INFO", "commandstats"]).await;
        let _: String = redis.command(&["CONFIG", "RESETSTAT"]).await;
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = calls.and_then(|calls| calls.split(',').next()?.parse().ok());
        let mut slowest = Self { scripts: calls.unwrap_or(0), ..Self::default() };
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

    /// The longest settlement; 1 ms if none took as long.
    pub fn settlement(&self) -> Duration {
        self.nth(0)
    }

    /// The longest settlement, if one for every thousand scripts is ignored. When a hypervisor
    /// takes a core away for some milliseconds, the running script takes that much longer.
    pub fn usual_settlement(&self) -> Duration {
        self.nth(self.scripts / 1_000)
    }

    fn nth(&self, nth: usize) -> Duration {
        self.settlements.get(nth).copied().unwrap_or(Duration::from_millis(1))
    }
}
