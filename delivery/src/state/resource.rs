//! States of a resource, and which follows which.
//!
//! | state | Released | Blocked | Sent | Postponed | Finished | Settled |
//! |---|---|---|---|---|---|---|
//! | Ready | Ready | the reason | Sending | | Finished | |
//! | Retrying, Held, Paused, Unread, Recording | Ready | the reason | | | | |
//! | Sending | | | | Retrying | Finished | |
//! | Finished | | | | | | Ready |

/// State of a resource's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadState {
    /// The head waits for its turn.
    Ready,
    /// The head is being sent.
    Sending,
    /// The head waits for its settlement.
    Finished,
    /// The head waits for its next attempt.
    Retrying,
    /// The head waits for others of its shop, because a barrier lies between them.
    Held,
    /// An operator paused the head.
    Paused,
    /// The recorded lead is not indexed yet.
    Unread,
    /// The event that stands for others is being recorded.
    Recording,
}

/// Event that changes the state of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing holds the resource back any more.
    Released,
    /// The resource must wait, in this state.
    Blocked(HeadState),
    /// An attempt began.
    Sent,
    /// The attempt settled nothing. The head waits for another.
    Postponed,
    /// The head has ended.
    Finished,
    /// The settlement of the head is applied, and another webhook is the head.
    Settled,
}

impl HeadState {
    /// True if the head may be at the backend or on its way into a settlement.
    pub(crate) fn is_at_work(self) -> bool {
        matches!(self, Self::Sending | Self::Finished | Self::Recording)
    }

    /// Returns the state after `step`, or `None` if that step is impossible.
    pub(crate) fn after(self, step: Step) -> Option<Self> {
        match (self, step) {
            (Self::Sending | Self::Finished, Step::Released | Step::Blocked(_) | Step::Sent) => {
                None
            }
            (_, Step::Released) => Some(Self::Ready),
            (_, Step::Blocked(state)) => {
                (!matches!(state, Self::Sending | Self::Finished)).then_some(state)
            }
            (Self::Ready, Step::Sent) => Some(Self::Sending),
            (Self::Sending, Step::Postponed) => Some(Self::Retrying),
            (Self::Ready | Self::Sending, Step::Finished) => Some(Self::Finished),
            (Self::Finished, Step::Settled) => Some(Self::Ready),
            (_, Step::Sent | Step::Postponed | Step::Finished | Step::Settled) => None,
        }
    }
}
