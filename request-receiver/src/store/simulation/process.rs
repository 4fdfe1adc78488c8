//! A receiver's process: shards, appends that hang, the restorer.

use super::redis::SendId;
use crate::store::mode::{StoreMachine, StoreMode};

/// State of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shard {
    Idle,
    /// The sealed batch waits for these appends of others, which have outlived a sender.
    Sealed {
        id: SendId,
        outlived: Vec<u64>,
    },
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

pub(super) fn name(mode: StoreMode) -> &'static str {
    match mode {
        StoreMode::Spilling => "Spilling",
        StoreMode::Restoring => "Restoring",
        StoreMode::Closing => "Closing",
        StoreMode::Direct => "Direct",
        StoreMode::StandingBack => "StandingBack",
        StoreMode::Refusing => "Refusing",
    }
}

#[derive(Debug)]
pub(super) struct Process {
    pub number: u64,
    pub machine: StoreMachine,
    /// Set when the process is stopping. It accepts no more.
    pub is_stopping: bool,
    pub shards: Vec<Shard>,
    pub late: Vec<Late>,
    /// Appends whose connection broke. They may still take effect.
    pub lost: Vec<u64>,
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
            lost: Vec::new(),
            restorer: Restorer::Idle,
            restored: None,
        }
    }

    /// Calls of the appends whose sender does not wait any more. Those that hang beside a log do not
    /// count, because nothing is appended before their end.
    pub(super) fn outlived(&self, is_waited_for: impl Fn(SendId) -> bool) -> Vec<u64> {
        let of_shards = self.shards.iter().filter_map(|shard| match *shard {
            Shard::Appending { id, call } => Some((id, call)),
            _ => None,
        });
        let hanging = self.late.iter().filter_map(|late| match *late {
            Late::Appending { id, call, stalls: Some(_) } => Some((id, call)),
            _ => None,
        });
        let outlived = of_shards.chain(hanging).filter(|(id, _)| !is_waited_for(*id));
        outlived.map(|(_, call)| call).collect()
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
