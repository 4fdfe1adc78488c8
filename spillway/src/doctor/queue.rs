//! Checks Redis, its disk, its clock and its consumers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillway_queue::consumers::cell;
use spillway_queue::health::{self, Durability, DurabilityPolicy, HealthVerdict, RedisInfo};
use spillway_queue::shares;
use spillway_queue::status::{self, CellStatus, ConsumerStatus};
use spillway_queue::{AofDisk, Connection, QueueError, Redis};
use spillway_webhook::ConsumerFilter;

use super::compliance;
use super::finding::Finding;
use crate::failure::Failure;
use crate::out::{age, count, size};
use crate::place::CellArgs;
use crate::socket::Denial;

/// Policy that refuses nothing: findings are reported whatever the receivers are set to refuse.
const MEASURED: DurabilityPolicy = DurabilityPolicy { is_required: false, is_vouched: false };

const PATIENCE: Duration = Duration::from_secs(5);
/// Clock difference that is a warning. Ages and leases are computed from two clocks, so ages
/// mislead above this.
const CLOCK_SKEW_WARNING_MS: u64 = 2_000;
/// Clock difference that is a problem: above this default of `MAX_CLOCK_SKEW`, fresh webhooks can
/// be refused.
const CLOCK_SKEW_PROBLEM_MS: u64 = 3_600_000;
/// Free disk space that the receiver requires in addition to the memory in use.
const DISK_SPARE_BYTES: u64 = 1 << 30;
/// Percentage of `maxmemory` from which a shop is reported, a little below the default of
/// `SHOP_MAX_QUEUED`.
const LARGE_SHOP_PERCENT: u128 = 45;

/// Age of the oldest webhook from which a consumer is far behind, and up to which one is in time.
const BEHIND_SECONDS: f64 = 3600.0;
const IN_TIME_SECONDS: f64 = 300.0;

/// The queue as it was found. Without an answer of Redis, there are findings alone.
#[derive(Debug, Default)]
pub(super) struct ExaminedQueue {
    /// Findings about Redis and the consumers.
    pub findings: Vec<Finding>,
    /// Registered consumers.
    pub consumers: Vec<ConsumerStatus>,
    /// Id of the cell, if it has one yet.
    pub cell: Option<u32>,
    /// Age of the oldest redaction that was delivered and is not carried out, if there is one.
    pub oldest_redaction_seconds: Option<f64>,
    /// Redis' clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// Checks the queue.
pub(super) async fn examine(
    place: &CellArgs,
    spill_dir: Option<&Path>,
) -> Result<ExaminedQueue, Failure> {
    let redis = place.redis()?;
    Ok(match examine_reachable(&redis, spill_dir).await {
        Ok(found) => found,
        Err(error) => {
            let finding = match place.unconnected(error) {
                Failure::Denied(Denial { what, fix }) => Finding::problem(what, fix),
                other => {
                    let fix = "start Redis (ops/redis.conf), and check REDIS_URL";
                    Finding::problem(other.to_string(), fix)
                }
            };
            ExaminedQueue { findings: vec![finding], ..ExaminedQueue::default() }
        }
    })
}

async fn examine_reachable(
    redis: &Redis,
    spill_dir: Option<&Path>,
) -> Result<ExaminedQueue, QueueError> {
    let mut connection = redis.connect(Some(PATIENCE)).await?;
    let facts = health::read(redis, &mut connection, &mut AofDisk::default()).await?;
    let mut findings = redis_findings(&facts);
    findings.push(disk(&facts, redis.is_local()));
    findings.extend(spill_dir.and_then(|directory| spill_disk(&facts, directory)));
    findings.push(clock(&mut connection).await?);
    let status = status::read(redis, &mut connection).await?;
    let cell = cell(redis, &mut connection).await?;
    findings.extend(consumers(&status.consumers));
    findings.extend(held_back(&status.consumers));
    findings.extend(unmatched(&status.consumers));
    findings.extend(compliance::examine(&status.consumers));
    findings.extend(large_shops(&status));
    Ok(ExaminedQueue {
        findings,
        cell,
        oldest_redaction_seconds: status.queue.oldest_redaction_age_seconds,
        now_ms: status.now_ms,
        consumers: status.consumers,
    })
}

fn redis_findings(facts: &RedisInfo) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(format!("redis {} answers", facts.version))];
    match health::judge(facts, MEASURED, false) {
        HealthVerdict::Refused(why) => {
            let fix = "until then the receiver answers 503; ops/redis.conf has it right";
            findings.push(Finding::problem(why, fix));
        }
        HealthVerdict::Full(why) => {
            let fix = "drain the queue, raise maxmemory or free disk; until then new webhooks are \
                       answered 503";
            findings.push(Finding::problem(why, fix));
        }
        HealthVerdict::Usable { .. } => {
            findings.push(Finding::ok("no key is evicted (noeviction)"))
        }
    }
    findings.push(durability(facts));
    findings.push(if facts.limit_bytes == 0 {
        let fix = "set maxmemory; ops/redis.conf says how large";
        Finding::warning("maxmemory is not set: a flood can take all of the memory", fix)
    } else {
        let used = size(facts.used_bytes);
        let limit = size(facts.limit_bytes);
        Finding::ok(format!("memory: {used} of {limit} in use"))
    });
    findings
}

