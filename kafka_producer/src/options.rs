//! What librdkafka is told. Every option that a promise hangs on is written out here with its
//! reason, also where it is the default; [`check`] refuses another value from the operator's file.

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use crate::properties::Properties;
use crate::settings::Settings;

/// Options that an operator's file must not set, and why not.
const OURS: &[(&[&str], &str)] = &[
    (&["bootstrap.servers", "metadata.broker.list"], "is set by KAFKA_URL"),
    (&["transactional.id"], "is set by KAFKA_TX_ID; each cell appends its own id"),
    (&["group.id"], "names the cell's cursor in Kafka; it is made of the cell's id"),
    (&["enable.idempotence", "enable.gapless.guarantee"], "makes each webhook appear exactly once"),
    (
        &["acks", "request.required.acks"],
        "is all: a webhook is freed here once its record is on every in-sync replica",
    ),
    (
        &["max.in.flight", "max.in.flight.requests.per.connection"],
        "is 5: with more, order is not kept over a retry",
    ),
    (
        &["retries", "message.send.max.retries"],
        "is unlimited: a record is given up only when the broker refuses it",
    ),
    (
        &["message.timeout.ms", "delivery.timeout.ms"],
        "follows transaction.timeout.ms: a record lives as long as its transaction",
    ),
    (&["partitioner", "partitioner_cb"], "is murmur2_random, so that keys land as with Java"),
    (&["isolation.level"], "is read_committed, so that the cursor read back is a committed one"),
    (&["enable.auto.commit", "enable.auto.offset.store"], "would move the cursor by itself"),
    (&["delivery.report.only.error"], "is true: the commit says that all were delivered"),
    (&["statistics.interval.ms"], "would gather what nobody reads; /metrics has ours"),
];

/// Options that Java clients know and librdkafka does not, and what to write instead.
const JAVA_ONLY: &[(&str, &str)] = &[
    ("sasl.jaas.config", "sasl.username and sasl.password"),
    ("ssl.truststore.location", "ssl.ca.location, a PEM file"),
    ("ssl.truststore.password", "nothing: ssl.ca.location needs none"),
    ("ssl.truststore.type", "nothing: ssl.ca.location is a PEM file"),
    ("buffer.memory", "queue.buffering.max.kbytes"),
    ("max.request.size", "message.max.bytes"),
    ("key.serializer", "nothing: keys are bytes"),
    ("value.serializer", "nothing: values are bytes"),
];

/// Options of a producer, which a consumer of the same cluster must not be given.
const PRODUCER_ONLY: &[&str] = &[
    "linger.ms",
    "queue.buffering.",
    "batch.",
    "compression.",
    "message.copy.",
    "transaction.",
    "sticky.",
    "queuing.strategy",
    "retry.",
];

/// Everything that is wrong with `properties`, a sentence each; never a value.
pub fn check(properties: &Properties) -> Vec<String> {
    let mut mistakes = Vec::new();
    for (key, value) in properties {
        if let Some((_, why)) = OURS.iter().find(|(keys, _)| keys.contains(&key.as_str())) {
            mistakes.push(format!("{key} is not yours to set: it {why}"));
        } else if let Some((_, instead)) = JAVA_ONLY.iter().find(|(java, _)| java == key) {
            mistakes.push(format!("{key} is for Java clients; here, write {instead}"));
        } else if let Err(problem) = accepted(key, value) {
            mistakes.push(problem);
        }
    }
    mistakes
}

/// Whether librdkafka takes this option with this value.
fn accepted(key: &str, value: &str) -> Result<(), String> {
    let mut config = ClientConfig::new();
    config.set(key, value);
    match config.create_native_config() {
        Ok(_) => Ok(()),
        // Its text may repeat the value.
        Err(_) if is_secret(key) => Err(format!("{key} has a value that librdkafka refuses")),
        Err(KafkaError::ClientConfig(_, problem, _, _)) => Err(format!("{key}: {problem}")),
        Err(error) => Err(format!("{key}: {error}")),
    }
}

fn is_secret(key: &str) -> bool {
    ["password", "secret", "pem", "key", "config"].iter().any(|part| key.contains(part))
}

