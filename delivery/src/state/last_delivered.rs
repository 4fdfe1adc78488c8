//! Last delivered state of each resource, to find updates that show nothing new.
//!
//! The state of a resource is what its backend has. Another subscription may show another part of the
//! resource, or only some of its states. So one state is kept for a resource, with the subscriptions
//! that delivered it, and an update with any other body replaces it.
//!
//! | event | state afterwards |
//! |---|---|
//! | an attempt with the same body and no newer time begins | as before |
//! | any other attempt begins, or a webhook is given up | not known |
//! | an update is settled as delivered | its state |
//! | the same, and an attempt before it had a newer time | not known |
//! | an attempt that may show the state of any resource begins or ends | not known, of all |
//!
//! An attempt may reach the backend whatever is heard of it. So nothing is known of a resource from
//! the beginning of an attempt up to its settlement. A backend that compares times keeps the newest
//! state that was sent, and any other the last one: the state is known only if both are the same.
//! Without a known state, an update is sent. An attempt that is not compared has no time that is known
//! here; the time at which it was accepted is a bound on it.
//!
//! A webhook that names no resource may be one of any. While it is under way, nothing becomes known,
//! and what began before its end does not, either: the epoch counts these ends and beginnings.
//!
//! States lie in two generations. When the newer one is full, the older one is forgotten.

use std::num::NonZeroU32;

use spillway_webhook::BodyState;

use crate::classified::UpdateState;
use crate::config::Suppression;
use crate::state::folded::ByHash;

/// Bytes of a state in a table of the least favourable size: 65 bytes for each of 16/7 places.
const STATE_BYTES: usize = 149;
/// Generations of states.
const GENERATIONS: usize = 2;
/// Subscriptions of one state. If there are more, the first is forgotten.
const SUBSCRIPTIONS_MAX: usize = 4;
/// Subscriptions of a state that is not known.
const NOBODY: [Option<NonZeroU32>; SUBSCRIPTIONS_MAX] = [None; SUBSCRIPTIONS_MAX];

const _: () = assert!(
    (size_of::<(u64, DeliveredState)>() + 1) * 16 <= STATE_BYTES * 7,
    "a state takes more memory than is counted"
);

/// Result of comparing an update with the state of its resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// The backend may not have this state.
    New,
    /// The backend has this state, and was sent nothing else since.
    Same,
    /// The backend has a newer state.
    Older,
}

/// An update that is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentUpdate {
    update: UpdateState,
    /// Epoch in which the attempt began.
    epoch: u64,
}

/// State of a resource.
#[derive(Debug, Clone, Copy)]
struct DeliveredState {
    /// Hash of the body, as bytes, which need no alignment.
    hash: [u8; 16],
    /// Epoch in which the rest was noted.
    epoch: u64,
    /// Bound on the newest time that was sent, in milliseconds since the Unix epoch; 0 if there was none.
    sent_ms: u64,
    /// Newest time of an update that was dropped because it showed the same; 0 if there was none.
    dropped_ms: u64,
    /// Subscriptions that delivered the state, the last one first. None if it is not known which
    /// state the backend has.
    subscriptions: [Option<NonZeroU32>; SUBSCRIPTIONS_MAX],
}

/// Last delivered states by the hash of their resource.
#[derive(Debug)]
pub(crate) struct LastDelivered {
    /// Most states of a generation; 0 if nothing is compared.
    most: usize,
    drops_stale: bool,
    epoch: u64,
    /// Attempts under way that may show the state of any resource.
    hiding: usize,
    /// Bound on the newest time that such an attempt sent, in milliseconds since the Unix epoch.
    hidden_ms: u64,
    newer: ByHash<DeliveredState>,
    older: ByHash<DeliveredState>,
}

impl LastDelivered {
    /// Knows no state.
    pub(crate) fn new(suppression: Suppression) -> Self {
        Self {
            most: suppression.bytes / (GENERATIONS * STATE_BYTES),
            drops_stale: suppression.drops_stale,
            epoch: 0,
            hiding: 0,
            hidden_ms: 0,
            newer: ByHash::default(),
            older: ByHash::default(),
        }
    }

