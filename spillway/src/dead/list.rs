//! `spillway dead list`: prints a table, or one JSON object per line.

use serde_json::json;
use spillway_queue::dead::DeadLetter;
use spillway_webhook::freshness::rfc3339;

use super::filter::DeadFilter;
use super::take::NOTHING;
use super::walk::Walk;
use crate::failure::Failure;
use crate::out::{count, line, table};
use crate::place::CellArgs;

const HEADER: [&str; 8] =
    ["ID", "DEAD AT", "SHOP", "TOPIC", "RESOURCE", "REASON", "STATUS", "ATTEMPTS"];

/// Lists the matching dead letters.
pub(super) async fn run(
    place: &CellArgs,
    consumer: &str,
    filter: &DeadFilter,
    json: bool,
    limit: u32,
) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let mut walk = Walk::new(&redis, &mut connection, consumer);
    let mut rows = Vec::new();
    let mut found = 0;
    while let Some(page) = walk.next(filter).await? {
        found += page.len();
        if json {
            page.iter().try_for_each(|letter| line(object(letter)))?;
            continue;
        }
        // Only the rows are kept, not the bodies.
        let room = (limit as usize).saturating_sub(rows.len());
        rows.extend(page.iter().take(room).map(row));
    }
    if json {
        return Ok(());
    }
    if found == 0 {
        return Ok(line(NOTHING)?);
    }
    let more = found - rows.len();
    line(table(HEADER, rows))?;
    if more > 0 {
        line(format_args!("and {more} more: use --limit, --json or a filter"))?;
    }
    eprintln!("{}", count(found as u64, "dead letter"));
    Ok(())
}

fn row(letter: &DeadLetter) -> [String; 8] {
    [
        letter.webhook.to_string(),
        rfc3339(letter.id.ms),
        letter.shop.clone(),
        letter.topic.clone(),
        letter.resource.clone(),
        letter.reason.clone(),
        status(letter.status),
        letter.attempts.to_string(),
    ]
}

/// A status as text, or a dash if there was no answer.
pub(super) fn status(status: u16) -> String {
    if status == 0 { "-".to_owned() } else { status.to_string() }
}

fn object(letter: &DeadLetter) -> serde_json::Value {
    json!({
        "id": letter.webhook.to_string(),
        "shop": letter.shop,
        "topic": letter.topic,
        "resource": letter.resource,
        "delivery_id": letter.delivery_id,
        "reason": letter.reason,
        "status": letter.status,
        "attempts": letter.attempts,
        "dead_at": rfc3339(letter.id.ms),
    })
}
