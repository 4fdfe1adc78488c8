//! The series of the history as one question in PromQL, and the matchers that select a cell.

/// Label that tells the series of the answer apart.
pub(super) const SERIES_LABEL: &str = "spillway_series";
/// Name of the series that counts the cells which the matchers select.
pub(super) const CELLS: &str = "cells";

/// Longest step with rates of two scrapes, as those in memory are. With a longer one, a rate is of the whole step.
const SHORT_STEP_SECONDS: u64 = 30;
/// Least time of a rate. Two scrapes are in it, also where Prometheus scrapes once a minute.
const RATE_SECONDS_MIN: u64 = 150;
const _: () = assert!(SHORT_STEP_SECONDS < RATE_SECONDS_MIN, "a rate has two scrapes");
/// Longest text of matchers.
const MATCHERS_BYTES_MAX: usize = 1_000;
/// Labels that the question needs for itself.
const OWN_LABELS: [&str; 2] = ["__name__", "le"];

/// One series of the history, or several that differ by their consumer or process.
pub(super) struct PlannedSeries {
    /// Name, as in memory.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    question: SeriesQuestion,
}

/// A way to ask for a series. Several processes show the same queue, so the largest value counts, as in
/// `ops/prometheus/recording.yml`.
enum SeriesQuestion {
    /// Sum of the rates of all processes.
    Flow(&'static str),
    /// Mean of the rates that the processes show of a consumer.
    ConsumerFlow(&'static str),
    /// Value of the cell.
    CellValue(&'static str),
    /// Value of each consumer.
    ConsumerValue(&'static str),
    /// Largest value of the processes of each job.
    JobValue(&'static str),
    /// Quantile of the time from the first byte received to the delivery, for each job.
    JobDelay(&'static str),
    /// Number of cells.
    Cells,
}

/// All series.
const SERIES: &[PlannedSeries] = &[
    PlannedSeries {
        name: "accepted_per_second",
        unit: "per_second",
        question: SeriesQuestion::Flow("spillway_accepted_total"),
    },
    PlannedSeries {
        name: "memory_bytes",
        unit: "bytes",
        question: SeriesQuestion::CellValue("spillway_queue_bytes"),
    },
    PlannedSeries {
        name: "settled_per_second",
        unit: "per_second",
        question: SeriesQuestion::ConsumerFlow("spillway_consumer_settled_total"),
    },
    PlannedSeries {
        name: "waiting",
        unit: "webhooks",
        question: SeriesQuestion::ConsumerValue("spillway_queue_webhooks"),
    },
    PlannedSeries {
        name: "in_lanes",
        unit: "webhooks",
        question: SeriesQuestion::ConsumerValue("spillway_consumer_lane_webhooks"),
    },
    PlannedSeries {
        name: "dead_letters",
        unit: "webhooks",
        question: SeriesQuestion::ConsumerValue("spillway_consumer_dead_letters"),
    },
    PlannedSeries {
        name: "oldest_seconds",
        unit: "seconds",
        question: SeriesQuestion::ConsumerValue("spillway_queue_oldest_age_seconds"),
    },
    PlannedSeries {
        name: "p50_seconds",
        unit: "seconds",
        question: SeriesQuestion::JobDelay("0.5"),
    },
    PlannedSeries {
        name: "p99_seconds",
        unit: "seconds",
        question: SeriesQuestion::JobDelay("0.99"),
    },
    PlannedSeries {
        name: "concurrency",
        unit: "count",
        question: SeriesQuestion::JobValue("spillway_concurrency_in_use"),
    },
    PlannedSeries {
        name: "concurrency_limit",
        unit: "count",
        question: SeriesQuestion::JobValue("spillway_concurrency_limit"),
    },
    PlannedSeries {
        name: "lanes_blocked",
        unit: "count",
        question: SeriesQuestion::JobValue("spillway_lanes_blocked"),
    },
    PlannedSeries {
        name: "spilled",
        unit: "webhooks",
        question: SeriesQuestion::JobValue("spillway_spill_webhooks"),
    },
    PlannedSeries { name: CELLS, unit: "count", question: SeriesQuestion::Cells },
];

/// Matchers and step of a question.
pub(super) struct QuestionScope<'a> {
    /// Matchers that select the cell; empty if there is only one.
    pub matchers: &'a str,
    /// Time between two values.
    pub step_seconds: u64,
}

impl QuestionScope<'_> {
    /// All series in one expression. Each row of its answer has the name of its series as a label.
    pub(super) fn question(&self) -> String {
        let labelled = SERIES.iter().map(|series| {
            let expression = series.question.expression(self);
            let name = series.name;
            format!(r#"label_replace({expression}, "{SERIES_LABEL}", "{name}", "", "")"#)
        });
        labelled.collect::<Vec<_>>().join(" or ")
    }

    fn of(&self, metric: &str) -> String {
        format!("{metric}{{{}}}", self.matchers)
    }

    /// Rate of a counter. `and` ends it with its counter: a process that is gone has no rate.
    fn rate(&self, metric: &str) -> String {
        let counter = self.of(metric);
        let seconds = self.step_seconds.max(RATE_SECONDS_MIN);
        if self.step_seconds <= SHORT_STEP_SECONDS {
            format!("(irate({counter}[{seconds}s]) and {counter})")
        } else {
            format!("rate({counter}[{seconds}s])")
        }
    }
}

impl SeriesQuestion {
    fn expression(&self, scope: &QuestionScope<'_>) -> String {
        match self {
            Self::Flow(metric) => format!("sum({})", scope.rate(metric)),
            Self::ConsumerFlow(metric) => format!("avg by (consumer) ({})", scope.rate(metric)),
            Self::CellValue(metric) => format!("max({})", scope.of(metric)),
            Self::ConsumerValue(metric) => format!("max by (consumer) ({})", scope.of(metric)),
            Self::JobValue(metric) => format!("max by (job) ({})", scope.of(metric)),
            Self::JobDelay(part) => {
                let buckets = scope.rate("spillway_end_to_end_seconds_bucket");
                format!("histogram_quantile({part}, sum by (job, le) ({buckets}))")
            }
            Self::Cells => {
                format!("count(count by (cell) ({}))", scope.of("spillway_queue_bytes"))
            }
        }
    }
}

/// The series of this name, if the question has it.
pub(super) fn planned(name: &str) -> Option<&'static PlannedSeries> {
    SERIES.iter().find(|series| series.name == name)
}

/// Checks matchers such as `cell="one",job=~"a|b"`. They become part of the question as they are.
pub(super) fn check_matchers(text: &str) -> Result<(), &'static str> {
    const FORM: &str = r#"must be label matchers such as cell="one" or cell="one",namespace=~"shop-.*", without braces; in a value, a backslash or a quote has a backslash before it"#;
    if text.len() > MATCHERS_BYTES_MAX {
        return Err("must have at most 1,000 bytes");
    }
    let mut rest = text.trim();
    loop {
        rest = after_matcher(rest).ok_or(FORM)?.trim_start();
        if rest.is_empty() {
            return Ok(());
        }
        rest = rest.strip_prefix(',').ok_or(FORM)?.trim_start();
    }
}

/// Text after a matcher; `None` if it does not begin with one.
fn after_matcher(text: &str) -> Option<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let (name, rest) = text.split_at(text.find(|letter| !is_part(letter))?);
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    if OWN_LABELS.contains(&name) {
        return None;
    }
    let rest = rest.trim_start();
    let value = ["=~", "!~", "!=", "="].into_iter().find_map(|sign| rest.strip_prefix(sign))?;
    let value = value.trim_start().strip_prefix('"')?;
    let mut letters = value.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return value.get(at + 1..),
            '\\' if !matches!(letters.next(), Some((_, '\\' | '"'))) => return None,
            letter if letter.is_control() => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_each_series_and_selects_the_cell() {
        let short = QuestionScope { matchers: r#"cell="one""#, step_seconds: 10 }.question();
        assert_eq!(short.matches(" or label_replace(").count(), SERIES.len() - 1);
        for part in [
            r#"label_replace(sum((irate(spillway_accepted_total{cell="one"}[150s]) and spillway_accepted_total{cell="one"})), "spillway_series", "accepted_per_second", "", "")"#,
            r#"max by (consumer) (spillway_queue_webhooks{cell="one"})"#,
            r#"histogram_quantile(0.99, sum by (job, le) ((irate("#,
            r#"count(count by (cell) (spillway_queue_bytes{cell="one"}))"#,
        ] {
            assert!(short.contains(part), "{part} is missing: {short}");
        }
        let long = QuestionScope { matchers: "", step_seconds: 840 }.question();
        assert!(long.contains("sum(rate(spillway_accepted_total{}[840s]))"), "{long}");
        assert!(!long.contains("irate"), "{long}");
        let day = QuestionScope { matchers: "", step_seconds: 120 }.question();
        assert!(day.contains("[150s]") && !day.contains("[120s]"), "{day}");
    }

    #[test]
    fn every_series_is_known_by_its_name() {
        assert_eq!(planned("waiting").map(|series| series.unit), Some("webhooks"));
        assert!(planned("up").is_none());
    }

    #[test]
    fn matchers_can_not_end_the_question() {
        for good in [
            r#"cell="one""#,
            r#" cell = "one" , job=~"a|b",pod!="x",ns!~"" "#,
            r#"cell="a\"b\\d""#,
            r#"_a1="}) or vector(1)""#,
        ] {
            assert_eq!(check_matchers(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "one",
            "cell",
            "cell=one",
            "cell='one'",
            r#"{cell="one"}"#,
            r#"cell="one"}"#,
            r#"cell="one","#,
            r#"cell="one" job="x""#,
            r#"cell="one"#,
            r#"cell="one\""#,
            r#"cell="\x""#,
            r#"1cell="one""#,
            r#"__name__="up""#,
            "cell=\"a\nb\"",
            r#"="one""#,
            r#"cëll="one""#,
        ] {
            assert!(check_matchers(bad).is_err(), "{bad}");
        }
        let long = format!("cell=\"{}\"", "a".repeat(MATCHERS_BYTES_MAX));
        assert!(check_matchers(&long).is_err());
    }
}