fn durability(facts: &RedisInfo) -> Finding {
    let fix = "set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no";
    match (health::durability(facts, false), &facts.fsync) {
        (Durability::Always | Durability::Vouched, _) => {
            Finding::ok("a webhook is on disk before it is answered")
        }
        (Durability::EverySecond, _) => {
            Finding::warning("a crash of Redis loses up to 2 s of answered webhooks", fix)
        }
        (Durability::None, None) if facts.aof_enabled => {
            let fix = "allow CONFIG GET to this user, so that appendfsync can be read";
            Finding::warning("it can't be seen whether Redis syncs before it answers", fix)
        }
        (Durability::None, _) => Finding::warning("a crash of Redis loses answered webhooks", fix),
    }
}

fn disk(facts: &RedisInfo, is_local: bool) -> Finding {
    match facts.disk_free_bytes {
        Some(free) => {
            let aof = size(facts.aof_bytes);
            // A rewrite writes all of the memory in addition to the old file.
            if free < 2 * facts.used_bytes + DISK_SPARE_BYTES {
                let fix = "free some, or give it more: a rewrite of the AOF takes as much as the \
                           memory in use, and below that and 1 GiB new webhooks are answered 503";
                let what = format!("disk: only {} free where the AOF ({aof}) lies", size(free));
                return Finding::warning(what, fix);
            }
            Finding::ok(format!("disk: {} free where the AOF ({aof}) lies", size(free)))
        }
        None if is_local => {
            let fix = "let this user read Redis' directory, or watch its disk elsewhere: under \
                       appendfsync always a full disk makes Redis exit";
            Finding::warning("the free disk below the AOF can't be seen", fix)
        }
        None => {
            let fix = "watch the disk there: under appendfsync always a full one makes Redis exit";
            Finding::warning("Redis is on another machine: its disk can't be seen from here", fix)
        }
    }
}

/// Compares the disk of the overflow log with that of Redis. `None` if it cannot be determined.
fn spill_disk(facts: &RedisInfo, spill_dir: &Path) -> Option<Finding> {
    // The receiver creates the directory at its first start.
    let there = spill_dir.ancestors().find_map(|path| fs::metadata(path).ok())?;
    if there.dev() != facts.disk_device? {
        return Some(Finding::ok("SPILL_DIR is on another disk than Redis' data"));
    }
    let fix = "give it a disk of its own, or a SPILL_MAX that leaves Redis what it needs beside it: twice the memory in \
               use and 1 GiB";
    let what = "SPILL_DIR is on Redis' disk: when that fills up or fails, there is no other place";
    Some(Finding::warning(what, fix))
}

async fn clock(connection: &mut Connection) -> Result<Finding, QueueError> {
    let theirs = health::clock_ms(connection).await?;
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    Ok(clock_finding(theirs.abs_diff(u64::try_from(ours).unwrap_or(u64::MAX))))
}

