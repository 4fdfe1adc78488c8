//! The backend as a whole: up, down, or refusing everything.
//!
//! It counts as down when no connection can be made, or nothing succeeds while several lanes fail at
//! first attempts: for a second and ten of them, or for half a minute. What failed before says nothing
//! new: retries alone may be of a few webhooks that never succeed. One lane that fails is that lane's
//! own matter, and so is one shop of a backend that has served others. While the backend is down or refuses, the retry
//! clock stands still and one attempt a second probes, or a few at a time where they hang. Pure: time is an argument.

use std::collections::HashSet;
use std::time::Duration;

use crate::refusals::RefusalBreaker;

/// First failures in a row that count as down.
const FIRST_FAILURES_DOWN: usize = 10;
/// They count only after so long without a success: amid a flow of successes, ten shops that fail can
/// have their turns in a row.
const FIRST_FAILURES_AFTER: Duration = Duration::from_secs(1);
/// Failures of any kind for so long, without a success, count as down.
const SILENCE_DOWN: Duration = Duration::from_secs(30);
/// Lanes that must fail.
const LANES_DOWN: usize = 3;
/// Between two probes of a backend that is down.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Between two probes of a backend that refuses: each may be a webhook that is lost on it.
const PROBE_REFUSING_EVERY: Duration = Duration::from_secs(10);

/// What may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Nothing new.
    Nothing,
    /// One delivery, if nothing else is under way.
    Probe,
    /// Whatever the limiter says.
    All,
}

/// Time of the probes of a backend that is down.
#[derive(Debug, Default)]
pub struct Probes {
    /// Time that those took that were cut off since the last one that had all of its time.
    sliced: Duration,
    /// Time that that one took.
    whole: Duration,
}

impl Probes {
    /// A probe was cut off after `took`.
    pub fn was_cut(&mut self, took: Duration) {
        self.sliced += took;
    }

    /// A slow attempt failed after `took`, and was not cut off.
    pub fn failed(&mut self, took: Duration) {
        self.sliced = Duration::ZERO;
        self.whole = took;
    }

    /// True if a single probe at a time is to have all of its time: half of the time belongs to such.
    pub fn is_whole_due(&self) -> bool {
        self.sliced >= self.whole
    }
}

/// What is known of the backend. Times are durations since the start.
#[derive(Debug, Default)]
pub struct Backend {
    refusals: RefusalBreaker,
    failing: Failing,
    /// Shops that were ever served.
    served: Several,
    succeeded_at: Duration,
    probe_at: Duration,
    /// When it last went down or began to refuse.
    stopped_at: Duration,
    /// Time that counted towards retries, up to `since`.
    active: Duration,
    since: Duration,
    is_down: bool,
    /// Probes while it is down.
    pub probes: Probes,
}

/// Failures since the last success.
#[derive(Debug, Default)]
struct Failing {
    /// First attempts.
    firsts: usize,
    /// Some of the lanes of which a first attempt failed.
    lanes: HashSet<u64>,
    shops: Several,
    is_unconnected: bool,
}

/// Some shops: the first, and whether there were others.
#[derive(Debug, Default)]
struct Several {
    first: Option<u64>,
    has_others: bool,
}

impl Several {
    fn add(&mut self, shop: u64) {
        self.has_others |= *self.first.get_or_insert(shop) != shop;
    }

    /// True if there is another one than `shop`.
    fn has_other(&self, shop: u64) -> bool {
        self.has_others || self.first.is_some_and(|first| first != shop)
    }
}

