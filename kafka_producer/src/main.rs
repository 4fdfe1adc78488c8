//! Program that produces queued webhooks to a Kafka topic.

use std::process::ExitCode;

fn main() -> ExitCode {
    spillway_process::start::<kafka_producer::ProducerArgs, _, _>(kafka_producer::run)
}
