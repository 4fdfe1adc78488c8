//! Record of numbered webhooks: when each was accepted and delivered, and how often.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::endurance::crowd::Crowd;
use crate::report::say;

/// Unit of the times in the record. 32 bits of it are eleven hours.
const TICK: Duration = Duration::from_micros(10);
/// Marks a time that is not set.
const NEVER: u32 = 0;

/// Times and copies of each webhook, by number: nine bytes each.
#[derive(Debug)]
pub struct Record {
    began: Instant,
    accepted: Vec<AtomicU32>,
    delivered: Vec<AtomicU32>,
    copies: Vec<AtomicU8>,
    /// Faults that the arrays do not show.
    pub faults: Faults,
}

/// Counts of events that must not occur, or only after a kill.
#[derive(Debug, Default)]
pub struct Faults {
    /// Answers of the receiver other than 200, and missing answers. The webhook is sent again.
    pub refused: AtomicU64,
    /// Deliveries of webhooks that were not sent, or with another body.
    pub altered: AtomicU64,
    /// Deliveries before the earlier webhook of their resource, or again after the later one.
    pub disordered: AtomicU64,
}

/// Totals for a range of webhooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Answered 200 by the receiver.
    pub accepted: u64,
    /// Accepted webhooks that were delivered at least once.
    pub delivered: u64,
    /// Deliveries after the first one of a webhook.
    pub repeats: u64,
}

/// Waiting times from a webhook's 200 to its delivery.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    all: Vec<u32>,
    /// Webhooks not delivered yet. They count as if they were delivered now.
    pub undelivered: usize,
}

impl Record {
    /// Creates a record of webhooks `0..numbers`.
    pub fn new(numbers: u32) -> Self {
        let times = || (0..numbers).map(|_| AtomicU32::new(NEVER)).collect();
        Self {
            began: Instant::now(),
            accepted: times(),
            delivered: times(),
            copies: (0..numbers).map(|_| AtomicU8::new(0)).collect(),
            faults: Faults::default(),
        }
    }

    /// Records that a webhook was answered 200 just now.
    pub fn mark_accepted(&self, number: u32) {
        self.accepted[number as usize].store(self.now(), Relaxed);
    }

    /// Records a delivery that is about to be answered 200.
    pub fn mark_delivered(&self, crowds: &[Crowd], number: u32) {
        let slot = &self.delivered[number as usize];
        let is_first = slot.compare_exchange(NEVER, self.now(), Relaxed, Relaxed).is_ok();
        let copies = &self.copies[number as usize];
        copies.fetch_update(Relaxed, Relaxed, |copies| Some(copies.saturating_add(1))).ok();
        let Some(crowd) = crowds.iter().find(|crowd| crowd.numbers().contains(&number)) else {
            return;
        };
        let is_delivered = |other: u32| self.delivered[other as usize].load(Relaxed) != NEVER;
        let is_too_early = is_first && crowd.before(number).is_some_and(|one| !is_delivered(one));
        let is_too_late = !is_first && crowd.after(number).is_some_and(is_delivered);
        if is_too_early || is_too_late {
            self.faults.disordered.fetch_add(1, Relaxed);
        }
    }

    /// Removes a webhook that an operator drops. It must not be delivered.
    pub fn forget(&self, number: u32) {
        let number = number as usize;
        self.accepted[number].store(NEVER, Relaxed);
        assert_eq!(self.copies[number].load(Relaxed), 0, "{number} was dropped and delivered");
    }

    /// Time since the record began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Totals for these webhooks.
    pub fn outcome(&self, numbers: Range<u32>) -> Outcome {
        let mut outcome = Outcome::default();
        for number in numbers {
            let number = number as usize;
            let copies = u64::from(self.copies[number].load(Relaxed));
            outcome.repeats += copies.saturating_sub(1);
            if self.accepted[number].load(Relaxed) != NEVER {
                outcome.accepted += 1;
                outcome.delivered += copies.min(1);
            }
        }
        outcome
    }

    /// Waiting times of the selected webhooks that were accepted in the window.
    pub fn waits(
        &self,
        numbers: Range<u32>,
        window: &Range<Duration>,
        meant: impl Fn(u32) -> bool,
    ) -> Waits {
        let window = ticks(window.start)..ticks(window.end);
        self.waits_of(numbers, |number, accepted| window.contains(&accepted) && meant(number))
    }

