//! The backend as a whole: is it down, does it refuse everything, may anything go out.
//!
//! It counts as down when nothing succeeds any more and several resources fail, or it can't be
//! connected to: ten that had not failed before, in a row, or whatever fails for half a minute. One
//! resource that fails for ever must not stop the others, nor may a dead backend be hammered for each
//! of three million. What is refused is for the [`RefusalBreaker`]. While it is down or refuses
//! everything the retry clock stands still, and one attempt at a time probes. How much a healthy one can bear is for the
//! limiter. Pure: time is an argument.

use std::time::Duration;

use crate::refusals::RefusalBreaker;

/// First failures of a webhook, in a row, that make it down. A webhook that is known to fail says
/// nothing about the others when it fails again.
const FIRST_FAILURES_DOWN: usize = 10;
/// Without a success for so long, failures of any kind make it down.
const SILENCE_DOWN: Duration = Duration::from_secs(30);
/// Of so many resources at least.
const RESOURCES_DOWN: usize = 3;
/// Between two probes of a backend that is down.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Between two probes of a backend that refuses: each may be a webhook that is lost on it.
const PROBE_REFUSING_EVERY: Duration = Duration::from_secs(10);

/// What is known of the backend. Times are durations since an arbitrary start.
#[derive(Debug, Default)]
pub struct Destination {
    refusals: RefusalBreaker,
    first_failures: usize,
    /// Some of those that failed since the last success.
    failing: Vec<u64>,
    is_unconnected: bool,
    succeeded_at: Duration,
    probe_at: Duration,
    /// Time that counted towards retries, up to `since`.
    active: Duration,
    since: Duration,
    is_down: bool,
}

/// What may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Nothing new.
    Nothing,
    /// One delivery, if nothing else is under way.
    Probe,
    /// What the limiter says.
    All,
}

impl Destination {
    /// What may go out at `now`.
    pub fn allows(&self, now: Duration) -> Allowed {
        match (self.is_stopped(), now < self.probe_at) {
            (false, _) => Allowed::All,
            (true, true) => Allowed::Nothing,
            (true, false) => Allowed::Probe,
        }
    }

    /// When the next probe may go out, if it must be waited for.
    pub fn probes_at(&self, now: Duration) -> Option<Duration> {
        (self.allows(now) == Allowed::Nothing).then_some(self.probe_at)
    }

    /// Whether it is down, or refuses everything.
    pub fn is_stopped(&self) -> bool {
        self.is_down || self.refusals.is_open()
    }

    /// Whether it refuses everything: then nothing is given up.
    pub fn is_refusing(&self) -> bool {
        self.refusals.is_open()
    }

    /// Whether a refused webhook of `shop` may become a dead letter; otherwise it stays in retry.
    pub fn may_give_up(&self, shop: u64) -> bool {
        self.refusals.may_give_up(shop)
    }

    /// Counts a refused webhook of `shop` that became a dead letter.
    pub fn mark_given_up(&mut self, shop: u64) {
        self.refusals.mark_given_up(shop);
    }

    /// Time that counts towards retries: all of it but what the backend was stopped for.
    pub fn active(&self, now: Duration) -> Duration {
        if self.is_stopped() { self.active } else { self.active + now.saturating_sub(self.since) }
    }

    /// A delivery for `shop` succeeded.
    pub fn succeeded(&mut self, shop: u64, now: Duration) {
        let was_stopped = self.is_stopped();
        self.refusals.on_success(shop, now);
        self.answered(now);
        if was_stopped {
            self.is_down = false;
            self.since = now;
        }
    }

    /// A delivery for `shop` was refused, now or for good; returns whether that opens the circuit
    /// breaker on refusals.
    pub fn refused(&mut self, shop: u64, now: Duration) -> bool {
        let active = self.active(now);
        self.on_sign_of_life(now);
        let has_opened = self.refusals.on_refusal(shop, now);
        if has_opened {
            self.active = active;
        }
        if self.refusals.is_open() {
            self.probe_at = now + PROBE_REFUSING_EVERY;
        }
        has_opened
    }

    /// The backend asked for a pause of one resource or shop: that is no failure of the others.
    pub fn on_narrow_pause(&mut self, now: Duration) {
        self.on_sign_of_life(now);
        if self.refusals.is_open() {
            self.probe_at = now + PROBE_REFUSING_EVERY;
        }
    }

    /// No connection could be made: that is never one resource's fault.
    pub fn unconnected(&mut self) {
        self.is_unconnected = true;
    }

