//! Whether this Redis may be trusted with answered webhooks: its version, what it evicts, when it
//! syncs, how much memory and disk it has left.
//!
//! [`Facts`] are read, [`judge`] decides: a pure function, so that each rule is tested.

use std::collections::HashMap;
use std::path::Path;

use redis::cmd;

use crate::connect::{CONNECT_TIMEOUT, Connection, Redis};
use crate::error::QueueError;

/// The oldest Redis with script flags (`allow-oom`), ENTRIESREAD and a multi-part AOF.
pub const VERSION_MIN: (u32, u32) = (7, 0);
/// Under `appendfsync always` a full disk makes Redis exit: what must stay free for a rewrite of
/// the AOF (as large as the data) and some time to react.
const DISK_RESERVE_BYTES: u64 = 1 << 30;
/// One that was full must have this part of its memory free before it is used again.
const FULL_SPARE: u64 = 32;
/// What was read from Redis and from the disk below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Such as `7.0.15`.
    pub version: String,
    /// Bytes in use, and the limit (0 = none).
    pub used_bytes: u64,
    /// `maxmemory`.
    pub limit_bytes: u64,
    /// Such as `noeviction`.
    pub eviction_policy: String,
    /// Whether the AOF is on.
    pub aof_enabled: bool,
    /// When it syncs at all times: `always`, `everysec`, `no`, and `no` where rewrites keep it from that
    /// (`no-appendfsync-on-rewrite`); `None` where CONFIG is not permitted.
    pub fsync: Option<String>,
    /// Bytes of the AOF.
    pub aof_bytes: u64,
    /// Whether an AOF rewrite is under way or scheduled.
    pub is_rewriting: bool,
    /// AOF rewrites that failed since the last one that succeeded.
    pub rewrite_failures: u32,
    /// Whether the last write to the AOF failed.
    pub aof_write_failed: bool,
    /// Free bytes where the AOF lies; `None` where it isn't on this machine or can't be seen.
    pub disk_free_bytes: Option<u64>,
    /// Device of that disk.
    pub disk_device: Option<u64>,
}

/// The first AOF of a Redis that had it off. Once it is turned on, Redis says so at once, and writes what comes into a file
/// that is not read at a start until the first rewrite has ended.
#[derive(Debug, Default)]
pub struct FirstAof {
    is_awaited: bool,
}

impl FirstAof {
    /// Takes what a look has found. An AOF that isn't there yet is none.
    pub fn look(&mut self, facts: &mut Facts) {
        let has_ended = !facts.is_rewriting && facts.rewrite_failures == 0;
        self.is_awaited = !facts.aof_enabled || self.is_awaited && !has_ended;
        facts.aof_enabled &= !self.is_awaited;
    }
}

/// How hard an answered webhook is to lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No AOF, no fsync, or not known.
    None = 0,
    /// An fsync each second: up to 2 s of answered webhooks can be lost.
    EverySecond = 1,
    /// An fsync before each answer.
    Always = 2,
    /// Not seen here: the operator vouches for a service that keeps what it has answered.
    Vouched = 3,
}

/// What the operator asks of Redis' durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurabilityPolicy {
    /// A Redis that may lose what it has answered is refused.
    pub is_required: bool,
    /// The service is taken to be durable whatever its settings say, or hide.
    pub is_vouched: bool,
}

/// What follows from the facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Take webhooks.
    Usable {
        /// What an answered 200 is worth.
        durability: Durability,
        /// What the operator should know.
        warnings: Vec<&'static str>,
    },
    /// Answer 503 `queue_full` until there is room again.
    Full(&'static str),
    /// Answer 503 until an operator mended it; the sentence says how.
    Refused(String),
}

/// Reads the facts.
///
/// # Errors
/// [`QueueError`] from Redis; CONFIG being forbidden is none.
pub async fn read(redis: &Redis, connection: &mut Connection) -> Result<Facts, QueueError> {
    let info: String = cmd("INFO").query_async(connection).await?;
    let info: HashMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    // CONFIG takes several patterns at once from 7.0 on only; one by one works on any version, so
    // that an old one can be named.
    let config = async |connection: &mut Connection, name: &str| {
        match cmd("CONFIG").arg("GET").arg(name).query_async::<Vec<String>>(connection).await {
            Ok(pairs) => Ok(pairs.into_iter().nth(1)),
            // Redis said no, rather than nothing.
            Err(refused) if refused.code().is_some() => Ok(None),
            Err(error) => Err(QueueError::from(error)),
        }
    };
    let number = |name: &str| info.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
    let flag = |name: &str| info.get(name).is_some_and(|value| *value == "1");
    let is_not_ok = |name: &str| info.get(name).is_some_and(|status| *status != "ok");
    let mut fsync = config(connection, "appendfsync").await?;
    if config(connection, "no-appendfsync-on-rewrite").await?.as_deref() == Some("yes") {
        fsync = Some("no".to_owned());
    }
    let directory = config(connection, "dir").await?.filter(|_| redis.is_local());
    let directory = directory.as_deref().map(Path::new);
    Ok(Facts {
        version: info.get("redis_version").copied().unwrap_or_default().to_owned(),
        used_bytes: number("used_memory"),
        limit_bytes: number("maxmemory"),
        eviction_policy: info.get("maxmemory_policy").copied().unwrap_or_default().to_owned(),
        aof_enabled: flag("aof_enabled"),
        fsync,
        aof_bytes: number("aof_current_size"),
        is_rewriting: flag("aof_rewrite_in_progress") || flag("aof_rewrite_scheduled"),
        // The count has none that could not be forked for; the status has.
        rewrite_failures: u32::try_from(number("aof_rewrites_consecutive_failures"))
            .unwrap_or(u32::MAX)
            .max(is_not_ok("aof_last_bgrewrite_status").into()),
        aof_write_failed: is_not_ok("aof_last_write_status"),
        disk_free_bytes: directory.and_then(disk_free_bytes),
        disk_device: directory.and_then(|path| Some(rustix::fs::stat(path).ok()?.st_dev)),
    })
}