    /// True if updates are compared at all.
    pub(crate) fn is_on(&self) -> bool {
        self.most > 0
    }

    /// Compares an update that is about to be sent. The time of one that shows the same is noted, because
    /// it will be dropped.
    pub(crate) fn compare(&mut self, resource: u64, update: &UpdateState) -> Novelty {
        let drops_stale = self.drops_stale;
        let Some(state) = self.get_mut(resource) else { return Novelty::New };
        let is_known = state.subscriptions.contains(&Some(update.subscription));
        if state.hash == update.body.hash.to_ne_bytes() {
            if !is_known {
                return Novelty::New;
            }
            state.dropped_ms = state.dropped_ms.max(update.body.updated_ms.unwrap_or_default());
            return Novelty::Same;
        }
        // The backend was not sent the time of an update that was dropped. It would take an older
        // state for the newest.
        let is_older = update.body.updated_ms.is_some_and(|ms| {
            ms < state.dropped_ms || (is_known && drops_stale && ms < state.sent_ms)
        });
        if is_older { Novelty::Older } else { Novelty::New }
    }

    /// Notes that an attempt begins of a webhook that was accepted at `accepted_ms`. `update` is the state
    /// that it sends, if it is compared. Returns what to note once it is settled as delivered.
    pub(crate) fn on_attempt(
        &mut self,
        resource: u64,
        update: Option<UpdateState>,
        accepted_ms: u64,
    ) -> Option<SentUpdate> {
        let Some(update) = update.filter(|_| self.is_on()) else {
            self.bound(resource, accepted_ms);
            return None;
        };
        let hash = update.body.hash.to_ne_bytes();
        let sent_ms = update.body.updated_ms.unwrap_or_default();
        let epoch = self.epoch;
        let state = self.entry(resource);
        if state.hash != hash || sent_ms > state.sent_ms {
            state.subscriptions = NOBODY;
        }
        state.sent_ms = state.sent_ms.max(sent_ms);
        Some(SentUpdate { update, epoch })
    }

    /// Notes that an update is settled as delivered.
    pub(crate) fn on_delivered(&mut self, resource: u64, sent: SentUpdate) {
        if !self.is_on() {
            return;
        }
        let SentUpdate { update, epoch } = sent;
        let is_hidden = epoch != self.epoch || self.hiding > 0;
        let state = self.entry(resource);
        if is_hidden {
            state.subscriptions = NOBODY;
            state.sent_ms = update.body.updated_ms.unwrap_or_default().max(state.sent_ms);
        } else {
            *state = state.after(update);
        }
    }

    /// Notes that an attempt begins that may show the state of any resource, of a webhook that was
    /// accepted at `accepted_ms`.
    pub(crate) fn on_hiding(&mut self, accepted_ms: u64) {
        self.epoch += 1;
        self.hiding += 1;
        self.hidden_ms = self.hidden_ms.max(accepted_ms);
    }

    /// Notes that such an attempt has ended.
    pub(crate) fn on_hidden(&mut self) {
        self.epoch += 1;
        self.hiding = self.hiding.saturating_sub(1);
    }

    /// Forgets which state the backend has of a resource.
    pub(crate) fn forget(&mut self, resource: u64) {
        if let Some(state) = self.get_mut(resource) {
            state.subscriptions = NOBODY;
        }
    }

    /// Forgets which state the backend has of a resource: it was sent one of a time up to `accepted_ms`.
    fn bound(&mut self, resource: u64, accepted_ms: u64) {
        if let Some(state) = self.get_mut(resource) {
            state.subscriptions = NOBODY;
            state.sent_ms = state.sent_ms.max(accepted_ms);
        }
    }