    /// A delivery for `resource` failed; `is_first`: the first of its webhook.
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
        if self.is_stopped() {
            let pause = if self.is_refusing() { PROBE_REFUSING_EVERY } else { PROBE_EVERY };
            self.probe_at = self.probe_at.max(now + pause);
        }
    }

    /// It is there, and does its work: it took a look and said no.
    fn on_sign_of_life(&mut self, now: Duration) {
        self.answered(now);
        if std::mem::take(&mut self.is_down) && !self.refusals.is_open() {
            self.since = now;
        }
    }

    fn answered(&mut self, now: Duration) {
        self.failing.clear();
        self.first_failures = 0;
        self.is_unconnected = false;
        self.succeeded_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_poison_resource_does_not_make_it_down() {
        let mut backend = Destination::default();
        (0..100).for_each(|_| backend.failed(1, true, SECOND));
        assert_eq!(backend.allows(SECOND), Allowed::All);
        assert_eq!(backend.active(5 * SECOND), 5 * SECOND);
    }

    #[test]
    fn while_it_is_down_it_is_probed_and_the_retry_clock_stands_still() {
        let mut backend = Destination::default();
        (0..10).for_each(|resource| backend.failed(resource, true, 2 * SECOND));
        assert!(backend.is_stopped());
        assert_eq!(backend.allows(2 * SECOND), Allowed::Nothing);
        assert_eq!(backend.probes_at(2 * SECOND), Some(3 * SECOND));
        assert_eq!(backend.allows(3 * SECOND), Allowed::Probe);
        assert_eq!(backend.active(100 * SECOND), 2 * SECOND);
        backend.succeeded(1, 100 * SECOND);
        assert_eq!(backend.allows(100 * SECOND), Allowed::All);
        assert_eq!(backend.active(103 * SECOND), 5 * SECOND);
    }

    #[test]
    fn a_success_in_between_keeps_it_up() {
        let mut backend = Destination::default();
        for resource in 0..100 {
            backend.failed(resource, true, SECOND);
            if resource % 9 == 8 {
                backend.succeeded(1, SECOND);
            }
        }
        assert!(!backend.is_stopped());
    }

    #[test]
    fn what_is_known_to_fail_makes_it_down_only_after_a_silence() {
        let mut backend = Destination::default();
        backend.succeeded(1, SECOND);
        (0..100).for_each(|resource| backend.failed(resource, false, 2 * SECOND));
        assert!(!backend.is_stopped());
        backend.failed(1, false, 31 * SECOND);
        assert!(backend.is_stopped());
    }

    #[test]
    fn pauses_of_single_resources_and_shops_do_not_make_it_down() {
        let mut backend = Destination::default();
        for resource in 0..100 {
            backend.on_narrow_pause(SECOND * 60);
            (0..9).for_each(|_| backend.failed(resource, true, SECOND * 60));
        }
        assert!(!backend.is_stopped());
    }

    #[test]
    fn a_pause_of_one_shop_shows_that_a_backend_is_up_again() {
        let mut backend = Destination::default();
        (0..10).for_each(|resource| backend.failed(resource, true, 2 * SECOND));
        assert!(backend.is_stopped());
        backend.on_narrow_pause(10 * SECOND);
        assert_eq!(backend.allows(10 * SECOND), Allowed::All);
        assert_eq!(backend.active(11 * SECOND), 3 * SECOND);
    }

    #[test]
    fn a_backend_that_cannot_be_connected_to_is_down_however_little_waits() {
        let mut backend = Destination::default();
        for _ in 0..3 {
            backend.unconnected();
            backend.failed(1, false, 29 * SECOND);
        }
        assert!(!backend.is_stopped());
        backend.failed(1, false, 30 * SECOND);
        assert!(backend.is_stopped());
    }

    #[test]
    fn a_backend_that_refuses_everything_is_probed_seldom() {
        let mut backend = Destination::default();
        let opened = (0..100).filter(|shop| backend.refused(shop % 9, 2 * SECOND)).count();
        assert!(opened == 1 && backend.is_refusing());
        assert_eq!(backend.probes_at(3 * SECOND), Some(12 * SECOND));
        assert_eq!(backend.allows(12 * SECOND), Allowed::Probe);
        backend.refused(1, 13 * SECOND);
        backend.failed(1, true, 14 * SECOND);
        assert_eq!(backend.probes_at(15 * SECOND), Some(24 * SECOND));
        assert_eq!(backend.active(600 * SECOND), 2 * SECOND);
        backend.succeeded(1, 600 * SECOND);
        assert_eq!(backend.allows(600 * SECOND), Allowed::All);
        assert_eq!(backend.active(601 * SECOND), 3 * SECOND);
    }
}