/// Redis' own clock, in milliseconds since the Unix epoch.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn clock_ms(connection: &mut Connection) -> Result<u64, QueueError> {
    let (seconds, micros): (u64, u64) = cmd("TIME").query_async(connection).await?;
    Ok(seconds * 1000 + micros / 1000)
}

/// Asks Redis for a sign of life, which it does not give while it is loading its data (INFO and
/// CONFIG are answered even then).
///
/// # Errors
/// [`QueueError::Loading`] while it loads; any other from Redis.
pub async fn ping(connection: &mut Connection) -> Result<(), QueueError> {
    Ok(cmd("PING").query_async(connection).await?)
}

/// Whether Redis is there and has its data loaded.
///
/// # Errors
/// As of [`Redis::connect`] and [`ping`].
pub async fn reach(redis: &Redis) -> Result<(), QueueError> {
    ping(&mut redis.connect(Some(CONNECT_TIMEOUT)).await?).await
}

/// What follows from the facts. A Redis that `was_full` is usable again once it has room to spare:
/// at the brim, small packs would still fit and large ones not.
pub fn judge(facts: &Facts, policy: DurabilityPolicy, was_full: bool) -> Verdict {
    if let Some(refusal) = refusal(facts, policy) {
        return Verdict::Refused(refusal);
    }
    let spare_bytes = if was_full { facts.limit_bytes / FULL_SPARE } else { 0 };
    if facts.limit_bytes > 0 && facts.used_bytes + spare_bytes >= facts.limit_bytes {
        return Verdict::Full("redis has reached its maxmemory");
    }
    if is_disk_short(facts) {
        return Verdict::Full("the disk below the AOF has less free than a rewrite of it needs");
    }
    if facts.aof_write_failed {
        return Verdict::Full("redis cannot write to its AOF");
    }
    let durability = durability(facts, policy.is_vouched);
    let mut warnings = Vec::new();
    if facts.limit_bytes == 0 {
        warnings.push("maxmemory is 0: a flood can make the machine run out of memory; set it");
    }
    if durability < Durability::Always {
        warnings.push(
            "a crash of redis can lose answered webhooks: set appendonly yes, appendfsync always and \
             no-appendfsync-on-rewrite no",
        );
    }
    Verdict::Usable { durability, warnings }
}

/// Whether the disk below the AOF is all that keeps Redis from taking more.
pub fn is_short_of_disk_only(facts: &Facts) -> bool {
    let is_memory_left = facts.limit_bytes == 0 || facts.used_bytes < facts.limit_bytes;
    is_disk_short(facts) && is_memory_left && !facts.aof_write_failed
}

/// With less than this free below the AOF, webhooks are refused.
pub fn disk_needed_bytes(facts: &Facts) -> u64 {
    facts.used_bytes + DISK_RESERVE_BYTES
}

/// What an answered 200 is worth under these settings.
pub fn durability(facts: &Facts, is_vouched: bool) -> Durability {
    if is_vouched {
        return Durability::Vouched;
    }
    match (facts.aof_enabled, facts.fsync.as_deref()) {
        (true, Some("always")) => Durability::Always,
        (true, Some("everysec")) => Durability::EverySecond,
        _ => Durability::None,
    }
}

fn refusal(facts: &Facts, policy: DurabilityPolicy) -> Option<String> {
    let mut parts = facts.version.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < VERSION_MIN {
        return Some(format!(
            "redis {} is too old: {}.{} or newer is needed",
            facts.version, VERSION_MIN.0, VERSION_MIN.1
        ));
    }
    if facts.eviction_policy != "noeviction" {
        return Some(format!(
            "redis would evict webhooks under maxmemory-policy {}: set maxmemory-policy noeviction",
            facts.eviction_policy
        ));
    }
    if policy.is_required && durability(facts, policy.is_vouched) < Durability::Always {
        return Some(
            "redis does not sync before it answers, and may lose answered webhooks: set appendonly yes, \
             appendfsync always and no-appendfsync-on-rewrite no; or REDIS_DURABILITY=vouched for a service that keeps a durable log of \
             its own; or REQUIRE_DURABLE=false to take that loss"
                .to_owned(),
        );
    }
    None
}

