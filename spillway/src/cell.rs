//! `spillway cell`: what an operator does with a whole cell beside others.

mod arrivals;
mod drain;
mod drained;
mod look;
mod overflow;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::place::CellArgs;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Wait until nothing waits in this cell any more, or nothing of some shops; exits with 0 then, and with
    /// 1 if that was not reached within --timeout or cannot be known
    Drain(drain::DrainArguments),
}

/// Runs `spillway cell`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, action } = arguments;
    match action {
        Action::Drain(arguments) => drain::run(place, arguments).await,
    }
}
