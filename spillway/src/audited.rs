//! Every change of a cell goes through [`audited`]: it is recorded before it is made, and with its end.

use std::env;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::Duration;

use spillway_process::Checker;
use spillway_process::error::chain;
use spillway_queue::audit::{Audit, AuditEnd, AuditWay, AuditedChange};
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;

use crate::failure::Failure;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Pauses after attempts to write the last record of a change.
const END_PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(2)];
/// Time for an answer on a new connection.
const RECONNECT: Duration = Duration::from_secs(5);
/// Time for which records are kept.
pub(crate) const KEEP_DEFAULT: &str = "365d";
/// Shortest and longest time for which they may be kept. A change can't delete the records of the day before.
const KEEP_RANGE: RangeInclusive<Duration> = DAY..=DAY.saturating_mul(3653);
/// The time, once it is known in this process.
static KEEP: OnceLock<Duration> = OnceLock::new();

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

impl Actor {
    /// The user of this machine who runs the command: who used sudo, or else who is logged in.
    pub(crate) fn of_command() -> Self {
        Self { name: user(|name| env::var(name).ok()), way: AuditWay::Cli }
    }
}

/// Checks `AUDIT_KEEP`, and keeps records for this time from now on.
pub(crate) fn check_keep(checker: &mut Checker, text: &str) {
    let keep = checker.duration("AUDIT_KEEP", text, KEEP_RANGE);
    // The first one stays: there is one setting in a process.
    KEEP.set(keep).ok();
}

/// Time for which records are kept: `AUDIT_KEEP`, from the environment or an env file.
pub(crate) fn keep() -> Result<Duration, Failure> {
    if let Some(keep) = KEEP.get() {
        return Ok(*keep);
    }
    let given = env::var("AUDIT_KEEP").ok().filter(|text| !text.trim().is_empty());
    let mut checker = Checker::default();
    let text = given.as_deref().unwrap_or(KEEP_DEFAULT);
    let keep = checker.duration("AUDIT_KEEP", text, KEEP_RANGE);
    Ok(checker.finish(keep)?)
}

fn user(variable: impl Fn(&str) -> Option<String>) -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().filter_map(variable);
    let mut named = named.filter(|name| !name.is_empty());
    named.next().unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// Makes a change that is recorded before and after. `work` makes it, and returns what it made and how
/// many. It begins after the first record: without that, nothing is changed. If the last record can't be
/// written, the change is made all the same: that is only a warning, and the audit shows the change without its end.
pub(crate) async fn audited<T>(
    redis: &Redis,
    connection: &Connection,
    actor: &Actor,
    order: ChangeOrder,
    work: impl Future<Output = Result<(T, u64), Failure>>,
) -> Result<T, Failure> {
    let mut connection = connection.clone();
    let audit = Audit::new(redis.clone(), keep()?);
    let change = AuditedChange {
        actor: actor.name.clone(),
        way: actor.way,
        verb: order.verb.to_owned(),
        consumer: order.consumer,
        filter: order.filter,
    };
    let begun = audit.begin(&mut connection, &change).await?;
    let made = work.await;
    let end = match &made {
        Ok((_, count)) => AuditEnd::Done(*count),
        Err(failure) => AuditEnd::Failed(failure.to_string()),
    };
    note_end(redis, connection, &audit, (begun, change, end)).await;
    made.map(|(made, _)| made)
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
