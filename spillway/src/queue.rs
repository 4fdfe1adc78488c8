//! `spillway queue`: what waits, listed, shown or dropped.

mod drop;
mod list;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::filter::FilterArguments;
use crate::place::DrainPlace;

/// Of `queue`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: DrainPlace,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List what waits, oldest first
    List {
        #[command(flatten)]
        filter: FilterArguments,
        /// One JSON object a line, all of them
        #[arg(long)]
        json: bool,
        /// How many lines the table has at most
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show one, exactly as it was received
    Show {
        /// Its Spillway-Id
        id: String,
        /// Only the body, byte for byte
        #[arg(long)]
        body: bool,
    },
    /// Drop them for good: those that wait now and are not under way
    Drop(drop::Arguments),
}

/// Does what was asked.
pub async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place: DrainPlace { cell, drain }, action } = arguments;
    match action {
        Action::List { filter, json, limit } => {
            list::run(&cell, &drain, filter.filter(), json, limit).await?;
        }
        Action::Show { id, body } => show::run(&cell, &drain, &id, body).await?,
        Action::Drop(arguments) => drop::run(&cell, &drain, arguments).await?,
    }
    Ok(ExitCode::SUCCESS)
}
