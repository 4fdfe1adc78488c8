//! Translates the core's settlements to those of the queue: bytes, names of lanes, texts.

use std::collections::HashMap;

use spillway_delivery::{
    ChunkWrite, GivenUp, LaneChange, LaneRowChange, Outcome, PendingSettlement, SettledRecord,
};
use spillway_queue::history::{self, OutcomeRecord};
use spillway_queue::lane::{ChunkId, LaneChanges, LaneRow};
use spillway_queue::settle::{
    self, ControlsProgress, CorruptEntries, Dead, PassedEntries, Remembered,
};
use spillway_webhook::fingerprint::key_of;
use spillway_webhook::pack::{Pack, Packer};
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{Changes, Chunk, RetryChanges, StreamId, WebhookId};

use crate::content::PackBytes;
use crate::names::Names;

/// Translator for one leader.
pub(crate) struct Translator {
    cell: u32,
    keeps_history: bool,
    /// Names of lanes and shops.
    pub names: Names,
    packer: Packer,
}

impl Translator {
    /// Translator for the cell with this id.
    pub(crate) fn new(cell: u32, keeps_history: bool, names: Names) -> Self {
        Self { cell, keeps_history, names, packer: Packer::new() }
    }

    /// Translates a settlement. `None`: it must not be applied, because bytes of webhooks that it
    /// moves are missing. `from_ms`: time before which fingerprints may be deleted.
    pub(crate) fn translate(
        &mut self,
        settlement: PendingSettlement<PackBytes>,
        from_ms: u64,
    ) -> Option<settle::Settlement> {
        let PendingSettlement { main, replays, controls, .. } = settlement;
        let mut history = Vec::new();
        if self.keeps_history {
            settlement.records.iter().for_each(|record| outcome_record(record).write(&mut history));
        }
        Some(settle::Settlement {
            passed: main.cursor.map(|cursor| PassedEntries {
                cursor,
                entries: main.entries_passed,
                webhooks: main.webhooks_passed,
            }),
            settled_after_cursor: main.settled_after_cursor,
            corrupt: CorruptEntries { packs: main.corrupt, replays: replays.corrupt },
            bits: main.bits,
            whole: main.whole,
            replays: replays.settled,
            dead: settlement.dead.into_iter().map(|letter| self.dead(letter)).collect(),
            remembered: Remembered {
                seen: settlement.records.iter().filter_map(|record| record.remembered).collect(),
                history,
                from_ms,
            },
            controls: ControlsProgress {
                known: controls.known,
                done: controls.carried_out,
                dropped: controls.dropped,
            },
            lanes: self.lanes(settlement.lanes, main.retries)?,
        })
    }

    fn lanes(
        &mut self,
        lanes: LaneChange<PackBytes>,
        main_retries: RetryChanges,
    ) -> Option<LaneChanges> {
        let written = lanes.chunks.written.iter();
        let chunks: Option<_> = written.map(|write| self.chunk(write, &lanes.moved)).collect();
        let chunks = chunks?;
        let rows: Option<_> = lanes.rows.written.iter().map(|row| self.row(row)).collect();
        let rows = rows?;
        for (lane, number) in &lanes.corrupt {
            let name = self.names.lane(*lane);
            tracing::error!(
                shop = name.map(|name| name.shop.as_str()), kind = name.map(|name| name.kind.as_str()),
                chunk = %ChunkId { lane: *lane, number: *number },
                "corrupt chunk of a lane: stored under corrupt:; delivery continues"
            );
        }
        for lane in &lanes.rows.deleted {
            self.names.remove_row(*lane);
        }
        let id = |(lane, number)| ChunkId { lane, number };
        Some(LaneChanges {
            chunks: Changes {
                written: chunks,
                deleted: lanes.chunks.deleted.into_iter().map(id).collect(),
            },
            corrupt: lanes.corrupt.into_iter().map(id).collect(),
            chunk_bits: lanes
                .chunk_bits
                .into_iter()
                .map(|(lane, number, bits)| (ChunkId { lane, number }, bits))
                .collect(),
            rows: Changes { written: rows, deleted: lanes.rows.deleted },
            barriers: lanes.barriers,
            leads: lanes.leads,
            retries: lanes.retries,
            main_retries,
            waiting: lanes.waiting,
            oldest_ms: lanes.oldest_ms,
        })
    }

    /// Bytes of a chunk, from the packs of its webhooks.
    fn chunk(
        &mut self,
        write: &ChunkWrite,
        moved: &HashMap<StreamId, PackBytes>,
    ) -> Option<(ChunkId, Vec<u8>)> {
        let records: Vec<(&Pack, u32)> = write
            .positions
            .iter()
            .filter_map(|position| Some((&*moved.get(&position.entry())?.0, position.index)))
            .collect();
        if records.is_empty() || records.len() != write.positions.len() {
            tracing::error!("BUG: a chunk without the bytes of its webhooks");
            return None;
        }
        let (pack, index) = *records.first()?;
        self.names.add_row(write.lane, &pack.record(index));
        let bytes = Chunk::encode(&mut self.packer, &write.positions, &records);
        Some((ChunkId { lane: write.lane, number: write.number }, bytes))
    }

    fn row(&self, row: &LaneRowChange) -> Option<LaneRow> {
        let Some(name) = self.names.lane(row.lane).cloned() else {
            tracing::error!(lane = row.lane, "BUG: a row of a lane without a name");
            return None;
        };
        Some(LaneRow {
            lane: row.lane,
            shop: name.shop,
            kind: name.kind,
            scheme: name.scheme,
            first_chunk: row.first_chunk,
            last_chunk: row.last_chunk,
            waiting: row.waiting,
            first: row.first,
            last: row.last,
            failing: row.failing.clone(),
            tripped: row.is_tripped,
            suspect: row.is_suspect,
        })
    }

    /// Dead letter of a webhook, with details for an operator.
    fn dead(&mut self, letter: GivenUp<PackBytes>) -> Dead {
        let GivenUp { position, content, record_index, reason, attempts, evidence } = letter;
        let record = content.0.record(record_index);
        let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into();
        let webhook = WebhookId { cell: self.cell, entry: position.entry(), index: position.index };
        let dead = Dead {
            pack: self.packer.single_out(&content.0, record_index),
            webhook,
            labels: [
                text(record.shop()),
                text(record.topic().as_deref()),
                Resource::of(&record, &record.body).to_string(),
                text(record.shopify("webhook-id")),
            ],
            reason,
            status: evidence.status,
            attempts,
            answer: evidence.answer,
        };
        tracing::warn!(
            %webhook, shop = dead.labels[0], topic = dead.labels[1], resource = dead.labels[2],
            reason, status = dead.status, attempts, "dead letter"
        );
        dead
    }
}

fn outcome_record(record: &SettledRecord) -> OutcomeRecord {
    let outcome = match record.outcome {
        Outcome::Delivered => history::RecordedOutcome::Delivered,
        Outcome::Duplicate => history::RecordedOutcome::Duplicate,
        Outcome::Suppressed => history::RecordedOutcome::Suppressed,
        Outcome::Stale => history::RecordedOutcome::Stale,
        Outcome::Coalesced => history::RecordedOutcome::Coalesced,
        Outcome::Dead => history::RecordedOutcome::Dead,
        Outcome::Dropped => history::RecordedOutcome::Dropped,
    };
    OutcomeRecord {
        key: record.fingerprint.map_or(0, key_of),
        entry: record.position.entry(),
        index: record.position.index,
        outcome,
        attempts: u8::try_from(record.attempts).unwrap_or(u8::MAX),
    }
}
