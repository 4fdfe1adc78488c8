//! `spillway doctor`: looks at everything a cell hangs on, and says how to mend what is wrong.
//!
//! Never changes anything, but for `--probe`, which posts one test webhook to the backend.

mod backend;
mod endpoints;
mod finding;
mod queue;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use spillway_queue::drains::KAFKA;

use crate::failure::Failure;
use crate::out::line;
use crate::place::Place;
use crate::secret::SecretArguments;
use finding::Level;

/// Of `doctor`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    endpoints: endpoints::EndpointArguments,

    #[command(flatten)]
    backend: backend::BackendArguments,

    #[command(flatten)]
    secret: SecretArguments,

    /// Directory that the receiver spills to, as it has it
    #[arg(long, env = "SPILL_DIR", value_name = "DIRECTORY")]
    spill_dir: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Looks at everything. Exit code 1 if there is a problem; warnings do not count.
pub async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let redis = arguments.place.redis()?;
    let (mut findings, drains) = queue::examine(&redis, arguments.spill_dir.as_deref()).await;
    let has_kafka = drains.iter().any(|drain| drain.name == KAFKA);
    findings.extend(endpoints::examine(&arguments.endpoints, has_kafka).await);
    findings.extend(backend::examine(&arguments.backend, &arguments.secret).await?);
    let of = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, warnings) = (of(Level::Problem), of(Level::Warning));
    if arguments.json {
        let all: Vec<_> = findings.iter().map(finding::Finding::json).collect();
        line(json!({ "problems": problems, "warnings": warnings, "findings": all }))?;
    } else {
        findings.iter().try_for_each(line)?;
        line(format_args!("\n{problems} problems, {warnings} warnings, {} ok", of(Level::Ok)))?;
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
