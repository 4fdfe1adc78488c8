//! `spillway doctor`: checks everything that a cell depends on, and reports how to fix what is
//! wrong.
//!
//! The checks change nothing, except that `--probe` posts one test webhook to the backend.

mod archive;
mod backend;
mod compliance;
pub(crate) mod endpoints;
pub(crate) mod finding;
mod queue;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use spillway_archive::args::ArchiveArgs;
use spillway_queue::consumers::KAFKA;

use crate::failure::Failure;
use crate::forget::redact_within;
use crate::format::OutputArgs;
use crate::out::{count, line};
use crate::place::CellArgs;
use crate::secret::SecretArguments;
use finding::{Finding, Severity};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    #[command(flatten)]
    endpoints: endpoints::EndpointArguments,

    #[command(flatten)]
    backend: backend::BackendArguments,

    #[command(flatten)]
    secret: SecretArguments,

    /// Directory of the receiver's overflow log, as in the receiver's settings
    #[arg(long, env = "SPILL_DIR", value_name = "DIRECTORY")]
    spill_dir: Option<PathBuf>,

    #[command(flatten)]
    archive: ArchiveArgs,

    /// Time after its delivery within which a redaction is carried out, as in the settings of the purge
    #[arg(long, env = "REDACT_WITHIN", value_name = "DURATION", default_value = "24h", value_parser = redact_within)]
    redact_within: Duration,

    #[command(flatten)]
    output: OutputArgs,
}

/// Parts of a cell that are checked without a secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExaminedCell<'a> {
    /// The cell.
    pub place: &'a CellArgs,
    /// Admin addresses of the processes.
    pub endpoints: &'a endpoints::EndpointArguments,
    /// Directory of the receiver's overflow log.
    pub spill_dir: Option<&'a Path>,
    /// The archive.
    pub archive: &'a ArchiveArgs,
    /// Time within which a redaction is carried out.
    pub redact_within: Duration,
}

/// Runs all checks, except those of the backend.
pub(crate) async fn examine(cell: ExaminedCell<'_>) -> Result<Vec<Finding>, Failure> {
    let mut queue = queue::examine(cell.place, cell.spill_dir).await?;
    let mut findings = std::mem::take(&mut queue.findings);
    findings.extend(archive::examine(cell.archive, &queue).await);
    findings.extend(archive::redactions(queue.oldest_redaction_seconds, cell.redact_within));
    // The default address is that of the default name. Others are told with --kafka-producer.
    let has_kafka = queue.consumers.iter().any(|known| known.name == KAFKA);
    findings.extend(endpoints::examine(cell.endpoints, has_kafka).await);
    Ok(findings)
}

/// Runs all checks. The exit code is 1 if there is a problem; warnings do not count.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let cell = ExaminedCell {
        place: &arguments.place,
        endpoints: &arguments.endpoints,
        spill_dir: arguments.spill_dir.as_deref(),
        archive: &arguments.archive,
        redact_within: arguments.redact_within,
    };
    let mut findings = examine(cell).await?;
    findings.extend(backend::examine(&arguments.backend, &arguments.secret).await?);
    let of = |level: Severity| findings.iter().filter(|finding| finding.level == level).count();
    let problems = of(Severity::Problem);
    let warnings = of(Severity::Warning);
    if arguments.output.is_json() {
        let all: Vec<_> = findings.iter().map(Finding::json).collect();
        line(json!({ "problems": problems, "warnings": warnings, "findings": all }))?;
    } else {
        findings.iter().try_for_each(line)?;
        let found = count(problems as u64, "problem");
        let warned = count(warnings as u64, "warning");
        line(format_args!("\n{found}, {warned}, {} ok", of(Severity::Ok)))?;
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
