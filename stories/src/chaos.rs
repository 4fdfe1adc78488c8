//! Chaos: a whole cell under load, one fault after the other and some of them together, and a ledger
//! that tells afterwards what came of each webhook.
//!
//! - [`fault`]: the kinds of faults, and in which cells each can be made;
//! - [`plan`]: which fault when, drawn from one seed, so that a failure can be played again;
//! - [`world`]: the cell, its parts kept running as systemd keeps them, and its faults made and undone;
//! - [`episode`]: one plan carried out, and what it showed;
//! - [`report`]: all of it as tables.
//!
//! The plan is the same for the same seed. When exactly a fault meets which webhook is not: that is
//! left to the machine.

pub mod episode;
pub mod fault;
pub mod kept;
pub mod plan;
pub mod report;
pub mod sync;
pub mod world;
