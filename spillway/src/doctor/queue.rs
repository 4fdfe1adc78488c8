//! Redis, the disk below it, its clock, and who drains it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillway_queue::health::{self, Durability, DurabilityPolicy, Facts, Verdict};
use spillway_queue::shares;
use spillway_queue::status::{self, DrainStatus, Status};
use spillway_queue::{Connection, QueueError, Redis};

use super::finding::Finding;
use crate::failure::Failure;
use crate::out::{age, count, size};

/// What is found is reported, whatever the receivers are told to refuse.
const MEASURED: DurabilityPolicy = DurabilityPolicy { is_required: false, is_vouched: false };

const PATIENCE: Duration = Duration::from_secs(5);
/// Ages and ownership are told from two clocks; past this, ages mislead.
const CLOCK_SKEW_WARNING_MS: u64 = 2_000;
/// Past this (`MAX_CLOCK_SKEW`'s default), fresh webhooks can be refused.
const CLOCK_SKEW_PROBLEM_MS: u64 = 3_600_000;
/// What the receiver wants free on the disk beside the memory in use.
const DISK_SPARE_BYTES: u64 = 1 << 30;
/// Part of `maxmemory` in percent at which a shop is named: a little below the default of
/// `SHOP_MAX_QUEUED`.
const LARGE_SHOP_PERCENT: u128 = 45;
/// Longer than any owner is silent while it lives.
const SILENT_SECONDS: f64 = 10.0;

/// Looks at the queue; says also which drains there are.
pub async fn examine(redis: &Redis, spill_dir: Option<&Path>) -> (Vec<Finding>, Vec<DrainStatus>) {
    match examine_reachable(redis, spill_dir).await {
        Ok(found) => found,
        Err(error) => {
            let fix = "start Redis (ops/redis.conf), and check REDIS_URL and, for a unix socket, \
                       that this user may open it";
            (vec![Finding::problem(Failure::from(error).to_string(), fix)], Vec::new())
        }
    }
}

async fn examine_reachable(
    redis: &Redis,
    spill_dir: Option<&Path>,
) -> Result<(Vec<Finding>, Vec<DrainStatus>), QueueError> {
    let mut connection = redis.connect(Some(PATIENCE)).await?;
    let facts = health::read(redis, &mut connection).await?;
    let mut findings = redis_findings(&facts);
    findings.push(disk(&facts, redis.is_local()));
    findings.extend(spill_dir.and_then(|directory| spill_disk(&facts, directory)));
    findings.push(clock(&mut connection).await?);
    let status = status::read(redis, &mut connection).await?;
    findings.extend(drains(&status.drains));
    findings.extend(large_shops(&status));
    Ok((findings, status.drains))
}

fn redis_findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(format!("redis {} answers", facts.version))];
    match health::judge(facts, MEASURED, false) {
        Verdict::Refused(why) => {
            let fix = "until then the receiver answers 503; ops/redis.conf has it right";
            findings.push(Finding::problem(why, fix));
        }
        Verdict::Full(why) => {
            let fix = "drain the queue, raise maxmemory or free disk; until then new webhooks are \
                       answered 503";
            findings.push(Finding::problem(why, fix));
        }
        Verdict::Usable { .. } => findings.push(Finding::ok("no key is evicted (noeviction)")),
    }
    findings.push(durability(facts));
    findings.push(if facts.limit_bytes == 0 {
        let fix = "set maxmemory; ops/redis.conf says how large";
        Finding::warning("maxmemory is not set: a flood can take all of the memory", fix)
    } else {
        let (used, limit) = (size(facts.used_bytes), size(facts.limit_bytes));
        Finding::ok(format!("memory: {used} of {limit} in use"))
    });
    findings
}

