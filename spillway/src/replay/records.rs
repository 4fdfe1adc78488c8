//! Replays on record: listed, cancelled, and their descriptions.

use serde_json::json;
use spillway_queue::replay::{self, ReplayRecord, ReplayState};
use spillway_webhook::freshness::rfc3339;

use super::spec::ReplaySpec;
use crate::audited::{Actor, ChangeOrder, audited};
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{line, table};
use crate::place::CellArgs;

const HEADER: [&str; 8] =
    ["REPLAY", "STATE", "FROM", "TO", "FILTER", "FED", "SHOPS LEFT", "STARTED"];

/// Lists the replays of a consumer, the oldest first.
pub(super) async fn list(
    place: &CellArgs,
    consumer: &str,
    output: OutputArgs,
) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let records = replay::list(&redis, &mut connection, consumer).await?;
    if output.is_json() {
        return Ok(records.iter().try_for_each(|record| line(json_of(consumer, record)))?);
    }
    if records.is_empty() {
        return Ok(line(format_args!("{consumer} has no replay"))?);
    }
    Ok(line(table(&HEADER, records.iter().map(cells)))?)
}

/// Cancels a replay.
pub(super) async fn cancel(
    place: &CellArgs,
    consumer: &str,
    id: &str,
    output: OutputArgs,
) -> Result<(), Failure> {
    let before = end(place, &Actor::of_command(), consumer, id).await?;
    if output.is_json() {
        let is_new = before == ReplayState::Running;
        return Ok(line(json!({ "replay": id, "cancelled": is_new, "was": before.label() }))?);
    }
    Ok(line(match before {
        ReplayState::Running => {
            format!("cancelled {id}; what was fed to {consumer} by then is still delivered")
        }
        ReplayState::Done => format!("{id} was done already"),
        ReplayState::Cancelled => format!("{id} was cancelled already"),
    })?)
}

/// Cancels a replay, and returns its state before.
pub(super) async fn end(
    place: &CellArgs,
    actor: &Actor,
    consumer: &str,
    id: &str,
) -> Result<ReplayState, Failure> {
    let (redis, mut connection) = place.connect().await?;
    let audit = connection.clone();
    let change = ChangeOrder {
        verb: "replay cancel",
        consumer: consumer.to_owned(),
        filter: format!("replay {id}"),
    };
    audited(&redis, &audit, actor, change, async {
        let before = replay::cancel(&redis, &mut connection, consumer, id).await?;
        let before = before.ok_or_else(|| absent(consumer, id))?;
        Ok((before, u64::from(before == ReplayState::Running)))
    })
    .await
}

/// Reads the description of a replay.
pub(super) async fn spec(
    place: &CellArgs,
    consumer: &str,
    id: &str,
) -> Result<ReplaySpec, Failure> {
    let (redis, mut connection) = place.connect().await?;
    let records = replay::list(&redis, &mut connection, consumer).await?;
    let record = records.iter().find(|record| record.id == id);
    let record = record.ok_or_else(|| absent(consumer, id))?;
    ReplaySpec::from_json(&record.spec).ok_or_else(|| {
        Failure::Failed(format!("the record of {id} is of a newer version of this command"))
    })
}

fn absent(consumer: &str, id: &str) -> Failure {
    Failure::Failed(format!("{consumer} has no replay {id}; see `spillway replay list`"))
}

fn json_of(consumer: &str, record: &ReplayRecord) -> serde_json::Value {
    json!({
        "replay": record.id,
        "consumer": consumer,
        "state": record.state.label(),
        "fed": record.fed,
        "skipped": record.skipped,
        "shops_left": record.shops_left,
        "after": record.after.to_string(),
        "started": rfc3339(record.started_ms),
        "changed": rfc3339(record.changed_ms),
        "spec": ReplaySpec::from_json(&record.spec).map(|spec| spec.json()),
    })
}

fn cells(record: &ReplayRecord) -> [String; HEADER.len()] {
    let spec = ReplaySpec::from_json(&record.spec);
    let of_spec = |text: fn(&ReplaySpec) -> String| spec.as_ref().map(text).unwrap_or_default();
    [
        record.id.clone(),
        record.state.label().to_owned(),
        of_spec(|spec| rfc3339(spec.after.next().ms)),
        of_spec(|spec| rfc3339(spec.through.ms)),
        of_spec(|spec| spec.filter.to_string()),
        record.fed.to_string(),
        record.shops_left.to_string(),
        rfc3339(record.started_ms),
    ]
}
