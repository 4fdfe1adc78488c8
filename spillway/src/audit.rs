//! `spillway audit`: who changed what, when and how many.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use spillway_console::model::audit::{AuditLine, AuditList, AuditQuery};
use spillway_process::settings::parse_duration;
use spillway_queue::Connection;
use spillway_queue::audit::{Audit, AuditEnd, AuditRecord, AuditWay};
use spillway_webhook::StreamId;
use spillway_webhook::freshness::rfc3339;

use crate::audited;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{line, now_ms, table};
use crate::place::CellArgs;

/// Records that are read by one command of Redis.
const READ_AT_ONCE: usize = 500;
/// Records that one page looks at. It may find fewer, or none, and has a cursor to go on.
const LOOKED_AT_MAX: usize = 5_000;
/// Records of a page of the console, and the most that it may ask for.
const PAGE: u32 = 50;
const PAGE_MAX: u32 = 200;
const HEADER: [&str; 7] = ["BEGAN", "WHO", "BY", "VERB", "CONSUMER", "FILTER", "END"];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    #[command(flatten)]
    output: OutputArgs,

    /// Only changes of this time up to now, such as 24h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,

    /// Only changes by this user, API token (token:NAME) or user of a machine
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,

    /// Only changes by this command, such as 'dead replay'
    #[arg(long)]
    verb: Option<String>,
}

/// Records to look for.
#[derive(Debug)]
struct AuditSearch<'a> {
    actor: Option<&'a str>,
    verb: Option<&'a str>,
    /// Earliest time at which a change began.
    since_ms: u64,
}

/// Records that were found, newest first.
struct FoundRecords {
    records: Vec<AuditRecord>,
    /// The last record that was looked at, if there may be more.
    next: Option<StreamId>,
}

