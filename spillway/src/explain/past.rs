//! What the history says of one webhook.

use serde_json::json;
use spillway_queue::history::{self, Chunk, Outcome, Past};
use spillway_queue::{Connection, Redis};
use spillway_webhook::fingerprint::id_key;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::{StreamId, WebhookId};

use super::Fact;
use crate::failure::Failure;

/// One record of it, and what it refers to.
struct Found {
    at_ms: u64,
    past: Past,
    /// What stood for it, or what it is a copy of.
    other: Option<Past>,
}

/// What was found, and how far back the history goes.
pub struct History {
    found: Vec<Found>,
    since_ms: Option<u64>,
}

/// Which records are meant.
enum Wanted {
    Key(u64),
    Place(StreamId, u32),
}

impl History {
    /// Reads all of a drain's history for the records of one webhook.
    pub async fn read(
        redis: &Redis,
        connection: &mut Connection,
        drain: &str,
        wanted: &str,
    ) -> Result<Self, Failure> {
        let wanted = match wanted.parse::<WebhookId>() {
            Ok(id) => Wanted::Place(id.entry, id.index),
            Err(_) => Wanted::Key(id_key(wanted.as_bytes())),
        };
        let mut history = Self::of(redis, connection, drain, &wanted).await?;
        let is_copy = |found: &&mut Found| found.past.outcome == Outcome::Duplicate;
        if let Wanted::Place(..) = wanted
            && let Some(copy) = history.found.iter_mut().find(is_copy)
        {
            // What it is a copy of has the same key.
            let all = Self::of(redis, connection, drain, &Wanted::Key(copy.past.key)).await?;
            let own = all.found.into_iter().find(|one| one.past == copy.past);
            copy.other = own.and_then(|own| own.other);
        }
        Ok(history)
    }

    async fn of(
        redis: &Redis,
        connection: &mut Connection,
        drain: &str,
        wanted: &Wanted,
    ) -> Result<Self, Failure> {
        let mut history = Self { found: Vec::new(), since_ms: None };
        let mut after = StreamId::ZERO;
        loop {
            let chunks = history::after(redis, connection, drain, after).await?;
            let Some(last) = chunks.last() else { return Ok(history) };
            after = last.id;
            history.since_ms.get_or_insert(chunks[0].id.ms);
            for chunk in &chunks {
                history.take(chunk, wanted);
            }
        }
    }

    fn take(&mut self, chunk: &Chunk, wanted: &Wanted) {
        for (at, past) in chunk.records.iter().enumerate() {
            let is_meant = match *wanted {
                Wanted::Key(key) => past.key == key,
                Wanted::Place(entry, index) => (past.entry, past.index) == (entry, index),
            };
            if !is_meant {
                continue;
            }
            let other = match past.outcome {
                Outcome::Coalesced => {
                    let behind = chunk.records[at..].iter();
                    behind.copied().find(|one| one.outcome != Outcome::Coalesced)
                }
                // By the id alone: the fingerprint covers more, so it is of one that was found before.
                Outcome::Duplicate => {
                    let before = self.found.iter().rev().map(|found| found.past);
                    before.into_iter().find(|one| one.outcome == Outcome::Delivered)
                }
                Outcome::Delivered | Outcome::Dead | Outcome::Dropped => None,
            };
            self.found.push(Found { at_ms: chunk.id.ms, past: *past, other });
        }
    }

    /// What it says, a fact for each record. What died is told by the dead letters, while they last.
    pub fn facts(&self, cell: u32) -> Vec<Fact> {
        self.found.iter().map(|found| found.fact(cell)).collect()
    }

    /// What it means that nothing was found.
    pub fn gap(&self, wanted: &str) -> String {
        let since = match self.since_ms {
            Some(since_ms) => format!("before {}", rfc3339(since_ms)),
            None => "longer ago than DEDUP_WINDOW, or with DEDUP_WINDOW=0".to_owned(),
        };
        let kind = match wanted.parse::<WebhookId>() {
            Ok(_) => "never accepted here",
            Err(_) => "not received, without an X-Shopify-Webhook-Id",
        };
        format!("{kind}, or settled {since}, which is as far back as the history goes")
    }
}

impl Found {
    fn fact(&self, cell: u32) -> Fact {
        let id = |past: Past| WebhookId { cell, entry: past.entry, index: past.index }.to_string();
        let Past { outcome, attempts, .. } = self.past;
        let other = self.other.map(id);
        let attempt = if attempts == 1 { "attempt" } else { "attempts" };
        let (state, text) = match (outcome, &other) {
            (Outcome::Delivered, _) => {
                ("delivered", format!("was delivered, {attempts} {attempt}"))
            }
            (Outcome::Duplicate, Some(other)) => {
                ("duplicate", format!("was dropped as a duplicate of {other}"))
            }
            (Outcome::Duplicate, None) => (
                "duplicate",
                "was dropped as a duplicate of one delivered before the history begins".to_owned(),
            ),
            (Outcome::Coalesced, Some(other)) => {
                ("coalesced", format!("was coalesced: {other} stood for it"))
            }
            (Outcome::Coalesced, None) => ("coalesced", "was coalesced".to_owned()),
            (Outcome::Dead, _) => ("given_up", format!("was given up, {attempts} {attempt}")),
            (Outcome::Dropped, _) => (
                "drop_ordered",
                "an operator ordered that it be dropped (`spillway queue drop`)".to_owned(),
            ),
        };
        let more = json!({ "attempts": attempts, "other_id": other });
        Fact { id: id(self.past), state, at_ms: self.at_ms, text, more }
    }
}
