//! Every change of a cell goes through [`audited`]: it is recorded before it is made, and with its end. A look at personal
//! data goes through [`note_look`].

use std::env;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spillway_process::Checker;
use spillway_process::error::chain;
use spillway_process::settings::parse_duration;
use spillway_queue::audit::{Audit, AuditEnd, AuditWay, AuditedChange};
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;

use crate::failure::Failure;
use crate::place::CellArgs;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Pauses after attempts to write the last record of a change.
const END_PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(2)];
/// Time for an answer on a new connection.
const RECONNECT: Duration = Duration::from_secs(5);
/// Pause between two looks for old records, and after one that failed.
const TRIM_EVERY: Duration = Duration::from_secs(3600);
const TRIM_AGAIN: Duration = Duration::from_secs(60);
/// Time for which records are kept.
pub(crate) const KEEP_DEFAULT: &str = "365d";
/// Shortest and longest time for which they may be kept. A change can't delete the records of the day before.
const KEEP_RANGE: RangeInclusive<Duration> = DAY..=DAY.saturating_mul(3653);
/// The time, once it is known in this process.
static KEEP: OnceLock<KeepSetting> = OnceLock::new();
/// Command of a look at headers and bodies.
const READ_CONTENT: &str = "read content";

/// `AUDIT_KEEP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeepSetting {
    keep: Duration,
    /// False for the default.
    is_set: bool,
}

/// The one who makes a change, and the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Actor {
    /// Name of the user or API token.
    pub name: String,
    /// Way by which the change is made.
    pub way: AuditWay,
}

/// A change to record.
#[derive(Debug, Clone)]
pub(crate) struct ChangeOrder {
    /// Command, such as `dead replay`.
    pub verb: &'static str,
    /// Consumer that it changes; empty if it is no consumer's.
    pub consumer: String,
    /// Webhooks that are meant, in words.
    pub filter: String,
}

/// Number that a change has made so far, for the record of one that fails.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeCount(Arc<AtomicU64>);

/// A change to record, and the number that it has made so far, if it counts.
#[derive(Debug, Clone)]
pub(crate) struct CountedOrder {
    order: ChangeOrder,
    count: Option<ChangeCount>,
}

impl ChangeOrder {
    /// A change that counts.
    pub(crate) fn counted(self, count: &ChangeCount) -> CountedOrder {
        CountedOrder { order: self, count: Some(count.clone()) }
    }
}

impl From<ChangeOrder> for CountedOrder {
    fn from(order: ChangeOrder) -> Self {
        Self { order, count: None }
    }
}

