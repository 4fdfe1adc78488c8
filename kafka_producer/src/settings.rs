//! The Kafka producer's settings, as set and as checked.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use spillway_consumer::{ConsumerSettings, NamedConsumerArgs};
use spillway_process::process_args::ProcessSettings;
use spillway_process::{Checker, ProcessArgs};
use spillway_queue::consumers::{ConsumerKind, StartAt};

use crate::operator_options;
use crate::properties::{self, Properties};

const GIB: u64 = 1 << 30;
/// Longest name of a topic. Source: Kafka's `Topic.java`.
const TOPIC_BYTES_MAX: usize = 249;
/// Shortest transaction timeout. A transaction is open for about two seconds, and a commit may take
/// some more.
const TRANSACTION_TIMEOUT_MIN_MS: u64 = 10_000;

/// Writes queued webhooks into a Kafka topic, each exactly once for a read_committed consumer, in
/// order per key. Every setting is a flag and an environment variable.
#[derive(Debug, Parser)]
#[command(version = spillway_process::version(), max_term_width = 100)]
pub struct ProducerArgs {
    #[command(flatten)]
    common: ProcessArgs,

    #[command(flatten)]
    consumer: NamedConsumerArgs,

    /// Bootstrap servers, comma separated, such as broker-1:9092,broker-2:9092 (also from
    /// KAFKA_BOOTSTRAP_SERVERS)
    #[arg(long, env = "KAFKA_URL", alias = "kafka-bootstrap-servers")]
    kafka_url: Option<String>,

    /// Topic that webhooks are written to; it should exist
    #[arg(long, env = "KAFKA_TOPIC", default_value = "shopify-webhooks")]
    kafka_topic: String,

    /// Key of a record, by which it is kept in order: resource, shop, or topic (of a shop)
    #[arg(long, env = "KAFKA_KEY", default_value = "resource")]
    kafka_key: String,

    /// Format of a record: raw (the body, headers as record headers), envelope (JSON of all), or
    /// cloudevents (1.0, binary mode)
    #[arg(long, env = "KAFKA_FORMAT", default_value = "raw")]
    kafka_format: String,

    /// Transactional id; the cell's id is appended, and a CONSUMER that is not kafka
    #[arg(long, env = "KAFKA_TX_ID", default_value = "spillway")]
    kafka_tx_id: String,

    /// Further librdkafka settings, in Java's properties format, such as security.protocol
    #[arg(long, env = "KAFKA_PROPERTIES_FILE")]
    kafka_properties_file: Option<PathBuf>,

    /// Start position when this Redis knows no Kafka producer yet: oldest (the oldest entry left)
    /// or now
    #[arg(long, env = "START_AT", default_value = "oldest")]
    start_at: String,

    /// Address of /livez, /readyz and /metrics
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:9813")]
    admin_listen: String,

    /// Time for which dead letters are kept; compliance topics are kept for ever [1h to 3650d]
    #[arg(long, env = "DEAD_KEEP", default_value = "30d")]
    dead_keep: String,

    /// Maximum bytes of dead letters; at the limit, producing waits at the next webhook that Kafka
    /// refuses [0 to 64GiB]
    #[arg(long, env = "DEAD_MAX", default_value = "1GiB")]
    dead_max: String,

    /// Time to commit what is under way after SIGTERM [1s to 15m]
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "10s")]
    shutdown_timeout: String,
}

/// The Kafka producer's settings, checked.
#[derive(Clone)]
pub struct ProducerSettings {
    /// Settings that every process has.
    pub common: ProcessSettings,
    /// Name and filter of the consumer.
    pub consumer: ConsumerSettings,
    /// Bootstrap servers.
    pub servers: String,
    /// Topic that webhooks are written to.
    pub topic: String,
    /// Key of records.
    pub key: Key,
    /// Format of records.
    pub format: Format,
    /// Prefix of the transactional id.
    pub tx_id: String,
    /// The operator's own librdkafka options.
    pub properties: Properties,
    /// Start position of a consumer that is registered for the first time.
    pub start_at: StartAt,
    /// Address of the admin endpoint.
    pub admin_listen: SocketAddr,
    /// Time for which dead letters are kept.
    pub dead_keep: Duration,
    /// Most bytes of dead letters.
    pub dead_bytes_max: u64,
    /// Time to commit what is under way.
    pub shutdown_timeout: Duration,
}

/// Key of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Shop and resource.
    Resource,
    /// Shop.
    Shop,
    /// Shop and topic.
    Topic,
}

