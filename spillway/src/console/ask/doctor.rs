//! Findings of the doctor, kept for some seconds.

use spillway_console::ProblemDetails;
use spillway_console::model::doctor::{DoctorFinding, DoctorReport, FindingLevel};

use crate::console::history::HistoryArgs;
use crate::console::links::apart;
use crate::console::state::Console;
use crate::doctor::finding::{Finding, Severity};
use crate::doctor::{ExaminedCell, examine};
use crate::failure::Failure;
use crate::out::now_ms;
use crate::place::CellArgs;

/// Findings of all checks but those of the backend, which need a secret.
pub(in crate::console) async fn report(console: &Console) -> Result<DoctorReport, ProblemDetails> {
    let ask = || {
        let place = console.place.clone();
        let parts = console.parts.clone();
        async move { apart(move || look(place, parts)).await.map_err(ProblemDetails::from) }
    };
    let report = console.links.doctor.get((), ask).await?;
    Ok(DoctorReport::clone(&report))
}

async fn look(place: CellArgs, parts: HistoryArgs) -> Result<DoctorReport, Failure> {
    let findings = examine(ExaminedCell {
        place: &place,
        endpoints: &parts.endpoints,
        spill_dir: parts.spill_dir.as_deref(),
        archive: &parts.archive,
        redact_within: parts.redact_within,
    });
    let findings = findings.await?.into_iter().map(finding).collect();
    Ok(DoctorReport { at_ms: now_ms(), findings })
}

fn finding(found: Finding) -> DoctorFinding {
    let level = match found.level {
        Severity::Ok => FindingLevel::Ok,
        Severity::Warning => FindingLevel::Warning,
        Severity::Problem => FindingLevel::Problem,
    };
    DoctorFinding { level, what: found.what, fix: found.fix }
}
