//! Runs the test suite: `cargo run -p xtask`. `make test` and `make quick` call it.
//!
//! `cargo test` runs test binaries one after the other. Most stories wait for other processes, so
//! here several of them run side by side. A test that measures time keeps the machine to itself
//! (`stories/src/machine.rs`), except for simulations: these have the processor time that nobody
//! else wants.

mod build;
mod report;
mod run;
mod running;
mod slots;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::build::{Kind, TestBinary};
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
    let is_chosen = |one: &TestBinary| match (arguments.quick, one.kind) {
        (true, Kind::Story) => is_named(one),
        (true, _) => true,
        (false, _) => arguments.names.is_empty() || is_named(one),
    };
    let chosen: Vec<_> = binaries.into_iter().filter(is_chosen).collect();
    let of = |kind| chosen.iter().filter(|one| one.kind == kind).cloned().collect::<Vec<_>>();
    let stories = of(Kind::Story);
    let slots = SlotLog::new(stories.first());
    let report = Report::of(chosen.len());
    let running = Running::watched(Duration::from_secs(60 * arguments.minutes));
    let run = |kind, at_once| run::side_by_side(of(kind), at_once, &running, &report);
    run(Kind::Other, 2);
    let began = Instant::now();
    let stories_took = thread::scope(|scope| {
        scope.spawn(|| run(Kind::Simulation, 2));
        run(Kind::Story, arguments.at_once);
        began.elapsed()
    });
    println!("{}", slots.summary(stories_took));
    Ok(report)
}
