//! `spillway doctor`: checks everything that a cell depends on, and reports how to fix what is
//! wrong.
//!
//! The checks change nothing, except that `--probe` posts one test webhook to the backend.

mod archive;
mod backend;
mod compliance;
mod endpoints;
mod finding;
mod queue;

use std::path::PathBuf;
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
use finding::Severity;

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

/// Runs all checks. The exit code is 1 if there is a problem; warnings do not count.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let spill_dir = arguments.spill_dir.as_deref();
    let mut queue = queue::examine(&arguments.place, spill_dir).await?;
    let mut findings = std::mem::take(&mut queue.findings);
    findings.extend(archive::examine(&arguments.archive, &queue).await);
    findings.extend(archive::redactions(queue.oldest_redaction_seconds, arguments.redact_within));
    // The default address is that of the default name. Others are told with --kafka-producer.
    let has_kafka = queue.consumers.iter().any(|known| known.name == KAFKA);
    findings.extend(endpoints::examine(&arguments.endpoints, has_kafka).await);
    findings.extend(backend::examine(&arguments.backend, &arguments.secret).await?);
    let of = |level: Severity| findings.iter().filter(|finding| finding.level == level).count();
    let problems = of(Severity::Problem);
    let warnings = of(Severity::Warning);
    if arguments.output.is_json() {
        let all: Vec<_> = findings.iter().map(finding::Finding::json).collect();
        line(json!({ "problems": problems, "warnings": warnings, "findings": all }))?;
    } else {
        findings.iter().try_for_each(line)?;
        let found = count(problems as u64, "problem");
        let warned = count(warnings as u64, "warning");
        line(format_args!("\n{found}, {warned}, {} ok", of(Severity::Ok)))?;
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