impl ChangeCount {
    /// Notes the number so far.
    pub(crate) fn note(&self, made: u64) {
        self.0.store(made, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Actor {
    /// The user of this machine who runs the command: who used sudo, or else who is logged in.
    pub(crate) fn of_command() -> Self {
        Self { name: user(|name| env::var(name).ok()), way: AuditWay::Cli }
    }
}

/// Checks `AUDIT_KEEP`, and keeps records for this time from now on.
pub(crate) fn check_keep(checker: &mut Checker, text: &str) {
    let keep = checker.duration("AUDIT_KEEP", text, KEEP_RANGE);
    let is_set = text.trim() != KEEP_DEFAULT || given_keep().is_some();
    // The first one stays: there is one setting in a process.
    KEEP.set(KeepSetting { keep, is_set }).ok();
}

/// Parses a time for which records may be kept.
pub(crate) fn parse_keep(text: &str) -> Result<Duration, String> {
    let keep = parse_duration(text)?;
    let is_possible = KEEP_RANGE.contains(&keep);
    is_possible.then_some(keep).ok_or_else(|| "must be from 1d to 3653d".to_owned())
}

/// The audit of a cell, with `AUDIT_KEEP` from the environment or an env file.
pub(crate) fn open(redis: Redis) -> Result<Audit, Failure> {
    let KeepSetting { keep, is_set } = keep_setting()?;
    let audit = Audit::new(redis, keep);
    Ok(if is_set { audit.with_set_keep() } else { audit })
}

/// Checks that this process is not set to a longer time: it would set that again with its next record.
pub(crate) fn ensure_not_longer(keep: Duration) -> Result<(), Failure> {
    let setting = keep_setting()?;
    if setting.is_set && setting.keep > keep {
        let told = "AUDIT_KEEP is longer than that: set it to this time for all processes first";
        return Err(Failure::Usage(told.to_owned()));
    }
    Ok(())
}

/// The audit of a cell, whose records are kept for this time.
pub(crate) fn open_for(redis: &Redis, keep: Duration) -> Audit {
    Audit::new(redis.clone(), keep)
}

/// Deletes records that are older than they are kept, so that a cell in which nobody changes anything forgets, too.
pub(crate) async fn trim(cell: &CellArgs) -> Result<u64, Failure> {
    let (redis, mut connection) = cell.connect().await?;
    Ok(open(redis)?.trim(&mut connection).await?)
}

/// Does the same each hour. The first time is at once: from then on, others know for how long we keep records.
pub(crate) async fn keep_trimmed(cell: &CellArgs) {
    loop {
        let pause = match trim(cell).await {
            Ok(_) => TRIM_EVERY,
            Err(failure) => {
                tracing::debug!(%failure, "the audit is not trimmed now");
                TRIM_AGAIN
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn keep_setting() -> Result<KeepSetting, Failure> {
    if let Some(setting) = KEEP.get() {
        return Ok(*setting);
    }
    let given = given_keep();
    let mut checker = Checker::default();
    let text = given.as_deref().unwrap_or(KEEP_DEFAULT);
    let keep = checker.duration("AUDIT_KEEP", text, KEEP_RANGE);
    let keep = checker.finish(keep)?;
    Ok(KeepSetting { keep, is_set: given.is_some() })
}

/// `AUDIT_KEEP` as it is set. An empty variable counts as not set.
fn given_keep() -> Option<String> {
    env::var("AUDIT_KEEP").ok().filter(|text| !text.trim().is_empty())
}

fn user(variable: impl Fn(&str) -> Option<String>) -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().filter_map(variable);
    let mut named = named.filter(|name| !name.is_empty());
    named.next().unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// Makes a change that is recorded before and after. `work` makes it, and returns what it made and its end: a number, if
/// so many were done. It begins after the first record: without that, nothing is changed. If the last record can't be
/// written, the change is made all the same: that is only a warning, and the audit shows the change without its end.
pub(crate) async fn audited<T, E: Into<AuditEnd>>(
    redis: &Redis,
    connection: &Connection,
    actor: &Actor,
    order: impl Into<CountedOrder>,
    work: impl Future<Output = Result<(T, E), Failure>>,
) -> Result<T, Failure> {
    let CountedOrder { order, count } = order.into();
    let mut connection = connection.clone();
    let audit = open(redis.clone())?;
    let change = AuditedChange {
        actor: actor.name.clone(),
        way: actor.way,
        verb: order.verb.to_owned(),
        consumer: order.consumer,
        filter: order.filter,
    };
    let begun = audit.begin(&mut connection, &change).await?;
    let (made, end) = match work.await {
        Ok((made, end)) => (Ok(made), end.into()),
        Err(failure) => {
            let end = failed(&failure, count.as_ref());
            (Err(failure), end)
        }
    };
    note_end(redis, connection, &audit, (begun, change, end)).await;
    made
}

/// End of a change that failed. What it had made by then is made.
fn failed(failure: &Failure, count: Option<&ChangeCount>) -> AuditEnd {
    let reason = failure.to_string();
    match count {
        Some(count) => AuditEnd::FailedAfter { done: count.so_far(), reason },
        None => AuditEnd::Failed(reason),
    }
}

/// Records that somebody looks at the headers and the body of a webhook; of its dead letter, if a consumer is named. A Redis
/// that takes no record keeps nobody from looking: somebody may have to find out why. That is a warning. But who reads very
/// many in a day is refused.
pub(crate) async fn note_look(
    cell: &CellArgs,
    actor: &Actor,
    consumer: Option<&str>,
    webhook: &impl Display,
) -> Result<(), Failure> {
    let look = AuditedChange {
        actor: actor.name.clone(),
        way: actor.way,
        verb: READ_CONTENT.to_owned(),
        consumer: consumer.unwrap_or_default().to_owned(),
        filter: format!("webhook {webhook}"),
    };
    let noted = async {
        let (redis, mut connection) = cell.connect().await?;
        Ok::<bool, Failure>(open(redis)?.note_look(&mut connection, &look).await?)
    };
    match noted.await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Failed(
            "the audit holds more records of the last day than it may, and bodies are not shown without one: see with \
             spillway audit who reads so many, stop that, and try again tomorrow"
                .to_owned(),
        )),
        Err(failure) => {
            let name = &actor.name;
            let told = format!("no record that {name} reads the webhook {webhook}: {failure}");
            match actor.way {
                AuditWay::Cli => eprintln!("spillway: {told}"),
                AuditWay::Api | AuditWay::Console => tracing::warn!("{told}"),
            }
            Ok(())
        }
    }
}

/// Writes the last record. The connection may be dead by now, because a change may take hours: a new one is made then.
async fn note_end(
    redis: &Redis,
    mut connection: Connection,
    audit: &Audit,
    (begun, change, end): (StreamId, AuditedChange, AuditEnd),
) {
    let mut problem = String::new();
    for pause in END_PAUSES {
        let ended = audit.end(&mut connection, begun, change.clone(), end.clone()).await;
        let Err(error) = ended else { return };
        problem = chain(&error);
        tokio::time::sleep(pause).await;
        if let Ok(new) = redis.connect(Some(RECONNECT)).await {
            connection = new;
        }
    }
    let verb = &change.verb;
    eprintln!("spillway: the audit has the begin of `{verb}` and not its end: {problem}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_for_a_day_at_least() {
        let keep = |text: &str| {
            let mut checker = Checker::default();
            let keep = checker.duration("AUDIT_KEEP", text, KEEP_RANGE);
            checker.finish(keep)
        };
        assert_eq!(keep(KEEP_DEFAULT), Ok(365 * DAY));
        assert!(keep("1h").is_err() && keep("0").is_err() && keep("30years").is_err());
        assert_eq!(parse_keep("30d"), Ok(30 * DAY));
        assert!(parse_keep("1h").is_err_and(|told| told.contains("1d")));
    }

    #[test]
    fn a_change_that_counts_and_fails_says_how_many_it_made() {
        let failure = Failure::Failed("redis is away".to_owned());
        let reason = failure.to_string();
        let count = ChangeCount::default();
        count.note(60_000);
        let end = AuditEnd::FailedAfter { done: 60_000, reason: reason.clone() };
        assert_eq!(failed(&failure, Some(&count)), end);
        assert_eq!(failed(&failure, None), AuditEnd::Failed(reason));
    }

    #[test]
    fn the_one_who_used_sudo_is_named() {
        let with = |set: &[(&str, &str)]| {
            user(|name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&[("SUDO_USER", "mia"), ("USER", "root")]), "mia");
        assert_eq!(with(&[("SUDO_USER", ""), ("USER", "root")]), "root");
        assert!(with(&[]).starts_with("uid "));
    }
}