/// Runs `spillway audit`: newest first.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, output, since, actor, verb } = arguments;
    let (redis, mut connection) = place.connect().await?;
    let audit = Audit::new(redis, audited::keep()?);
    let since_ms = since.map_or(0, |since| {
        now_ms().saturating_sub(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    });
    let search = AuditSearch { actor: actor.as_deref(), verb: verb.as_deref(), since_ms };
    let mut rows = Vec::new();
    let mut after = None;
    loop {
        let found = search.page(&audit, &mut connection, after, usize::MAX).await?;
        let mut lines = found.records.into_iter().map(line_of);
        match output.is_json() {
            true => lines.try_for_each(|record| line(json_of(&record)))?,
            false => rows.extend(lines.map(row)),
        }
        after = found.next;
        if after.is_none() {
            break;
        }
    }
    match (output.is_json(), rows.is_empty()) {
        (true, _) => {}
        (false, true) => line("no change is on record")?,
        (false, false) => line(table(&HEADER, rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A page of records for the console, newest first.
pub(crate) async fn find(cell: &CellArgs, query: &AuditQuery) -> Result<AuditList, Failure> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let after = given(&query.after).map(|text| text.parse::<StreamId>()).transpose();
    let after = after.map_err(|error| Failure::Usage(format!("after: {error}")))?;
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let actor = given(&query.actor);
    let verb = given(&query.verb);
    let search = AuditSearch { actor: actor.as_deref(), verb: verb.as_deref(), since_ms: 0 };
    let (redis, mut connection) = cell.connect().await?;
    let audit = Audit::new(redis, audited::keep()?);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = search.page(&audit, &mut connection, after, limit).await?;
    let records = found.records.into_iter().map(line_of).collect();
    Ok(AuditList { records, next: found.next.map(|id| id.to_string()) })
}

impl AuditSearch<'_> {
    /// Finds up to `limit` records, and looks at a bounded number.
    async fn page(
        &self,
        audit: &Audit,
        connection: &mut Connection,
        after: Option<StreamId>,
        limit: usize,
    ) -> Result<FoundRecords, Failure> {
        let mut found = FoundRecords { records: Vec::new(), next: after };
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX {
            let page = audit.page(connection, found.next, READ_AT_ONCE).await?;
            let is_last = page.len() < READ_AT_ONCE;
            looked_at += page.len();
            for record in page {
                // Ids are of the end, so a record that is as old began before that.
                if record.id.ms < self.since_ms {
                    return Ok(FoundRecords { next: None, ..found });
                }
                found.next = Some(record.id);
                if self.is_meant(&record) {
                    found.records.push(record);
                }
                if found.records.len() >= limit {
                    return Ok(found);
                }
            }
            if is_last {
                return Ok(FoundRecords { next: None, ..found });
            }
        }
        Ok(found)
    }

    fn is_meant(&self, record: &AuditRecord) -> bool {
        record.began_ms >= self.since_ms
            && self.actor.is_none_or(|actor| record.change.actor == actor)
            && self.verb.is_none_or(|verb| record.change.verb == verb)
    }
}

fn line_of(record: AuditRecord) -> AuditLine {
    let AuditRecord { id, change, began_ms, end } = record;
    let (count, failure) = match end {
        None => (None, None),
        Some(AuditEnd::Done(count)) => (Some(count), None),
        Some(AuditEnd::Failed(reason)) => (None, Some(reason)),
    };
    AuditLine {
        id: id.to_string(),
        began_ms,
        actor: change.actor,
        way: way(change.way).to_owned(),
        verb: change.verb,
        consumer: change.consumer,
        filter: change.filter,
        count,
        failure,
    }
}

fn way(way: AuditWay) -> &'static str {
    match way {
        AuditWay::Cli => "cli",
        AuditWay::Api => "api",
        AuditWay::Console => "console",
    }
}

fn json_of(record: &AuditLine) -> String {
    let mut value = serde_json::to_value(record).expect("BUG: a record is JSON");
    value["began_at"] = rfc3339(record.began_ms).into();
    value.to_string()
}

fn row(record: AuditLine) -> [String; 7] {
    let end = match (record.count, record.failure) {
        (Some(count), _) => count.to_string(),
        (None, Some(reason)) => format!("failed: {reason}"),
        (None, None) => "no end".to_owned(),
    };
    let began = rfc3339(record.began_ms);
    [began, record.actor, record.way, record.verb, record.consumer, record.filter, end]
}

#[cfg(test)]
mod tests {
    use spillway_queue::audit::AuditedChange;

    use super::*;

    fn record(actor: &str, verb: &str, end: Option<AuditEnd>) -> AuditRecord {
        let change = AuditedChange {
            actor: actor.to_owned(),
            way: AuditWay::Api,
            verb: verb.to_owned(),
            consumer: "http".to_owned(),
            filter: "shop a.myshopify.com".to_owned(),
        };
        AuditRecord { id: StreamId { ms: 9, seq: 0 }, change, began_ms: 7, end }
    }

    #[test]
    fn records_are_found_by_who_and_what_and_when() {
        let record = record("mia", "dead replay", None);
        let is_found =
            |actor, verb, since_ms| AuditSearch { actor, verb, since_ms }.is_meant(&record);
        assert!(is_found(None, None, 0) && is_found(Some("mia"), Some("dead replay"), 7));
        assert!(!is_found(Some("leo"), None, 0) && !is_found(None, Some("dead"), 0));
        assert!(!is_found(None, None, 8), "it began before");
    }

    #[test]
    fn an_end_is_a_count_or_a_reason_or_missing() {
        let end = |end| row(line_of(record("mia", "pause", end)))[6].clone();
        assert_eq!(end(Some(AuditEnd::Done(3))), "3");
        assert_eq!(
            end(Some(AuditEnd::Failed("redis is full".to_owned()))),
            "failed: redis is full"
        );
        assert_eq!(end(None), "no end");
        let json = json_of(&line_of(record("mia", "pause", Some(AuditEnd::Done(3)))));
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(
            (&value["actor"], &value["way"], &value["count"]),
            (&"mia".into(), &"api".into(), &3.into())
        );
        assert_eq!(value["began_at"], "1970-01-01T00:00:00.007Z");
    }
}
