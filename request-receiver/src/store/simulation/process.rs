//! A receiver's process: shards, appends that hang, the restorer.

use super::redis::SendId;
use crate::store::mode::StoreMachine;

/// State of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shard {
    Idle,
    /// The batch waits while batches are held.
    Held(SendId),
    /// The append hangs, and there is no log for other batches.
    Stalled,
    Appending {
        id: SendId,
        call: u64,
    },
    Writing(SendId),
}

/// An append that hangs, or its batch while that is written to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Late {
    /// `stalls` is the shard that waits for the append.
    Appending {
        id: SendId,
        call: u64,
        stalls: Option<usize>,
    },
    Writing(SendId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Restorer {
    Idle,
    Restoring { call: u64, through: usize },
}

#[derive(Debug)]
pub(super) struct Process {
    pub number: u64,
    pub machine: StoreMachine,
    /// Set when the process is stopping. It accepts no more.
    pub is_stopping: bool,
    pub shards: Vec<Shard>,
    pub late: Vec<Late>,
    pub restorer: Restorer,
    /// Records that Redis is known to have.
    pub restored: Option<usize>,
}

impl Process {
    pub(super) fn new(number: u64, shards: usize, has_log: bool) -> Self {
        Self {
            number,
            machine: StoreMachine::new(has_log),
            is_stopping: false,
            shards: vec![Shard::Idle; shards],
            late: Vec::new(),
            restorer: Restorer::Idle,
            restored: None,
        }
    }

    /// Returns true if an append may still take effect.
    pub(super) fn has_append(&self) -> bool {
        self.shards.iter().any(|shard| matches!(shard, Shard::Appending { .. }))
            || self.late.iter().any(|late| matches!(late, Late::Appending { .. }))
    }

    /// Returns true if nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.late.is_empty() && self.shards.iter().all(|shard| *shard == Shard::Idle)
    }

    /// Returns true if a write is under way.
    pub(super) fn has_write(&self) -> bool {
        self.shards.iter().any(|shard| matches!(shard, Shard::Writing(_)))
            || self.late.iter().any(|late| matches!(late, Late::Writing(_)))
    }
}