impl Backend {
    /// What may be sent at `now`.
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
        self.is_down || self.is_refusing()
    }

    /// When it last stopped.
    pub fn stopped_at(&self) -> Duration {
        self.stopped_at
    }

    /// A probe says nothing about the backend: it was asked for less of one shop or resource, or the probe was
    /// cut off while the backend refuses.
    pub fn probed(&mut self, now: Duration) {
        if self.is_stopped() {
            self.probe_at = self.probe_at.max(now + self.probes_every());
        }
    }

    fn probes_every(&self) -> Duration {
        if self.is_refusing() { PROBE_REFUSING_EVERY } else { PROBE_EVERY }
    }

    /// Whether it refuses everything: then nothing is given up.
    pub fn is_refusing(&self) -> bool {
        self.refusals.is_open()
    }

    /// Whether it is down.
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// Takes the credit to give a webhook of `shop` up. Returns whether there is any: a bad deploy
    /// must not make dead letters of everything.
    pub fn take_credit(&mut self, shop: u64) -> bool {
        let may = self.refusals.may_give_up(shop);
        if may {
            self.refusals.mark_given_up(shop);
        }
        may
    }

    /// Time that counts towards retries: all of it except while the backend was stopped.
    pub fn active(&self, now: Duration) -> Duration {
        if self.is_stopped() { self.active } else { self.active + now.saturating_sub(self.since) }
    }

    /// A delivery for `shop` succeeded.
    pub fn succeeded(&mut self, shop: u64, now: Duration) {
        let was_stopped = self.is_stopped();
        self.refusals.on_success(shop, now);
        self.served.add(shop);
        self.answered(now);
        if was_stopped {
            self.is_down = false;
            self.since = now;
        }
    }

    /// A delivery for `shop` was refused, now or for good. Returns whether that makes it refusing.
    pub fn refused(&mut self, shop: u64, now: Duration) -> bool {
        let active = self.active(now);
        // It is there, and does its work: it took a look and said no.
        self.answered(now);
        if std::mem::take(&mut self.is_down) && !self.refusals.is_open() {
            self.since = now;
        }
        let has_opened = self.refusals.on_refusal(shop, now);
        if has_opened {
            self.active = active;
            self.stopped_at = now;
        }
        if self.refusals.is_open() {
            self.probe_at = now + PROBE_REFUSING_EVERY;
        }
        has_opened
    }

    /// No connection could be made: that is never one lane's fault.
    pub fn unconnected(&mut self) {
        self.failing.is_unconnected = true;
    }

    /// True once a delivery of another shop than `shop` has succeeded.
    pub fn has_served_other(&self, shop: u64) -> bool {
        self.served.has_other(shop)
    }

    /// True if `shop` has failed since the last success, and no other shop.
    pub fn is_only_failing(&self, shop: u64) -> bool {
        self.failing.shops.first == Some(shop) && !self.failing.shops.has_others
    }

    /// A delivery for `lane` of `shop` failed; `is_first`: the first attempt of its webhook. Returns
    /// whether the backend is down now and was not before.
    pub fn failed(&mut self, lane: u64, shop: u64, is_first: bool, now: Duration) -> bool {
        self.failing.shops.add(shop);
        self.failing.firsts += usize::from(is_first);
        // A webhook that failed before says nothing new.
        if is_first && self.failing.lanes.len() < LANES_DOWN {
            self.failing.lanes.insert(lane);
        }
        let silence = now.saturating_sub(self.succeeded_at);
        let is_silent = silence >= SILENCE_DOWN;
        let are_failures_many =
            self.failing.firsts >= FIRST_FAILURES_DOWN && silence >= FIRST_FAILURES_AFTER;
        let are_shops_several = self.failing.shops.has_others || !self.served.has_other(shop);
        let has_several = (self.failing.lanes.len() >= LANES_DOWN && are_shops_several)
            || self.failing.is_unconnected;
        let goes_down = !self.is_down && has_several && (is_silent || are_failures_many);
        if goes_down {
            self.probes = Probes::default();
            self.active = self.active(now);
            self.is_down = true;
            self.stopped_at = now;
        }
        self.probed(now);
        goes_down
    }

    fn answered(&mut self, now: Duration) {
        self.failing = Failing::default();
        self.succeeded_at = now;
    }
}
