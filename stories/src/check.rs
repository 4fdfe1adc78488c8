//! The check: compares what was promised with what arrived.
//!
//! - lost: answered 200, but never acknowledged by the backend (and no dead letter).
//! - invented: arrived, but was never sent, was refused for good, or came in too many copies.
//! - altered: arrived with another body.
//! - disordered: arrived while an earlier promised event of its resource was not delivered, or
//!   arrived for the first time after a later one.
//! - repeats: a stored copy acknowledged again; late if a later event of its resource was
//!   acknowledged by then.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::ledger::{Event, Ledger, Outcome, Sent};
use crate::receipt::Receipt;
use crate::report::say;

/// Events out of order that are shown, and arrivals around each.
const SHOWN: usize = 3;
const AROUND: usize = 8;

/// Results of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Events sent.
    pub sent: usize,
    /// Events answered 200.
    pub stored: usize,
    /// Attempts with an unknown outcome: 503, or no answer.
    pub unknown: usize,
    /// Requests that reached the backend.
    pub receipts: usize,
    /// Events that the backend acknowledged.
    pub delivered: usize,
    /// Events promised and not delivered.
    pub lost: usize,
    /// Events delivered and not sent.
    pub invented: usize,
    /// Events delivered with another body.
    pub altered: usize,
    /// Events that arrived out of the order of their resource.
    pub disordered: usize,
    /// Deliveries acknowledged again.
    pub repeats: usize,
    /// Repeats after a later event of the resource.
    pub late_repeats: usize,
}

/// Progress of a resource while its receipts are read.
#[derive(Default)]
struct Progress {
    /// Promised events of the resource in order; `due` is the index of the next.
    promised: Vec<u64>,
    due: usize,
    delivered: HashSet<u64>,
    newest: u64,
}

/// Compares both. The events in `dead` are known dead letters: not lost, and not waited for.
pub fn check(ledger: &Ledger, receipts: &[Receipt], dead: &HashSet<Event>) -> Figures {
    let sent = ledger.entries();
    let mut figures = Figures {
        sent: sent.len(),
        stored: sent.values().filter(|sent| sent.stored()).count(),
        unknown: sent.values().map(unknown).sum(),
        receipts: receipts.len(),
        ..Figures::default()
    };
    let mut progress = promised(&sent, dead);
    let mut copies: HashMap<Event, HashMap<&str, usize>> = HashMap::new();
    for receipt in receipts {
        let event = Event::of(receipt.webhook_id());
        let Some((event, origin)) = event.and_then(|event| Some((event, sent.get(&event)?))) else {
            figures.invented += 1;
            continue;
        };
        figures.altered += usize::from(origin.body_hash != receipt.body_hash);
        let resource = progress.entry(event.resource).or_default();
        let disordered = figures.disordered;
        figures.disordered += usize::from(resource.is_early(event));
        if receipt.delivered() {
            let copy = copies.entry(event).or_default().entry(receipt.spillway_id()).or_default();
            *copy += 1;
            let late = usize::from(event.sequence < resource.newest);
            if *copy == 1 {
                figures.disordered += late;
            } else {
                figures.repeats += 1;
                figures.late_repeats += late;
            }
            resource.deliver(event);
        }
        if figures.disordered > disordered && figures.disordered <= SHOWN {
            show(event, origin, receipt, receipts);
        }
    }
    figures.delivered = copies.len();
    for (event, sent) in sent.iter() {
        let arrived = copies.get(event).map_or(0, HashMap::len);
        figures.lost += usize::from(sent.stored() && arrived == 0 && !dead.contains(event));
        figures.invented += arrived.saturating_sub(sent.copies_max());
    }
    figures
}

impl Figures {
    /// Prints the figures on one line.
    pub fn print(&self, story: &str) {
        let Self { sent, stored, unknown, receipts, delivered, .. } = self;
        let Self { lost, invented, altered, disordered, repeats, late_repeats, .. } = self;
        say(&format!(
            "{story}: sent {sent}, answered 200 {stored}, unknown attempts {unknown}, received \
             {receipts}, delivered {delivered}, lost {lost}, invented {invented}, altered \
             {altered}, disordered {disordered}, repeats {repeats} (late {late_repeats})"
        ));
    }

    /// Fails the test if anything was lost, invented, altered or disordered, or if there are more
    /// repeats than allowed.
    #[track_caller]
    pub fn expect_sound(&self, repeats_max: usize) {
        assert!(self.stored > 0, "nothing was promised: {self:?}");
        assert_eq!(self.lost, 0, "lost: {self:?}");
        assert_eq!(self.invented, 0, "invented: {self:?}");
        assert_eq!(self.altered, 0, "altered: {self:?}");
        assert_eq!(self.disordered, 0, "out of order: {self:?}");
        assert!(self.repeats <= repeats_max, "more than {repeats_max} repeats: {self:?}");
    }

    /// Fails the test if a repeat came after a later event of its resource.
    #[track_caller]
    pub fn expect_no_late_repeat(&self) {
        assert_eq!(self.late_repeats, 0, "a repeat of one that was not the newest: {self:?}");
    }
}

impl Progress {
    /// True if an earlier promised event was not delivered yet.
    fn is_early(&self, event: Event) -> bool {
        self.promised.get(self.due).is_some_and(|due| *due < event.sequence)
    }

    fn deliver(&mut self, event: Event) {
        self.delivered.insert(event.sequence);
        self.newest = self.newest.max(event.sequence);
        while self.promised.get(self.due).is_some_and(|due| self.delivered.contains(due)) {
            self.due += 1;
        }
    }
}

/// Prints what arrived of the resource of an event that is out of order, and how it was sent.
fn show(event: Event, origin: &Sent, receipt: &Receipt, receipts: &[Receipt]) {
    let of = |one: &Receipt| Event::of(one.webhook_id()).filter(|it| it.resource == event.resource);
    let all: Vec<_> = receipts.iter().filter_map(|one| Some((of(one)?, one))).collect();
    let at = all.iter().position(|(_, one)| std::ptr::eq(*one, receipt)).unwrap_or_default();
    say(&format!("out of order: {event:?}, sent as {:?}", origin.attempts));
    for (one, it) in &all[at.saturating_sub(AROUND)..(at + AROUND).min(all.len())] {
        let before = receipt.arrived.saturating_duration_since(it.arrived);
        let after = it.arrived.saturating_duration_since(receipt.arrived);
        let (id, status) = (it.spillway_id(), it.status);
        let sequence = one.sequence;
        say(&format!("  {sequence}: {id}, {status:?}, {before:?} before, {after:?} after"));
    }
}

fn promised(sent: &HashMap<Event, Sent>, dead: &HashSet<Event>) -> BTreeMap<u64, Progress> {
    let mut resources: BTreeMap<u64, Progress> = BTreeMap::new();
    for (event, sent) in sent {
        if sent.stored() && !dead.contains(event) {
            resources.entry(event.resource).or_default().promised.push(event.sequence);
        }
    }
    for resource in resources.values_mut() {
        resource.promised.sort_unstable();
    }
    resources
}

fn unknown(sent: &Sent) -> usize {
    let open =
        |outcome| matches!(outcome, Outcome::Later | Outcome::Unanswered | Outcome::CutInAnswer);
    sent.attempts.iter().filter(|attempt| open(attempt.outcome)).count()
}
