//! `spillway status --check`: one line and an exit code, for whatever calls a person.
//!
//! 0 is well, 1 is a warning, 2 is critical, as monitoring plugins have it; a Redis that does not
//! answer is critical. Pure but for the printing: the thresholds are arguments.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use spillway_queue::status::{DrainStatus, QueueStatus, Status};

use crate::failure::Failure;
use crate::out::{age, count, line, printable};

/// Longer than any owner is silent while it lives.
const SILENT_SECONDS: f64 = 10.0;

/// From where on it is bad.
#[derive(Debug, Clone, Args)]
pub struct Thresholds {
    /// With --check: a warning once the oldest webhook of a drain waits for longer
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    warn_age: Duration,

    /// With --check: critical once it waits for longer
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = humantime::parse_duration)]
    critical_age: Duration,

    /// With --check: a warning once Redis uses more of its maxmemory, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=100))]
    warn_full: u64,

    /// With --check: critical once it uses more, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=100))]
    critical_full: u64,

    /// With --check: a warning once a drain has more dead letters
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    warn_dead: u64,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Ok = 0,
    Warning = 1,
    Critical = 2,
}

/// Prints one line about what was read, or could not be.
pub fn tell(
    read: Result<Status, Failure>,
    thresholds: &Thresholds,
    json: bool,
) -> Result<ExitCode, Failure> {
    let (grade, text) = match &read {
        Ok(status) => summary(status, judge(status, thresholds)),
        Err(failure @ Failure::Queue(_)) => (Grade::Critical, failure.to_string()),
        // Settings that are wrong say nothing about the queue.
        Err(_) => return read.map(|_| ExitCode::SUCCESS),
    };
    let word = match grade {
        Grade::Ok => "OK",
        Grade::Warning => "WARNING",
        Grade::Critical => "CRITICAL",
    };
    if json {
        line(serde_json::json!({ "status": word.to_lowercase(), "text": text }))?;
    } else {
        line(printable(format!("SPILLWAY {word}: {text}").as_bytes()))?;
    }
    Ok(ExitCode::from(grade as u8))
}

fn summary(status: &Status, mut findings: Vec<(Grade, String)>) -> (Grade, String) {
    findings.sort_by_key(|(grade, _)| std::cmp::Reverse(*grade));
    let grade = findings.first().map_or(Grade::Ok, |(grade, _)| *grade);
    let mut texts: Vec<_> = findings.into_iter().map(|(_, text)| text).collect();
    if texts.is_empty() {
        let waiting = |drain: &DrainStatus| format!("{}: {} waiting", drain.name, drain.waiting);
        texts.extend(status.drains.iter().map(waiting));
    }
    (grade, texts.join("; "))
}

fn judge(status: &Status, thresholds: &Thresholds) -> Vec<(Grade, String)> {
    let mut findings = Vec::new();
    if status.drains.is_empty() {
        let text = "no drain is registered: nothing is delivered or freed".to_owned();
        findings.push((Grade::Critical, text));
    }
    findings.extend(fullness(&status.queue, thresholds));
    for drain in &status.drains {
        findings.extend(of_drain(drain, thresholds));
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

fn of_drain(drain: &DrainStatus, thresholds: &Thresholds) -> Vec<(Grade, String)> {
    let mut findings = Vec::new();
    let name = &drain.name;
    let is_silent = drain.last_seen_seconds.is_none_or(|seconds| seconds > SILENT_SECONDS);
    if drain.owner.is_none() || is_silent {
        let seen = drain.last_seen_seconds.map_or("never".to_owned(), |s| age(s) + " ago");
        findings.push((Grade::Critical, format!("{name} has no live owner (last seen: {seen})")));
    }
    if let Some(oldest) = drain.oldest_age_seconds {
        let waiting = count(drain.waiting, "webhook");
        let text = format!("{name}: {waiting} waiting, the oldest for {}", age(oldest));
        if oldest > thresholds.critical_age.as_secs_f64() {
            findings.push((Grade::Critical, text));
        } else if oldest > thresholds.warn_age.as_secs_f64() {
            findings.push((Grade::Warning, text));
        }
    }
    for pause in &drain.pauses {
        findings.push((Grade::Warning, format!("{name} has paused {}", pause.filter)));
    }
    if drain.dead_letters > thresholds.warn_dead {
        let dead = count(drain.dead_letters, "dead letter");
        findings.push((Grade::Warning, format!("{name}: {dead}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        thresholds: Thresholds,
    }

    fn check(expected: Grade, change: impl FnOnce(&mut Status)) {
        let drain = DrainStatus {
            name: "http".to_owned(),
            waiting: 12,
            oldest_age_seconds: Some(60.0),
            owner: Some("x".to_owned()),
            last_seen_seconds: Some(0.5),
            ..DrainStatus::default()
        };
        let queue = QueueStatus { limit_bytes: 100, bytes: 50, ..QueueStatus::default() };
        let mut status = Status { queue, drains: vec![drain], ..Status::default() };
        change(&mut status);
        let thresholds = Flags::parse_from(["x"]).thresholds;
        let (grade, text) = summary(&status, judge(&status, &thresholds));
        assert_eq!(grade, expected, "{text}");
    }

    #[test]
    fn each_threshold_is_told_from_its_neighbours() {
        check(Grade::Ok, |_| {});
        check(Grade::Ok, |status| status.drains[0].oldest_age_seconds = Some(300.0));
        check(Grade::Warning, |status| status.drains[0].oldest_age_seconds = Some(301.0));
        check(Grade::Critical, |status| status.drains[0].oldest_age_seconds = Some(1801.0));
        check(Grade::Warning, |status| status.queue.bytes = 71);
        check(Grade::Critical, |status| status.queue.bytes = 91);
        check(Grade::Ok, |status| status.queue.limit_bytes = 0);
        check(Grade::Warning, |status| status.drains[0].dead_letters = 1);
        check(Grade::Critical, |status| status.drains[0].owner = None);
        check(Grade::Critical, |status| status.drains[0].last_seen_seconds = Some(11.0));
        check(Grade::Critical, |status| status.drains.clear());
    }
}
