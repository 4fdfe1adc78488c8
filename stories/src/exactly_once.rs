//! Checks a topic, or an archive as a topic of one partition: every stored webhook appears once with unchanged bytes, and each resource is in
//! order and in one partition.

use std::collections::{HashMap, HashSet};

use crate::kafka_topic::Arrival;
use crate::ledger::{Event, Ledger};
use crate::report::say;

/// Results of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Once {
    /// Events answered 200.
    pub stored: usize,
    /// Records read.
    pub records: usize,
    /// Events in the topic.
    pub appeared: usize,
    /// Events stored and not in the topic.
    pub lost: usize,
    /// Records that repeat one stored webhook.
    pub repeated: usize,
    /// Records never sent, or in more copies than may have been stored.
    pub invented: usize,
    /// Records with another body than was sent.
    pub altered: usize,
    /// Records after a later event of their resource.
    pub disordered: usize,
    /// Records in another partition than the others of their resource.
    pub scattered: usize,
}

/// Compares what was promised with the content of the topic, except for `dead` events.
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
    /// Prints the figures on one line.
    pub fn print(&self, story: &str) {
        say(&format!("{story}: {self:?}"));
    }

    /// Fails the test if anything is missing, repeated, altered or out of order.
    #[track_caller]
    pub fn expect_exact(&self) {
        assert!(self.stored > 0, "nothing was promised: {self:?}");
        let Self { lost, repeated, invented, altered, disordered, scattered, .. } = *self;
        let faults = [lost, repeated, invented, altered, disordered, scattered];
        assert_eq!(faults, [0; 6], "{self:?}");
    }
}
