//! The backend as a whole: is it down, is it to be left alone, how much may be under way.
//!
//! It counts as down when nothing succeeds any more and several resources fail, or it can't be
//! connected to: ten that had not failed before, in a row, or whatever fails for half a minute. One resource that fails for ever
//! must not stop the others, nor may a dead backend be hammered for each of three million. While it
//! is down the retry clock stands still, and one attempt at a time probes. Pure: time is an
//! argument.

use std::time::Duration;

/// First failures of a webhook, in a row, that make it down. A webhook that is known to fail says
/// nothing about the others when it fails again.
const FIRST_FAILURES_DOWN: usize = 10;
/// Without a success for so long, failures of any kind make it down.
const SILENCE_DOWN: Duration = Duration::from_secs(30);
/// Of so many resources at least.
const RESOURCES_DOWN: usize = 3;
/// Between two probes of a backend that is down.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// What is known of the backend. Times are durations since an arbitrary start.
#[derive(Debug)]
pub struct Destination {
    concurrency_max: usize,
    first_failures: usize,
    /// Some of those that failed since the last success.
    failing: Vec<u64>,
    is_unconnected: bool,
    succeeded_at: Duration,
    paused_until: Duration,
    /// Time that counted towards retries, up to `since`.
    active: Duration,
    since: Duration,
    is_down: bool,
}

impl Destination {
    /// Allows up to `concurrency_max` deliveries at once.
    pub fn new(concurrency_max: usize) -> Self {
        Self {
            concurrency_max,
            first_failures: 0,
            failing: Vec::new(),
            is_unconnected: false,
            succeeded_at: Duration::ZERO,
            paused_until: Duration::ZERO,
            active: Duration::ZERO,
            since: Duration::ZERO,
            is_down: false,
        }
    }

    /// How many deliveries may be under way at `now`.
    pub fn concurrency(&self, now: Duration) -> usize {
        match (now < self.paused_until, self.is_down) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => self.concurrency_max,
        }
    }

    /// When a pause ends that holds at `now`.
    pub fn pause_ends(&self, now: Duration) -> Option<Duration> {
        (now < self.paused_until).then_some(self.paused_until)
    }

    /// Whether it counts as down.
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// Time that counts towards retries: all of it but what the backend was down for.
    pub fn active(&self, now: Duration) -> Duration {
        if self.is_down { self.active } else { self.active + now.saturating_sub(self.since) }
    }

    /// A delivery succeeded.
    pub fn succeeded(&mut self, now: Duration) {
        self.failing.clear();
        self.first_failures = 0;
        self.is_unconnected = false;
        self.succeeded_at = now;
        if self.is_down {
            self.is_down = false;
            self.since = now;
        }
    }

    /// No connection could be made: that is never one resource's fault.
    pub fn unconnected(&mut self) {
        self.is_unconnected = true;
    }

    /// A delivery for `resource` failed, or was refused; `is_first`: the first of its webhook.
    pub fn failed(&mut self, resource: u64, is_first: bool, now: Duration) {
        self.first_failures += usize::from(is_first);
        if self.failing.len() < RESOURCES_DOWN && !self.failing.contains(&resource) {
            self.failing.push(resource);
        }
        let is_silent = now.saturating_sub(self.succeeded_at) >= SILENCE_DOWN;
        let has_several = self.failing.len() >= RESOURCES_DOWN || self.is_unconnected;
        if !self.is_down && has_several && (is_silent || self.first_failures >= FIRST_FAILURES_DOWN)
        {
            self.active = self.active(now);
            self.is_down = true;
        }
        if self.is_down {
            self.pause(PROBE_EVERY, now);
        }
    }

    /// The backend asked to be left alone.
    pub fn pause(&mut self, pause: Duration, now: Duration) {
        self.paused_until = self.paused_until.max(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_poison_resource_does_not_make_it_down() {
        let mut backend = Destination::new(8);
        (0..100).for_each(|_| backend.failed(1, true, SECOND));
        assert_eq!(backend.concurrency(SECOND), 8);
        assert_eq!(backend.active(5 * SECOND), 5 * SECOND);
    }

    #[test]
    fn while_it_is_down_it_is_probed_and_the_retry_clock_stands_still() {
        let mut backend = Destination::new(8);
        (0..10).for_each(|resource| backend.failed(resource, true, 2 * SECOND));
        assert!(backend.is_down());
        assert_eq!(backend.concurrency(2 * SECOND), 0);
        assert_eq!(backend.concurrency(3 * SECOND), 1);
        assert_eq!(backend.active(100 * SECOND), 2 * SECOND);
        backend.succeeded(100 * SECOND);
        assert_eq!(backend.concurrency(100 * SECOND), 8);
        assert_eq!(backend.active(103 * SECOND), 5 * SECOND);
    }

    #[test]
    fn a_success_in_between_keeps_it_up() {
        let mut backend = Destination::new(8);
        for resource in 0..100 {
            backend.failed(resource, true, SECOND);
            if resource % 9 == 8 {
                backend.succeeded(SECOND);
            }
        }
        assert!(!backend.is_down());
    }

    #[test]
    fn what_is_known_to_fail_makes_it_down_only_after_a_silence() {
        let mut backend = Destination::new(8);
        backend.succeeded(SECOND);
        (0..100).for_each(|resource| backend.failed(resource, false, 2 * SECOND));
        assert!(!backend.is_down());
        backend.failed(1, false, 31 * SECOND);
        assert!(backend.is_down());
    }

    #[test]
    fn a_backend_that_cannot_be_connected_to_is_down_however_little_waits() {
        let mut backend = Destination::new(8);
        for _ in 0..3 {
            backend.unconnected();
            backend.failed(1, false, 29 * SECOND);
        }
        assert!(!backend.is_down());
        backend.failed(1, false, 30 * SECOND);
        assert!(backend.is_down());
    }

    #[test]
    fn a_pause_lets_nothing_out() {
        let mut backend = Destination::new(8);
        backend.pause(5 * SECOND, SECOND);
        backend.pause(SECOND, SECOND);
        assert_eq!(backend.concurrency(5 * SECOND), 0);
        assert_eq!(backend.pause_ends(5 * SECOND), Some(6 * SECOND));
        assert_eq!(backend.concurrency(6 * SECOND), 8);
    }
}
