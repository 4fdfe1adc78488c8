//! Computes figures from receipts: rates, delays, shares.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::ledger::{Event, Ledger};
use crate::receipt::Receipt;

/// Waiting times of some webhooks.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// The waiting times, unordered.
    pub all: Vec<Duration>,
    /// Number of webhooks that are not delivered yet.
    pub undelivered: usize,
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
    fn equal_shares_are_fair() {
        assert_eq!(jain(&[7, 7, 7]), 1.0);
        assert_eq!(jain(&[9, 0, 0]), 1.0 / 3.0);
    }
}