fn clock_finding(skew_ms: u64) -> Finding {
    let what = format!("the clocks of Redis and of this machine differ by {skew_ms} ms");
    let fix = "keep both by NTP (systemd-timesyncd, chrony)";
    if skew_ms <= CLOCK_SKEW_WARNING_MS {
        Finding::ok(what)
    } else if skew_ms <= CLOCK_SKEW_PROBLEM_MS {
        Finding::warning(what, fix)
    } else {
        Finding::problem(what, fix)
    }
}

fn consumers(consumers: &[ConsumerStatus]) -> Vec<Finding> {
    if consumers.is_empty() {
        let fix = "start a downstreamer, or `spillway consumers add http` ahead of it";
        return vec![Finding::problem("no consumer is registered: nothing is delivered", fix)];
    }
    let mut findings: Vec<Finding> = consumers.iter().flat_map(consumer).collect();
    if !consumers.iter().any(ConsumerStatus::delivers) {
        let fix = "start a downstreamer, or a Kafka producer";
        findings
            .push(Finding::warning("only an archive reads the queue: nothing is delivered", fix));
    }
    findings
}

fn consumer(consumer: &ConsumerStatus) -> Vec<Finding> {
    let name = &consumer.name;
    let waiting = count(consumer.waiting, "webhook");
    let mut findings = vec![if !consumer.has_live_leader() {
        let seen = consumer.last_seen.ago_seconds.map_or("never".to_owned(), |s| age(s) + " ago");
        let fix =
            format!("start it; if it is not wanted any more: spillway consumers forget {name}");
        Finding::problem(
            format!("consumer {name} has no live leader (last seen: {seen}); {waiting} waiting"),
            fix,
        )
    } else {
        let oldest = consumer.oldest_age_seconds.map(|s| format!(", the oldest for {}", age(s)));
        let oldest = oldest.unwrap_or_default();
        Finding::ok(format!("consumer {name} has a leader; {waiting} waiting{oldest}"))
    }];
    for pause in &consumer.pauses {
        let what = format!("consumer {name} is paused by an operator: {}", pause.filter);
        let fix = format!("spillway resume --consumer {name}, with the same filter, or --all");
        findings.push(Finding::warning(what, fix));
    }
    if consumer.dead.letters > 0 {
        let what = format!("consumer {name} has {}", count(consumer.dead.letters, "dead letter"));
        let fix = format!("spillway dead list --consumer {name}, then replay or drop");
        findings.push(Finding::warning(what, fix));
    }
    findings
}

/// Reports consumers that are far behind while all others are in time: entries are kept for them alone. An
/// archive that is in time says nothing about those that deliver.
fn held_back(consumers: &[ConsumerStatus]) -> Vec<Finding> {
    let oldest = |consumer: &ConsumerStatus| consumer.oldest_age_seconds.unwrap_or(0.0);
    let mut findings = Vec::new();
    for consumer in consumers.iter().filter(|consumer| oldest(consumer) > BEHIND_SECONDS) {
        let others: Vec<_> = consumers.iter().filter(|other| other.name != consumer.name).collect();
        let is_any_delivering = others.iter().any(|other| other.delivers());
        if !is_any_delivering || others.iter().any(|other| oldest(other) > IN_TIME_SECONDS) {
            continue;
        }
        let most = others.iter().map(|other| other.waiting).max().unwrap_or(0);
        let held = count(consumer.waiting.saturating_sub(most), "webhook");
        let name = &consumer.name;
        let since = age(oldest(consumer));
        let what = format!("only consumer {name} still needs {held}, the oldest for {since}");
        let fix = format!(
            "spillway top --consumer {name}; give its target room, or, if it is not wanted any more: \
             spillway consumers forget {name}"
        );
        findings.push(Finding::warning(what, fix));
    }
    findings
}

/// Reports filters that may leave webhooks to no consumer that delivers.
fn unmatched(consumers: &[ConsumerStatus]) -> Option<Finding> {
    let delivering = consumers.iter().filter(|consumer| consumer.delivers());
    let filters = delivering.map(|consumer| consumer.notes.filter.as_ref());
    let filters: Option<Vec<&ConsumerFilter>> = filters.collect();
    let filters = filters.filter(|filters| !filters.is_empty())?;
    (!ConsumerFilter::are_complete(&filters)).then(|| {
        let fix = "compare the filters (spillway consumers -o wide): what none matches is settled \
                   undelivered, and counted in spillway_unmatched_webhooks_total";
        Finding::warning(
            "each consumer has a filter, and together they may leave webhooks out",
            fix,
        )
    })
}