/// The producer's options. Those above the operator's file may be changed by it.
pub fn producer(settings: &Settings, cell: u32) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        // For the broker's logs and quotas.
        .set("client.id", "spillway")
        // Webhooks of one shop are much alike: a batch shrinks to a quarter and less, for less CPU
        // than its network and disk would cost.
        .set("compression.type", "lz4")
        // Long enough for a batch to fill under load, and little beside a commit.
        .set("linger.ms", "5")
        // What memory librdkafka may hold: past it, nothing more is read from Redis. More than the
        // largest webhook that the queue can hold (160 MiB), or that would never fit.
        .set("queue.buffering.max.kbytes", "196608")
        // The bytes bound it; small webhooks are not held up by their number.
        .set("queue.buffering.max.messages", "500000")
        // Below a broker's default limit (message.max.bytes, 1 MiB): a batch of several is never
        // too large for it, so a refusal meets only the one record that is.
        .set("batch.size", "1000000")
        // The broker says what is too large, not this end: it counts compressed bytes, and its
        // limit is the topic's. Less than a broker takes in one request (100 MiB), which it would
        // answer by hanging up.
        .set("message.max.bytes", "100000000")
        // How long a dead producer's open transaction holds read_committed consumers up if no other
        // takes over. A broker's own limit is 15 minutes.
        .set("transaction.timeout.ms", "60000")
        // A broker that comes back is found again soon.
        .set("reconnect.backoff.max.ms", "2000")
        // While the group's coordinator is away, librdkafka asks for another only when some
        // connection changes its state, and waits for ever where none does (its issue 5511). Idle
        // connections that are closed are such changes.
        .set("connections.max.idle.ms", "10000")
        .set("topic.metadata.propagation.max.ms", "10000");
    add(&mut config, &settings.properties, |_| true);
    config
        .set("bootstrap.servers", &settings.servers)
        // One producer for each cell: a second one fences the first. Two cells never share it.
        .set("transactional.id", format!("{}-{cell:08x}", settings.tx_id))
        // A batch sent again after a lost answer is known to the broker.
        .set("enable.idempotence", "true")
        // A record counts as delivered when every in-sync replica has it.
        .set("acks", "all")
        // The most with which the broker still keeps order over retries.
        .set("max.in.flight", "5")
        // Only the broker's refusal, or the transaction's end, gives a record up.
        .set("retries", "2147483647")
        // Java's hash, so that keys land in the partitions where any Java client's would; records
        // without a key are spread.
        .set("partitioner", "murmur2_random")
        // The commit says that all were delivered. A report for each would cost more than sending
        // it.
        .set("delivery.report.only.error", "true");
    config
}

/// The options of a consumer that reads the cursor and never subscribes.
pub fn cursor_reader(settings: &Settings, cell: u32) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("client.id", "spillway");
    add(&mut config, &settings.properties, |key| {
        !PRODUCER_ONLY.iter().any(|prefix| key.starts_with(prefix))
    });
    config
        .set("bootstrap.servers", &settings.servers)
        .set("group.id", group(cell))
        // A cursor that a transaction is about to move is waited for, not read too early.
        .set("isolation.level", "read_committed")
        // Only transactions move the cursor.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false");
    config
}

/// The consumer group whose offset is the cell's cursor.
pub fn group(cell: u32) -> String {
    format!("spillway-{cell:08x}")
}

fn add(config: &mut ClientConfig, properties: &Properties, is_meant: impl Fn(&str) -> bool) {
    for (key, value) in properties.iter().filter(|(key, _)| is_meant(key)) {
        config.set(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(key: &str, value: &str) -> Vec<String> {
        check(&vec![(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn what_our_promises_hang_on_is_refused_with_its_reason() {
        for (keys, _) in OURS {
            for key in *keys {
                let told = mistakes(key, "x");
                assert_eq!(told.len(), 1, "{key}");
                assert!(told[0].starts_with(key) && told[0].contains("not yours"), "{told:?}");
            }
        }
    }

    #[test]
    fn what_librdkafka_does_not_know_is_refused_and_no_secret_told() {
        assert!(mistakes("no.such.option", "1")[0].contains("no.such.option"));
        assert!(mistakes("linger.ms", "soon")[0].contains("linger.ms"));
        let told = mistakes("ssl.key.pem", "hush");
        assert!(told.iter().all(|mistake| !mistake.contains("hush")), "{told:?}");
        assert!(mistakes("sasl.jaas.config", "hush")[0].contains("sasl.username"));
    }

    #[test]
    fn what_an_operator_needs_is_taken() {
        for (key, value) in [
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanisms", "SCRAM-SHA-512"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "me"),
            ("sasl.password", "hush"),
            ("ssl.ca.location", "/etc/ssl/certs/ca-certificates.crt"),
            ("compression.type", "zstd"),
            ("linger.ms", "20"),
            ("transaction.timeout.ms", "120000"),
            ("client.rack", "a"),
        ] {
            assert_eq!(mistakes(key, value), Vec::<String>::new(), "{key}");
        }
    }
}
