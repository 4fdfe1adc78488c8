//! Checks that a backend gets the compliance topics. Spillway purges its own data after a redaction was delivered; the
//! app's data is the backend's to purge.

use spillway_queue::status::ConsumerStatus;
use spillway_webhook::shopify::COMPLIANCE_TOPICS;

use super::finding::Finding;

/// Finding for compliance topics that the filters keep from every backend, if there are such. A cell without a
/// downstreamer has no backend.
pub(super) fn examine(consumers: &[ConsumerStatus]) -> Option<Finding> {
    let (backends, others): (Vec<_>, Vec<_>) =
        consumers.iter().filter(|consumer| consumer.delivers()).partition(|c| c.has_lanes());
    if backends.is_empty() {
        return None;
    }
    let withheld = COMPLIANCE_TOPICS.into_iter().filter(|topic| !is_taken(&backends, topic));
    let withheld: Vec<&str> = withheld.collect();
    if withheld.is_empty() {
        return None;
    }
    let topics = withheld.join(", ");
    let fix = "add them to ONLY_TOPICS of the backend that obeys them, or take them out of EXCEPT_TOPICS (docs/routes.md)";
    Some(if withheld.iter().all(|topic| is_taken(&others, topic)) {
        let fix = format!("{fix}; leave it if a reader of Kafka obeys them");
        Finding::warning(
            format!("only Kafka gets {topics}: the filters keep them from each backend"),
            fix,
        )
    } else {
        Finding::problem(format!("no backend gets {topics}: the filters keep them from each"), fix)
    })
}

/// True if one of these consumers may take webhooks of the topic. One without a known filter takes all.
fn is_taken(consumers: &[&ConsumerStatus], topic: &str) -> bool {
    consumers.iter().any(|consumer| {
        let filter = consumer.notes.filter.as_ref();
        filter.is_none_or(|filter| filter.takes_topic(topic.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use spillway_queue::consumers::ConsumerKind;
    use spillway_queue::status::LeaderNotes;
    use spillway_webhook::ConsumerFilter;

    use super::super::finding::Severity;
    use super::*;

    fn consumer(kind: ConsumerKind, filter: &str) -> ConsumerStatus {
        let filter = Some(ConsumerFilter::from_json(filter).expect("a filter"));
        let notes = LeaderNotes { kind: Some(kind), filter, ..LeaderNotes::default() };
        ConsumerStatus { notes, ..ConsumerStatus::default() }
    }

    #[test]
    fn compliance_topics_that_no_backend_gets_are_reported() {
        use ConsumerKind::{Archiver, Downstreamer, KafkaProducer};
        const ORDERS: &str = r#"{"topics":{"only":["orders/*"]}}"#;
        const PRIVACY: &str = r#"{"topics":{"only":["customers/*","shop/*"]}}"#;
        const SHOP: &str = r#"{"topics":{"only":["shop/redact"]}}"#;
        const NOT_PRIVACY: &str = r#"{"topics":{"except":["customers/redact"]}}"#;
        const ALL: &str = "{}";
        let level = |consumers: &[ConsumerStatus]| examine(consumers).map(|found| found.level);
        let http = |filter| consumer(Downstreamer, filter);
        let kafka = |filter| consumer(KafkaProducer, filter);
        for (consumers, expected) in [
            (&[][..], None),
            (&[http(ALL)][..], None),
            (&[http(ORDERS), http(PRIVACY)][..], None),
            (&[http(ORDERS), ConsumerStatus::default()][..], None),
            (&[http(ORDERS)][..], Some(Severity::Problem)),
            (&[http(NOT_PRIVACY)][..], Some(Severity::Problem)),
            (&[http(ORDERS), consumer(Archiver, ALL)][..], Some(Severity::Problem)),
            (&[http(ORDERS), kafka(SHOP)][..], Some(Severity::Problem)),
            (&[http(ORDERS), kafka(ALL)][..], Some(Severity::Warning)),
            (&[kafka(ORDERS)][..], None),
        ] {
            assert_eq!(level(consumers), expected, "{consumers:?}");
        }
        let found = examine(&[http(ORDERS), http(SHOP)]).expect("a finding");
        assert!(
            found.what.starts_with("no backend gets customers/data_request, customers/redact:"),
            "{found:?}"
        );
    }
}