    /// Waiting times of the selected webhooks that were accepted outside all windows.
    pub fn waits_outside(
        &self,
        numbers: Range<u32>,
        windows: &[Range<Duration>],
        meant: impl Fn(u32) -> bool,
    ) -> Waits {
        let windows: Vec<Range<u32>> =
            windows.iter().map(|window| ticks(window.start)..ticks(window.end)).collect();
        self.waits_of(numbers, |number, accepted| {
            windows.iter().all(|window| !window.contains(&accepted)) && meant(number)
        })
    }

    fn waits_of(&self, numbers: Range<u32>, meant: impl Fn(u32, u32) -> bool) -> Waits {
        let now = self.now();
        let mut waits = Waits::default();
        for number in numbers {
            let accepted = self.accepted[number as usize].load(Relaxed);
            if accepted == NEVER || !meant(number, accepted) {
                continue;
            }
            let delivered = self.delivered[number as usize].load(Relaxed);
            waits.undelivered += usize::from(delivered == NEVER);
            let end = if delivered == NEVER { now } else { delivered };
            waits.all.push(end.saturating_sub(accepted));
        }
        waits
    }

    /// Deliveries per second of these webhooks. The first and last hundredth are ignored, because
    /// some of them wait for reasons that the rate does not depend on.
    pub fn rate(&self, numbers: Range<u32>) -> f64 {
        let times = numbers.map(|number| self.delivered[number as usize].load(Relaxed));
        let mut times: Vec<u32> = times.filter(|time| *time != NEVER).collect();
        times.sort_unstable();
        let (first, last) = (times.len() / 100, times.len() - 1 - times.len() / 100);
        let seconds = TICK.as_secs_f64() * f64::from(times[last] - times[first]);
        (last - first) as f64 / seconds
    }

    /// Time of the first delivery of one of these webhooks after `after`.
    pub fn first_delivered(&self, numbers: Range<u32>, after: Duration) -> Option<Duration> {
        let after = ticks(after);
        let times = numbers.map(|number| self.delivered[number as usize].load(Relaxed));
        times.filter(|time| *time > after).min().map(|time| TICK * time)
    }

    /// Fails unless each of these webhooks was delivered in order, and with no more repeats than
    /// `repeats_max`. Prints the figures.
    #[track_caller]
    pub fn expect_sound(&self, story: &str, numbers: Range<u32>, repeats_max: u64) -> Outcome {
        let outcome = self.outcome(numbers);
        let count = |fault: &AtomicU64| fault.load(Relaxed);
        let Faults { refused, altered, disordered } = &self.faults;
        say(&format!(
            "{story}: {outcome:?}, {} refused, {} altered, {} disordered",
            count(refused),
            count(altered),
            count(disordered)
        ));
        assert_eq!(outcome.accepted, outcome.delivered, "{story}: delivered");
        assert!(outcome.repeats <= repeats_max, "{story}: {} repeats", outcome.repeats);
        assert_eq!((count(altered), count(disordered)), (0, 0), "{story}: altered, disordered");
        outcome
    }

    fn now(&self) -> u32 {
        ticks(self.began.elapsed()).max(NEVER + 1)
    }
}

impl Waits {
    /// Number of webhooks.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Smallest waiting time that this fraction of the webhooks does not exceed.
    pub fn percentile(&mut self, part: f64) -> Duration {
        assert!(!self.all.is_empty(), "a percentile of nothing");
        let rank = (self.all.len() as f64 * part).ceil() as usize;
        let (_, wait, _) = self.all.select_nth_unstable(rank.saturating_sub(1));
        TICK * *wait
    }
}

fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_micros() / TICK.as_micros()).expect("a measurement ends within 11 hours")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disorder_and_repeats_are_counted() {
        let crowd = Crowd::new("products/update", 0..1, 0..80);
        let next = crowd.after(0).unwrap();
        let crowds = [crowd];
        let record = Record::new(80);
        for number in [0, next] {
            record.mark_accepted(number);
        }
        record.mark_delivered(&crowds, next);
        assert_eq!(record.faults.disordered.load(Relaxed), 1, "too early");
        record.mark_delivered(&crowds, 0);
        assert_eq!(record.faults.disordered.load(Relaxed), 1);
        record.mark_delivered(&crowds, 0);
        assert_eq!(record.faults.disordered.load(Relaxed), 2, "again after the later one");
        assert_eq!(record.outcome(0..80), Outcome { accepted: 2, delivered: 2, repeats: 1 });
    }
}