/// Format of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The body as value. Headers are record headers.
    Raw,
    /// JSON of the whole request.
    Envelope,
    /// CloudEvents 1.0, Kafka binding, binary mode.
    CloudEvents,
}

// Written by hand: the properties may hold a password.
impl fmt::Debug for ProducerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("servers", &self.servers)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

impl spillway_process::ServerArgs for ProducerArgs {
    type Checked = ProducerSettings;

    fn common(&self) -> &ProcessArgs {
        &self.common
    }

    fn check(&self, checker: &mut Checker) -> ProducerSettings {
        let s = Duration::from_secs;
        let keys = [("resource", Key::Resource), ("shop", Key::Shop), ("topic", Key::Topic)];
        let formats = [
            ("raw", Format::Raw),
            ("envelope", Format::Envelope),
            ("cloudevents", Format::CloudEvents),
        ];
        let starts = [("oldest", StartAt::Oldest), ("now", StartAt::Now)];
        ProducerSettings {
            common: self.common.check(checker),
            consumer: self.consumer.check(checker, ConsumerKind::KafkaProducer),
            servers: self.servers(checker),
            topic: self.topic(checker),
            key: checker.choice("KAFKA_KEY", &self.kafka_key, &keys),
            format: checker.choice("KAFKA_FORMAT", &self.kafka_format, &formats),
            tx_id: self.tx_id(checker),
            properties: self.properties(checker),
            start_at: checker.choice("START_AT", &self.start_at, &starts),
            admin_listen: checker.address("ADMIN_LISTEN", &self.admin_listen, "127.0.0.1:9813"),
            dead_keep: checker.duration("DEAD_KEEP", &self.dead_keep, s(3600)..=s(3650 * 86_400)),
            dead_bytes_max: checker.size("DEAD_MAX", &self.dead_max, 0..=64 * GIB),
            shutdown_timeout: checker.duration(
                "SHUTDOWN_TIMEOUT",
                &self.shutdown_timeout,
                s(1)..=s(900),
            ),
        }
    }
}

impl ProducerArgs {
    fn servers(&self, checker: &mut Checker) -> String {
        const KEY: &str = "KAFKA_URL";
        let alias = std::env::var("KAFKA_BOOTSTRAP_SERVERS").ok();
        let url = self.kafka_url.as_deref();
        let alias = alias.as_deref();
        if let (Some(url), Some(alias)) = (url, alias)
            && url.trim() != alias.trim()
        {
            checker.mistake(KEY, "differs from KAFKA_BOOTSTRAP_SERVERS; set one of them");
        }
        let Some(servers) = url.or(alias).map(str::trim).filter(|servers| !servers.is_empty())
        else {
            checker.mistake(KEY, "is required, such as broker-1:9092,broker-2:9092");
            return String::new();
        };
        for server in servers.split(',').map(str::trim) {
            if let Err(problem) = check_server(server) {
                checker.mistake(KEY, format_args!("{server:?} {problem}"));
            }
        }
        servers.to_owned()
    }

    fn topic(&self, checker: &mut Checker) -> String {
        let topic = self.kafka_topic.trim();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_good = (1..=TOPIC_BYTES_MAX).contains(&topic.len()) && topic.chars().all(is_plain);
        if !is_good || matches!(topic, "." | "..") {
            checker.mistake(
                "KAFKA_TOPIC",
                format_args!("must be 1 to {TOPIC_BYTES_MAX} letters, digits, '.', '_' or '-'"),
            );
        }
        topic.to_owned()
    }

    fn tx_id(&self, checker: &mut Checker) -> String {
        let id = self.kafka_tx_id.trim();
        let is_wrong = |letter: char| letter.is_whitespace() || letter == ':';
        if id.is_empty() || id.len() > TOPIC_BYTES_MAX || id.contains(is_wrong) {
            checker.mistake(
                "KAFKA_TX_ID",
                format_args!("must be 1 to {TOPIC_BYTES_MAX} bytes without white space and ':'"),
            );
        }
        id.to_owned()
    }

