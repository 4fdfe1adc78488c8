//! Health checks of Redis, which decide if webhooks may be stored in it. They cover its version,
//! its eviction policy, its fsync policy, and the memory and disk that it has left.
//!
//! [`read`] collects the [`RedisInfo`], [`judge`] decides. `judge` is a pure function, so that each
//! rule is tested.

use std::collections::HashMap;
use std::path::PathBuf;

use redis::cmd;

use crate::aof_disk::{AofDisk, DiskFacts};
use crate::connect::{CONNECT_TIMEOUT, Connection, Redis};
use crate::error::QueueError;

/// Oldest Redis with script flags (`allow-oom`), ENTRIESREAD and a multi-part AOF.
pub const VERSION_MIN: (u32, u32) = (7, 0);
/// Disk space that must stay free beyond what a rewrite of the AOF needs, which is the size of the
/// data. It gives time to react: under `appendfsync always`, a full disk makes Redis exit.
const DISK_RESERVE_BYTES: u64 = 1 << 30;
/// A Redis that was full is used again once 1/32 of its `maxmemory` is free.
const FULL_SPARE: u64 = 32;
/// Facts about Redis and about the disk that holds its AOF.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisInfo {
    /// Version, such as `7.0.15`.
    pub version: String,
    /// Memory in use, in bytes.
    pub used_bytes: u64,
    /// `maxmemory` in bytes; 0 = none.
    pub limit_bytes: u64,
    /// Eviction policy, such as `noeviction`.
    pub eviction_policy: String,
    /// True if the AOF is on.
    pub aof_enabled: bool,
    /// Fsync policy: `always`, `everysec` or `no`. Also `no` if `no-appendfsync-on-rewrite` stops
    /// syncing during rewrites. `None` if CONFIG is not permitted.
    pub fsync: Option<String>,
    /// Size of the AOF.
    pub aof_bytes: u64,
    /// True while an AOF rewrite runs or is scheduled.
    pub is_rewriting: bool,
    /// Number of AOF rewrites that failed since the last one that succeeded.
    pub rewrite_failures: u32,
    /// True if the last write to the AOF failed.
    pub aof_write_failed: bool,
    /// Free bytes on the disk of the AOF. `None` if it is on another machine or cannot be read.
    pub disk_free_bytes: Option<u64>,
    /// Device number of that disk.
    pub disk_device: Option<u64>,
}

/// Tracks the first AOF of a Redis that ran without one. Once the AOF is turned on, Redis reports
/// it as enabled. Until the first rewrite has ended, it writes to a file that is not read at a
/// start.
#[derive(Debug, Default)]
pub struct FirstAof {
    is_awaited: bool,
}

impl FirstAof {
    /// Applies the tracking to new facts: an AOF whose first rewrite has not ended counts as off.
    pub fn look(&mut self, facts: &mut RedisInfo) {
        let has_ended = !facts.is_rewriting && facts.rewrite_failures == 0;
        self.is_awaited = !facts.aof_enabled || self.is_awaited && !has_ended;
        facts.aof_enabled &= !self.is_awaited;
    }
}

/// Durability of an answered webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No AOF, no fsync, or unknown.
    None = 0,
    /// An fsync each second: a crash can lose up to 2 s of answered webhooks.
    EverySecond = 1,
    /// An fsync before each answer.
    Always = 2,
    /// Not checked: the operator vouches for a service that keeps everything that it answered.
    Vouched = 3,
}

/// Durability that the operator requires of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurabilityPolicy {
    /// A Redis that may lose answered webhooks is refused.
    pub is_required: bool,
    /// The service counts as durable, whatever its settings are.
    pub is_vouched: bool,
}

/// Conclusion from the facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthVerdict {
    /// Accept webhooks.
    Usable {
        /// Durability of an answered 200.
        durability: Durability,
        /// Warnings for the operator.
        warnings: Vec<&'static str>,
    },
    /// Answer 503 `queue_full` until there is room again. Holds the reason.
    Full(&'static str),
    /// Answer 503 until an operator fixes the cause. The sentence names the fix.
    Refused(String),
}

