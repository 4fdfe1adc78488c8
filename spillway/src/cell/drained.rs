//! Decides from looks at a cell when it is drained. Pure: facts and time are arguments.
//!
//! | scope | phase | drained, or next phase |
//! |---|---|---|
//! | all | `Quiet` | drained once nothing waits, nothing new is stored and no overflow is left, for a while |
//! | any | `Quiet` | the while begins again when it becomes known, or unknown, what is in the overflow log |
//! | shops | `Quiet` | the same, for webhooks of these shops |
//! | so far | `Quiet` | `Settling`, once no overflow is left for a while: what was stored before has its place in the queue |
//! | so far | `Settling` | drained once nothing of that waits |
//! | any | any | `Quiet` again, after Redis did not answer |

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::out::count;

/// Webhooks that are waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DrainScope {
    /// All of the cell. Nothing new may come.
    All,
    /// All that was stored so far. Others may come.
    SoFar,
    /// Those of these shops. No new ones of them may come.
    Shops(Arc<BTreeSet<String>>),
}

/// Webhooks that are left for one consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ConsumerLeft {
    /// Name of the consumer.
    pub name: String,
    /// Webhooks that wait for it and are waited for.
    pub webhooks: u64,
    /// Replays from the archive that are not fed completely.
    pub replays: u64,
    /// Reason why they do not go, or the state of the consumer; `None` if it works as usual.
    pub held: Option<String>,
    /// Dead letters. They do not wait, and stay in the cell.
    pub dead_letters: u64,
}

/// Overflow log of the cell's receivers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum OverflowLook {
    /// No receiver claims to have one.
    #[default]
    Absent,
    /// The receivers report that so many webhooks are in it.
    Webhooks(u64),
    /// A receiver has one, and webhooks do not go to Redis directly. It counts none in its log, which is not certain.
    Spilling,
    /// A receiver claims to have one, and not all that were asked report, or none of them has this log.
    Unknown,
}

/// Facts of one look at a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DrainLook {
    /// Webhooks that were ever accepted.
    pub accepted: u64,
    /// All consumers.
    pub consumers: Vec<ConsumerLeft>,
    /// Overflow log.
    pub overflow: OverflowLook,
    /// Webhooks of the shops that were stored since the look before.
    pub arrived: u64,
    /// True if too much of what was stored since was removed before it was seen.
    pub is_blind: bool,
    /// Shops that are waited for, and of which no webhook was seen so far.
    pub unseen: BTreeSet<String>,
}

/// One reason why a cell is not drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Blocker {
    /// Something waits for a consumer.
    Waits(ConsumerLeft),
    /// So many webhooks lie in an overflow log.
    Overflow(u64),
    /// A receiver with an overflow log does not store in Redis directly.
    Spilling,
    /// So many webhooks were stored since the look before.
    Stored(u64),
    /// New webhooks were not seen well enough.
    Blind,
    /// Redis does not answer.
    Away,
}

/// Conclusion from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrainVerdict {
    /// Look again.
    Wait,
    /// All that was stored so far is in the queue: it is waited for from now on.
    Marked,
    /// The cell is drained.
    Drained,
    /// The cell is drained, except that nobody knows what is in the overflow log.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainPhase {
    Quiet {
        /// Time of the first look at which nothing was left.
        since: Option<Instant>,
        /// False if nobody reported what is in the overflow log since then.
        is_known: bool,
    },
    Settling,
}

/// Follows a cell from look to look.
pub(super) struct DrainWatch {
    scope: DrainScope,
    quiet_for: Duration,
    phase: DrainPhase,
    accepted: Option<u64>,
    /// Reasons of the last look; empty if nothing is left, as far as it is known.
    pub blockers: Vec<Blocker>,
}

impl DrainPhase {
    /// The first phase, before anything is known.
    fn quiet() -> Self {
        Self::Quiet { since: None, is_known: true }
    }
}

