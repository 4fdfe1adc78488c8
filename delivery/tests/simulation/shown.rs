//! States that backends have of each resource, to check what was dropped because it showed nothing new.
//!
//! There are two kinds of backend: one takes whatever comes, and the other ignores what is older than
//! what it has. Both take a state without a time.

use std::collections::{HashMap, HashSet};

use spillway_delivery::Outcome;
use spillway_webhook::position::Position;

use crate::truth::Violation;
use crate::webhook::{PRODUCTS, Resource, UNDATED, Webhook};

/// Circumstances under which an update was dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Circumstances {
    pub drops_stale: bool,
    /// True if the leader has forgotten nothing since the beginning. Otherwise it may take a late state
    /// for the newest, which a backend that compares times does not.
    pub knows_all: bool,
}

/// States by resource.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// State that arrived last.
    last: HashMap<Resource, u8>,
    /// State that arrived last by a subscription.
    last_of: HashMap<(Resource, u8), u8>,
    /// State with the newest time, and that time.
    newest: HashMap<Resource, (u64, u8)>,
    /// Newest time of what arrived.
    heard_ms: HashMap<Resource, u64>,
    /// Newest time of an update that was dropped because it showed nothing new, and its subscription.
    dropped: HashMap<Resource, (u64, u8)>,
    /// Newest update that was delivered or dropped, with its position and its state.
    due: HashMap<Resource, (u64, Position, u8)>,
    /// Resources of which something arrived that may be older than what was dropped: a replay, or a webhook of
    /// another subscription or topic, which may show another part of the resource.
    overtaken: HashSet<Resource>,
}

impl Shown {
    /// Notes that a webhook arrived at the backend.
    pub(crate) fn arrived(&mut self, webhook: &Webhook, is_replay: bool) {
        let Webhook { state, updated_ms, subscription, .. } = *webhook;
        let resource = webhook.resource();
        if webhook.is_barrier() {
            // It may change the state of any resource of its shop. What was dropped before it is settled
            // before it begins; that of other shops may be settled later.
            self.last.retain(|resource, _| resource.0 != webhook.shop);
            self.last_of.retain(|(resource, _), _| resource.0 != webhook.shop);
        }
        self.last.insert(resource, state);
        self.last_of.insert((resource, subscription), state);
        let newest = self.newest.entry(resource).or_insert((updated_ms, state));
        if updated_ms == UNDATED {
            // There is nothing to compare: it is taken, and what is due is this state from now on.
            newest.1 = state;
            if let Some(due) = self.due.get_mut(&resource) {
                due.2 = state;
            }
        } else if newest.0 <= updated_ms {
            *newest = (updated_ms, state);
        }
        let heard = self.heard_ms.entry(resource).or_default();
        *heard = updated_ms.max(*heard);
        let is_late = self
            .dropped
            .get(&resource)
            .is_some_and(|(dropped_ms, of)| *of != subscription && updated_ms < *dropped_ms);
        if is_replay || (is_late && updated_ms != UNDATED) {
            self.overtaken.insert(resource);
        }
    }

    /// Checks the outcome of a webhook that is not a replay.
    pub(crate) fn settled(
        &mut self,
        webhook: &Webhook,
        outcome: Outcome,
        circumstances: Circumstances,
    ) -> Result<(), Violation> {
        let resource = webhook.resource();
        match outcome {
            Outcome::Suppressed => {
                self.check_suppressed(webhook, circumstances)?;
                let dropped = self.dropped.entry(resource).or_default();
                *dropped = (webhook.updated_ms, webhook.subscription).max(*dropped);
            }
            Outcome::Stale => self.check_stale(webhook, circumstances)?,
            Outcome::Delivered => {}
            Outcome::Duplicate | Outcome::Coalesced | Outcome::Dead | Outcome::Dropped => {
                return Ok(());
            }
        }
        let own = (webhook.updated_ms, webhook.position, webhook.state);
        let due = self.due.entry(resource).or_insert(own);
        *due = own.max(*due);
        Ok(())
    }

    fn check_suppressed(
        &self,
        webhook: &Webhook,
        circumstances: Circumstances,
    ) -> Result<(), Violation> {
        let resource = webhook.resource();
        let last = self.last.get(&resource).copied();
        let last_of = self.last_of.get(&(resource, webhook.subscription)).copied();
        let newest = self.newest.get(&resource).map(|(_, state)| *state);
        let own = Some(webhook.state);
        let is_newest = newest == own || !circumstances.knows_all;
        if last == own && last_of == own && is_newest {
            return Ok(());
        }
        Err(format!(
            "{} with state {own:?} is suppressed: {last:?} arrived last, {last_of:?} of its \
             subscription, {newest:?} is the newest",
            webhook.name()
        ))
    }

    fn check_stale(
        &self,
        webhook: &Webhook,
        circumstances: Circumstances,
    ) -> Result<(), Violation> {
        let resource = webhook.resource();
        let dropped = self.dropped.get(&resource).map(|(ms, _)| *ms);
        let heard = self.heard_ms.get(&resource).copied();
        let heard = heard.filter(|_| circumstances.drops_stale);
        let newer = dropped.max(heard);
        if newer > Some(webhook.updated_ms) {
            return Ok(());
        }
        Err(format!(
            "{} of {} is stale, and the newest is {newer:?}",
            webhook.name(),
            webhook.updated_ms
        ))
    }

    /// Checks that a backend that compares times ends with the newest state of each product, whatever
    /// was dropped. Orders are coalesced: the one that is sent may be older than another.
    pub(crate) fn check_end(&self, circumstances: Circumstances) -> Result<(), Violation> {
        if !circumstances.knows_all {
            return Ok(());
        }
        for (resource, (due_ms, position, state)) in &self.due {
            let is_left_out = resource.1 != PRODUCTS || self.overtaken.contains(resource);
            let newest = self.newest.get(resource).copied();
            let is_right = newest.is_some_and(|(ms, own)| ms >= *due_ms || own == *state);
            if !is_left_out && !is_right {
                return Err(format!(
                    "{resource:?} ends as {newest:?}, and {position} of {due_ms} shows {state}"
                ));
            }
        }
        Ok(())
    }
}
