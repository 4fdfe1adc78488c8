//! Runs the test suite: `cargo run -p xtask`. `make test` and `make quick` call it.
//!
//! `cargo test` runs test binaries one after the other. Most stories wait for other processes, so
//! here several of them run side by side. A test that measures time keeps the machine to itself
//! (`stories/src/machine.rs`).

mod build;
mod report;
mod run;
mod running;
mod slots;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::build::TestBinary;
use crate::report::Report;
use crate::running::Running;
use crate::slots::SlotLog;

/// Runs every test of the workspace, or those of the test binaries that are named.
#[derive(Debug, Parser)]
struct Arguments {
    /// Stories to run at the same time. Most of them wait for slots of the machine.
    #[arg(long, default_value_t = 10)]
    at_once: usize,
    /// Minutes after which a test binary is ended, with all that it started; the time for which its
    /// tests wait for slots counts.
    #[arg(long, default_value_t = 40)]
    minutes: u64,
    /// Runs all tests but the stories, and of these only those that are named.
    #[arg(long)]
    quick: bool,
    /// Test binaries, or modules of the stories, to run, such as `lanes`; all if none is named.
    names: Vec<String>,
}

fn main() -> ExitCode {
    match test(&Arguments::parse()) {
        Ok(report) => report.conclude(),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test(arguments: &Arguments) -> Result<Report, String> {
    let binaries = build::test_binaries()?;
    let is_named = |one: &TestBinary| arguments.names.contains(&one.name);
    if let Some(name) =
        arguments.names.iter().find(|name| binaries.iter().all(|one| one.name != **name))
    {
        return Err(format!("no test binary and no module of the stories is named {name}"));
    }
    let (stories, others): (Vec<_>, Vec<_>) = binaries
        .into_iter()
        .filter(|one| match (arguments.quick, one.is_story) {
            (true, false) => true,
            (true, true) => is_named(one),
            (false, _) => arguments.names.is_empty() || is_named(one),
        })
        .partition(|one| one.is_story);
    let slots = SlotLog::new(stories.first());
    let report = Report::of(stories.len() + others.len());
    let running = Running::watched(Duration::from_secs(60 * arguments.minutes));
    // Unit tests and simulations keep a core busy.
    run::side_by_side(others, 2, &running, &report);
    let began = Instant::now();
    run::side_by_side(stories, arguments.at_once, &running, &report);
    println!("{}", slots.summary(began.elapsed()));
    Ok(report)
}