/// Reads the facts from Redis and from the local disk. While `disk` hangs, its facts are those of the
/// last look.
///
/// # Errors
/// [`QueueError`] from Redis. A forbidden CONFIG is no error.
pub async fn read(
    redis: &Redis,
    connection: &mut Connection,
    disk: &mut AofDisk,
) -> Result<RedisInfo, QueueError> {
    let info: String = cmd("INFO").query_async(connection).await?;
    let info: HashMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    // CONFIG takes several patterns at once only since 7.0. One by one works on any version, so
    // that an old one can be reported.
    let config = async |connection: &mut Connection, name: &str| {
        match cmd("CONFIG").arg("GET").arg(name).query_async::<Vec<String>>(connection).await {
            Ok(pairs) => Ok(pairs.into_iter().nth(1)),
            // Redis answered with an error: the command is refused.
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
    let disk = match directory {
        Some(directory) => disk.look(PathBuf::from(directory)).await,
        None => DiskFacts::default(),
    };
    Ok(RedisInfo {
        version: info.get("redis_version").copied().unwrap_or_default().to_owned(),
        used_bytes: number("used_memory"),
        limit_bytes: number("maxmemory"),
        eviction_policy: info.get("maxmemory_policy").copied().unwrap_or_default().to_owned(),
        aof_enabled: flag("aof_enabled"),
        fsync,
        aof_bytes: number("aof_current_size"),
        is_rewriting: flag("aof_rewrite_in_progress") || flag("aof_rewrite_scheduled"),
        // The counter leaves out rewrites for which the fork failed. The status includes them.
        rewrite_failures: u32::try_from(number("aof_rewrites_consecutive_failures"))
            .unwrap_or(u32::MAX)
            .max(is_not_ok("aof_last_bgrewrite_status").into()),
        aof_write_failed: is_not_ok("aof_last_write_status"),
        disk_free_bytes: disk.free_bytes,
        disk_device: disk.device,
    })
}

/// Returns the time of Redis' clock, in milliseconds since the Unix epoch.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn clock_ms(connection: &mut Connection) -> Result<u64, QueueError> {
    let (seconds, micros): (u64, u64) = cmd("TIME").query_async(connection).await?;
    Ok(seconds * 1000 + micros / 1000)
}

/// Sends a PING. Redis refuses it while it loads its data; INFO and CONFIG are answered even then.
///
/// # Errors
/// [`QueueError::Loading`] while it loads; any other from Redis.
pub async fn ping(connection: &mut Connection) -> Result<(), QueueError> {
    Ok(cmd("PING").query_async(connection).await?)
}

/// Checks that Redis is reachable and has loaded its data.
///
/// # Errors
/// As for [`Redis::connect`] and [`ping`].
pub async fn reach(redis: &Redis) -> Result<(), QueueError> {
    ping(&mut redis.connect(Some(CONNECT_TIMEOUT)).await?).await
}

/// Decides if Redis may be used. A Redis that `was_full` is usable again only when it has some
/// spare room: without that, small packs would still fit and large ones would not.
pub fn judge(facts: &RedisInfo, policy: DurabilityPolicy, was_full: bool) -> HealthVerdict {
    if let Some(refusal) = refusal(facts, policy) {
        return HealthVerdict::Refused(refusal);
    }
    let spare_bytes = if was_full { facts.limit_bytes / FULL_SPARE } else { 0 };
    if facts.limit_bytes > 0 && facts.used_bytes + spare_bytes >= facts.limit_bytes {
        return HealthVerdict::Full("redis has reached its maxmemory");
    }
    if is_disk_short(facts) {
        return HealthVerdict::Full(
            "the disk that holds the AOF has too little free space for an AOF rewrite",
        );
    }
    if facts.aof_write_failed {
        return HealthVerdict::Full("redis cannot write to its AOF");
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
    HealthVerdict::Usable { durability, warnings }
}

/// True if the disk of the AOF is the only reason why Redis takes no more.
pub fn is_short_of_disk_only(facts: &RedisInfo) -> bool {
    let is_memory_left = facts.limit_bytes == 0 || facts.used_bytes < facts.limit_bytes;
    is_disk_short(facts) && is_memory_left && !facts.aof_write_failed
}

/// Free space that the disk of the AOF needs. With less, webhooks are refused.
pub fn disk_needed_bytes(facts: &RedisInfo) -> u64 {
    facts.used_bytes + DISK_RESERVE_BYTES
}

/// Durability of an answered 200 under these settings.
pub fn durability(facts: &RedisInfo, is_vouched: bool) -> Durability {
    if is_vouched {
        return Durability::Vouched;
    }
    match (facts.aof_enabled, facts.fsync.as_deref()) {
        (true, Some("always")) => Durability::Always,
        (true, Some("everysec")) => Durability::EverySecond,
        _ => Durability::None,
    }
}

fn refusal(facts: &RedisInfo, policy: DurabilityPolicy) -> Option<String> {
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
             its own; or REQUIRE_DURABLE=false to accept that loss"
                .to_owned(),
        );
    }
    None
}

