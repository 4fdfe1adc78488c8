//! `spillway dead`: webhooks that were given up, listed, shown, replayed or dropped.

pub(crate) mod filter;
pub(crate) mod list;
pub(crate) mod show;
pub(crate) mod take;
mod walk;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use spillway_queue::consumers::{HTTP, KAFKA};
use spillway_queue::dead::DeadLetter;
use spillway_queue::status;

use crate::failure::Failure;
use crate::filter::OneWebhook;
use crate::format::OutputArgs;
use crate::place::{CellArgs, ConsumerArgs, unknown};
use filter::{DeadFilter, WrittenFilter};

/// Reason of a dead letter that was answered with one of DEAD_STATUSES.
const STATUS: &str = "status";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: ConsumerArgs,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List dead letters, oldest first
    List {
        #[command(flatten)]
        filter: WrittenFilter,
        #[command(flatten)]
        output: OutputArgs,
        /// Maximum number of lines in the table; JSON has no limit
        #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show one dead letter exactly as it was received, and why it was given up
    Show {
        #[command(flatten)]
        which: OneWebhook,
        /// Print only the body, byte for byte
        #[arg(long)]
        body: bool,
    },
    /// Deliver dead letters again, in order among themselves; redactions do not hold them back
    Replay(take::ReplayArguments),
    /// Drop dead letters for good
    Drop(take::DropArguments),
}

/// Failure for a dead letter that does not exist.
fn absent(consumer: &str, id: &dyn Display) -> Failure {
    Failure::Failed(format!("{consumer} has no dead letter {id}; see `spillway dead list`"))
}

/// Reason of a dead letter for people: with the status, if the status is the reason.
pub(crate) fn reason(letter: &DeadLetter) -> String {
    match letter.reason.as_str() {
        STATUS => format!("{STATUS} {}", letter.status),
        other => other.to_owned(),
    }
}

/// Returns the dead letters of `consumer` with this Shopify webhook id or Spillway-Id.
pub(crate) async fn find(
    place: &CellArgs,
    consumer: &str,
    id: &str,
) -> Result<Vec<DeadLetter>, Failure> {
    let (redis, mut connection) = place.connect().await?;
    let filter = DeadFilter::with_id(id);
    let mut found = Vec::new();
    let mut walk = walk::Walk::new(&redis, &mut connection, consumer);
    while let Some(page) = walk.next(&filter).await? {
        found.extend(page);
    }
    Ok(found)
}

/// Fails if no consumer has this name, so that a typing error does not look like an empty list. Dead
/// letters of a consumer that was forgotten are gone.
async fn expect_known(place: &CellArgs, consumer: &str) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let status = status::read(&redis, &mut connection).await?;
    let is_known = [HTTP, KAFKA].contains(&consumer)
        || status.consumers.iter().any(|known| known.name == consumer);
    is_known.then_some(()).ok_or_else(|| unknown(consumer, &status))
}

/// Runs `spillway dead`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, action } = arguments;
    let consumer = match action {
        Action::Replay(_) | Action::Drop(_) => place.resolve_change().await?,
        Action::List { .. } | Action::Show { .. } => place.resolve().await?,
    };
    let cell = place.cell;
    expect_known(&cell, &consumer).await?;
    match action {
        Action::List { filter, output, limit } => {
            list::run(&cell, &consumer, &filter.checked()?, output, limit).await?;
        }
        Action::Show { which, body } => {
            show::run(&cell, &consumer, &which.checked()?, body).await?;
        }
        Action::Replay(replay) => take::replay(&cell, &consumer, replay).await?,
        Action::Drop(drop) => take::drop(&cell, &consumer, drop).await?,
    }
    Ok(ExitCode::SUCCESS)
}
