//! A receiver's process: shards, appends that hang, the feeder.

use super::redis::SendId;
use crate::store::mode::StoreMachine;

/// State of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shard {
    Idle,
    /// Its batch waits while batches are held.
    Held(SendId),
    /// Its append hangs, and there is no log for others.
    Stalled,
    Appending {
        id: SendId,
        call: u64,
    },
    Writing(SendId),
}

/// An append that hangs, or its batch while it is written to the log after all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Late {
    /// `stalls`: the shard that waits for it.
    Appending {
        id: SendId,
        call: u64,
        stalls: Option<usize>,
    },
    Writing(SendId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Feeder {
    Idle,
    Feeding { call: u64, through: usize },
}

#[derive(Debug)]
pub struct Process {
    pub number: u64,
    pub machine: StoreMachine,
    /// It was told to stop, and takes no more.
    pub is_stopping: bool,
    pub shards: Vec<Shard>,
    pub late: Vec<Late>,
    pub feeder: Feeder,
    /// Records that Redis is known to have.
    pub fed: Option<usize>,
}

impl Process {
    pub fn new(number: u64, shards: usize, has_log: bool) -> Self {
        Self {
            number,
            machine: StoreMachine::new(has_log),
            is_stopping: false,
            shards: vec![Shard::Idle; shards],
            late: Vec::new(),
            feeder: Feeder::Idle,
            fed: None,
        }
    }

    /// Appends that may still take effect.
    pub fn has_append(&self) -> bool {
        self.shards.iter().any(|shard| matches!(shard, Shard::Appending { .. }))
            || self.late.iter().any(|late| matches!(late, Late::Appending { .. }))
    }

    /// Whether it has nothing under way.
    pub fn is_idle(&self) -> bool {
        self.late.is_empty() && self.shards.iter().all(|shard| *shard == Shard::Idle)
    }

    /// Writes under way.
    pub fn has_write(&self) -> bool {
        self.shards.iter().any(|shard| matches!(shard, Shard::Writing(_)))
            || self.late.iter().any(|late| matches!(late, Late::Writing(_)))
    }
}
