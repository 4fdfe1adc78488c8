//! Report of a restoration: what comes back, up to when, and what does not.

use spillway_webhook::freshness::rfc3339;

use super::plan::RestorePlanner;
use super::source::ArchiveSource;
use super::{RestoreBasis, RestoreSize};
use crate::failure::Failure;
use crate::out::{count, line, size, table};

const HEADER: [&str; 4] = ["CONSUMER", "WEBHOOKS", "CURSOR", "LANES SINCE"];

/// Prints the report.
pub(super) fn print(
    basis: &RestoreBasis,
    source: &ArchiveSource,
    planner: &RestorePlanner,
    restored: RestoreSize,
) -> Result<(), Failure> {
    let (first, reach) = source.span;
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
    let rows = planner.restored().map(|(needs, webhooks)| {
        let lanes = needs.first_in_lanes().map(|first| rfc3339(first.ms));
        let cursor = needs.cursor().to_string();
        [needs.name.clone(), webhooks.to_string(), cursor, lanes.unwrap_or_default()]
    });
    line(table(&HEADER, rows))?;
    for (needs, _) in planner.restored() {
        if needs.first_in_lanes().is_some_and(|oldest| oldest < first) {
            let kept = rfc3339(first.ms);
            line(format_args!(
                "{}: what waited since before {kept} is no longer in the archive",
                needs.name
            ))?;
        }
    }
    if planner.shifted > 0 {
        let packs = count(planner.shifted, "pack");
        line(format_args!("{packs} get another Spillway-Id: Redis had given theirs twice"))?;
    }
    let reach = rfc3339(reach.ms);
    line(format_args!("everything accepted up to {reach} is in the archive"))?;
    line(format_args!(
        "what was accepted after that and not delivered is lost: fetch from Shopify what changed since {reach}"
    ))?;
    line(
        "not restored: dead letters and replays, the history, the deduplication window, pauses and orders to drop",
    )?;
    Ok(())
}