    fn properties(&self, checker: &mut Checker) -> Properties {
        const KEY: &str = "KAFKA_PROPERTIES_FILE";
        let Some(file) = &self.kafka_properties_file else { return Properties::new() };
        match read_properties(file) {
            Ok(properties) => {
                for problem in operator_options::check(&properties) {
                    checker.mistake(KEY, problem);
                }
                let timeout = properties.iter().find(|(key, _)| key == "transaction.timeout.ms");
                let timeout = timeout.and_then(|(_, value)| value.trim().parse::<u64>().ok());
                if timeout.is_some_and(|ms| ms < TRANSACTION_TIMEOUT_MIN_MS) {
                    checker.mistake(
                        KEY,
                        format_args!(
                            "transaction.timeout.ms must be at least {TRANSACTION_TIMEOUT_MIN_MS}"
                        ),
                    );
                }
                properties
            }
            Err(problem) => {
                checker.mistake(KEY, problem);
                Properties::new()
            }
        }
    }
}

fn read_properties(file: &Path) -> Result<Properties, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    properties::parse(&text)
        .map_err(|line| format!("{}, line {line}: not of the form key=value", file.display()))
}

/// Checks for `host:port`, with a protocol in front if need be, as Java's listeners are written.
fn check_server(server: &str) -> Result<(), &'static str> {
    const FORM: &str = "is not a server such as broker-1:9092, with a port from 1 to 65535";
    let address = server.split_once("://").map_or(server, |(_, address)| address);
    if address.contains(['@', '/']) || address.contains(char::is_whitespace) {
        return Err(FORM);
    }
    let (host, port) = address.rsplit_once(':').ok_or(FORM)?;
    // A sign would be parsed, too.
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(port) if is_number && port > 0 && !host.is_empty() => Ok(()),
        _ => Err(FORM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(arguments: &[&str]) -> String {
        let base = ["kafka_producer", "--kafka-url", "127.0.0.1:9092"];
        let written = ProducerArgs::parse_from(base.iter().chain(arguments));
        let mut checker = Checker::default();
        let settings = spillway_process::ServerArgs::check(&written, &mut checker);
        checker.finish(settings).map_or_else(|mistakes| mistakes.to_string(), |_| String::new())
    }

    #[test]
    fn every_mistake_is_told_at_once() {
        let told = mistakes(&[
            "--kafka-topic",
            "a b",
            "--kafka-key",
            "colour",
            "--kafka-format",
            "avro",
            "--kafka-tx-id",
            "",
            "--start-at",
            "never",
            "--shutdown-timeout",
            "10",
            "--kafka-properties-file",
            "/nonexistent",
        ]);
        assert_eq!(told.lines().count(), 7, "{told}");
        assert_eq!(mistakes(&[]), "");
    }

    #[test]
    fn a_transactional_id_has_no_separator_of_consumers() {
        assert_eq!(mistakes(&["--kafka-tx-id", "own-0000000a"]), "");
        for bad in ["own:", "a b"] {
            let told = mistakes(&["--kafka-tx-id", bad]);
            assert!(told.contains("KAFKA_TX_ID"), "{bad}: {told}");
        }
    }

    #[test]
    fn servers_are_hosts_with_ports() {
        for good in ["a:1", "127.0.0.1:9092", "[::1]:9092", "SASL_SSL://b.example:9093"] {
            assert_eq!(check_server(good), Ok(()), "{good}");
        }
        for bad in ["", "a", "a:", ":1", "a:b", "a:0", "me:hush@a:1", "http://a:1/x", "a b:1"] {
            assert!(check_server(bad).is_err(), "{bad}");
        }
        for bad in ["a:99999", "a:65536", "a:abc", "a:+1", "[::1]:99999"] {
            let problem = check_server(bad).unwrap_err();
            assert!(problem.contains("a port from 1 to 65535"), "{bad}: {problem}");
        }
    }

    #[test]
    fn a_properties_file_is_checked_and_never_printed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let arguments = ["--kafka-properties-file", file.path().to_str().unwrap()];
        std::fs::write(
            file.path(),
            "acks=1\nno.such=1\nsasl.password=hush\ntransaction.timeout.ms=5000\n",
        )
        .unwrap();
        let told = mistakes(&arguments);
        assert_eq!(told.lines().count(), 3, "{told}");
        assert!(told.contains("acks") && told.contains("no.such"), "{told}");
        assert!(told.contains("at least 10000"), "{told}");
        std::fs::write(file.path(), "=hush").unwrap();
        let told = mistakes(&arguments);
        assert!(told.contains("line 1") && !told.contains("hush"), "{told}");
        std::fs::write(file.path(), "security.protocol=SSL\nsasl.password=hush\n").unwrap();
        assert_eq!(mistakes(&arguments), "");
    }
}
