//! `spillway queue`: lists, shows or drops waiting webhooks.

pub(crate) mod drop;
pub(crate) mod drop_watch;
pub(crate) mod list;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::filter::{FilterArguments, OneWebhook};
use crate::format::OutputArgs;
use crate::place::ConsumerArgs;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: ConsumerArgs,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List waiting webhooks, oldest first
    List {
        #[command(flatten)]
        filter: FilterArguments,
        #[command(flatten)]
        output: OutputArgs,
        /// Maximum number of lines in the table; JSON has no limit
        #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show one waiting webhook exactly as it was received
    Show {
        #[command(flatten)]
        which: OneWebhook,
        /// Print only the body, byte for byte
        #[arg(long)]
        body: bool,
    },
    /// Drop waiting webhooks for good, except those under way
    Drop(drop::Arguments),
}

/// Runs `spillway queue`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, action } = arguments;
    let consumer = match action {
        Action::Drop(_) => place.resolve_change().await?,
        Action::List { .. } | Action::Show { .. } => place.resolve().await?,
    };
    let cell = place.cell;
    match action {
        Action::List { filter, output, limit } => {
            list::run(&cell, &consumer, filter.filter(), output, limit).await?;
        }
        Action::Show { which, body } => {
            show::run(&cell, &consumer, &which.checked()?, body).await?;
        }
        Action::Drop(arguments) => drop::run(&cell, &consumer, arguments).await?,
    }
    Ok(ExitCode::SUCCESS)
}
