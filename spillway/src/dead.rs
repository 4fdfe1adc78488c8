//! `spillway dead`: webhooks that were given up, listed, shown, replayed or dropped.

mod filter;
mod list;
mod show;
mod take;
mod walk;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use spillway_queue::dead::DeadLetter;

use crate::failure::Failure;
use crate::place::{DrainPlace, Place};
use filter::{Filter, WrittenFilter};

/// Of `dead`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: DrainPlace,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them, oldest first
    List {
        #[command(flatten)]
        filter: WrittenFilter,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
        /// How many lines the table has at most
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show one, exactly as it was received, and why it was given up
    Show {
        /// Its Spillway-Id
        id: String,
        /// Only the body, byte for byte
        #[arg(long)]
        body: bool,
    },
    /// Have them delivered again: in order among themselves and with what still waits
    Replay(take::ReplayArguments),
    /// Drop them for good
    Drop(take::DropArguments),
}

/// The dead letters of `drain` with this Shopify webhook id or Spillway-Id.
pub async fn find(place: &Place, drain: &str, id: &str) -> Result<Vec<DeadLetter>, Failure> {
    let (redis, mut connection) = place.connect().await?;
    let (filter, mut found) = (Filter::with_id(id), Vec::new());
    let mut walk = walk::Walk::new(&redis, &mut connection, drain);
    while let Some(page) = walk.next(&filter).await? {
        found.extend(page);
    }
    Ok(found)
}

/// Does what was asked.
pub async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place: DrainPlace { cell, drain }, action } = arguments;
    match action {
        Action::List { filter, json, limit } => {
            list::run(&cell, &drain, &filter.checked()?, json, limit).await?;
        }
        Action::Show { id, body } => show::run(&cell, &drain, &id, body).await?,
        Action::Replay(replay) => take::replay(&cell, &drain, replay).await?,
        Action::Drop(drop) => take::drop(&cell, &drain, drop).await?,
    }
    Ok(ExitCode::SUCCESS)
}