    /// State of a resource in the newer generation.
    fn entry(&mut self, resource: u64) -> &mut DeliveredState {
        let before = self.newer.remove(&resource).or_else(|| self.older.remove(&resource));
        if self.newer.len() >= self.most {
            self.older = std::mem::take(&mut self.newer);
        }
        let state = self.newer.entry(resource).or_insert(before.unwrap_or_default());
        state.reach(self.epoch, self.hidden_ms);
        state
    }

    fn get_mut(&mut self, resource: u64) -> Option<&mut DeliveredState> {
        let state = match self.newer.get_mut(&resource) {
            Some(state) => state,
            None => self.older.get_mut(&resource)?,
        };
        state.reach(self.epoch, self.hidden_ms);
        Some(state)
    }
}

impl DeliveredState {
    /// Applies what happened since the epoch of this state: any state up to `hidden_ms` may have been sent.
    fn reach(&mut self, epoch: u64, hidden_ms: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.subscriptions = NOBODY;
            self.sent_ms = self.sent_ms.max(hidden_ms);
        }
    }

    /// State after this update was delivered.
    fn after(mut self, update: UpdateState) -> Self {
        let BodyState { hash, updated_ms } = update.body;
        let hash = hash.to_ne_bytes();
        let is_same = self.hash == hash && self.subscriptions != NOBODY;
        if !is_same {
            self.subscriptions = NOBODY;
            // A backend that compares times ignores it, and any other has it now.
            if updated_ms.is_some_and(|ms| ms < self.sent_ms.max(self.dropped_ms)) {
                return self;
            }
        }
        self.hash = hash;
        self.sent_ms = self.sent_ms.max(updated_ms.unwrap_or_default());
        let own = Some(update.subscription);
        if !self.subscriptions.contains(&own) {
            self.subscriptions.rotate_right(1);
            self.subscriptions[0] = own;
        }
        self
    }
}

