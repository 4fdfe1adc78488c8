//! `spillway dead show`: one dead letter, exactly as it was received.

use std::io::Write;
use std::time::{Duration, Instant};

use spillway_queue::dead::{DeadLetter, list};
use spillway_webhook::StreamId;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::pack::{Pack, Record};

use super::filter::DeadFilter;
use super::list::status;
use super::walk::Walk;
use super::{absent, reason};
use crate::audited::{Actor, note_look};
use crate::failure::Failure;
use crate::out::{line, printable, table};
use crate::place::CellArgs;
use crate::walk::cursor::LookBudget;

/// Shows the dead letter with this Spillway-Id or Shopify webhook id, or writes only its body.
pub(super) async fn run(
    place: &CellArgs,
    consumer: &str,
    id: &str,
    body_only: bool,
) -> Result<(), Failure> {
    let letter = find(place, consumer, id).await?;
    let corrupt = |what: &dyn std::fmt::Display| {
        Failure::Failed(format!("what is stored of {id} cannot be read: {what}"))
    };
    let pack = Pack::decode(&letter.pack).map_err(|error| corrupt(&error))?;
    if pack.count() == 0 {
        return Err(corrupt(&"it is empty"));
    }
    let record = pack.record(0);
    note_look(place, &Actor::of_command(), Some(consumer), &letter.webhook).await?;
    if body_only {
        let mut output = std::io::stdout();
        output.write_all(&record.body)?;
        return Ok(output.flush()?);
    }
    Ok(line(text(&letter, &record))?)
}

async fn find(place: &CellArgs, consumer: &str, id: &str) -> Result<DeadLetter, Failure> {
    let filter = DeadFilter::with_id(id);
    let (redis, mut connection) = place.connect().await?;
    let mut walk = Walk::new(&redis, &mut connection, consumer);
    while let Some(page) = walk.next(&filter).await? {
        if let Some(letter) = page.into_iter().next() {
            return Ok(letter);
        }
    }
    Err(absent(consumer, &id))
}

/// Finds the dead letter with this Spillway-Id or Shopify webhook id, as far as `time` is enough. The id among the
/// dead letters, if it is known, is looked at first.
pub(crate) async fn find_within(
    place: &CellArgs,
    consumer: &str,
    id: &str,
    known: Option<StreamId>,
    time: Duration,
) -> Result<Option<DeadLetter>, Failure> {
    let filter = DeadFilter::with_id(id);
    let (redis, mut connection) = place.connect().await?;
    if let Some(at) = known {
        let one = list(&redis, &mut connection, consumer, at.previous(), 1).await?;
        if let Some(letter) = one.into_iter().find(|letter| filter.matches(letter)) {
            return Ok(Some(letter));
        }
    }
    let budget = LookBudget::new(Instant::now(), time, usize::MAX, usize::MAX);
    let walk = Walk::new(&redis, &mut connection, consumer);
    let (mut found, mut next) = walk.page(&filter, 1, budget).await?;
    if let (true, None, Some(thorough)) = (found.is_empty(), next, filter.thorough()) {
        let walk = Walk::new(&redis, &mut connection, consumer);
        (found, next) = walk.page(&thorough, 1, budget).await?;
    }
    match (found.into_iter().next(), next) {
        (None, Some(_)) => Err(Failure::Failed(format!(
            "not found in time among the dead letters of {consumer}: find {id} in their list, with a filter"
        ))),
        (found, _) => Ok(found),
    }
}

fn text(letter: &DeadLetter, record: &Record) -> String {
    let facts = [
        ("Spillway-Id", letter.webhook.to_string()),
        ("webhook id", letter.webhook_id.clone()),
        ("shop", letter.shop.clone()),
        ("topic", letter.topic.clone()),
        ("resource", letter.resource.clone()),
        ("received", rfc3339(record.received_at_ms)),
        ("given up", rfc3339(letter.id.ms)),
        ("reason", reason(letter)),
        ("last status", status(letter.status)),
        ("attempts", letter.attempts.to_string()),
    ];
    let mut text = table(&["", ""], facts.map(|(name, fact)| [name.to_owned(), fact]));
    if !letter.answer.is_empty() {
        text.push_str("\n\nthe last answer began:\n");
        text.push_str(printable(&letter.answer).trim_end());
    }
    text.push_str(&format!("\n\nPOST {}\n", printable(&record.target)));
    for (name, value) in &record.headers {
        text.push_str(&format!("{}: {}\n", printable(name), printable(value)));
    }
    text.push('\n');
    text.push_str(printable(&record.body).trim_end());
    text.trim_start().to_owned()
}
