//! A receiver that looks secrets up only when they are too old, to measure what looking early is
//! worth: `make characterize SCENARIOS=secrets`.

use std::process::ExitCode;

use request_receiver::settings::{ReceiverArgs, ReceiverSettings};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    spillway_process::start::<ReceiverArgs, _, _>(run)
}

async fn run(mut settings: ReceiverSettings, shutdown: CancellationToken) -> anyhow::Result<()> {
    if let Some(source) = &mut settings.secrets.source {
        source.rules.is_early = false;
    }
    request_receiver::run(settings, shutdown).await
}