impl DrainWatch {
    /// Begins to follow. Nothing must come for `quiet_for`.
    pub(super) fn new(scope: DrainScope, quiet_for: Duration) -> Self {
        let phase = DrainPhase::quiet();
        Self { scope, quiet_for, phase, accepted: None, blockers: Vec::new() }
    }

    /// Takes a look into account.
    pub(super) fn on_look(&mut self, look: &DrainLook, now: Instant) -> DrainVerdict {
        self.blockers = self.blockers_of(look);
        self.accepted = Some(look.accepted);
        let is_free = self.blockers.is_empty();
        match &mut self.phase {
            DrainPhase::Settling if is_free => DrainVerdict::Drained,
            DrainPhase::Settling => DrainVerdict::Wait,
            DrainPhase::Quiet { since, .. } if !is_free => {
                *since = None;
                DrainVerdict::Wait
            }
            DrainPhase::Quiet { since, is_known } => {
                let knows = look.overflow != OverflowLook::Unknown;
                if std::mem::replace(is_known, knows) != knows {
                    // Anything may have been spilled meanwhile.
                    *since = None;
                }
                let since = *since.get_or_insert(now);
                if now.duration_since(since) < self.quiet_for {
                    DrainVerdict::Wait
                } else if !knows {
                    DrainVerdict::Unknown
                } else if self.scope == DrainScope::SoFar {
                    self.phase = DrainPhase::Settling;
                    DrainVerdict::Marked
                } else {
                    DrainVerdict::Drained
                }
            }
        }
    }

    /// Takes into account that Redis did not answer: anything may come meanwhile.
    pub(super) fn on_failure(&mut self) {
        self.blockers = vec![Blocker::Away];
        self.phase = DrainPhase::quiet();
    }

    fn blockers_of(&self, look: &DrainLook) -> Vec<Blocker> {
        let consumers = look.consumers.iter().filter(|left| left.webhooks + left.replays > 0);
        let waits: Vec<Blocker> = consumers.cloned().map(Blocker::Waits).collect();
        let overflow = match look.overflow {
            OverflowLook::Webhooks(webhooks) if webhooks > 0 => Some(Blocker::Overflow(webhooks)),
            OverflowLook::Spilling => Some(Blocker::Spilling),
            OverflowLook::Webhooks(_) | OverflowLook::Absent | OverflowLook::Unknown => None,
        };
        let stored = match &self.scope {
            DrainScope::All => self.accepted.map_or(0, |before| look.accepted.abs_diff(before)),
            DrainScope::Shops(_) => look.arrived,
            DrainScope::SoFar => 0,
        };
        let stored = (stored > 0).then_some(Blocker::Stored(stored));
        let blind = look.is_blind.then_some(Blocker::Blind);
        match (&self.scope, self.phase) {
            (DrainScope::SoFar, DrainPhase::Quiet { .. }) => overflow.into_iter().collect(),
            (DrainScope::SoFar, DrainPhase::Settling) => waits,
            (DrainScope::All | DrainScope::Shops(_), _) => {
                waits.into_iter().chain(overflow).chain(stored).chain(blind).collect()
            }
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waits(left) => fmt::Display::fmt(left, f),
            Self::Overflow(webhooks) => {
                write!(f, "{} in the overflow log of a receiver", count(*webhooks, "webhook"))
            }
            Self::Spilling => {
                f.write_str("a receiver has an overflow log, and does not store in redis directly")
            }
            Self::Stored(webhooks) => {
                write!(f, "{} stored since the last look", count(*webhooks, "webhook"))
            }
            Self::Away => f.write_str("redis does not answer"),
            Self::Blind => f.write_str("too few of the new webhooks could be looked at"),
        }
    }
}

impl fmt::Display for ConsumerLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} left", self.name, count(self.webhooks, "webhook"))?;
        if self.replays > 0 {
            write!(f, ", {} from the archive not fed completely", count(self.replays, "replay"))?;
        }
        self.held.as_ref().map_or(Ok(()), |held| write!(f, " ({held})"))
    }
}

