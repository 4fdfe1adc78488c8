//! `spillway audit`: who changed what, when and how many, and who looked at personal data.
//!
//! [`search`] finds records, and [`lines`] shows them. Both know no command line.

mod lines;
mod search;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use spillway_console::model::audit::{AuditList, AuditQuery};
use spillway_webhook::StreamId;

use crate::audited::{self, Actor, ChangeOrder, audited};
use crate::consent::{Confirmation, dry_run};
use crate::failure::Failure;
use crate::filter::moment_ms;
use crate::format::OutputArgs;
use crate::out::{line, now_ms, table};
use crate::place::CellArgs;
use lines::{HEADER, csv_header, csv_line, json_of, line_of, row};
use search::AuditSearch;

/// Records of a page of the console, and the most that it may ask for.
const PAGE: u32 = 50;
const PAGE_MAX: u32 = 200;
/// Records of one CSV file of the console, which is made in memory: some 15 MB.
const CSV_MAX: usize = 50_000;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    #[command(flatten)]
    output: OutputArgs,

    /// Only changes that began at or after this RFC 3339 time, or this long ago, such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Only changes that began at or before this RFC 3339 time, or this long ago
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// Only changes by this user, API token (token:NAME) or user of a machine
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,

    /// Only changes by this command, such as 'dead replay'; 'read content' for looks at headers and bodies
    #[arg(long)]
    verb: Option<String>,

    /// Print comma-separated values: began, who, by, verb, consumer, filter, outcome, number, reason
    #[arg(long)]
    csv: bool,

    /// Keep records for this time from now on, and delete older ones, also if AUDIT_KEEP was longer somewhere; needs --yes
    #[arg(long, value_name = "DURATION", value_parser = audited::parse_keep,
        conflicts_with_all = ["since", "until", "actor", "verb", "csv"])]
    keep: Option<Duration>,

    #[command(flatten)]
    confirmation: Confirmation,
}

