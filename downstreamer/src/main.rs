//! Lets queued webhooks out to a backend over HTTP.

use std::process::ExitCode;

fn main() -> ExitCode {
    spillway_service::start::<downstreamer::Written, _, _>(downstreamer::run)
}
