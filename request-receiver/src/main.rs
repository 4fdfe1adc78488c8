//! Program that receives Shopify webhooks: `POST` to any path, answered 200 once it is stored.

use std::process::ExitCode;

/// Does less work than glibc's for each of the small pieces of a request, for some 20 MiB more
/// memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    spillway_process::start::<request_receiver::settings::ReceiverArgs, _, _>(request_receiver::run)
}
