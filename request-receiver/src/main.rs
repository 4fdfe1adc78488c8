//! Takes in Shopify webhooks: `POST` to any path, answered 200 once it is stored.

use std::process::ExitCode;

/// Less work for each of the small pieces of a request than glibc's, for some 20 MiB more memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    spillway_service::start::<request_receiver::settings::Written, _, _>(request_receiver::run)
}
