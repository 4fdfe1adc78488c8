//! State by which shops have their turns: how long theirs take, and what they owe each other.

/// Fairness of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnsBy {
    /// By the time that a shop's deliveries take: one whose deliveries are long has fewer.
    Time,
    /// One after the other: where turns are rare, none has several, and none waits for what it took before.
    Number,
}

/// Time that the deliveries of a shop take.
#[derive(Debug, Default)]
pub struct Pace {
    /// Deliveries under way that take long.
    pub long: u32,
    /// Duration of a delivery of late, in seconds.
    pub took: f64,
}

/// Turns of a shop.
#[derive(Debug, Default)]
pub struct TurnState {
    /// Set while it waits for one, by class.
    pub has_turn: [bool; 2],
    /// Set while it leaves the last slots to others.
    pub is_set_aside: bool,
    /// Set if it is to be looked at when its pause ends.
    pub is_due: bool,
    /// Turns that it owes others; below zero, turns that it is owed.
    pub debt: f64,
}
