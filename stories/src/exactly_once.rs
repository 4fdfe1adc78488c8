//! The check of a topic: every stored webhook once, its bytes unchanged, each resource in order and
//! in one partition.

use std::collections::{HashMap, HashSet};

use crate::kafka_topic::Arrival;
use crate::ledger::{Event, Ledger};
use crate::report::say;

/// What the check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Once {
    /// Events answered 200.
    pub stored: usize,
    /// Records read.
    pub records: usize,
    /// Events that appear.
    pub appeared: usize,
    /// Stored, and not there.
    pub lost: usize,
    /// One stored webhook, there again.
    pub repeated: usize,
    /// Never sent, or more often than it may have been stored.
    pub invented: usize,
    /// Another body than was sent.
    pub altered: usize,
    /// Behind a later event of its resource.
    pub disordered: usize,
    /// In another partition than its resource's others.
    pub scattered: usize,
}

/// Compares what was promised with what is in the topic, but for `dead` events.
pub fn check(ledger: &Ledger, mut arrivals: Vec<Arrival>, dead: &HashSet<Event>) -> Once {
    arrivals.sort_by_key(|arrival| (arrival.partition, arrival.offset));
    let sent = ledger.entries();
    let mut found = Once {
        stored: sent.values().filter(|sent| sent.stored()).count(),
        records: arrivals.len(),
        ..Once::default()
    };
    let mut ids = HashSet::new();
    let mut copies: HashMap<Event, usize> = HashMap::new();
    let mut newest: HashMap<u64, (i32, u64)> = HashMap::new();
    for arrival in &arrivals {
        let known = arrival.event.and_then(|event| Some((event, sent.get(&event)?)));
        let Some((event, origin)) = known else {
            found.invented += 1;
            continue;
        };
        if !ids.insert(arrival.spillway_id) {
            found.repeated += 1;
            continue;
        }
        *copies.entry(event).or_default() += 1;
        found.altered += usize::from(origin.body_hash != arrival.body_hash);
        let (partition, sequence) =
            newest.entry(event.resource).or_insert((arrival.partition, event.sequence));
        found.scattered += usize::from(*partition != arrival.partition);
        found.disordered += usize::from(event.sequence < *sequence);
        *sequence = event.sequence.max(*sequence);
    }
    found.appeared = copies.len();
    for (event, sent) in sent.iter() {
        let appeared = copies.get(event).copied().unwrap_or(0);
        found.lost += usize::from(sent.stored() && appeared == 0 && !dead.contains(event));
        found.invented += appeared.saturating_sub(sent.copies_max());
    }
    found
}

impl Once {
    /// Prints them on one line.
    pub fn print(&self, story: &str) {
        say(&format!("{story}: {self:?}"));
    }

    /// Fails the test if anything is missing, there twice, changed or out of order.
    #[track_caller]
    pub fn expect_exact(&self) {
        assert!(self.stored > 0, "nothing was promised: {self:?}");
        let Self { lost, repeated, invented, altered, disordered, scattered, .. } = *self;
        let faults = [lost, repeated, invented, altered, disordered, scattered];
        assert_eq!(faults, [0; 6], "{self:?}");
    }
}
