//! `spillway pause` and `resume`: what a drain does not let out until it is told to.
//!
//! A pause lies in Redis, so it holds over restarts and takeovers, until `resume` ends it. The drain
//! takes it in within a second; what is under way by then is delivered.

use std::process::ExitCode;

use clap::Args;
use spillway_queue::drains::KAFKA;
use spillway_queue::orders::{self, Filter, Pause};
use spillway_queue::status;

use crate::failure::Failure;
use crate::filter::FilterArguments;
use crate::out::{count, line, now_ms};
use crate::place::DrainPlace;
use crate::walk::unknown;

/// Of both.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: DrainPlace,

    #[command(flatten)]
    filter: FilterArguments,
}

/// Of `resume`.
#[derive(Debug, Args)]
pub struct ResumeArguments {
    #[command(flatten)]
    arguments: Arguments,

    /// End every pause there is
    #[arg(long)]
    all: bool,
}

/// Pauses what the filter means; without one, the whole drain.
pub async fn pause(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place: DrainPlace { cell, drain }, filter } = arguments;
    let filter = filter.filter();
    if drain == KAFKA && !filter.is_empty() {
        let text = "the kafka drain keeps the order of its topic: pause it as a whole";
        return Err(Failure::Usage(text.to_owned()));
    }
    let (redis, mut connection) = cell.connect().await?;
    let status = status::read(&redis, &mut connection).await?;
    let known = status.drains.iter().find(|known| known.name == drain);
    let known = known.ok_or_else(|| unknown(&drain, &status))?;
    let now = now_ms();
    let (is_new, _) = orders::pause(&redis, &mut connection, &drain, &filter, now).await?;
    let owner = match known.owner {
        Some(_) => "within a second; what is under way is delivered",
        None => "as soon as it runs: nobody owns it",
    };
    line(match is_new {
        true => format!("{drain} pauses {filter}, {owner}. End it with `spillway resume`"),
        false => format!("{drain} paused {filter} before"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the pause of just this filter: without one, that of the whole drain.
pub async fn resume(arguments: ResumeArguments) -> Result<ExitCode, Failure> {
    let ResumeArguments { arguments: Arguments { place, filter }, all } = arguments;
    let DrainPlace { cell, drain } = place;
    let filter = filter.filter();
    let (redis, mut connection) = cell.connect().await?;
    let status = status::read(&redis, &mut connection).await?;
    let known = status.drains.iter().find(|known| known.name == drain);
    let pauses = &known.ok_or_else(|| unknown(&drain, &status))?.pauses;
    let meant = |pause: &&Pause| all || pause.filter == filter;
    let ended: Vec<Filter> =
        pauses.iter().filter(meant).map(|pause| pause.filter.clone()).collect();
    if ended.is_empty() {
        let named: Vec<_> = pauses.iter().map(|pause| pause.filter.to_string()).collect();
        let has = match named.is_empty() {
            true => "nothing is".to_owned(),
            false => format!("paused is: {}", named.join("; ")),
        };
        return Err(Failure::Failed(format!("{drain} has not paused {filter}; {has}")));
    }
    let (number, _) = orders::resume(&redis, &mut connection, &drain, &ended).await?;
    let named: Vec<_> = ended.iter().map(ToString::to_string).collect();
    line(format_args!("{drain} resumes {} ({})", named.join("; "), count(number, "pause")))?;
    Ok(ExitCode::SUCCESS)
}
