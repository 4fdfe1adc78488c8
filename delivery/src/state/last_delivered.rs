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
//! here; the time at which it was accepted is a bound on it, also if it is the first one of its resource. Another clock
//! gave that time, so the bound has an allowance: one that is too high only delivers more.
//! Nothing is dropped because it is older than a bound: what was sent may be older still.
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

/// Bytes of a state in a table of the least favourable size: 73 bytes for each of 16/7 places.
const STATE_BYTES: usize = 167;
/// Generations of states.
const GENERATIONS: usize = 2;
/// Subscriptions of one state. If there are more, the first is forgotten.
const SUBSCRIPTIONS_MAX: usize = 3;
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
    /// Newest time of an update that was delivered, in milliseconds since the Unix epoch; 0 if there was none.
    delivered_ms: u64,
    /// Newest time of an update that was dropped because it showed the same; 0 if there was none.
    dropped_ms: u64,
    /// Subscription of that update.
    dropped_of: Option<NonZeroU32>,
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
    /// Allowance for clocks that differ, in milliseconds.
    clock_skew_ms: u64,
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
            clock_skew_ms: suppression.clock_skew_ms,
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
            let updated_ms = update.body.updated_ms.unwrap_or_default();
            if updated_ms >= state.dropped_ms {
                state.dropped_ms = updated_ms;
                state.dropped_of = Some(update.subscription);
            }
            return Novelty::Same;
        }
        // The backend was not sent the time of an update that was dropped. It would take an older
        // state for the newest. Another subscription may show another part, which is nowhere else.
        let is_own = state.dropped_of == Some(update.subscription);
        let is_older = update.body.updated_ms.is_some_and(|ms| {
            (is_own && ms < state.dropped_ms)
                || (is_known && drops_stale && ms < state.delivered_ms)
        });
        if is_older { Novelty::Older } else { Novelty::New }
    }

    /// Notes that an attempt begins of a webhook that may show a state of its resource and was accepted at
    /// `accepted_ms`. `update` is the state that it sends, if it is compared. Returns what to note once it is
    /// settled as delivered.
    pub(crate) fn on_attempt(
        &mut self,
        resource: u64,
        update: Option<UpdateState>,
        accepted_ms: u64,
    ) -> Option<SentUpdate> {
        if !self.is_on() {
            return None;
        }
        let Some(update) = update else {
            let bound_ms = self.bound_ms(accepted_ms);
            // It stays if the resource is new, so that a late update is not taken for its newest state.
            let state = self.entry(resource);
            state.subscriptions = NOBODY;
            state.sent_ms = state.sent_ms.max(bound_ms);
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
            let updated_ms = update.body.updated_ms.unwrap_or_default();
            state.subscriptions = NOBODY;
            state.sent_ms = updated_ms.max(state.sent_ms);
            state.delivered_ms = updated_ms.max(state.delivered_ms);
        } else {
            *state = state.after(update);
        }
    }

    /// Notes that an attempt begins that may show the state of any resource, of a webhook that was
    /// accepted at `accepted_ms`.
    pub(crate) fn on_hiding(&mut self, accepted_ms: u64) {
        self.epoch += 1;
        self.hiding += 1;
        self.hidden_ms = self.hidden_ms.max(self.bound_ms(accepted_ms));
    }

    /// Bound on the time of what a webhook shows that was accepted at `accepted_ms`.
    fn bound_ms(&self, accepted_ms: u64) -> u64 {
        accepted_ms.saturating_add(self.clock_skew_ms)
    }

    /// Notes that such an attempt has ended.
    pub(crate) fn on_hidden(&mut self) {
        self.epoch += 1;
        self.hiding = self.hiding.saturating_sub(1);
    }

    /// Number of such attempts that have not ended.
    pub(crate) fn hiding(&self) -> usize {
        self.hiding
    }

    /// Forgets which state the backend has of a resource.
    pub(crate) fn forget(&mut self, resource: u64) {
        if let Some(state) = self.get_mut(resource) {
            state.subscriptions = NOBODY;
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
        self.delivered_ms = self.delivered_ms.max(updated_ms.unwrap_or_default());
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
        Self {
            hash: [0; 16],
            epoch: 0,
            sent_ms: 0,
            delivered_ms: 0,
            dropped_ms: 0,
            dropped_of: None,
            subscriptions: NOBODY,
        }
    }
}

#[cfg(test)]
mod tests;
