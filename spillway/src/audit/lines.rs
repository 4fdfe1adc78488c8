//! Records of the audit as the console's model, as rows of a table, as JSON and as CSV.

use spillway_console::model::audit::AuditLine;
use spillway_queue::audit::{AuditEnd, AuditRecord, AuditWay};
use spillway_webhook::freshness::rfc3339;

use crate::csv::field;

/// Columns of the table.
pub(super) const HEADER: [&str; 7] = ["BEGAN", "WHO", "BY", "VERB", "CONSUMER", "FILTER", "END"];
/// Columns of the CSV.
const CSV_HEADER: [&str; 9] =
    ["began", "who", "by", "verb", "consumer", "filter", "outcome", "number", "reason"];

/// The model of a record.
pub(super) fn line_of(record: AuditRecord) -> AuditLine {
    let AuditRecord { id, change, began_ms, end } = record;
    let (outcome, count, failure) = match end {
        None => (None, None, None),
        Some(AuditEnd::Done(count)) => (Some("done"), Some(count), None),
        Some(AuditEnd::Ordered(count)) => (Some("ordered"), Some(count), None),
        Some(AuditEnd::Planned(count)) => (Some("planned"), Some(count), None),
        Some(AuditEnd::Stopped(count)) => (Some("stopped"), Some(count), None),
        Some(AuditEnd::Failed(reason)) => (Some("failed"), None, Some(reason)),
        Some(AuditEnd::FailedAfter { done, reason }) => (Some("failed"), Some(done), Some(reason)),
    };
    AuditLine {
        id: id.to_string(),
        began_ms,
        actor: change.actor,
        way: way(change.way).to_owned(),
        verb: change.verb,
        consumer: change.consumer,
        filter: change.filter,
        outcome: outcome.map(str::to_owned),
        count,
        failure,
    }
}

fn way(way: AuditWay) -> &'static str {
    match way {
        AuditWay::Cli => "cli",
        AuditWay::Api => "api",
        AuditWay::Console => "console",
    }
}

/// A record as one line of JSON.
pub(super) fn json_of(record: &AuditLine) -> String {
    let mut value = serde_json::to_value(record).expect("BUG: a record is JSON");
    value["began_at"] = rfc3339(record.began_ms).into();
    value.to_string()
}

/// A record as a row of the table.
pub(super) fn row(record: AuditLine) -> [String; HEADER.len()] {
    let outcome = record.outcome.unwrap_or_else(|| "no end".to_owned());
    let end = match (record.count, record.failure) {
        (None, None) => outcome,
        (Some(count), None) => format!("{outcome} {count}"),
        (None, Some(reason)) => format!("{outcome}: {reason}"),
        (Some(count), Some(reason)) => format!("{outcome} after {count}: {reason}"),
    };
    let began = rfc3339(record.began_ms);
    [began, record.actor, record.way, record.verb, record.consumer, record.filter, end]
}

/// Names of the columns of the CSV.
pub(super) fn csv_header() -> String {
    CSV_HEADER.join(",")
}

/// A record as one line of CSV, without its end.
pub(super) fn csv_line(record: &AuditLine) -> String {
    let AuditLine { actor, way, verb, consumer, filter, outcome, count, failure, .. } = record;
    let texts = [
        rfc3339(record.began_ms),
        field(actor),
        field(way),
        field(verb),
        field(consumer),
        field(filter),
        field(outcome.as_deref().unwrap_or_default()),
        count.map_or_else(String::new, |count| count.to_string()),
        field(failure.as_deref().unwrap_or_default()),
    ];
    debug_assert_eq!(texts.len(), CSV_HEADER.len(), "BUG: each field has a column");
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use spillway_queue::audit::AuditedChange;
    use spillway_webhook::StreamId;

    use super::*;

    fn line(filter: &str, end: Option<AuditEnd>) -> AuditLine {
        let change = AuditedChange {
            actor: "mia".to_owned(),
            way: AuditWay::Api,
            verb: "pause".to_owned(),
            consumer: "http".to_owned(),
            filter: filter.to_owned(),
        };
        line_of(AuditRecord { id: StreamId { ms: 9, seq: 0 }, change, began_ms: 7, end })
    }

    #[test]
    fn an_end_says_what_became_of_it_and_how_many() {
        let reason = || "redis is full".to_owned();
        for (end, expected) in [
            (Some(AuditEnd::Done(3)), "done 3"),
            (Some(AuditEnd::Ordered(3)), "ordered 3"),
            (Some(AuditEnd::Planned(3)), "planned 3"),
            (Some(AuditEnd::Stopped(3)), "stopped 3"),
            (Some(AuditEnd::Failed(reason())), "failed: redis is full"),
            (
                Some(AuditEnd::FailedAfter { done: 60_000, reason: reason() }),
                "failed after 60000: redis is full",
            ),
            (None, "no end"),
        ] {
            assert_eq!(row(line("a", end))[6], expected);
        }
        let json = json_of(&line("a", Some(AuditEnd::Ordered(3))));
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&value["actor"], &value["way"]), (&"mia".into(), &"api".into()));
        assert_eq!((&value["count"], &value["outcome"]), (&3.into(), &"ordered".into()));
        assert_eq!(value["began_at"], "1970-01-01T00:00:00.007Z");
    }

    #[test]
    fn a_line_of_csv_has_all_columns() {
        let end = AuditEnd::FailedAfter { done: 5, reason: "a,b".to_owned() };
        let told = csv_line(&line("=1", Some(end)));
        let expected = "1970-01-01T00:00:00.007Z,mia,api,pause,http,'=1,failed,5,\"a,b\"";
        assert_eq!(told, expected);
        assert_eq!(csv_header().split(',').count(), 9);
    }
}
