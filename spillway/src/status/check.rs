//! `spillway status --check`: prints one line and sets the exit code, for monitoring.
//!
//! The exit code is 0 for ok, 1 for a warning and 2 for critical, as for monitoring plugins. A
//! Redis that does not answer is critical. Except for the printing, the code is pure: the
//! thresholds are arguments.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use spillway_process::settings::parse_duration;
use spillway_queue::status::{CellStatus, ConsumerStatus, QueueStatus};

use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{age, count, line, printable};

/// Limits above which the state is a warning or critical.
#[derive(Debug, Clone, Args)]
pub(super) struct Thresholds {
    /// With --check: warning if the oldest webhook of a consumer waits for longer
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    warn_age: Duration,

    /// With --check: critical if the oldest webhook of a consumer waits for longer
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = parse_duration)]
    critical_age: Duration,

    /// With --check: warning if Redis uses more of its maxmemory, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=100))]
    warn_full: u64,

    /// With --check: critical if Redis uses more of its maxmemory, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=100))]
    critical_full: u64,

    /// With --check: warning if a consumer has more dead letters
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    warn_dead: u64,
}

/// Severity. The number is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Ok = 0,
    Warning = 1,
    Critical = 2,
}

/// Prints one line about the status, or about the failure to read it.
pub(super) fn tell(
    read: Result<CellStatus, Failure>,
    thresholds: &Thresholds,
    output: OutputArgs,
) -> Result<ExitCode, Failure> {
    let (grade, text) = match &read {
        Ok(status) => summary(status, judge(status, thresholds)),
        Err(failure @ (Failure::Queue(_) | Failure::Denied(_))) => {
            (Grade::Critical, failure.to_string())
        }
        // Invalid settings are no statement about the queue.
        Err(_) => return read.map(|_| ExitCode::SUCCESS),
    };
    let word = match grade {
        Grade::Ok => "OK",
        Grade::Warning => "WARNING",
        Grade::Critical => "CRITICAL",
    };
    if output.is_json() {
        line(serde_json::json!({ "status": word.to_lowercase(), "text": text }))?;
    } else {
        line(printable(format!("SPILLWAY {word}: {text}").as_bytes()))?;
    }
    Ok(ExitCode::from(grade as u8))
}

fn summary(status: &CellStatus, mut findings: Vec<(Grade, String)>) -> (Grade, String) {
    findings.sort_by_key(|(grade, _)| std::cmp::Reverse(*grade));
    let grade = findings.first().map_or(Grade::Ok, |(grade, _)| *grade);
    let mut texts: Vec<_> = findings.into_iter().map(|(_, text)| text).collect();
    if texts.is_empty() {
        let waiting =
            |consumer: &ConsumerStatus| format!("{}: {} waiting", consumer.name, consumer.waiting);
        texts.extend(status.consumers.iter().map(waiting));
    }
    (grade, texts.join("; "))
}

fn judge(status: &CellStatus, thresholds: &Thresholds) -> Vec<(Grade, String)> {
    let mut findings = Vec::new();
    if status.consumers.is_empty() {
        let text = "no consumer is registered: nothing is delivered or freed".to_owned();
        findings.push((Grade::Critical, text));
    }
    findings.extend(fullness(&status.queue, thresholds));
    for consumer in &status.consumers {
        findings.extend(of_consumer(consumer, thresholds));
    }
    findings
}

fn fullness(queue: &QueueStatus, thresholds: &Thresholds) -> Option<(Grade, String)> {
    let percent = (queue.bytes * 100).checked_div(queue.limit_bytes)?;
    let text = format!("redis uses {percent} % of its maxmemory");
    match percent {
        percent if percent > thresholds.critical_full => Some((Grade::Critical, text)),
        percent if percent > thresholds.warn_full => Some((Grade::Warning, text)),
        _ => None,
    }
}

fn of_consumer(consumer: &ConsumerStatus, thresholds: &Thresholds) -> Vec<(Grade, String)> {
    let mut findings = Vec::new();
    let name = &consumer.name;
    if !consumer.has_live_leader() {
        let seen = consumer.last_seen.ago_seconds.map_or("never".to_owned(), |s| age(s) + " ago");
        findings.push((Grade::Critical, format!("{name} has no live leader (last seen: {seen})")));
    }
    if let Some(oldest) = consumer.oldest_age_seconds {
        let waiting = count(consumer.waiting, "webhook");
        let text = format!("{name}: {waiting} waiting, the oldest for {}", age(oldest));
        if oldest > thresholds.critical_age.as_secs_f64() {
            findings.push((Grade::Critical, text));
        } else if oldest > thresholds.warn_age.as_secs_f64() {
            findings.push((Grade::Warning, text));
        }
    }
    for pause in &consumer.pauses {
        findings
            .push((Grade::Warning, format!("{name} is paused by an operator: {}", pause.filter)));
    }
    if consumer.dead.letters > thresholds.warn_dead {
        let dead = count(consumer.dead.letters, "dead letter");
        findings.push((Grade::Warning, format!("{name}: {dead}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use spillway_queue::status::{LastSeen, LeaderStatus};

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        thresholds: Thresholds,
    }

    fn check(expected: Grade, change: impl FnOnce(&mut CellStatus)) {
        let consumer = ConsumerStatus {
            name: "http".to_owned(),
            waiting: 12,
            oldest_age_seconds: Some(60.0),
            leader: Some(LeaderStatus::default()),
            last_seen: LastSeen { ago_seconds: Some(0.5), at_ms: 1 },
            ..ConsumerStatus::default()
        };
        let queue = QueueStatus { limit_bytes: 100, bytes: 50, ..QueueStatus::default() };
        let mut status = CellStatus { queue, consumers: vec![consumer], ..CellStatus::default() };
        change(&mut status);
        let thresholds = Flags::parse_from(["x"]).thresholds;
        let (grade, text) = summary(&status, judge(&status, &thresholds));
        assert_eq!(grade, expected, "{text}");
    }

    #[test]
    fn each_threshold_is_told_from_its_neighbours() {
        check(Grade::Ok, |_| {});
        check(Grade::Ok, |status| status.consumers[0].oldest_age_seconds = Some(300.0));
        check(Grade::Warning, |status| status.consumers[0].oldest_age_seconds = Some(301.0));
        check(Grade::Critical, |status| status.consumers[0].oldest_age_seconds = Some(1801.0));
        check(Grade::Warning, |status| status.queue.bytes = 71);
        check(Grade::Critical, |status| status.queue.bytes = 91);
        check(Grade::Ok, |status| status.queue.limit_bytes = 0);
        check(Grade::Warning, |status| status.consumers[0].dead.letters = 1);
        check(Grade::Critical, |status| status.consumers[0].leader = None);
        check(Grade::Critical, |status| status.consumers[0].last_seen.ago_seconds = Some(11.0));
        check(Grade::Critical, |status| status.consumers.clear());
    }
}
