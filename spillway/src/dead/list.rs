//! `spillway dead list`: prints a table, or one JSON object per line.

use std::time::{Duration, Instant};

use serde_json::json;
use spillway_queue::dead::DeadLetter;
use spillway_webhook::StreamId;
use spillway_webhook::freshness::rfc3339;

use super::filter::{DeadFilter, app_of};
use super::reason;
use super::walk::Walk;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{count, line, table};
use crate::place::CellArgs;
use crate::walk::cursor::LookBudget;

/// Time for one page of a list that is read in pages.
const PAGE_TIME: Duration = Duration::from_millis(100);
/// Dead letters that one page looks at.
const PAGE_LETTERS: usize = 2_000;
/// Bytes of the dead letters that one page looks at.
const PAGE_BYTES: usize = 16 << 20;

/// Columns: all of them if the output is wide, else the first ones.
const HEADER: [&str; 10] = [
    "SPILLWAY ID",
    "DEAD AT",
    "SHOP",
    "TOPIC",
    "RESOURCE",
    "REASON",
    "STATUS",
    "ATTEMPTS",
    "WEBHOOK ID",
    "APP",
];
const COLUMNS: usize = 9;

/// Lists the matching dead letters.
pub(super) async fn run(
    place: &CellArgs,
    consumer: &str,
    filter: &DeadFilter,
    output: OutputArgs,
    limit: u32,
) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let mut walk = Walk::new(&redis, &mut connection, consumer);
    let mut rows = Vec::new();
    let mut found = 0;
    while let Some(page) = walk.next(filter).await? {
        found += page.len();
        if output.is_json() {
            page.iter().try_for_each(|letter| line(object(letter)))?;
            continue;
        }
        // Only the rows are kept, not the bodies.
        let room = (limit as usize).saturating_sub(rows.len());
        rows.extend(page.iter().take(room).map(row));
    }
    if output.is_json() {
        return Ok(());
    }
    if found == 0 {
        return Ok(line(filter.nothing())?);
    }
    let more = found - rows.len();
    let columns = if output.is_wide() { HEADER.len() } else { COLUMNS };
    let rows = rows.into_iter().map(|row| row.into_iter().take(columns));
    line(table(&HEADER[..columns], rows))?;
    if more > 0 {
        line(format_args!("and {more} more: use --limit, -o json or a filter"))?;
    }
    eprintln!("{}", count(found as u64, "dead letter"));
    Ok(())
}

/// Returns a page of the matching dead letters after `after`, oldest first, and the id with which the next page
/// goes on. A page may be short: bodies come with dead letters, so it ends at what was looked at.
pub(crate) async fn page(
    place: &CellArgs,
    consumer: &str,
    filter: &DeadFilter,
    after: StreamId,
    limit: usize,
) -> Result<(Vec<DeadLetter>, Option<StreamId>), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let budget = LookBudget::new(Instant::now(), PAGE_TIME, PAGE_LETTERS, PAGE_BYTES);
    let walk = Walk::new(&redis, &mut connection, consumer).starting_after(after);
    walk.page(filter, limit, budget).await
}

fn row(letter: &DeadLetter) -> [String; HEADER.len()] {
    [
        letter.webhook.to_string(),
        rfc3339(letter.id.ms),
        letter.shop.clone(),
        letter.topic.clone(),
        letter.resource.clone(),
        reason(letter),
        status(letter.status),
        letter.attempts.to_string(),
        letter.webhook_id.clone(),
        app_of(letter),
    ]
}

/// A status as text, or a dash if there was no answer.
pub(super) fn status(status: u16) -> String {
    if status == 0 { "-".to_owned() } else { status.to_string() }
}

fn object(letter: &DeadLetter) -> serde_json::Value {
    json!({
        "spillway_id": letter.webhook.to_string(),
        "shop": letter.shop,
        "topic": letter.topic,
        "resource": letter.resource,
        "webhook_id": letter.webhook_id,
        "app": app_of(letter),
        "reason": letter.reason,
        "status": letter.status,
        "attempts": letter.attempts,
        "dead_at": rfc3339(letter.id.ms),
    })
}
