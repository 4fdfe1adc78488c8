//! State for the fairness of turns: how long the deliveries of a shop take, and the debts of shops.

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
