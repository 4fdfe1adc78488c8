//! Store mode: where batches go, and what happens to the overflow log, if there is one.
//!
//! With a log:
//!
//! | from | to | when |
//! |---|---|---|
//! | start | Spilling | always: what lies in the log comes first |
//! | Spilling | Restoring | queue usable or short of the disk that the log shares, claim ours, fenced, no append under way |
//! | Restoring | Closing | queue usable, the log was read to its end, and batches were not held lately |
//! | Closing | Restoring | batches were held for as long as they may be, a chunk was not restored, or the queue became short of disk |
//! | Restoring, Closing | Direct | queue usable, log empty, no write under way |
//! | Restoring, Closing | Spilling | queue takes nothing, or not fenced: the claim was not ours for a while |
//! | Direct | Spilling | queue not usable, an append hangs or has an unknown outcome, or a refused one goes into the log |
//! | any | StandingBack | another receiver has the claim |
//! | StandingBack | Spilling | the claim is ours again; fenced again before anything is restored |
//!
//! Without one:
//!
//! | from | to | when |
//! |---|---|---|
//! | start | Refusing | always: Redis was not looked at yet |
//! | Refusing | Direct | queue usable |
//! | Direct | Refusing | queue not usable, or an append failed |
//! | any | StandingBack | a receiver with a log has the claim, and lives |
//! | StandingBack | Refusing, Direct | that receiver has ended, or has given up the claim |
//!
//! Invariants: nothing is restored while an append of this process may still take effect. Nothing
//! is appended while anything lies in the log or is on its way there. So a sender that waits for a
//! 200 finds what it sent before earlier in the stream. Pure: no clock, no task, no lock.

/// Store mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StoreMode {
    /// Batches are written to the log.
    Spilling,
    /// Batches are written to the log, and the log is restored to the queue.
    Restoring,
    /// Batches are held for some milliseconds, so that the log comes to its end.
    Closing,
    /// Batches are appended to the queue.
    Direct,
    /// Batches are refused: another receiver has the claim.
    StandingBack,
    /// Batches are refused: the queue takes none, and there is no log.
    Refusing,
}

impl StoreMode {
    /// All modes.
    pub const ALL: [Self; 6] = [
        Self::Spilling,
        Self::Restoring,
        Self::Closing,
        Self::Direct,
        Self::StandingBack,
        Self::Refusing,
    ];
}

/// State of the claim to be the only receiver with a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ClaimState {
    /// Redis was not asked yet. Without a log also: nobody has the claim.
    Unknown,
    Ours,
    Theirs,
}

/// State of holding batches back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Hold {
    /// Batches may be held.
    Allowed,
    /// Batches are held.
    Held,
    /// Batches were held lately.
    Resting,
}

impl Hold {
    fn step(&mut self, from: Self, to: Self) {
        if *self == from {
            *self = to;
        }
    }
}

/// Destination of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Appended to the queue. The append is under way from now on.
    Append,
    /// Written to the log. The write is under way from now on.
    Write,
    /// Answered 503.
    Refused,
}

/// Event on which the store mode depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    /// The queue was looked at, or an append failed.
    Queue {
        /// True if the queue takes appends, as far as is known.
        is_usable: bool,
    },
    /// The queue's disk is short of room, and the log lies on the same disk. Restoring takes no
    /// more room than it frees. Only with a log.
    QueueShort,
    /// The claim was confirmed.
    ClaimOurs {
        /// True if another receiver may have had the claim just before, and may have appended.
        is_new: bool,
    },
    /// Another receiver has the claim.
    ClaimTheirs,
    /// No live receiver has the claim. Only without a log.
    ClaimFree,
    /// Appends of earlier processes can't take effect any more.
    Fenced,
    /// An append had no answer for so long that other batches go into the log.
    AppendHangs,
    /// An append ended.
    AppendEnded {
        /// True if [`StoreEvent::AppendHangs`] was sent for it.
        was_hanging: bool,
        /// True if the append can't take effect any more. Otherwise appenders are fenced before
        /// anything is restored.
        is_final: bool,
    },
    /// A write ended.
    WriteEnded,
    /// A chunk of the log was read.
    ChunkRead {
        /// True if nothing came after it.
        is_last: bool,
    },
    /// A chunk was not restored, or not known to be.
    ChunkFailed,
    /// The log is empty. Only while [`StoreMachine::may_finish`] holds.
    LogEmpty,
    /// Batches were held for as long as they may be.
    HoldRanOut,
    /// Batches may be held again. Has no effect while they are held.
    HoldAllowed,
}

/// Store mode, with the state that decides it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreMachine {
    has_log: bool,
    mode: StoreMode,
    is_usable: bool,
    /// True if the queue takes what is restored.
    takes_restored: bool,
    claim: ClaimState,
    is_fenced: bool,
    /// Appends that may still take effect.
    appends: u32,
    /// Those of `appends` that hang.
    hanging: u32,
    /// Writes under way.
    writes: u32,
    /// Set when the last chunk was read up to the log's end.
    is_read: bool,
    hold: Hold,
}

impl StoreMachine {
    /// State at the start of a process, with or without a log.
    pub fn new(has_log: bool) -> Self {
        Self {
            has_log,
            mode: if has_log { StoreMode::Spilling } else { StoreMode::Refusing },
            is_usable: false,
            takes_restored: false,
            claim: ClaimState::Unknown,
            is_fenced: false,
            appends: 0,
            hanging: 0,
            writes: 0,
            is_read: false,
            hold: Hold::Allowed,
        }
    }

