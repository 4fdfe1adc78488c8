//! Records of one webhook in the history.

use serde_json::json;
use spillway_queue::history::{self, OutcomeRecord, OutcomeRecords, RecordedOutcome};
use spillway_queue::{Connection, Redis};
use spillway_webhook::fingerprint::id_key;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::{StreamId, WebhookId};

use super::Fact;
use crate::failure::Failure;

/// One record of the webhook, and the record that it refers to.
struct FoundRecord {
    at_ms: u64,
    past: OutcomeRecord,
    /// The event that was delivered in its place, or the original that it duplicates.
    other: Option<OutcomeRecord>,
}

/// The records found, and the start of the history.
pub(super) struct History {
    found: Vec<FoundRecord>,
    since_ms: Option<u64>,
}

/// Key of the records to find.
enum RecordKey {
    Key(u64),
    Place(StreamId, u32),
}

impl History {
    /// Reads the whole history of a consumer for the records of one webhook.
    pub(super) async fn read(
        redis: &Redis,
        connection: &mut Connection,
        consumer: &str,
        wanted: &str,
    ) -> Result<Self, Failure> {
        let wanted = match wanted.parse::<WebhookId>() {
            Ok(id) => RecordKey::Place(id.entry, id.index),
            Err(_) => RecordKey::Key(id_key(wanted.as_bytes())),
        };
        let mut history = Self::of(redis, connection, consumer, &wanted).await?;
        let is_copy = |found: &&mut FoundRecord| found.past.outcome == RecordedOutcome::Duplicate;
        if let RecordKey::Place(..) = wanted
            && let Some(copy) = history.found.iter_mut().find(is_copy)
        {
            // The original of a duplicate has the same key.
            let all = Self::of(redis, connection, consumer, &RecordKey::Key(copy.past.key)).await?;
            let own = all.found.into_iter().find(|one| one.past == copy.past);
            copy.other = own.and_then(|own| own.other);
        }
        Ok(history)
    }

    async fn of(
        redis: &Redis,
        connection: &mut Connection,
        consumer: &str,
        wanted: &RecordKey,
    ) -> Result<Self, Failure> {
        let mut history = Self { found: Vec::new(), since_ms: None };
        let mut after = StreamId::ZERO;
        loop {
            let chunks = history::after(redis, connection, consumer, after).await?;
            let Some(last) = chunks.last() else { return Ok(history) };
            after = last.id;
            history.since_ms.get_or_insert(chunks[0].id.ms);
            for chunk in &chunks {
                history.take(chunk, wanted);
            }
        }
    }

    fn take(&mut self, chunk: &OutcomeRecords, wanted: &RecordKey) {
        for (at, past) in chunk.records.iter().enumerate() {
            let is_meant = match *wanted {
                RecordKey::Key(key) => past.key == key,
                RecordKey::Place(entry, index) => (past.entry, past.index) == (entry, index),
            };
            if !is_meant {
                continue;
            }
            let other = match past.outcome {
                RecordedOutcome::Coalesced => {
                    let behind = chunk.records[at..].iter();
                    behind.copied().find(|one| one.outcome != RecordedOutcome::Coalesced)
                }
                // Matched by the id alone. The fingerprint covers more than the id, so the original
                // was found before.
                RecordedOutcome::Duplicate => {
                    let before = self.found.iter().rev().map(|found| found.past);
                    before.into_iter().find(|one| is_original(one.outcome))
                }
                RecordedOutcome::Delivered
                | RecordedOutcome::Dead
                | RecordedOutcome::Dropped
                | RecordedOutcome::Suppressed
                | RecordedOutcome::Stale => None,
            };
            self.found.push(FoundRecord { at_ms: chunk.id.ms, past: *past, other });
        }
    }

    /// One fact for each record. A dead letter is described by the dead letter itself, while it
    /// exists.
    pub(super) fn facts(&self, cell: u32) -> Vec<Fact> {
        self.found.iter().map(|found| found.fact(cell)).collect()
    }

    /// Explains what it means that nothing was found.
    pub(super) fn gap(&self, wanted: &str) -> String {
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

/// True if a late copy of a webhook with this outcome is a duplicate.
fn is_original(outcome: RecordedOutcome) -> bool {
    matches!(
        outcome,
        RecordedOutcome::Delivered | RecordedOutcome::Suppressed | RecordedOutcome::Stale
    )
}

impl FoundRecord {
    fn fact(&self, cell: u32) -> Fact {
        let id = |past: OutcomeRecord| {
            WebhookId { cell, entry: past.entry, index: past.index }.to_string()
        };
        let OutcomeRecord { outcome, attempts, .. } = self.past;
        let other = self.other.map(id);
        let attempt = if attempts == 1 { "attempt" } else { "attempts" };
        let (state, text) = match (outcome, &other) {
            (RecordedOutcome::Delivered, _) => {
                ("delivered", format!("was delivered, {attempts} {attempt}"))
            }
            (RecordedOutcome::Duplicate, Some(other)) => {
                ("duplicate", format!("was dropped as a duplicate of {other}"))
            }
            (RecordedOutcome::Duplicate, None) => (
                "duplicate",
                "was dropped as a duplicate of one delivered before the history begins".to_owned(),
            ),
            (RecordedOutcome::Coalesced, Some(other)) => {
                ("coalesced", format!("was coalesced: {other} stood for it"))
            }
            (RecordedOutcome::Coalesced, None) => ("coalesced", "was coalesced".to_owned()),
            (RecordedOutcome::Suppressed, _) => (
                "suppressed",
                "was dropped: it showed the state that was delivered last, except for its time \
                 (SUPPRESS_TOPICS)"
                    .to_owned(),
            ),
            (RecordedOutcome::Stale, _) => (
                "stale",
                "was dropped: it was older than an update that was delivered or dropped before it \
                 (SUPPRESS_TOPICS, STALE_UPDATES)"
                    .to_owned(),
            ),
            (RecordedOutcome::Dead, _) => {
                ("given_up", format!("was given up, {attempts} {attempt}"))
            }
            (RecordedOutcome::Dropped, _) => (
                "drop_ordered",
                "an operator ordered that it be dropped (`spillway queue drop`)".to_owned(),
            ),
        };
        let more = json!({ "attempts": attempts, "other_spillway_id": other });
        Fact { spillway_id: id(self.past), state, at_ms: self.at_ms, text, more }
    }
}
