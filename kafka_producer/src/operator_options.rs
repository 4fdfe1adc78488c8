//! Check of the librdkafka options in the operator's file.

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use crate::properties::Properties;

/// Options that an operator's file must not set, with the reason.
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

/// Options that Java clients know and librdkafka does not, with the replacement.
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

/// Returns all mistakes in `properties`, a sentence each. Never a value.
pub(crate) fn check(properties: &Properties) -> Vec<String> {
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

/// Checks that librdkafka accepts this option with this value.
fn accepted(key: &str, value: &str) -> Result<(), String> {
    let mut config = ClientConfig::new();
    config.set(key, value);
    match config.create_native_config() {
        Ok(_) => Ok(()),
        // The text of the error may repeat the value.
        Err(_) if is_secret(key) => Err(format!("{key} has a value that librdkafka refuses")),
        Err(KafkaError::ClientConfig(_, problem, _, _)) => Err(format!("{key}: {problem}")),
        Err(error) => Err(format!("{key}: {error}")),
    }
}

fn is_secret(key: &str) -> bool {
    ["password", "secret", "pem", "key", "config"].iter().any(|part| key.contains(part))
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