fn durability(facts: &Facts) -> Finding {
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

fn disk(facts: &Facts, is_local: bool) -> Finding {
    match facts.disk_free_bytes {
        Some(free) => {
            let aof = size(facts.aof_bytes);
            // A rewrite writes all of the memory beside the old file.
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

/// `None` where the disks can't be told from each other.
fn spill_disk(facts: &Facts, spill_dir: &Path) -> Option<Finding> {
    // Made by the receiver's first start.
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

fn drains(drains: &[DrainStatus]) -> Vec<Finding> {
    if drains.is_empty() {
        let fix = "start a downstreamer, or `spillway drains add http` ahead of it";
        return vec![Finding::problem("no drain is registered: nothing is delivered", fix)];
    }
    drains.iter().flat_map(drain).collect()
}

fn drain(drain: &DrainStatus) -> Vec<Finding> {
    let name = &drain.name;
    let waiting = count(drain.waiting, "webhook");
    let is_silent = drain.last_seen_seconds.is_none_or(|seconds| seconds > SILENT_SECONDS);
    let mut findings = vec![if drain.owner.is_none() || is_silent {
        let seen = drain.last_seen_seconds.map_or("never".to_owned(), |s| age(s) + " ago");
        let fix = format!("start it; if it is not wanted any more: spillway drains forget {name}");
        Finding::problem(
            format!("drain {name} has no live owner (last seen: {seen}); {waiting} waiting"),
            fix,
        )
    } else {
        let oldest = drain.oldest_age_seconds.map(|s| format!(", the oldest for {}", age(s)));
        let oldest = oldest.unwrap_or_default();
        Finding::ok(format!("drain {name} has an owner; {waiting} waiting{oldest}"))
    }];
    for pause in &drain.pauses {
        let what = format!("drain {name} has paused {}", pause.filter);
        let fix = format!("spillway resume --drain {name}, with the same filter, or --all");
        findings.push(Finding::warning(what, fix));
    }
    if drain.dead_letters > 0 {
        let what = format!("drain {name} has {}", count(drain.dead_letters, "dead letter"));
        let fix = format!("spillway dead list --drain {name}, then replay or drop");
        findings.push(Finding::warning(what, fix));
    }
    findings
}

/// Shops that are, or soon will be, over a bound that nobody changed.
fn large_shops(status: &Status) -> Vec<Finding> {
    let mut findings = Vec::new();
    for drain in &status.drains {
        for shop in shares::large_shops(status, drain).unwrap_or_default() {
            let percent =
                u128::from(shop.bytes) * 100 / u128::from(status.queue.limit_bytes.max(1));
            if status.queue.limit_bytes > 0 && percent >= LARGE_SHOP_PERCENT {
                let (waiting, shop) = (count(shop.share.waiting, "webhook"), shop.share.label());
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
    use super::super::finding::Level;
    use super::*;

    fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|finding| finding.level).collect()
    }

    fn facts() -> Facts {
        Facts {
            version: "7.0.15".to_owned(),
            used_bytes: 1 << 20,
            limit_bytes: 1 << 30,
            eviction_policy: "noeviction".to_owned(),
            aof_enabled: true,
            fsync: Some("always".to_owned()),
            disk_free_bytes: Some(100 << 30),
            ..Facts::default()
        }
    }

    #[test]
    fn a_good_redis_is_ok_and_a_bad_one_says_why() {
        use Level::{Ok, Problem, Warning};
        assert_eq!(levels(&redis_findings(&facts())), [Ok, Ok, Ok, Ok]);
        let evicting = Facts { eviction_policy: "allkeys-lru".to_owned(), ..facts() };
        assert_eq!(levels(&redis_findings(&evicting)), [Ok, Problem, Ok, Ok]);
        let careless = Facts { aof_enabled: false, limit_bytes: 0, ..facts() };
        assert_eq!(levels(&redis_findings(&careless)), [Ok, Ok, Warning, Warning]);
        let full = Facts { used_bytes: 1 << 30, ..facts() };
        assert_eq!(levels(&redis_findings(&full)), [Ok, Problem, Ok, Ok]);
        assert_eq!(disk(&facts(), true).level, Ok);
        assert_eq!(disk(&Facts::default(), true).level, Warning);
    }

    #[test]
    fn a_spill_beside_redis_data_is_a_warning() {
        let place = tempfile::tempdir().unwrap();
        let device = fs::metadata(place.path()).unwrap().dev();
        let level = |disk_device| {
            let facts = Facts { disk_device, ..facts() };
            spill_disk(&facts, &place.path().join("not/yet")).map(|finding| finding.level)
        };
        assert_eq!(level(Some(device)), Some(Level::Warning));
        assert_eq!(level(Some(device + 1)), Some(Level::Ok));
        assert_eq!(level(None), None);
    }

    #[test]
    fn a_shop_with_half_of_the_memory_is_a_warning() {
        let shares = r#"5 {"waiting":100,"shops":[{"hash":"00000000000000ab","waiting":90}]}"#;
        let drain = DrainStatus { shares: shares.to_owned(), ..DrainStatus::default() };
        let mut status = Status { drains: vec![drain], now_ms: 5, ..Status::default() };
        status.queue.bytes = 50 << 20;
        status.queue.limit_bytes = 100 << 20;
        assert_eq!(levels(&large_shops(&status)), [Level::Warning]);
        status.queue.limit_bytes = 101 << 20;
        assert_eq!(levels(&large_shops(&status)), []);
        status.queue.limit_bytes = 0;
        assert_eq!(levels(&large_shops(&status)), []);
    }

    #[test]
    fn clocks_may_differ_a_little() {
        assert_eq!(clock_finding(3).level, Level::Ok);
        assert_eq!(clock_finding(60_000).level, Level::Warning);
        assert_eq!(clock_finding(3_600_001).level, Level::Problem);
    }

    #[test]
    fn a_drain_needs_a_live_owner() {
        let owned = DrainStatus {
            name: "http".to_owned(),
            waiting: 0,
            oldest_age_seconds: None,
            owner: Some("x".to_owned()),
            last_seen_seconds: Some(1.0),
            last_seen_ms: 1,
            parked: 0,
            dead_letters: 0,
            dead_bytes: 0,
            cursor: "0-0".to_owned(),
            ..DrainStatus::default()
        };
        assert_eq!(levels(&drains(&[])), [Level::Problem]);
        assert_eq!(levels(&drains(std::slice::from_ref(&owned))), [Level::Ok]);
        let silent = DrainStatus { last_seen_seconds: Some(60.0), ..owned.clone() };
        assert_eq!(levels(&drains(&[silent])), [Level::Problem]);
        let with_dead = DrainStatus { dead_letters: 1, ..owned };
        assert_eq!(levels(&drains(&[with_dead])), [Level::Ok, Level::Warning]);
    }
}
