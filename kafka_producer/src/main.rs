//! Drains the queue into Kafka. Not built yet: this binary says what it will do, and does nothing.

use std::process::ExitCode;

use clap::Parser;
use spillway_service::exit;

/// Drains the queue into Kafka: each webhook exactly once for a read_committed consumer, in order
/// per key, keyed by resource. Not built yet: the settings below are final, what they do is not
/// there.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Written {
    /// Bootstrap servers, such as 127.0.0.1:9092
    #[arg(long, env = "KAFKA_URL")]
    kafka_url: Option<String>,

    /// Topic that webhooks are written to
    #[arg(long, env = "KAFKA_TOPIC", default_value = "shopify-webhooks")]
    kafka_topic: String,

    /// What a record is keyed by: resource, shop or topic
    #[arg(long, env = "KAFKA_KEY", default_value = "resource")]
    kafka_key: String,

    /// What a record holds: raw, envelope or cloudevents
    #[arg(long, env = "KAFKA_FORMAT", default_value = "raw")]
    kafka_format: String,

    /// Transactional id; the cell's id is appended
    #[arg(long, env = "KAFKA_TX_ID", default_value = "spillway")]
    kafka_tx_id: String,

    /// Further librdkafka settings, in Java's properties format
    #[arg(long, env = "KAFKA_PROPERTIES_FILE")]
    kafka_properties_file: Option<String>,
}

fn main() -> ExitCode {
    match Written::try_parse() {
        Ok(_) => {
            eprintln!("kafka_producer is not built yet; webhooks stay in the queue");
            ExitCode::from(exit::UNAVAILABLE)
        }
        Err(error) => {
            let is_mistake = error.use_stderr();
            // Nothing can be done about a closed output.
            error.print().ok();
            ExitCode::from(if is_mistake { exit::USAGE } else { 0 })
        }
    }
}
