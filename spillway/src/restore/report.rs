//! Report of a restoration: what comes back, up to when, and what does not.

use spillway_queue::consumers::ConsumerKind;
use spillway_webhook::freshness::rfc3339;

use super::plan::RestorePlanner;
use super::source::ArchiveSource;
use super::{RestoreBasis, RestoreSize};
use crate::failure::Failure;
use crate::out::{count, line, size, table};

const HEADER: [&str; 5] = ["CONSUMER", "KIND", "WEBHOOKS", "CURSOR", "LANES SINCE"];

/// Prints the report. `accepted` webhooks were appended to the queue that is replaced.
pub(super) fn print(
    basis: &RestoreBasis,
    source: &ArchiveSource,
    planner: &RestorePlanner,
    restored: RestoreSize,
    accepted: u64,
) -> Result<(), Failure> {
    line(format_args!(
        "cell {:08x}: {} of {} in the archive are needed, {}",
        basis.cell,
        count(planner.entries, "pack"),
        size(source.bytes()),
        size(restored.bytes)
    ))?;
    if let Some(checkpoint) = &basis.checkpoint {
        let at = rfc3339(checkpoint.read_at_ms);
        line(format_args!(
            "checkpoint of {at}: what was delivered after it is delivered again, with the same Spillway-Id"
        ))?;
    }
    consumers(basis, source, planner)?;
    if planner.shifted > 0 {
        let packs = count(planner.shifted, "pack");
        line(format_args!("{packs} get another Spillway-Id: Redis had given theirs twice"))?;
    }
    if accepted > 0 {
        let used = count(accepted, "webhook");
        line(format_args!(
            "this Redis has taken {used} meanwhile: newer states were delivered first, and older ones of the same \
             resources follow now"
        ))?;
    }
    redactions(basis, source)?;
    let reach = rfc3339(source.span.1.ms);
    if source.gaps.is_empty() {
        line(format_args!("everything accepted up to {reach} is in the archive"))?;
    } else {
        line(format_args!("the archive ends at {reach}, and lacks something before that"))?;
    }
    line(format_args!(
        "what was accepted after that and not delivered is lost: fetch from Shopify what changed since {reach}"
    ))?;
    line(
        "not restored: dead letters and replays, the history, the deduplication window, pauses and orders to drop",
    )?;
    Ok(())
}

/// Prints what each consumer gets, and what it lacks.
fn consumers(
    basis: &RestoreBasis,
    source: &ArchiveSource,
    planner: &RestorePlanner,
) -> Result<(), Failure> {
    let rows = planner.restored().map(|(needs, webhooks)| {
        let kind = needs.kind().map_or("not known", ConsumerKind::label).to_owned();
        let lanes = needs.first_in_lanes().map(|first| rfc3339(first.ms));
        let cursor = needs.cursor().to_string();
        [needs.name.clone(), kind, webhooks.to_string(), cursor, lanes.unwrap_or_default()]
    });
    line(table(&HEADER, rows))?;
    for (needs, _) in planner.restored() {
        let name = &needs.name;
        if needs.begins_after() < source.begins_after {
            let kept = rfc3339(source.span.0.ms);
            line(format_args!(
                "{name}: what it had not settled since before {kept} is no longer in the archive"
            ))?;
        }
        if needs.kind().is_none() && basis.checkpoint.is_none() {
            line(format_args!(
                "{name}: is this name right? No program has it by default, so it must be the CONSUMER of one of yours"
            ))?;
        }
    }
    let known = basis.checkpoint.iter().flat_map(|checkpoint| &checkpoint.consumers);
    for lacking in known.filter(|consumer| consumer.unreadable > 0) {
        line(format_args!(
            "{}: {} could not be read when the checkpoint was written, and what waited in them is not restored: see \
             spillway replay",
            lacking.name,
            count(lacking.unreadable, "lane")
        ))?;
    }
    Ok(())
}

/// Prints which redactions are noted again.
fn redactions(basis: &RestoreBasis, source: &ArchiveSource) -> Result<(), Failure> {
    if basis.checkpoint.is_none() {
        let reach = rfc3339(source.span.1.ms);
        line(format_args!(
            "redactions that were delivered in the last REDACT_WITHIN (24 h) before {reach} are not known without a \
             checkpoint: carry them out again with spillway forget"
        ))?;
        return Ok(());
    }
    if !basis.notes.found.is_empty() {
        let found = count(basis.notes.found.len() as u64, "redaction");
        line(format_args!(
            "{found} that had been delivered and not carried out: noted again, for spillway forget --due"
        ))?;
    }
    for id in &basis.notes.missing {
        line(format_args!(
            "redaction {id} is not in the archive, or erased there: carry it out with spillway forget"
        ))?;
    }
    Ok(())
}
