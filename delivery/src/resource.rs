//! The states of a resource, and the one function that changes them.
//!
//! | state | Released | Blocked | Sent | Ended | Finished | Settled |
//! |---|---|---|---|---|---|---|
//! | Ready | Ready | the reason | Sending | | Finished | |
//! | Retrying, Held, Paused, Unread, Recording | Ready | the reason | | | | |
//! | Sending | | | | Retrying | Finished | |
//! | Finished | | | | | | Ready |

/// What the head of a resource is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits for its turn.
    Ready,
    /// Is being sent.
    Sending,
    /// Waits for its settlement.
    Finished,
    /// Waits for its next attempt.
    Retrying,
    /// Waits for others of its shop: a barrier lies between them.
    Held,
    /// Paused by an operator.
    Paused,
    /// Its recorded lead is not indexed yet.
    Unread,
    /// The event that stands for others is being recorded.
    Recording,
}

/// What happens to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing holds it back any more.
    Released,
    /// It must wait, in this state.
    Blocked(State),
    /// An attempt began.
    Sent,
    /// An attempt failed; it is tried again later.
    Ended,
    /// Its head is done with.
    Finished,
    /// The head's settlement is applied, and another webhook is the head.
    Settled,
}

impl State {
    /// Whether its head may be at the backend or on its way into a settlement.
    pub fn is_at_work(self) -> bool {
        matches!(self, Self::Sending | Self::Finished | Self::Recording)
    }

    /// The state after `step`; `None` where that step can't happen.
    pub fn after(self, step: Step) -> Option<Self> {
        match (self, step) {
            (Self::Sending | Self::Finished, Step::Released | Step::Blocked(_) | Step::Sent) => {
                None
            }
            (_, Step::Released) => Some(Self::Ready),
            (_, Step::Blocked(state)) => {
                (!matches!(state, Self::Sending | Self::Finished)).then_some(state)
            }
            (Self::Ready, Step::Sent) => Some(Self::Sending),
            (Self::Sending, Step::Ended) => Some(Self::Retrying),
            (Self::Ready | Self::Sending, Step::Finished) => Some(Self::Finished),
            (Self::Finished, Step::Settled) => Some(Self::Ready),
            (_, Step::Sent | Step::Ended | Step::Finished | Step::Settled) => None,
        }
    }
}