#[cfg(test)]
mod tests {
    use super::DrainVerdict::{Drained, Marked, Unknown, Wait};
    use super::*;

    const QUIET_FOR: Duration = Duration::from_secs(10);

    /// Follows a cell through looks, one every five seconds.
    fn verdicts(scope: DrainScope, looks: &[DrainLook]) -> Vec<DrainVerdict> {
        let start = Instant::now();
        let mut watch = DrainWatch::new(scope, QUIET_FOR);
        let times = (0..).map(|number: u32| start + Duration::from_secs(5) * number);
        looks.iter().zip(times).map(|(look, now)| watch.on_look(look, now)).collect()
    }

    fn look(accepted: u64, webhooks: u64) -> DrainLook {
        let left = ConsumerLeft { name: "http".to_owned(), webhooks, ..ConsumerLeft::default() };
        DrainLook { accepted, consumers: vec![left], ..DrainLook::default() }
    }

    fn shops() -> DrainScope {
        DrainScope::Shops(Arc::new(BTreeSet::from(["a.example".to_owned()])))
    }

    #[test]
    fn a_cell_is_drained_once_nothing_waits_and_nothing_comes_for_a_while() {
        let looks = [look(5, 2), look(5, 0), look(5, 0), look(5, 0)];
        assert_eq!(verdicts(DrainScope::All, &looks), [Wait, Wait, Wait, Drained]);
    }

    #[test]
    fn a_receiver_that_still_stores_is_noticed_although_nothing_waits_at_any_look() {
        let looks = [look(5, 0), look(5, 0), look(6, 0), look(6, 0), look(6, 0), look(6, 0)];
        let expected = [Wait, Wait, Wait, Wait, Wait, Drained];
        assert_eq!(verdicts(DrainScope::All, &looks), expected);
        // Redis came back with older data.
        let looks = [look(5, 0), look(5, 0), look(4, 0), look(4, 0)];
        assert_eq!(verdicts(DrainScope::All, &looks), [Wait; 4]);
    }

    #[test]
    fn a_replay_and_an_overflow_log_are_waited_for() {
        let mut replays = look(5, 0);
        replays.consumers[0].replays = 1;
        assert_eq!(
            verdicts(DrainScope::All, &[replays.clone(), replays.clone(), replays]),
            [Wait; 3]
        );
        let spills = DrainLook { overflow: OverflowLook::Webhooks(3), ..look(5, 0) };
        let empty = DrainLook { overflow: OverflowLook::Webhooks(0), ..look(5, 0) };
        let looks = [spills.clone(), spills, empty.clone(), empty.clone(), empty];
        assert_eq!(verdicts(DrainScope::All, &looks), [Wait, Wait, Wait, Wait, Drained]);
    }

    #[test]
    fn an_overflow_log_that_nobody_reports_is_never_taken_for_empty() {
        let unknown = || DrainLook { overflow: OverflowLook::Unknown, ..look(5, 0) };
        for scope in [DrainScope::All, DrainScope::SoFar, shops()] {
            assert_eq!(verdicts(scope, &[unknown(), unknown(), unknown()]), [Wait, Wait, Unknown]);
        }
    }

    #[test]
    fn time_in_which_nobody_reported_the_overflow_log_is_not_quiet() {
        let unknown = || DrainLook { overflow: OverflowLook::Unknown, ..look(5, 0) };
        let empty = || DrainLook { overflow: OverflowLook::Webhooks(0), ..look(5, 0) };
        for (scope, end) in [(DrainScope::All, Drained), (DrainScope::SoFar, Marked)] {
            let looks = [unknown(), unknown(), empty(), empty(), empty()];
            assert_eq!(verdicts(scope.clone(), &looks), [Wait, Wait, Wait, Wait, end]);
            let looks = [empty(), unknown(), empty(), unknown(), unknown(), unknown()];
            assert_eq!(verdicts(scope, &looks), [Wait, Wait, Wait, Wait, Wait, Unknown]);
        }
    }