impl Default for DeliveredState {
    fn default() -> Self {
        Self { hash: [0; 16], epoch: 0, sent_ms: 0, dropped_ms: 0, subscriptions: NOBODY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;
    /// Hash of a resource.
    const ONE: u64 = 7;
    /// Time at which webhooks are accepted.
    const ACCEPTED_MS: u64 = 45;

    fn table(drops_stale: bool) -> LastDelivered {
        LastDelivered::new(Suppression { bytes: ROOM, drops_stale })
    }

    fn of(subscription: u32, hash: u128, updated_ms: u64) -> UpdateState {
        let subscription = NonZeroU32::new(subscription).expect("not zero");
        UpdateState { subscription, body: BodyState { hash, updated_ms: Some(updated_ms) } }
    }

    fn update(hash: u128, updated_ms: u64) -> UpdateState {
        of(1, hash, updated_ms)
    }

    /// Sends an update and settles it as delivered.
    fn deliver(table: &mut LastDelivered, update: UpdateState) {
        if let Some(sent) = table.on_attempt(ONE, Some(update), ACCEPTED_MS) {
            table.on_delivered(ONE, sent);
        }
    }

    #[test]
    fn only_what_the_backend_has_last_is_the_same() {
        let mut table = table(false);
        assert_eq!(table.compare(ONE, &update(1, 10)), Novelty::New);
        deliver(&mut table, update(1, 10));
        assert_eq!(table.compare(ONE, &update(1, 20)), Novelty::Same);
        assert_eq!(table.compare(8, &update(1, 20)), Novelty::New, "of another resource");
        assert_eq!(table.compare(ONE, &update(2, 30)), Novelty::New);
        deliver(&mut table, update(2, 30));
        assert_eq!(table.compare(ONE, &update(1, 40)), Novelty::New, "back to the first state");
    }

    #[test]
    fn nothing_is_known_while_another_state_may_be_at_the_backend() {
        let mut table = table(true);
        deliver(&mut table, update(1, 10));
        table.on_attempt(ONE, Some(update(2, 10)), ACCEPTED_MS);
        assert_eq!(table.compare(ONE, &update(1, 30)), Novelty::New, "the other may be there");
        assert_eq!(table.compare(ONE, &update(3, 5)), Novelty::New, "nothing is judged");
        deliver(&mut table, update(1, 30));
        assert_eq!(table.compare(ONE, &update(1, 40)), Novelty::Same);
        // A webhook of a topic that is not compared, or a replay.
        table.on_attempt(ONE, None, ACCEPTED_MS);
        assert_eq!(table.compare(ONE, &update(1, 50)), Novelty::New);
        deliver(&mut table, update(1, 50));
        table.forget(ONE);
        assert_eq!(table.compare(ONE, &update(1, 60)), Novelty::New);
    }

    #[test]
    fn each_subscription_has_the_state_once() {
        let mut table = table(false);
        deliver(&mut table, of(1, 1, 10));
        assert_eq!(table.compare(ONE, &of(2, 1, 10)), Novelty::New);
        deliver(&mut table, of(2, 1, 10));
        for subscription in [1, 2] {
            assert_eq!(table.compare(ONE, &of(subscription, 1, 20)), Novelty::Same);
        }
        // A subscription with a filter shows only some of the states.
        deliver(&mut table, of(2, 2, 30));
        assert_eq!(table.compare(ONE, &of(1, 1, 40)), Novelty::New);
        (1..=5).for_each(|subscription| deliver(&mut table, of(subscription, 3, 50)));
        assert_eq!(table.compare(ONE, &of(1, 3, 60)), Novelty::New, "the first of five");
        assert_eq!(table.compare(ONE, &of(2, 3, 60)), Novelty::Same);
    }

    #[test]
    fn what_is_older_is_dropped_if_that_is_set() {
        for drops_stale in [false, true] {
            let mut table = table(drops_stale);
            deliver(&mut table, update(1, 10));
            let expected = if drops_stale { Novelty::Older } else { Novelty::New };
            assert_eq!(table.compare(ONE, &update(2, 9)), expected);
            assert_eq!(table.compare(ONE, &update(2, 10)), Novelty::New, "times may be rough");
            assert_eq!(table.compare(ONE, &of(2, 2, 9)), Novelty::New, "of another subscription");
            let undated =
                UpdateState { body: BodyState { hash: 2, updated_ms: None }, ..update(2, 0) };
            assert_eq!(table.compare(ONE, &undated), Novelty::New);
            deliver(&mut table, undated);
            assert_eq!(table.compare(ONE, &undated), Novelty::Same);
        }
    }

    #[test]
    fn what_is_older_than_a_dropped_update_is_dropped() {
        let mut table = table(false);
        deliver(&mut table, update(1, 10));
        assert_eq!(table.compare(ONE, &update(1, 30)), Novelty::Same);
        // The backend knows no time after 10, and would take it for the newest.
        for (subscription, ms) in [(1, 10), (1, 29), (1, 5), (2, 20)] {
            assert_eq!(table.compare(ONE, &of(subscription, 2, ms)), Novelty::Older, "{ms}");
        }
        // The same state harms nobody.
        assert_eq!(table.compare(ONE, &of(2, 1, 10)), Novelty::New);
        table.on_attempt(ONE, None, ACCEPTED_MS);
        assert_eq!(table.compare(ONE, &update(2, 20)), Novelty::Older, "also later");
        assert_eq!(table.compare(ONE, &update(2, 30)), Novelty::New);
    }

    #[test]
    fn what_was_sent_and_failed_may_be_the_newest_state() {
        let mut table = table(false);
        // No answer came, and the update is given up.
        table.on_attempt(ONE, Some(update(2, 80)), ACCEPTED_MS);
        table.forget(ONE);
        deliver(&mut table, update(1, 60));
        assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::New, "the backend may have 2");
        deliver(&mut table, update(1, 90));
        assert_eq!(table.compare(ONE, &update(1, 95)), Novelty::Same);
    }

    #[test]
    fn a_newer_time_that_failed_is_not_one_that_was_delivered() {
        let mut table = table(true);
        deliver(&mut table, update(1, 10));
        table.on_attempt(ONE, Some(of(2, 1, 20)), ACCEPTED_MS);
        assert_eq!(table.compare(ONE, &update(3, 15)), Novelty::New);
    }

    #[test]
    fn an_old_state_that_was_delivered_is_not_taken_for_the_state() {
        let mut table = table(false);
        deliver(&mut table, update(1, 50));
        deliver(&mut table, update(2, 10));
        // A backend that compares times still has the first one.
        assert_eq!(table.compare(ONE, &update(2, 60)), Novelty::New);
        assert_eq!(table.compare(ONE, &update(1, 60)), Novelty::New, "any other has the second");
        deliver(&mut table, update(2, 60));
        assert_eq!(table.compare(ONE, &update(2, 70)), Novelty::Same);
    }

    #[test]
    fn what_was_sent_without_a_time_is_as_new_as_its_acceptance() {
        let mut table = table(false);
        deliver(&mut table, update(1, 10));
        table.on_attempt(ONE, None, ACCEPTED_MS);
        // A backend that compares times may have ignored it.
        deliver(&mut table, update(1, ACCEPTED_MS - 1));
        assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::New);
        deliver(&mut table, update(1, ACCEPTED_MS));
        assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::Same);
    }

    #[test]
    fn what_may_show_the_state_of_any_resource_leaves_none_known() {
        let mut table = table(false);
        let is_known =
            |table: &mut LastDelivered| table.compare(ONE, &update(1, 90)) == Novelty::Same;
        deliver(&mut table, update(1, 50));
        table.on_hiding(ACCEPTED_MS);
        assert!(!is_known(&mut table), "it may have arrived");
        deliver(&mut table, update(1, 50));
        assert!(!is_known(&mut table), "it may arrive later");
        let began_before = table.on_attempt(ONE, Some(update(1, 50)), ACCEPTED_MS);
        table.on_hidden();
        assert!(!is_known(&mut table));
        table.on_delivered(ONE, began_before.expect("it is compared"));
        assert!(!is_known(&mut table), "it began before the end");
        deliver(&mut table, update(1, 50));
        assert!(is_known(&mut table));
        // The time of what is dropped stays.
        table.on_hiding(0);
        table.on_hidden();
        assert_eq!(table.compare(ONE, &update(2, 60)), Novelty::Older);
    }

    #[test]
    fn what_may_show_the_state_of_any_resource_is_as_new_as_its_acceptance() {
        let mut table = table(false);
        table.on_hiding(ACCEPTED_MS);
        table.on_hidden();
        // A backend that compares times may have ignored it.
        deliver(&mut table, update(1, ACCEPTED_MS - 1));
        assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::New);
        deliver(&mut table, update(1, ACCEPTED_MS));
        assert_eq!(table.compare(ONE, &update(1, 90)), Novelty::Same);
    }

    #[test]
    fn memory_is_bounded_and_what_was_delivered_last_is_known() {
        let most = 100;
        let bytes = GENERATIONS * STATE_BYTES * most;
        let mut table = LastDelivered::new(Suppression { bytes, drops_stale: false });
        for resource in 0..1_000 {
            table.on_delivered(resource, SentUpdate { update: update(1, 10), epoch: 0 });
            // It is delivered again and again.
            table.on_delivered(ONE, SentUpdate { update: update(2, 10), epoch: 0 });
        }
        assert!(table.newer.len() <= most && table.older.len() <= most);
        assert_eq!(table.compare(0, &update(1, 20)), Novelty::New);
        assert_eq!(table.compare(950, &update(1, 20)), Novelty::Same);
        assert_eq!(table.compare(ONE, &update(2, 20)), Novelty::Same);
    }

    #[test]
    fn without_memory_nothing_is_compared() {
        let mut table = LastDelivered::new(Suppression::default());
        deliver(&mut table, update(1, 10));
        assert!(!table.is_on() && table.newer.is_empty());
    }
}
