//! The overflow log of a cell, as its receivers report it. Pure: the answers are arguments.

use super::drained::OverflowLook;

/// Gauge of a receiver: `SPILL_MAX`, or 0 without an overflow log.
const LIMIT: &str = "spillway_spill_limit_bytes";
/// Gauge of a receiver: webhooks in its overflow log, too few until those of earlier processes are counted.
const WEBHOOKS: &str = "spillway_spill_webhooks";
/// Gauge of a receiver: 0 once its overflow log is empty and webhooks go to Redis.
const SPILLING: &str = "spillway_spilling";
/// Gauge of a receiver: the last digits of its log's id.
const LOG: &str = "spillway_spill_log";
/// Part of a log's id that a receiver reports.
const ID_MASK: u64 = 0xffff_ffff;

/// Report of one receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogReport {
    /// No receiver answers at this address.
    Silent,
    /// The receiver has no overflow log.
    Without,
    /// State of its overflow log.
    Log {
        /// Last 8 hex digits of its id.
        id: u64,
        /// Webhooks in it.
        webhooks: u64,
        /// True while webhooks do not go to Redis directly.
        is_spilling: bool,
    },
}

impl LogReport {
    /// Report in the metrics of a receiver.
    pub(super) fn parse(metrics: &str) -> Self {
        let log = || {
            Some(Self::Log {
                id: gauge(metrics, LOG)?,
                webhooks: gauge(metrics, WEBHOOKS)?,
                is_spilling: gauge(metrics, SPILLING)? > 0,
            })
        };
        match gauge(metrics, LIMIT) {
            Some(0) => Self::Without,
            Some(_) => log().unwrap_or(Self::Silent),
            None => Self::Silent,
        }
    }
}

/// Conclusion from the reports of all receivers that were asked. `claim` is the value of the cell's claim: the log
/// that it names must be among them. It is empty if no log is known to Redis; a receiver that can't write there may have
/// one all the same. An empty log is certain only if its receiver does not spill, because damaged and uncounted parts
/// of a log count as nothing.
pub(super) fn overflow_of(claim: &str, reports: &[LogReport]) -> OverflowLook {
    let holder = claim.split(':').next().and_then(|id| u64::from_str_radix(id, 16).ok());
    let holder = holder.map(|id| id & ID_MASK);
    let mut total = 0;
    let mut is_any_spilling = false;
    let mut is_complete = true;
    let mut has_holder = false;
    let mut has_log = !claim.is_empty();
    for report in reports {
        match *report {
            LogReport::Silent => is_complete = false,
            LogReport::Without => {}
            LogReport::Log { id, webhooks, is_spilling } => {
                has_log = true;
                total += webhooks;
                is_any_spilling |= is_spilling;
                has_holder |= holder == Some(id);
            }
        }
    }
    if !has_log {
        return OverflowLook::Absent;
    }
    match (total, is_any_spilling) {
        (0, true) => OverflowLook::Spilling,
        (0, false) if is_complete && has_holder => OverflowLook::Webhooks(0),
        (0, false) => OverflowLook::Unknown,
        (webhooks, _) => OverflowLook::Webhooks(webhooks),
    }
}

fn gauge(metrics: &str, name: &str) -> Option<u64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: &str = "00000001000000ff:0000000000000abc:7";

    fn log(id: u64, webhooks: u64, is_spilling: bool) -> LogReport {
        LogReport::Log { id, webhooks, is_spilling }
    }

    #[test]
    fn only_a_receiver_reports_an_overflow_log() {
        let page = |limit: u64, webhooks: u64, spilling: u64| {
            LogReport::parse(&format!(
                "# HELP {WEBHOOKS} Webhooks.\n{LIMIT} {limit}\n{LOG} 255\n{WEBHOOKS} {webhooks}\n{SPILLING} {spilling}\n"
            ))
        };
        assert_eq!(page(10, 3, 1), log(255, 3, true));
        assert_eq!(page(10, 0, 0), log(255, 0, false));
        assert_eq!(page(0, 0, 0), LogReport::Without, "SPILL_DIR is not set");
        assert_eq!(LogReport::parse("no metrics"), LogReport::Silent);
        let part = format!("{LIMIT} 10\n{WEBHOOKS} 0\n");
        assert_eq!(LogReport::parse(&part), LogReport::Silent);
    }

    #[test]
    fn only_the_log_of_the_claim_can_be_empty_and_only_while_its_receiver_does_not_spill() {
        let of = |reports: &[LogReport]| overflow_of(CLAIM, reports);
        assert_eq!(of(&[log(255, 0, false)]), OverflowLook::Webhooks(0));
        assert_eq!(of(&[LogReport::Without, log(255, 0, false)]), OverflowLook::Webhooks(0));
        assert_eq!(of(&[log(255, 0, true)]), OverflowLook::Spilling, "damaged, or not counted yet");
        assert_eq!(of(&[log(254, 0, false)]), OverflowLook::Unknown, "another cell");
        assert_eq!(overflow_of("nonsense", &[log(255, 0, false)]), OverflowLook::Unknown);
        for nobody in [&[][..], &[LogReport::Without], &[LogReport::Silent]] {
            assert_eq!(of(nobody), OverflowLook::Unknown, "{nobody:?}");
        }
    }

    #[test]
    fn a_log_without_a_claim_is_never_taken_for_none() {
        let of = |reports: &[LogReport]| overflow_of("", reports);
        assert_eq!(of(&[]), OverflowLook::Absent);
        assert_eq!(of(&[LogReport::Without, LogReport::Silent]), OverflowLook::Absent);
        assert_eq!(of(&[log(255, 3, true)]), OverflowLook::Webhooks(3));
        assert_eq!(of(&[log(255, 0, true)]), OverflowLook::Spilling);
        assert_eq!(of(&[log(255, 0, false)]), OverflowLook::Unknown, "its claim is missing");
    }

    #[test]
    fn every_receiver_must_answer_and_what_they_hold_is_added_up() {
        let of = |reports: &[LogReport]| overflow_of(CLAIM, reports);
        assert_eq!(of(&[log(255, 0, false), log(1, 3, true)]), OverflowLook::Webhooks(3));
        assert_eq!(of(&[log(255, 2, true), log(1, 3, true)]), OverflowLook::Webhooks(5));
        // One that stands back has a log of its own.
        assert_eq!(of(&[log(255, 0, false), log(1, 0, true)]), OverflowLook::Spilling);
        assert_eq!(of(&[log(255, 0, false), LogReport::Silent]), OverflowLook::Unknown);
    }
}
