//! Computes figures from receipts: rates, delays, shares. Compares a fault with the calm phases
//! around it.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::ledger::{Event, Ledger};
use crate::receipt::Receipt;
use crate::report::say;

/// Maximum slowdown compared with calm.
const SLOWER_MAX: f64 = 1.5;
/// Maximum rounds of a measurement. A machine that is loud in all of them stays so for longer than
/// a test can wait.
const ROUNDS_MAX: usize = 3;

/// Waiting times of some webhooks.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// The waiting times, unordered.
    pub all: Vec<Duration>,
    /// Number of webhooks that are not delivered yet.
    pub undelivered: usize,
}

/// A waiting time under a fault, and in the calm phases around it.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    /// Waiting time in calm, before the fault.
    pub before: Duration,
    /// Waiting time under the fault.
    pub fault: Duration,
    /// Waiting time in calm, after the fault.
    pub after: Duration,
}

/// A measurement that proves nothing: its calm phases disagree, because something else used the
/// machine. The text has the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loud(pub String);

impl Phases {
    /// Waiting time of the calmer phase. The other one was disturbed, and excuses nothing.
    pub fn calmest(self) -> Duration {
        self.before.min(self.after)
    }

    /// Returns a text if the fault makes webhooks wait for 1.5 times as long as the calmer phase.
    /// A waiting time below `ignored` is no delay.
    ///
    /// # Errors
    ///
    /// If the other calm phase exceeds the same limit: the machine was loud.
    pub fn delay(self, what: &str, ignored: Duration) -> Result<Option<String>, Loud> {
        let limit = self.calmest().mul_f64(SLOWER_MAX).max(ignored);
        let Self { before, fault, after } = self;
        let text = format!(
            "{what}: {fault:?} under the fault, {before:?} in calm before it, {after:?} in calm \
             after it, the limit is {limit:?}"
        );
        if before.max(after) > limit {
            return Err(Loud(text));
        }
        Ok((fault >= limit).then_some(text))
    }
}

/// Plays rounds of a measurement until one is not loud. Each round starts its own servers, so that
/// it finds no backlog and no settings of an earlier one. Fails if all rounds are loud.
pub async fn until_quiet(story: &str, mut round: impl AsyncFnMut() -> Result<(), Loud>) {
    let mut measured = Vec::new();
    while measured.len() < ROUNDS_MAX {
        let Err(Loud(text)) = round().await else { return };
        let number = measured.len() + 1;
        say(&format!("{story}: the calm phases of round {number} disagree: {text}"));
        measured.push(text);
    }
    panic!(
        "{story}: calm phases disagree in each of {ROUNDS_MAX} rounds, use a quiet machine:\n{}",
        measured.join("\n")
    );
}

/// Smallest value that this fraction of the values does not exceed.
pub fn percentile(values: &[Duration], part: f64) -> Duration {
    assert!(!values.is_empty(), "a percentile of nothing");
    let mut values = values.to_vec();
    values.sort_unstable();
    let rank = (values.len() as f64 * part).ceil() as usize;
    values[rank.saturating_sub(1)]
}

/// Jain's fairness index (R. Jain et al., DEC-TR-301): 1 for equal shares, 1/n if one takes all.
pub fn jain(shares: &[usize]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Time from each webhook's 200 to the end of its first delivery, for those accepted in the window.
pub fn delays(
    ledger: &Ledger,
    receipts: &[Receipt],
    window: &Range<Instant>,
    meant: impl Fn(&Receipt) -> bool,
) -> Vec<Duration> {
    let entries = ledger.entries();
    let delay = |receipt: &Receipt| {
        let sent = entries.get(&Event::of(receipt.webhook_id())?)?;
        let accepted = sent.accepted_at()?;
        window.contains(&accepted).then_some(receipt.answered)?.map(|at| at - accepted)
    };
    let delivered = receipts.iter().filter(|receipt| receipt.delivered() && meant(receipt));
    delivered.filter_map(delay).collect()
}

/// Waiting times of the webhooks that were accepted in the window: from the 200 to the end of the
/// first delivery, or until now if undelivered.
pub fn waits(
    ledger: &Ledger,
    receipts: &[Receipt],
    window: &Range<Instant>,
    meant: impl Fn(Event) -> bool,
) -> Waits {
    let now = Instant::now();
    let mut delivered: HashMap<Event, Instant> = HashMap::new();
    for receipt in receipts.iter().filter(|receipt| receipt.delivered()) {
        if let (Some(event), Some(at)) = (Event::of(receipt.webhook_id()), receipt.answered) {
            delivered.entry(event).or_insert(at);
        }
    }
    let mut waits = Waits::default();
    for (event, sent) in ledger.entries().iter().filter(|(event, _)| meant(**event)) {
        let Some(accepted) = sent.accepted_at().filter(|at| window.contains(at)) else { continue };
        let end = delivered.get(event);
        waits.undelivered += usize::from(end.is_none());
        waits.all.push(end.map_or(now, |at| *at).saturating_duration_since(accepted));
    }
    waits
}

/// Deliveries that ended in the window.
pub fn delivered_in<'a>(
    receipts: &'a [Receipt],
    window: &Range<Instant>,
) -> impl Iterator<Item = &'a Receipt> {
    let ended = |receipt: &&Receipt| receipt.answered.is_some_and(|at| window.contains(&at));
    receipts.iter().filter(|receipt| receipt.delivered()).filter(ended)
}

/// Deliveries per second in the window.
pub fn rate(count: usize, window: &Range<Instant>) -> f64 {
    count as f64 / (window.end - window.start).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 0.5), Duration::from_millis(100));
        assert_eq!(percentile(&values, 0.99), Duration::from_millis(198));
        assert_eq!(percentile(&values[..1], 0.99), Duration::from_millis(200));
    }

    #[test]
    fn a_fault_is_compared_with_the_calmer_phase() {
        let delay = |before, fault, after| {
            let [before, fault, after] = [before, fault, after].map(Duration::from_millis);
            Phases { before, fault, after }.delay("p99", Duration::from_millis(10))
        };
        let is_delay = |before, fault, after| {
            delay(before, fault, after).expect("calm phases that agree").is_some()
        };
        assert!(!is_delay(1, 9, 8), "below what is ignored");
        assert!(is_delay(1, 10, 8));
        assert!(!is_delay(100, 149, 140));
        assert!(is_delay(100, 150, 140));
        assert!(delay(151, 9, 100).is_err(), "loud before, and no delay");
        assert!(delay(100, 500, 151).is_err(), "loud after");
    }

    #[tokio::test]
    async fn a_round_is_repeated_while_the_machine_is_loud() {
        let mut rounds = 0;
        until_quiet("rounds", async || {
            rounds += 1;
            if rounds < ROUNDS_MAX { Err(Loud("p99".to_owned())) } else { Ok(()) }
        })
        .await;
        assert_eq!(rounds, ROUNDS_MAX);
        until_quiet("rounds", async || {
            rounds += 1;
            Ok(())
        })
        .await;
        assert_eq!(rounds, ROUNDS_MAX + 1, "a quiet round was repeated");
    }

    #[tokio::test]
    #[should_panic(expected = "in each of 3 rounds, use a quiet machine:\np99\np99\np99")]
    async fn a_machine_that_stays_loud_fails_the_measurement() {
        until_quiet("rounds", async || Err(Loud("p99".to_owned()))).await;
    }

    #[test]
    fn equal_shares_are_fair() {
        assert_eq!(jain(&[7, 7, 7]), 1.0);
        assert_eq!(jain(&[9, 0, 0]), 1.0 / 3.0);
    }
}