    /// Returns true if there is an overflow log.
    pub fn has_log(&self) -> bool {
        self.has_log
    }

    /// Current mode.
    pub fn mode(&self) -> StoreMode {
        self.mode
    }

    /// Returns true if connections of earlier processes must be closed before anything is restored.
    pub fn needs_fence(&self) -> bool {
        self.mode == StoreMode::Spilling
            && self.takes_restored
            && self.claim == ClaimState::Ours
            && self.appends == 0
            && !self.is_fenced
    }

    /// Returns true if batches are held.
    pub fn is_holding(&self) -> bool {
        self.hold == Hold::Held
    }

    /// Returns true if the mode becomes Direct once the log is empty.
    pub fn may_finish(&self) -> bool {
        matches!(self.mode, StoreMode::Restoring | StoreMode::Closing)
            && self.writes == 0
            && self.is_usable
    }

    /// Decides where a batch goes; `None` while batches are held.
    pub fn route(&mut self) -> Option<Destination> {
        let destination = match self.mode {
            StoreMode::Direct => {
                self.appends += 1;
                Destination::Append
            }
            StoreMode::Spilling | StoreMode::Restoring => {
                self.writes += 1;
                Destination::Write
            }
            StoreMode::StandingBack | StoreMode::Refusing => Destination::Refused,
            StoreMode::Closing => return None,
        };
        Some(destination)
    }

    /// Handles a refused append: its batch is written to the log, and all others follow. Returns
    /// true if it may be written. It may not without a log, nor while another receiver has the
    /// claim.
    pub fn on_refused(&mut self, was_hanging: bool) -> bool {
        let may_write = self.has_log && self.mode != StoreMode::StandingBack;
        self.writes += u32::from(may_write);
        self.on(StoreEvent::AppendEnded { was_hanging, is_final: true });
        may_write
    }

    /// Applies an event, and changes the mode if that follows.
    pub fn on(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Queue { is_usable } => {
                (self.is_usable, self.takes_restored) = (is_usable, is_usable);
            }
            StoreEvent::QueueShort => {
                debug_assert!(self.has_log);
                (self.is_usable, self.takes_restored) = (false, true);
            }
            StoreEvent::ClaimOurs { is_new } => {
                self.claim = ClaimState::Ours;
                self.is_fenced &= !is_new;
            }
            StoreEvent::ClaimTheirs => self.claim = ClaimState::Theirs,
            StoreEvent::ClaimFree => {
                debug_assert!(!self.has_log);
                self.claim = ClaimState::Unknown;
            }
            StoreEvent::Fenced => self.is_fenced = true,
            StoreEvent::AppendHangs => self.hanging += 1,
            StoreEvent::AppendEnded { was_hanging, is_final } => {
                self.appends -= 1;
                self.hanging -= u32::from(was_hanging);
                self.is_fenced &= is_final;
            }
            StoreEvent::WriteEnded => self.writes -= 1,
            // While batches are held, writes that began before may leave more than a chunk in the
            // log.
            StoreEvent::ChunkRead { is_last } => {
                if self.mode == StoreMode::Restoring {
                    self.is_read = is_last;
                }
            }
            StoreEvent::ChunkFailed => self.is_read = false,
            StoreEvent::LogEmpty => {
                debug_assert!(self.may_finish());
                self.enter(StoreMode::Direct);
            }
            StoreEvent::HoldRanOut => self.hold.step(Hold::Held, Hold::Resting),
            StoreEvent::HoldAllowed => self.hold.step(Hold::Resting, Hold::Allowed),
        }
        // A table with a circle would change the mode for ever, and with it hang every shard.
        for _ in StoreMode::ALL {
            let next = self.next();
            if next == self.mode {
                return;
            }
            self.enter(next);
        }
        debug_assert!(false, "BUG: the mode does not come to rest, it is {:?}", self.mode);
    }

    /// Mode that follows from the state.
    fn next(&self) -> StoreMode {
        use StoreMode::{Closing, Direct, Refusing, Restoring, Spilling, StandingBack};
        if self.claim == ClaimState::Theirs {
            return StandingBack;
        }
        if !self.has_log {
            return if self.is_usable { Direct } else { Refusing };
        }
        let may_restore = self.takes_restored
            && self.claim == ClaimState::Ours
            && self.is_fenced
            && self.appends == 0;
        match self.mode {
            StandingBack => Spilling,
            Direct if !self.is_usable || self.hanging > 0 || self.writes > 0 => Spilling,
            Direct if !self.is_fenced => Spilling,
            Restoring | Closing if !self.takes_restored || !self.is_fenced => Spilling,
            Spilling if may_restore => Restoring,
            Restoring if self.is_usable && self.is_read && self.hold == Hold::Allowed => Closing,
            Closing if !self.is_usable || !self.is_read || self.hold != Hold::Held => Restoring,
            mode => mode,
        }
    }

    fn enter(&mut self, mode: StoreMode) {
        if self.hold == Hold::Held {
            self.hold = Hold::Resting;
        }
        match mode {
            StoreMode::Closing => self.hold = Hold::Held,
            StoreMode::Spilling | StoreMode::Direct | StoreMode::Refusing => self.is_read = false,
            StoreMode::StandingBack => (self.is_read, self.is_fenced) = (false, false),
            StoreMode::Restoring => {}
        }
        self.mode = mode;
    }
}

#[cfg(test)]
mod tests;
