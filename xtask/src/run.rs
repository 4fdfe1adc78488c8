//! Runs test binaries, several at the same time.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::build::{Kind, TestBinary};
use crate::report::Report;
use crate::running::Running;

/// Runs the binaries in their order, `at_once` of them at the same time, and reports each when it
/// ends.
pub(crate) fn side_by_side(
    binaries: Vec<TestBinary>,
    at_once: usize,
    running: &Running,
    report: &Report,
) {
    let waiting = Mutex::new(VecDeque::from(binaries));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some(binary) = next() {
                    let began = Instant::now();
                    // Somebody else may run the same one.
                    let extension = format!("{}.{}.log", binary.name, std::process::id());
                    let log = binary.path.with_extension(extension);
                    let status = run(&binary, &log, running);
                    let text = fs::read(&log).unwrap_or_default();
                    fs::remove_file(&log).ok();
                    report.add(&binary.name, began.elapsed(), &text, status);
                }
            });
        }
    });
}

/// Returns a command for a program that has the processor time that nobody else wants (sched(7):
/// `SCHED_IDLE`).
fn idle(path: &Path) -> Command {
    let mut command = Command::new("chrt");
    command.args(["--idle", "0"]).arg(path);
    command
}

/// Runs one binary as cargo does, in the directory of its crate. What it and its processes print goes
/// to `log`. Processes that it leaves behind are ended with it.
fn run(binary: &TestBinary, log: &Path, running: &Running) -> io::Result<ExitStatus> {
    let output = File::create(log)?;
    let mut command = match binary.kind {
        Kind::Simulation => idle(&binary.path),
        Kind::Story | Kind::Other => Command::new(&binary.path),
    };
    if !binary.tests.is_empty() {
        // Without it, a name would stand for all that contain it.
        command.arg("--exact").args(&binary.tests);
    }
    command
        .current_dir(&binary.directory)
        .env("CARGO_MANIFEST_DIR", &binary.directory)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    let child = running.begin(&mut command, &binary.name)?;
    running.wait(child)
}