/// True if less is free below the AOF than [`disk_needed_bytes`].
pub(crate) fn is_disk_short(facts: &RedisInfo) -> bool {
    let needed = disk_needed_bytes(facts);
    facts.aof_enabled && facts.disk_free_bytes.is_some_and(|free| free < needed)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const STRICT: DurabilityPolicy =
        DurabilityPolicy { is_required: true, is_vouched: false };
    pub(crate) const LENIENT: DurabilityPolicy =
        DurabilityPolicy { is_required: false, is_vouched: false };

    pub(crate) fn good() -> RedisInfo {
        RedisInfo {
            version: "7.0.15".to_owned(),
            used_bytes: 10 << 20,
            limit_bytes: 1 << 30,
            eviction_policy: "noeviction".to_owned(),
            aof_enabled: true,
            fsync: Some("always".to_owned()),
            aof_bytes: 20 << 20,
            disk_free_bytes: Some(100 << 30),
            ..RedisInfo::default()
        }
    }

    fn usable(durability: Durability, warnings: usize) -> impl Fn(HealthVerdict) -> bool {
        move |verdict| match verdict {
            HealthVerdict::Usable { durability: d, warnings: w } => {
                (d, w.len()) == (durability, warnings)
            }
            HealthVerdict::Full(_) | HealthVerdict::Refused(_) => false,
        }
    }

    #[test]
    fn a_redis_as_ours_is_usable_without_a_warning() {
        assert!(usable(Durability::Always, 0)(judge(&good(), STRICT, false)));
    }

    #[test]
    fn too_old_or_evicting_is_refused_and_says_what_to_set() {
        let old = RedisInfo { version: "6.2.7".to_owned(), ..good() };
        assert!(
            matches!(judge(&old, LENIENT, false), HealthVerdict::Refused(why) if why.contains("7.0"))
        );
        let evicting = RedisInfo { eviction_policy: "allkeys-lru".to_owned(), ..good() };
        assert!(
            matches!(judge(&evicting, LENIENT, false), HealthVerdict::Refused(why) if why.contains("noeviction"))
        );
        let newer = RedisInfo { version: "8.10.0".to_owned(), ..good() };
        assert!(usable(Durability::Always, 0)(judge(&newer, LENIENT, false)));
    }

    #[test]
    fn less_durable_is_a_warning_or_refused() {
        let everysec = RedisInfo { fsync: Some("everysec".to_owned()), ..good() };
        assert!(usable(Durability::EverySecond, 1)(judge(&everysec, LENIENT, false)));
        assert!(matches!(judge(&everysec, STRICT, false), HealthVerdict::Refused(_)));
        let unknown = RedisInfo { fsync: None, limit_bytes: 0, ..good() };
        assert!(usable(Durability::None, 2)(judge(&unknown, LENIENT, false)));
        let off = RedisInfo { aof_enabled: false, ..good() };
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
            let mut facts = RedisInfo { aof_enabled, is_rewriting, rewrite_failures, ..good() };
            first.look(&mut facts);
            facts.aof_enabled
        };
        // An AOF that was never seen off is rewritten as usual.
        assert!(look(true, true, 0) && look(true, false, 0) && look(true, false, 3));
        assert!(!look(false, false, 0));
        assert!(!look(true, true, 0), "the first rewrite is under way");
        assert!(!look(true, false, 1), "it failed");
        assert!(!look(true, true, 1), "and is tried again");
        assert!(look(true, false, 0) && look(true, true, 0) && look(true, false, 1));
    }

    #[test]
    fn memory_and_disk_are_full_before_they_are() {
        let memory = RedisInfo { used_bytes: 1 << 30, ..good() };
        assert!(matches!(judge(&memory, LENIENT, false), HealthVerdict::Full(_)));
        let brim = RedisInfo { used_bytes: (1 << 30) - (1 << 20), ..good() };
        assert!(matches!(judge(&brim, LENIENT, true), HealthVerdict::Full(_)));
        assert!(usable(Durability::Always, 0)(judge(&brim, LENIENT, false)));
        let disk = RedisInfo { disk_free_bytes: Some(1 << 30), ..good() };
        assert!(matches!(judge(&disk, LENIENT, false), HealthVerdict::Full(_)));
        let broken = RedisInfo { aof_write_failed: true, ..good() };
        assert!(matches!(judge(&broken, LENIENT, false), HealthVerdict::Full(_)));
    }
}