    #[test]
    fn a_receiver_that_spills_keeps_a_cell_from_being_drained_though_it_counts_nothing() {
        let spills = || DrainLook { overflow: OverflowLook::Spilling, ..look(5, 0) };
        for scope in [DrainScope::All, DrainScope::SoFar, shops()] {
            assert_eq!(verdicts(scope, &[spills(), spills(), spills(), spills()]), [Wait; 4]);
        }
    }

    #[test]
    fn webhooks_of_other_shops_may_come_and_those_of_the_shops_may_not() {
        let looks = [look(5, 1), look(9, 0), look(12, 0), look(15, 0)];
        assert_eq!(verdicts(shops(), &looks), [Wait, Wait, Wait, Drained]);
        let arrived = DrainLook { arrived: 1, ..look(13, 0) };
        let looks = [look(9, 0), look(12, 0), arrived, look(15, 0), look(15, 0)];
        assert_eq!(verdicts(shops(), &looks), [Wait; 5]);
        let blind = DrainLook { is_blind: true, ..look(99, 0) };
        assert_eq!(verdicts(shops(), &[look(9, 0), look(9, 0), blind]), [Wait; 3]);
    }

    #[test]
    fn so_far_waits_for_what_was_stored_before_and_lets_others_come() {
        let looks = [look(5, 2), look(7, 2), look(9, 3), look(11, 2), look(13, 0)];
        let expected = [Wait, Wait, Marked, Wait, Drained];
        assert_eq!(verdicts(DrainScope::SoFar, &looks), expected);
        // What is still in an overflow log gets its place in the queue later.
        let spills = DrainLook { overflow: OverflowLook::Webhooks(3), ..look(5, 0) };
        let looks = [look(5, 0), spills, look(8, 3), look(8, 3), look(8, 3), look(8, 0)];
        let expected = [Wait, Wait, Wait, Wait, Marked, Drained];
        assert_eq!(verdicts(DrainScope::SoFar, &looks), expected);
    }

    #[test]
    fn time_without_redis_is_not_quiet() {
        let start = Instant::now();
        let mut watch = DrainWatch::new(DrainScope::All, QUIET_FOR);
        assert_eq!(watch.on_look(&look(5, 0), start), Wait);
        watch.on_failure();
        assert_eq!(watch.blockers, [Blocker::Away]);
        assert_eq!(watch.on_look(&look(5, 0), start + QUIET_FOR), Wait);
        assert_eq!(watch.on_look(&look(5, 0), start + 2 * QUIET_FOR), Drained);
        // The time up to which webhooks are waited for may not have been read.
        let mut watch = DrainWatch::new(DrainScope::SoFar, QUIET_FOR);
        watch.on_look(&look(5, 1), start);
        assert_eq!(watch.on_look(&look(5, 1), start + QUIET_FOR), Marked);
        watch.on_failure();
        assert_eq!(watch.on_look(&look(5, 0), start + QUIET_FOR), Wait);
        assert_eq!(watch.on_look(&look(5, 1), start + 2 * QUIET_FOR), Marked);
        assert_eq!(watch.on_look(&look(5, 0), start + 2 * QUIET_FOR), Drained);
    }

    #[test]
    fn reasons_are_named() {
        let mut watch = DrainWatch::new(DrainScope::All, QUIET_FOR);
        let mut left = look(5, 1);
        left.consumers[0].held = Some("no leader runs".to_owned());
        left.overflow = OverflowLook::Webhooks(2);
        watch.on_look(&left, Instant::now());
        let told: Vec<String> = watch.blockers.iter().map(ToString::to_string).collect();
        let overflow = "2 webhooks in the overflow log of a receiver";
        assert_eq!(told, ["http: 1 webhook left (no leader runs)", overflow]);
    }
}
