//! Status of the queue for operators, read in one round trip that moves no pack.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use redis::{Script, Value};
use serde::Serialize;
use spillway_webhook::{ConsumerFilter, StreamId};

use crate::connect::{Connection, Redis};
use crate::consumers::ConsumerKind;
use crate::controls::{self, Pause};
use crate::error::QueueError;

/// Longer than a running leader is ever silent.
const SILENT_SECONDS: f64 = 10.0;

/// Status of the queue and its consumers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CellStatus {
    /// Main stream.
    pub queue: QueueStatus,
    /// All registered consumers.
    pub consumers: Vec<ConsumerStatus>,
    /// Redis' clock, in milliseconds since the Unix epoch.
    #[serde(skip)]
    pub now_ms: u64,
}

/// Status of the main stream.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QueueStatus {
    /// Entries not yet freed.
    pub packs: u64,
    /// Webhooks not yet freed.
    pub webhooks: u64,
    /// Memory that Redis uses.
    pub bytes: u64,
    /// Redis' `maxmemory`; 0 = none.
    pub limit_bytes: u64,
    /// Number of webhooks ever accepted.
    pub accepted: u64,
    /// Age of the oldest redaction that was delivered and is not carried out; `None` if there is none.
    pub oldest_redaction_age_seconds: Option<f64>,
}

/// Status of one consumer.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConsumerStatus {
    /// Name of the consumer.
    pub name: String,
    /// Webhooks that it has not settled, including parked ones.
    pub waiting: u64,
    /// Webhooks that it has settled, of all that were ever accepted. Parked ones count as settled
    /// here.
    pub settled: u64,
    /// Age of the oldest webhook that waits; `None` if none does.
    pub oldest_age_seconds: Option<f64>,
    /// Leader; `None` if there is none.
    pub leader: Option<LeaderStatus>,
    /// When a leader was last seen.
    #[serde(flatten)]
    pub last_seen: LastSeen,
    /// Webhooks that wait outside the main stream: in chunks of lanes, or for their replay.
    pub parked: u64,
    /// Totals of its dead letters.
    #[serde(flatten)]
    pub dead: DeadTotals,
    /// Cursor: entries up to here are settled.
    pub cursor: String,
    /// Pauses that an operator ordered.
    pub pauses: Vec<Pause>,
    /// Total number of webhooks dropped by an operator's order.
    pub dropped: u64,
    /// Notes that its leaders have published.
    #[serde(flatten)]
    pub notes: LeaderNotes,
}

/// Notes that the leaders of a consumer publish. They stay while none runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeaderNotes {
    /// Kind of the consumer; `None` if it never ran, or if its version does not write that.
    pub kind: Option<ConsumerKind>,
    /// Webhooks that it delivers. `None` counts as all: it never ran, its version does not write that,
    /// or it can't be read.
    pub filter: Option<ConsumerFilter>,
    /// Shares of its shops as they are stored, for [`large_shops`](crate::shares::large_shops);
    /// empty if no shop takes much.
    #[serde(skip)]
    pub shares: String,
}

/// Leader of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeaderStatus {
    /// Token of its lease.
    pub token: String,
    /// Process that has it; `None` if its version does not write that.
    #[serde(flatten)]
    pub instance: Option<LeaderInstance>,
}

/// Process of a leader.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeaderInstance {
    /// Name of its machine or container.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// Answer of its `/readyz` in one line. While it runs, it is at most a bump old.
    pub state: String,
}

/// When a consumer last had a leader.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LastSeen {
    /// Seconds since then; `None` if it never had one.
    #[serde(rename = "last_seen_seconds")]
    pub ago_seconds: Option<f64>,
    /// The time, in milliseconds since the Unix epoch; 0 if it never had one.
    #[serde(rename = "last_seen_ms")]
    pub at_ms: u64,
}

/// Totals of a consumer's dead letters.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DeadTotals {
    /// Number of dead letters.
    #[serde(rename = "dead_letters")]
    pub letters: u64,
    /// Bytes that they hold.
    #[serde(rename = "dead_bytes")]
    pub bytes: u64,
}

type QueueRow = (u64, String, String, String, String, String, String);
type ConsumerRow = (
    String,
    String,
    String,
    String,
    String,
    String,
    String,
    u64,
    String,
    u64,
    String,
    (HashMap<String, String>, String, InstanceRow),
);
/// Token, host, process id and state of a leader; kind and filter of the consumer.
type InstanceRow = (
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
);

