//! Program that writes the queue into an archive.

use std::process::ExitCode;

fn main() -> ExitCode {
    spillway_process::start::<archiver::ArchiverArgs, _, _>(archiver::run)
}
