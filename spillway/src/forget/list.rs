//! `spillway forget --list`: redactions that are not carried out, and records of purges. Neither names anybody.

use serde_json::{Value, json};
use spillway_queue::redactions::{self, NotedRedaction};
use spillway_webhook::freshness::rfc3339;

use super::order::PurgeOrder;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{count, line, table};
use crate::place::CellArgs;

const PENDING: [&str; 4] = ["REDACTION", "KIND", "DELIVERED", "BY"];
const RECORDS: [&str; 6] = ["PURGED", "REDACTIONS", "COMPLETE", "WAITING", "DEAD", "ARCHIVED"];

/// Lists them; as JSON, one object per line.
pub(super) async fn run(place: &CellArgs, output: OutputArgs) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let pending = redactions::pending(&redis, &mut connection).await?;
    let records = redactions::records(&redis, &mut connection).await?;
    let records = records.into_iter().map(|(ms, record)| {
        let record: Value = serde_json::from_str(&record).unwrap_or_default();
        (rfc3339(ms), record)
    });
    let records: Vec<(String, Value)> = records.collect();
    if output.is_json() {
        for noted in &pending.noted {
            line(json!({
                "pending": noted.webhook.to_string(), "kind": kind(noted),
                "delivered_at": rfc3339(noted.noted_ms), "consumer": noted.consumer,
            }))?;
        }
        for (at, mut record) in records {
            record["purged_at"] = at.into();
            line(record)?;
        }
        return Ok(());
    }
    let rows = pending.noted.iter().map(|noted| {
        let id = noted.webhook.to_string();
        [id, kind(noted).to_owned(), rfc3339(noted.noted_ms), noted.consumer.clone()]
    });
    match pending.noted.is_empty() {
        true => line("no redaction is pending")?,
        false => line(table(&PENDING, rows))?,
    }
    if !pending.by_hand.is_empty() {
        let orders = count(pending.by_hand.len() as u64, "order");
        line(format_args!("{orders} by hand not finished: `spillway forget --due`"))?;
    }
    if pending.rewrite.is_some() {
        line("a rewrite of the AOF is due: `spillway forget --due`")?;
    }
    if records.is_empty() {
        return Ok(line("nothing was purged yet")?);
    }
    let rows = records.iter().map(|(at, record)| {
        let named = record["redactions"].as_array().map_or(0, Vec::len);
        let counts = ["waiting", "dead_letters", "archived"]
            .map(|store| record["purged"][store].to_string());
        let [waiting, dead, archived] = counts;
        [at.clone(), named.to_string(), record["complete"].to_string(), waiting, dead, archived]
    });
    Ok(line(format_args!("\n{}", table(&RECORDS, rows)))?)
}

fn kind(noted: &NotedRedaction) -> &'static str {
    PurgeOrder::of(noted).map_or("unreadable", |order| order.kind())
}