/// Reports shops that exceed, or will soon exceed, a limit that nobody changed.
fn large_shops(status: &CellStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    for consumer in &status.consumers {
        for shop in shares::large_shops(status, consumer).unwrap_or_default() {
            let percent =
                u128::from(shop.bytes) * 100 / u128::from(status.queue.limit_bytes.max(1));
            if status.queue.limit_bytes > 0 && percent >= LARGE_SHOP_PERCENT {
                let waiting = count(shop.share.waiting, "webhook");
                let shop = shop.share.label();
                let what = format!("{waiting} of shop {shop} take {percent} % of the memory");
                let fix = "spillway top --by shop, and what its endpoint answers; past \
                           SHOP_MAX_QUEUED its webhooks are answered 503 shop_queue_full";
                findings.push(Finding::warning(what, fix));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use spillway_queue::status::LeaderNotes;

    use super::super::finding::Severity;
    use super::*;

    fn levels(findings: &[Finding]) -> Vec<Severity> {
        findings.iter().map(|finding| finding.level).collect()
    }

    fn facts() -> RedisInfo {
        RedisInfo {
            version: "7.0.15".to_owned(),
            used_bytes: 1 << 20,
            limit_bytes: 1 << 30,
            eviction_policy: "noeviction".to_owned(),
            aof_enabled: true,
            fsync: Some("always".to_owned()),
            disk_free_bytes: Some(100 << 30),
            ..RedisInfo::default()
        }
    }

    #[test]
    fn a_good_redis_is_ok_and_a_bad_one_says_why() {
        use Severity::{Ok, Problem, Warning};
        assert_eq!(levels(&redis_findings(&facts())), [Ok, Ok, Ok, Ok]);
        let evicting = RedisInfo { eviction_policy: "allkeys-lru".to_owned(), ..facts() };
        assert_eq!(levels(&redis_findings(&evicting)), [Ok, Problem, Ok, Ok]);
        let careless = RedisInfo { aof_enabled: false, limit_bytes: 0, ..facts() };
        assert_eq!(levels(&redis_findings(&careless)), [Ok, Ok, Warning, Warning]);
        let full = RedisInfo { used_bytes: 1 << 30, ..facts() };
        assert_eq!(levels(&redis_findings(&full)), [Ok, Problem, Ok, Ok]);
        assert_eq!(disk(&facts(), true).level, Ok);
        assert_eq!(disk(&RedisInfo::default(), true).level, Warning);
    }

    #[test]
    fn a_spill_beside_redis_data_is_a_warning() {
        let place = tempfile::tempdir().unwrap();
        let device = fs::metadata(place.path()).unwrap().dev();
        let level = |disk_device| {
            let facts = RedisInfo { disk_device, ..facts() };
            spill_disk(&facts, &place.path().join("not/yet")).map(|finding| finding.level)
        };
        assert_eq!(level(Some(device)), Some(Severity::Warning));
        assert_eq!(level(Some(device + 1)), Some(Severity::Ok));
        assert_eq!(level(None), None);
    }

    #[test]
    fn a_shop_with_half_of_the_memory_is_a_warning() {
        let shares = r#"5 {"waiting":100,"shops":[{"hash":"00000000000000ab","waiting":90}]}"#;
        let notes = LeaderNotes { shares: shares.to_owned(), ..LeaderNotes::default() };
        let consumer = ConsumerStatus { notes, ..ConsumerStatus::default() };
        let mut status =
            CellStatus { consumers: vec![consumer], now_ms: 5, ..CellStatus::default() };
        status.queue.bytes = 50 << 20;
        status.queue.limit_bytes = 100 << 20;
        assert_eq!(levels(&large_shops(&status)), [Severity::Warning]);
        status.queue.limit_bytes = 101 << 20;
        assert_eq!(levels(&large_shops(&status)), []);
        status.queue.limit_bytes = 0;
        assert_eq!(levels(&large_shops(&status)), []);
    }

    #[test]
    fn a_consumer_that_alone_is_far_behind_is_a_warning() {
        let consumer = |name: &str, seconds, waiting| ConsumerStatus {
            name: name.to_owned(),
            oldest_age_seconds: Some(seconds),
            waiting,
            ..ConsumerStatus::default()
        };
        let behind = consumer("audit", 7200.0, 5_000);
        let in_time = consumer("http", 2.0, 10);
        let found = held_back(&[behind.clone(), in_time.clone()]);
        assert_eq!(levels(&found), [Severity::Warning]);
        assert!(found[0].what.starts_with("only consumer audit still needs 4990 "), "{found:?}");
        for all in
            [&[behind.clone()][..], &[in_time.clone()][..], &[in_time.clone(), in_time.clone()][..]]
        {
            assert_eq!(held_back(all), [], "{all:?}");
        }
        assert_eq!(held_back(&[behind.clone(), behind.clone()]), []);
        // An archive that lags holds the queue back. One that is in time does not mean that others are.
        let archive = |seconds| consumer("archive", seconds, 5_000);
        assert_eq!(levels(&held_back(&[archive(7200.0), in_time])), [Severity::Warning]);
        assert_eq!(held_back(&[archive(2.0), behind]), []);
    }

    #[test]
    fn filters_that_may_leave_webhooks_out_are_a_warning() {
        let consumer = |filter: Option<&str>| {
            let filter = filter.map(|json| ConsumerFilter::from_json(json).expect("a filter"));
            let notes = LeaderNotes { filter, ..LeaderNotes::default() };
            ConsumerStatus { notes, ..ConsumerStatus::default() }
        };
        let orders = Some(r#"{"topics":{"only":["orders/*"]}}"#);
        let rest = Some(r#"{"topics":{"except":["orders/*"]}}"#);
        for (filters, is_reported) in [
            (&[][..], false),
            (&[None][..], false),
            (&[Some("{}")][..], false),
            (&[orders][..], true),
            (&[orders, None][..], false),
            (&[orders, rest][..], false),
        ] {
            let consumers: Vec<_> = filters.iter().map(|filter| consumer(*filter)).collect();
            assert_eq!(unmatched(&consumers).is_some(), is_reported, "{filters:?}");
            let archive = ConsumerStatus { name: "archive".to_owned(), ..consumer(Some("{}")) };
            let with_archive = [&consumers[..], &[archive]].concat();
            assert_eq!(unmatched(&with_archive).is_some(), is_reported, "{filters:?}");
        }
    }

    #[test]
    fn clocks_may_differ_a_little() {
        assert_eq!(clock_finding(3).level, Severity::Ok);
        assert_eq!(clock_finding(60_000).level, Severity::Warning);
        assert_eq!(clock_finding(3_600_001).level, Severity::Problem);
    }

    #[test]
    fn a_consumer_needs_a_live_leader() {
        use spillway_queue::status::{DeadTotals, LastSeen, LeaderStatus};
        let owned = ConsumerStatus {
            name: "http".to_owned(),
            waiting: 0,
            oldest_age_seconds: None,
            leader: Some(LeaderStatus::default()),
            last_seen: LastSeen { ago_seconds: Some(1.0), at_ms: 1 },
            cursor: "0-0".to_owned(),
            ..ConsumerStatus::default()
        };
        assert_eq!(levels(&consumers(&[])), [Severity::Problem]);
        assert_eq!(levels(&consumers(std::slice::from_ref(&owned))), [Severity::Ok]);
        let last_seen = LastSeen { ago_seconds: Some(60.0), at_ms: 1 };
        let silent = ConsumerStatus { last_seen, ..owned.clone() };
        assert_eq!(levels(&consumers(&[silent])), [Severity::Problem]);
        let with_dead = ConsumerStatus { dead: DeadTotals { letters: 1, bytes: 0 }, ..owned };
        assert_eq!(levels(&consumers(&[with_dead])), [Severity::Ok, Severity::Warning]);
    }
}
