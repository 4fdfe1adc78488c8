//! Program that delivers queued webhooks to a backend by HTTP.

use std::process::ExitCode;

/// After a restart with 200,000 lanes it holds 260 MiB, and glibc's allocator 350 to 490 MiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    spillway_process::start::<downstreamer::DownstreamerArgs, _, _>(downstreamer::run)
}
