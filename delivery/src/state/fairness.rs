//! State for the fairness of turns: how long the deliveries of a shop take, and the debts of shops.

use std::time::Duration;

use crate::classified::Class;

/// Rule by which shops get turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnsBy {
    /// By the time that deliveries take: a shop with long deliveries has fewer turns.
    Time,
    /// One after the other, if turns are rare: no shop has several, and earlier deliveries do not
    /// count.
    Number,
}

/// Time that the deliveries of a shop take.
#[derive(Debug, Default)]
pub(crate) struct DeliveryTimes {
    /// Number of deliveries under way that are long.
    pub long: u32,
    /// Time at which a delivery that takes a second or more was last under way.
    pub lasted_at: Option<Duration>,
    /// Average duration of recent deliveries, in seconds.
    pub took: f64,
}

/// Turns of one shop.
#[derive(Debug, Default)]
pub(crate) struct TurnState {
    /// Set while the shop waits for a turn, by class.
    pub has_turn: [bool; 2],
    /// Set while the shop leaves the last slots to others.
    pub is_set_aside: bool,
    /// Set if the shop is to be checked when its pause ends.
    pub is_due: bool,
    /// Turns that the shop owes to others. Negative if it has credit.
    pub debt: f64,
}

/// Turns of the priority topics before the rest has one.
const PRIORITY_TURNS: u32 = 4;

/// Turns by class.
#[derive(Debug, Default)]
pub(crate) struct ClassTurns {
    /// Turns of the priority topics since the rest had one.
    priority_turns: u32,
}

impl ClassTurns {
    /// Order of the classes for the next turn.
    pub(crate) fn order(&self, by: TurnsBy) -> [Class; 2] {
        let most = if by == TurnsBy::Time { PRIORITY_TURNS } else { 1 };
        if self.priority_turns >= most {
            [Class::Rest, Class::Priority]
        } else {
            [Class::Priority, Class::Rest]
        }
    }

    /// Notes that a turn of this class was used.
    pub(crate) fn used(&mut self, class: Class) {
        self.priority_turns = match class {
            Class::Priority => self.priority_turns + 1,
            Class::Rest => 0,
        };
    }
}

/// Number of deliveries over which the usual duration is averaged.
const USUAL_OVER: f64 = 64.0;
/// A delivery counts as at most this many usual ones, so that a few of one slow shop do not change
/// the usual duration.
const USUAL_TIMES: f64 = 4.0;

/// Average duration of deliveries.
#[derive(Debug, Default)]
pub(crate) struct UsualTime {
    /// Zero before the first delivery.
    seconds: f64,
}

impl UsualTime {
    /// Duration of a usual delivery; zero before the first.
    pub(crate) fn get(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Takes a delivery of `took` seconds into the average.
    pub(crate) fn record(&mut self, took: f64) {
        if self.seconds == 0.0 {
            self.seconds = took;
        } else {
            self.seconds += (took.min(USUAL_TIMES * self.seconds) - self.seconds) / USUAL_OVER;
        }
    }

    /// Cost of a delivery of `took` seconds, in usual ones.
    pub(crate) fn cost_of(&self, took: f64) -> f64 {
        if self.seconds > 0.0 { took / self.seconds } else { 1.0 }
    }
}
