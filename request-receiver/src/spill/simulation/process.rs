//! A receiver's process: shards, appends that hang, the feeder.

use super::redis::SendId;
use crate::spill::mode::StoreMachine;

/// State of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shard {
    Idle,
    /// Its batch waits while batches are held.
    Held(SendId),
    Appending {
        id: SendId,
        call: u64,
    },
    Writing(SendId),
}

/// An append that hangs, or its batch while it is written to the log after all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Late {
    Appending { id: SendId, call: u64 },
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
    pub shards: Vec<Shard>,
    pub late: Vec<Late>,
    pub feeder: Feeder,
    /// Records that Redis is known to have.
    pub fed: Option<usize>,
}

impl Process {
    pub fn new(number: u64, shards: usize) -> Self {
        Self {
            number,
            machine: StoreMachine::default(),
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

    /// Writes under way.
    pub fn has_write(&self) -> bool {
        self.shards.iter().any(|shard| matches!(shard, Shard::Writing(_)))
            || self.late.iter().any(|late| matches!(late, Late::Writing(_)))
    }
}
