//! Options of librdkafka. Every option that a promise depends on is written out here with its
//! reason, even if it is the default. The operator's file can't set these.

use rdkafka::ClientConfig;
use spillway_queue::consumers::{ConsumerKind, ConsumerName};

use crate::properties::Properties;
use crate::settings::ProducerSettings;

/// Options of a producer, which a consumer of the same cluster must not get.
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

/// Options of the producer. The operator's file may change those set before it.
pub(crate) fn producer(settings: &ProducerSettings, cell: u32) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        // For the broker's logs and quotas.
        .set("client.id", "spillway")
        // Webhooks of one shop are similar: a batch shrinks to a quarter or less, for less CPU than
        // its network and disk would cost.
        .set("compression.type", "lz4")
        // Long enough for a batch to fill under load, and short compared with a commit.
        .set("linger.ms", "5")
        // Limit on librdkafka's memory. At the limit, nothing more is read from Redis. More than
        // the largest webhook that the queue can hold (160 MiB), which would never fit otherwise.
        .set("queue.buffering.max.kbytes", "196608")
        // The limit on bytes is the effective one. The number does not hold small webhooks up.
        .set("queue.buffering.max.messages", "500000")
        // Below a broker's default limit (message.max.bytes, 1 MiB). A batch of several records is
        // never too large for it, so a refusal meets only the one record that is.
        .set("batch.size", "1000000")
        // The broker, not this client, decides what is too large: it counts compressed bytes, and
        // the limit is the topic's. Less than a broker accepts in one request (100 MiB): beyond
        // that it would close the connection.
        .set("message.max.bytes", "100000000")
        // Time for which a dead producer's open transaction delays read_committed consumers if no
        // other producer takes over. A broker's own limit is 15 minutes.
        .set("transaction.timeout.ms", "60000")
        // A broker that comes back is found soon.
        .set("reconnect.backoff.max.ms", "2000")
        // While the group's coordinator is away, librdkafka asks for another only when some
        // connection changes its state. If none does, it waits for ever (its issue 5511). Closing
        // idle connections causes such changes.
        .set("connections.max.idle.ms", "10000")
        .set("topic.metadata.propagation.max.ms", "10000")
        // A broker that stands still for a few seconds loses its partitions for a moment. Where
        // librdkafka sees that moment, it does not look for a leader again before this time is over:
        // five minutes by default.
        .set("topic.metadata.refresh.interval.ms", "5000");
    add(&mut config, &settings.properties, |_| true);
    config
        .set("bootstrap.servers", &settings.servers)
        // One producer for each consumer of a cell: a second one fences the first. Two cells or two
        // consumers never share it.
        .set("transactional.id", transactional_id(settings, cell))
        // The broker recognizes a batch that is sent again after a lost answer.
        .set("enable.idempotence", "true")
        // A record counts as delivered when every in-sync replica has it.
        .set("acks", "all")
        // Most requests with which the broker still keeps order over retries.
        .set("max.in.flight", "5")
        // A record is given up only when the broker refuses it or the transaction ends.
        .set("retries", "2147483647")
        // Java's hash, so that keys land in the same partitions as with any Java client. Records
        // without a key are spread.
        .set("partitioner", "murmur2_random")
        // The commit confirms that all were delivered. A report for each would cost more than
        // sending it.
        .set("delivery.report.only.error", "true");
    config
}

/// Options of a consumer that reads the cursor and never subscribes.
pub(crate) fn cursor_reader(settings: &ProducerSettings, cell: u32) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("client.id", "spillway");
    add(&mut config, &settings.properties, |key| {
        !PRODUCER_ONLY.iter().any(|prefix| key.starts_with(prefix))
    });
    config
        .set("bootstrap.servers", &settings.servers)
        .set("group.id", group(cell, &settings.consumer.name))
        // Makes the reader wait for a cursor that a transaction is about to move.
        .set("isolation.level", "read_committed")
        // Only transactions move the cursor.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false");
    config
}

/// Transactional id of a consumer. The colon, which `KAFKA_TX_ID` has not, keeps two of them apart
/// whatever the names are: `a-b` and `c` are not `a` and `b-c`.
fn transactional_id(settings: &ProducerSettings, cell: u32) -> String {
    let (id, name) = (&settings.tx_id, &settings.consumer.name);
    if is_default(name) { format!("{id}-{cell:08x}") } else { format!("{id}-{cell:08x}:{name}") }
}

/// Consumer group whose offset is the consumer's cursor.
fn group(cell: u32, consumer: &ConsumerName) -> String {
    if is_default(consumer) {
        format!("spillway-{cell:08x}")
    } else {
        format!("spillway-{cell:08x}-{consumer}")
    }
}

/// True for the name that names in Kafka leave out, so that a producer of a version that knew no other
/// continues.
fn is_default(consumer: &ConsumerName) -> bool {
    *consumer == ConsumerKind::KafkaProducer.default_name()
}

fn add(config: &mut ClientConfig, properties: &Properties, is_meant: impl Fn(&str) -> bool) {
    for (key, value) in properties.iter().filter(|(key, _)| is_meant(key)) {
        config.set(key, value);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use spillway_process::{Checker, ServerArgs};

    use super::*;
    use crate::settings::ProducerArgs;

    /// Transactional id and group of a producer with these flags.
    fn names(flags: &[&str]) -> (String, String) {
        let base = ["kafka_producer", "--kafka-url", "127.0.0.1:9"];
        let settings =
            ProducerArgs::parse_from(base.iter().chain(flags)).check(&mut Checker::default());
        let option = |config: &ClientConfig, key| config.get(key).expect("it is set").to_owned();
        (
            option(&producer(&settings, 0xab), "transactional.id"),
            option(&cursor_reader(&settings, 0xab), "group.id"),
        )
    }

    #[test]
    fn consumers_share_neither_a_transactional_id_nor_a_cursor() {
        let names_of = |id: &str, group: &str| (id.to_owned(), group.to_owned());
        let default = names_of("spillway-000000ab", "spillway-000000ab");
        assert_eq!(names(&[]), default, "that of earlier versions");
        assert_eq!(names(&["--consumer", "kafka"]), default);
        let audit = names_of("spillway-000000ab:audit", "spillway-000000ab-audit");
        assert_eq!(names(&["--consumer", "audit"]), audit);
        let own = names_of("own-000000ab:audit", "spillway-000000ab-audit");
        assert_eq!(names(&["--consumer", "audit", "--kafka-tx-id", "own"]), own);
    }
}