/// Reads the status.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn read(redis: &Redis, connection: &mut Connection) -> Result<CellStatus, QueueError> {
    let keys = &redis.keys;
    let stream = keys.stream();
    let prefix = stream.strip_suffix("in").unwrap_or_default();
    let rows: Vec<Value> = Script::new(include_str!("lua/status.lua"))
        .key(&stream)
        .key(keys.counts())
        .key(keys.consumers())
        .key(keys.shares())
        .key(keys.redactions_noted())
        .arg(prefix)
        .invoke_async(connection)
        .await?;
    let mut rows = rows.into_iter();
    let unexpected = |error: redis::ParsingError| QueueError::Unexpected(error.to_string());
    let first = rows.next().ok_or_else(|| QueueError::Unexpected("no status".to_owned()))?;
    let (packs, appended, trimmed, used, limit, now, noted): QueueRow =
        redis::from_redis_value(first).map_err(unexpected)?;
    let appended = number(&appended);
    let now_ms = number(&now);
    let queue = QueueStatus {
        packs,
        webhooks: appended.saturating_sub(number(&trimmed)),
        bytes: number(&used),
        limit_bytes: number(&limit),
        accepted: appended,
        oldest_redaction_age_seconds: Some(number(&noted))
            .filter(|noted| *noted > 0)
            .map(|noted| age(now_ms, noted)),
    };
    let consumers = rows
        .map(|row| redis::from_redis_value(row).map(|row| consumer(row, appended, now_ms)))
        .collect::<Result<_, _>>()
        .map_err(unexpected)?;
    Ok(CellStatus { queue, consumers, now_ms })
}

fn consumer(row: ConsumerRow, appended: u64, now_ms: u64) -> ConsumerStatus {
    let (name, cursor, oldest, through, open, leader, seen, parked, aside, dead, bytes, last) = row;
    let (controls, shares, instance) = last;
    let kind = instance.4.as_deref().and_then(ConsumerKind::of_label);
    let filter = instance.5.as_deref().and_then(ConsumerFilter::from_json);
    let settled = number(&through) + number(&open);
    let main = oldest.parse::<StreamId>().ok().map(|id| id.ms);
    let set_aside = Some(number(&aside)).filter(|ms| *ms > 0);
    let oldest_ms = main.into_iter().chain(set_aside).min();
    let seen_ms = number(&seen);
    let ago_seconds = (seen_ms > 0).then(|| age(now_ms, seen_ms));
    ConsumerStatus {
        name,
        waiting: appended.saturating_sub(settled) + parked,
        settled,
        oldest_age_seconds: oldest_ms.map(|ms| age(now_ms, ms)),
        leader: leader.split_once(':').map(|(token, _)| LeaderStatus::new(token, instance)),
        last_seen: LastSeen { ago_seconds, at_ms: seen_ms },
        parked,
        dead: DeadTotals { letters: dead, bytes: number(&bytes) },
        cursor,
        pauses: controls::pauses(&controls),
        dropped: controls.get("dropped").map_or(0, |dropped| number(dropped)),
        notes: LeaderNotes { kind, filter, shares },
    }
}

impl LeaderStatus {
    /// An instance with another token is left from an earlier leader.
    fn new(token: &str, (writer, host, pid, state, ..): InstanceRow) -> Self {
        let pid = pid.and_then(|pid| pid.parse().ok());
        let known = host.zip(pid).zip(state);
        let instance = known.map(|((host, pid), state)| LeaderInstance { host, pid, state });
        let instance = instance.filter(|_| writer.as_deref() == Some(token));
        Self { token: token.to_owned(), instance }
    }
}

impl fmt::Display for LeaderStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.instance {
            Some(LeaderInstance { host, pid, .. }) => write!(f, "{host}:{pid}"),
            None => f.write_str(&self.token),
        }
    }
}

impl ConsumerStatus {
    /// True if there is a leader, and it was seen lately.
    pub fn has_live_leader(&self) -> bool {
        let is_silent = self.last_seen.ago_seconds.is_none_or(|seconds| seconds > SILENT_SECONDS);
        self.leader.is_some() && !is_silent
    }

    /// Program whose consumer it is. One that never ran is known by its name; `None` if that is the
    /// default of no program.
    pub fn kind(&self) -> Option<ConsumerKind> {
        self.notes.kind.or_else(|| ConsumerKind::of_default_name(&self.name))
    }

    /// True for the consumer of a Kafka producer.
    pub fn is_kafka(&self) -> bool {
        self.kind() == Some(ConsumerKind::KafkaProducer)
    }

    /// True if the consumer has lanes and a history, as far as its kind is known.
    pub fn has_lanes(&self) -> bool {
        self.kind().is_none_or(ConsumerKind::has_lanes)
    }

    /// True if the consumer delivers webhooks, as far as its kind is known. An archive does not.
    pub fn delivers(&self) -> bool {
        self.kind().is_none_or(ConsumerKind::delivers)
    }
}

fn age(now_ms: u64, then_ms: u64) -> f64 {
    Duration::from_millis(now_ms.saturating_sub(then_ms)).as_secs_f64()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}