/// True if less is free below the AOF than [`disk_needed_bytes`].
pub(crate) fn is_disk_short(facts: &Facts) -> bool {
    let needed = disk_needed_bytes(facts);
    facts.aof_enabled && facts.disk_free_bytes.is_some_and(|free| free < needed)
}

fn disk_free_bytes(directory: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const STRICT: DurabilityPolicy =
        DurabilityPolicy { is_required: true, is_vouched: false };
    pub(crate) const LENIENT: DurabilityPolicy =
        DurabilityPolicy { is_required: false, is_vouched: false };

    pub(crate) fn good() -> Facts {
        Facts {
            version: "7.0.15".to_owned(),
            used_bytes: 10 << 20,
            limit_bytes: 1 << 30,
            eviction_policy: "noeviction".to_owned(),
            aof_enabled: true,
            fsync: Some("always".to_owned()),
            aof_bytes: 20 << 20,
            disk_free_bytes: Some(100 << 30),
            ..Facts::default()
        }
    }

    fn usable(durability: Durability, warnings: usize) -> impl Fn(Verdict) -> bool {
        move |verdict| match verdict {
            Verdict::Usable { durability: d, warnings: w } => {
                (d, w.len()) == (durability, warnings)
            }
            Verdict::Full(_) | Verdict::Refused(_) => false,
        }
    }

    #[test]
    fn a_redis_as_ours_is_usable_without_a_warning() {
        assert!(usable(Durability::Always, 0)(judge(&good(), STRICT, false)));
    }

    #[test]
    fn too_old_or_evicting_is_refused_and_says_what_to_set() {
        let old = Facts { version: "6.2.7".to_owned(), ..good() };
        assert!(
            matches!(judge(&old, LENIENT, false), Verdict::Refused(why) if why.contains("7.0"))
        );
        let evicting = Facts { eviction_policy: "allkeys-lru".to_owned(), ..good() };
        assert!(
            matches!(judge(&evicting, LENIENT, false), Verdict::Refused(why) if why.contains("noeviction"))
        );
        let newer = Facts { version: "8.10.0".to_owned(), ..good() };
        assert!(usable(Durability::Always, 0)(judge(&newer, LENIENT, false)));
    }

    #[test]
    fn less_durable_is_a_warning_or_refused() {
        let everysec = Facts { fsync: Some("everysec".to_owned()), ..good() };
        assert!(usable(Durability::EverySecond, 1)(judge(&everysec, LENIENT, false)));
        assert!(matches!(judge(&everysec, STRICT, false), Verdict::Refused(_)));
        let unknown = Facts { fsync: None, limit_bytes: 0, ..good() };
        assert!(usable(Durability::None, 2)(judge(&unknown, LENIENT, false)));
        let off = Facts { aof_enabled: false, ..good() };
        assert!(usable(Durability::None, 1)(judge(&off, LENIENT, false)));
        let vouched = DurabilityPolicy { is_vouched: true, ..STRICT };
        for facts in [everysec, off] {
            assert!(usable(Durability::Vouched, 0)(judge(&facts, vouched, false)));
        }
    }

    #[test]
    fn an_aof_that_is_turned_on_is_there_after_its_first_rewrite() {
        let mut first = FirstAof::default();
        let mut look = |aof_enabled, is_rewriting, rewrite_failures| {
            let mut facts = Facts { aof_enabled, is_rewriting, rewrite_failures, ..good() };
            first.look(&mut facts);
            facts.aof_enabled
        };
        // One that was never seen off is rewritten as usual.
        assert!(look(true, true, 0) && look(true, false, 0) && look(true, false, 3));
        assert!(!look(false, false, 0));
        assert!(!look(true, true, 0), "the first rewrite is under way");
        assert!(!look(true, false, 1), "it failed");
        assert!(!look(true, true, 1), "and is tried again");
        assert!(look(true, false, 0) && look(true, true, 0) && look(true, false, 1));
    }

    #[test]
    fn memory_and_disk_are_full_before_they_are() {
        let memory = Facts { used_bytes: 1 << 30, ..good() };
        assert!(matches!(judge(&memory, LENIENT, false), Verdict::Full(_)));
        let brim = Facts { used_bytes: (1 << 30) - (1 << 20), ..good() };
        assert!(matches!(judge(&brim, LENIENT, true), Verdict::Full(_)));
        assert!(usable(Durability::Always, 0)(judge(&brim, LENIENT, false)));
        let disk = Facts { disk_free_bytes: Some(1 << 30), ..good() };
        assert!(matches!(judge(&disk, LENIENT, false), Verdict::Full(_)));
        let broken = Facts { aof_write_failed: true, ..good() };
        assert!(matches!(judge(&broken, LENIENT, false), Verdict::Full(_)));
    }
}
