//! Lets queued webhooks out into a Kafka topic.

use std::process::ExitCode;

fn main() -> ExitCode {
    spillway_service::start::<kafka_producer::settings::Written, _, _>(kafka_producer::run)
}