/// Runs `spillway audit`: newest first.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, output, since, until, actor, verb, csv, keep, confirmation } = arguments;
    if let Some(keep) = keep {
        return keep_for(&place, keep, confirmation).await;
    }
    if confirmation.yes {
        return Err(Failure::Usage("--yes goes with --keep: leave it out".to_owned()));
    }
    let query = AuditQuery { actor, verb, since, until, after: None, limit: None };
    let search = search_of(&query, ["--since", "--until"])?;
    let (redis, mut connection) = place.connect().await?;
    let audit = audited::open(redis)?;
    if csv {
        line(csv_header())?;
    }
    let mut rows = Vec::new();
    let mut after = None;
    loop {
        let found = search.page(&audit, &mut connection, after, usize::MAX).await?;
        let mut lines = found.records.into_iter().map(line_of);
        match (csv, output.is_json()) {
            (true, _) => lines.try_for_each(|record| line(csv_line(&record)))?,
            (false, true) => lines.try_for_each(|record| line(json_of(&record)))?,
            (false, false) => rows.extend(lines.map(row)),
        }
        after = found.next;
        if after.is_none() {
            break;
        }
    }
    match (csv || output.is_json(), rows.is_empty()) {
        (true, _) => {}
        (false, true) => line("no change is on record")?,
        (false, false) => line(table(&HEADER, rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets the time for which records are kept, also to a shorter one.
async fn keep_for(
    place: &CellArgs,
    keep: Duration,
    confirmation: Confirmation,
) -> Result<ExitCode, Failure> {
    audited::ensure_not_longer(keep)?;
    let (redis, mut connection) = place.connect().await?;
    let audit = audited::open(redis.clone())?;
    let before = humantime::format_duration(audit.kept(&mut connection).await?);
    let now = humantime::format_duration(keep);
    if !confirmation.yes {
        let effect = format!("records would be kept for {now} in place of {before}");
        line(dry_run(&effect, "set it"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let filter = format!("records kept for {now} in place of {before}");
    let change = ChangeOrder { verb: "audit --keep", consumer: String::new(), filter };
    let asked = connection.clone();
    let deleted = audited(&redis, &asked, &Actor::of_command(), change, async {
        let deleted = audited::open_for(&redis, keep).set_keep(&mut connection).await?;
        Ok((deleted, deleted))
    })
    .await?;
    line(format_args!("records are kept for {now}; {deleted} older ones were deleted"))?;
    Ok(ExitCode::SUCCESS)
}

/// A page of records for the console, newest first.
pub(crate) async fn find(cell: &CellArgs, query: &AuditQuery) -> Result<AuditList, Failure> {
    let after = given(query.after.as_ref()).map(str::parse::<StreamId>).transpose();
    let after = after.map_err(|error| Failure::Usage(format!("after: {error}")))?;
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let search = search_of(query, ["since", "until"])?;
    let (redis, mut connection) = cell.connect().await?;
    let audit = audited::open(redis)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = search.page(&audit, &mut connection, after, limit).await?;
    let records = found.records.into_iter().map(line_of).collect();
    Ok(AuditList { records, next: found.next.map(|id| id.to_string()) })
}

/// All records of a query, whatever its limit, as comma-separated values.
pub(crate) async fn csv_of(cell: &CellArgs, query: &AuditQuery) -> Result<String, Failure> {
    let search = search_of(query, ["since", "until"])?;
    let (redis, mut connection) = cell.connect().await?;
    let audit = audited::open(redis)?;
    let mut text = csv_header() + "\r\n";
    let mut number = 0;
    let mut after = None;
    loop {
        let found = search.page(&audit, &mut connection, after, CSV_MAX + 1).await?;
        number += found.records.len();
        if number > CSV_MAX {
            return Err(Failure::Usage(format!(
                "more than {CSV_MAX} records match: give since and until, and download them in parts; spillway audit \
                 --csv has no bound"
            )));
        }
        for record in found.records.into_iter().map(line_of) {
            text.push_str(&csv_line(&record));
            text.push_str("\r\n");
        }
        after = found.next;
        if after.is_none() {
            return Ok(text);
        }
    }
}

/// The search of a query. `names` are those of its times.
fn search_of<'a>(query: &'a AuditQuery, names: [&str; 2]) -> Result<AuditSearch<'a>, Failure> {
    let now = now_ms();
    let [since, until] = names;
    let moment = |name: &str, text: Option<&String>| {
        given(text).map(|text| moment_ms(name, text, now)).transpose()
    };
    Ok(AuditSearch {
        actor: given(query.actor.as_ref()),
        verb: given(query.verb.as_ref()),
        since_ms: moment(since, query.since.as_ref())?.unwrap_or(0),
        until_ms: moment(until, query.until.as_ref())?.unwrap_or(u64::MAX),
    })
}

/// A value of a query. An empty one, as that of an empty field of a form, is none.
fn given(text: Option<&String>) -> Option<&str> {
    text.map(|text| text.trim()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        audit: Arguments,
    }

    #[test]
    fn times_are_durations_or_moments_and_an_empty_field_is_none() {
        let query = |since: &str, until: &str| AuditQuery {
            since: Some(since.to_owned()),
            until: Some(until.to_owned()),
            ..AuditQuery::default()
        };
        let times = |since: &str, until: &str| {
            let query = query(since, until);
            let found = search_of(&query, ["--since", "--until"]);
            found.map(|search| [search.since_ms, search.until_ms]).map_err(|told| told.to_string())
        };
        assert_eq!(times("", " "), Ok([0, u64::MAX]));
        let moments = times("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z");
        assert_eq!(moments, Ok([1_000, 2_000]));
        let [since, _] = times("24h", "").expect("a duration");
        assert!(now_ms() - since >= 24 * 3_600_000);
        assert!(times("yesterday", "").is_err_and(|told| told.contains("--since")));
    }

    #[test]
    fn a_time_to_keep_records_is_set_alone() {
        let parsed = |flags: &[&str]| Command::try_parse_from([&["x"], flags].concat());
        let keep = parsed(&["--keep", "30d", "--yes"]).expect("good flags").audit.keep;
        assert_eq!(keep, Some(Duration::from_secs(30 * 86_400)));
        for wrong in [&["--keep", "1h"][..], &["--keep", "30d", "--since", "1d"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
        assert!(parsed(&["--since", "2026-01-01T00:00:00Z", "--csv"]).is_ok());
    }
}
