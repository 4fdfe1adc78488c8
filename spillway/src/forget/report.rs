//! Report of a purge: counts, and reasons why it is not complete. It names nobody.

use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_archive::StoreError;
use spillway_process::error::chain;

use super::order::PurgeOrders;
use crate::consent::dry_run;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{count, line};

/// Counts of a purge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PurgeCounts {
    /// Waiting webhooks whose drop was ordered: in lanes, in the main stream and among replays, for each consumer.
    pub waiting: u64,
    /// Dead letters that were dropped.
    pub dead_letters: u64,
    /// Webhooks that were erased from the archive.
    pub archived: u64,
    /// Objects of the archive that were written again.
    pub objects: u64,
    /// Packs that cannot be decoded and show data of somebody who is meant. Only an operator can delete them.
    pub corrupt: u64,
}

/// Report of a purge.
#[derive(Debug, Default)]
pub(super) struct PurgeReport {
    /// Counts; in a dry run, of what would be purged.
    pub counts: PurgeCounts,
    /// Reasons why data of somebody who is meant is left, as sentences.
    pub pending: Vec<String>,
    /// Other things that an operator should know.
    pub notes: Vec<String>,
    /// Other cells of the archive that hold webhooks of a shop that is meant.
    pub other_cells: Vec<u32>,
    /// True if nothing was changed.
    pub is_dry_run: bool,
}

impl PurgeCounts {
    /// True if nothing was purged.
    pub(super) fn is_empty(self) -> bool {
        let Self { waiting, dead_letters, archived, objects, corrupt: _ } = self;
        waiting + dead_letters + archived + objects == 0
    }

    fn json(self) -> Value {
        let Self { waiting, dead_letters, archived, objects, corrupt } = self;
        json!({
            "waiting": waiting, "dead_letters": dead_letters, "archived": archived, "objects": objects,
            "corrupt": corrupt,
        })
    }
}

impl std::fmt::Display for PurgeCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {}, {} in {} of the archive",
            count(self.waiting, "waiting webhook"),
            count(self.dead_letters, "dead letter"),
            count(self.archived, "webhook"),
            count(self.objects, "object"),
        )
    }
}

impl PurgeReport {
    /// True if nothing is left.
    pub(super) fn is_complete(&self) -> bool {
        self.pending.is_empty()
    }

    /// Notes which other cells hold webhooks of a shop that is meant. They may be at work, so they are not touched.
    pub(super) fn tell_other_cells(&mut self, found: Result<Vec<u32>, StoreError>) {
        match found {
            Ok(cells) => self.other_cells = cells,
            Err(error) => {
                self.notes.push(format!("other cells of the archive: {}", chain(&error)));
            }
        }
        if !self.other_cells.is_empty() {
            let named = self.other_cells.iter().map(|cell| format!("{cell:08x}"));
            self.notes.push(format!(
                "the archive holds webhooks of this shop from other cells, which stay: {}; a cell that is gone is \
                 purged with --forget-cells, or FORGET_CELLS for --due",
                named.collect::<Vec<_>>().join(", "),
            ));
        }
    }

    /// The record of the purge. Ids of webhooks and kinds are all that it says of who was meant.
    pub(super) fn record(&self, orders: &PurgeOrders, took_ms: u64) -> String {
        let named = orders.iter().map(|order| {
            let id = order.webhook.map_or_else(|| "hand".to_owned(), |webhook| webhook.to_string());
            json!({ "redaction": id, "kind": order.kind() })
        });
        json!({
            "redactions": named.collect::<Vec<_>>(),
            "complete": self.is_complete(),
            "purged": self.counts.json(),
            "other_cells": self.other_cells.len(),
            "took_ms": took_ms,
        })
        .to_string()
    }

    /// Prints the report of a purge by hand.
    pub(super) fn print_by_hand(&self, output: OutputArgs) -> Result<ExitCode, Failure> {
        if self.is_dry_run && !output.is_json() {
            let effect = format!("{} would be purged, for good", self.counts);
            line(dry_run(&effect, "purge them"))?;
            let mut notes = self.notes.iter().chain(&self.pending);
            notes.try_for_each(|note| line(format_args!("note: {note}")))?;
            return Ok(ExitCode::SUCCESS);
        }
        self.print(output)
    }

    /// Prints the report. The exit code is 1 if something is left.
    pub(super) fn print(&self, output: OutputArgs) -> Result<ExitCode, Failure> {
        let is_good = self.is_complete() || self.is_dry_run;
        let code = if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        if output.is_json() {
            line(json!({
                "dry_run": self.is_dry_run,
                "complete": self.is_complete() && !self.is_dry_run,
                "purged": self.counts.json(),
                "pending": self.pending,
                "notes": self.notes,
            }))?;
            return Ok(code);
        }
        let purged = if self.is_dry_run { "would be purged" } else { "purged" };
        line(format_args!("{purged}: {}", self.counts))?;
        self.notes.iter().try_for_each(|note| line(format_args!("note: {note}")))?;
        self.pending.iter().try_for_each(|reason| line(format_args!("pending: {reason}")))?;
        if !is_good {
            line("not everything is purged yet: run the same command again later")?;
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use spillway_webhook::redaction::Person;
    use spillway_webhook::{Redaction, StreamId};

    use super::*;
    use crate::forget::order::PurgeOrder;

    #[test]
    fn a_record_has_counts_and_names_nobody() {
        let person = Person {
            id: Some(7_700_123),
            email: Some("ann@example.com".to_owned()),
            ..Person::default()
        };
        let redaction = Redaction::of_person("a.example", person).expect("a person");
        let orders = PurgeOrders::new(vec![PurgeOrder::until(redaction, StreamId::ZERO)]);
        let counts = PurgeCounts { waiting: 3, ..PurgeCounts::default() };
        let report = PurgeReport { counts, ..PurgeReport::default() };
        let record = report.record(&orders, 12);
        let parsed: Value = serde_json::from_str(&record).expect("JSON");
        assert_eq!(parsed["purged"]["waiting"], 3);
        assert_eq!(parsed["redactions"][0], json!({ "redaction": "hand", "kind": "customer" }));
        assert_eq!(parsed["complete"], true);
        for personal in ["ann", "7700123", "a.example"] {
            assert!(!record.contains(personal), "{record}");
        }
    }

    #[test]
    fn what_is_left_makes_it_incomplete() {
        let mut report = PurgeReport::default();
        assert!(report.is_complete() && report.counts.is_empty());
        report.pending.push("something".to_owned());
        assert!(!report.is_complete());
        let counts = PurgeCounts { corrupt: 1, ..PurgeCounts::default() };
        assert!(counts.is_empty(), "it is only reported");
    }
}
