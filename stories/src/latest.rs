//! Check for webhooks that may be coalesced: not every event arrives, but the newest does.
//!
//! - lost: the newest promised event of a resource was never acknowledged.
//! - disordered: arrived after a later event of its resource was acknowledged.
//! - stood for: the number of webhooks that the acknowledged deliveries represent, each counted
//!   once.

use std::collections::{HashMap, HashSet};

use crate::ledger::{Event, Ledger};
use crate::receipt::Receipt;
use crate::report::say;

/// Results of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latest {
    /// Events answered 200.
    pub stored: usize,
    /// Resources of these events.
    pub resources: usize,
    /// Deliveries acknowledged, each webhook counted once.
    pub delivered: usize,
    /// Deliveries plus all webhooks that they stand for.
    pub stood_for: usize,
    /// Resources whose newest event is missing.
    pub lost: usize,
    /// Arrivals with another body than was sent, or never sent.
    pub altered: usize,
    /// Arrivals after a newer one of the resource.
    pub disordered: usize,
    /// Deliveries acknowledged again.
    pub repeats: usize,
}

/// Compares what was promised about the selected resources with what arrived.
pub fn check_latest(
    ledger: &Ledger,
    receipts: &[Receipt],
    meant: impl Fn(Event) -> bool,
) -> Latest {
    let sent = ledger.entries();
    let mut found = Latest::default();
    let mut newest_stored: HashMap<u64, u64> = HashMap::new();
    for (event, _) in sent.iter().filter(|(event, sent)| sent.stored() && meant(**event)) {
        found.stored += 1;
        let newest = newest_stored.entry(event.resource).or_default();
        *newest = event.sequence.max(*newest);
    }
    found.resources = newest_stored.len();
    let mut newest_delivered: HashMap<u64, u64> = HashMap::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for receipt in receipts {
        let Some(event) = Event::of(receipt.webhook_id()).filter(|event| meant(*event)) else {
            continue;
        };
        let is_as_sent = sent.get(&event).is_some_and(|sent| sent.body_hash == receipt.body_hash);
        found.altered += usize::from(!is_as_sent);
        let newest = newest_delivered.entry(event.resource).or_default();
        found.disordered += usize::from(event.sequence < *newest);
        if !receipt.delivered() {
            continue;
        }
        *newest = event.sequence.max(*newest);
        if seen.insert(receipt.spillway_id()) {
            found.delivered += 1;
            found.stood_for += 1 + receipt.coalesced();
        } else {
            found.repeats += 1;
        }
    }
    let is_missing = |(resource, newest): &(&u64, &u64)| {
        newest_delivered.get(*resource).is_none_or(|delivered| delivered < *newest)
    };
    found.lost = newest_stored.iter().filter(is_missing).count();
    found
}

impl Latest {
    /// Prints the figures on one line.
    pub fn print(&self, story: &str) {
        say(&format!("{story}: {self:?}"));
    }

    /// Fails the test if a newest event is missing, or an older one came after it.
    #[track_caller]
    pub fn expect_sound(&self, repeats_max: usize) {
        assert!(self.stored > 0, "nothing was promised: {self:?}");
        assert_eq!((self.lost, self.altered, self.disordered), (0, 0, 0), "{self:?}");
        assert!(self.repeats <= repeats_max, "more than {repeats_max} repeats: {self:?}");
    }
}
