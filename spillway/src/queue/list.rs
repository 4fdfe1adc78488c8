//! `spillway queue list`: prints a table up to its limit, or one JSON object per line.

use std::ops::ControlFlow;

use serde_json::json;
use spillway_queue::controls::Filter;
use spillway_webhook::freshness::rfc3339;

use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{Progress, line, table};
use crate::place::CellArgs;
use crate::walk::{Aside, Look, Met, Waiting};

/// Message if nothing matches.
pub(super) const NOTHING: &str = "no waiting webhook matches";

/// Columns: all of them if the output is wide, else the first ones.
const HEADER: [&str; 9] =
    ["SPILLWAY ID", "RECEIVED", "SHOP", "TOPIC", "RESOURCE", "WEBHOOK ID", "WHERE", "APP", "BYTES"];
const COLUMNS: usize = 7;

struct Row {
    spillway_id: String,
    received: String,
    shop: String,
    topic: String,
    resource: String,
    webhook_id: String,
    aside: Option<Aside>,
    app: String,
    bytes: usize,
}

/// Lists the matching webhooks: replays, lanes, then the main stream, each oldest first.
pub(super) async fn run(
    place: &CellArgs,
    consumer: &str,
    filter: Filter,
    output: OutputArgs,
    limit: u32,
) -> Result<(), Failure> {
    let mut waiting = Waiting::for_consumer(place, consumer).await?;
    let nothing = if filter.is_empty() { "no webhook waits" } else { NOTHING };
    let limit = limit as usize;
    let mut listing = Listing { rows: Vec::new(), output, limit, nothing, failed: None };
    let mut progress = Progress::new();
    let mut seen = 0;
    let packs = waiting.packs;
    let lanes = waiting.lanes(&filter).await?;
    let look = move |look: &Look<'_>| {
        let meant = look.webhooks().filter(|met| met.is_meant(&filter));
        meant.map(|met| Row::of(&met)).collect::<Vec<Row>>()
    };
    waiting.aside(&lanes, look.clone(), |rows| listing.take(rows)).await?;
    if !listing.is_full() {
        waiting
            .main(look, |rows| {
                seen += 1;
                progress.tell(|| format!("read {seen} of {} packs", packs));
                listing.take(rows)
            })
            .await?;
    }
    listing.end()
}

struct Listing {
    rows: Vec<Row>,
    output: OutputArgs,
    limit: usize,
    /// Message if nothing is found.
    nothing: &'static str,
    failed: Option<std::io::Error>,
}

impl Listing {
    fn is_full(&self) -> bool {
        self.failed.is_some() || (!self.output.is_json() && self.rows.len() > self.limit)
    }

    fn take(&mut self, rows: Vec<Row>) -> ControlFlow<()> {
        if self.output.is_json() {
            self.failed = rows.iter().try_for_each(|row| line(row.object())).err();
        } else {
            // One row above the limit shows that there are more.
            let room = (self.limit + 1).saturating_sub(self.rows.len());
            self.rows.extend(rows.into_iter().take(room));
        }
        if self.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(mut self) -> Result<(), Failure> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        if self.output.is_json() {
            return Ok(());
        }
        if self.rows.is_empty() {
            return Ok(line(self.nothing)?);
        }
        let has_more = self.rows.len() > self.limit;
        self.rows.truncate(self.limit);
        let columns = if self.output.is_wide() { HEADER.len() } else { COLUMNS };
        let rows = self.rows.into_iter().map(|row| row.cells().into_iter().take(columns));
        line(table(&HEADER[..columns], rows))?;
        if has_more {
            line("and more: use --limit, -o json or a filter; `spillway top` counts them")?;
        }
        Ok(())
    }
}

impl Row {
    fn of(met: &Met<'_>) -> Self {
        Self {
            spillway_id: met.id.to_string(),
            received: rfc3339(met.view.received_at_ms),
            shop: met.shop(),
            topic: met.topic(),
            resource: met.resource(),
            webhook_id: met.webhook_id(),
            aside: met.aside,
            app: met.app(),
            bytes: met.view.body.len(),
        }
    }

    fn object(&self) -> serde_json::Value {
        json!({
            "spillway_id": self.spillway_id,
            "received_at": self.received,
            "shop": self.shop,
            "topic": self.topic,
            "resource": self.resource,
            "webhook_id": self.webhook_id,
            "app": self.app,
            "bytes": self.bytes,
            "in_lane": self.aside.is_some_and(|aside| aside.replay.is_none()),
            "is_replay": self.aside.is_some_and(|aside| aside.replay.is_some()),
            "attempts": self.aside.map(|aside| aside.attempts),
        })
    }

    fn cells(self) -> [String; HEADER.len()] {
        let place = self.aside.map_or_else(|| "main".to_owned(), |aside| aside.to_string());
        [
            self.spillway_id,
            self.received,
            self.shop,
            self.topic,
            self.resource,
            self.webhook_id,
            place,
            self.app,
            self.bytes.to_string(),
        ]
    }
}
