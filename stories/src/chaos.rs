//! Chaos: a whole cell under load, with one fault after another and some together. A ledger then
//! shows the outcome of each webhook.
//!
//! - [`fault`]: the kinds of faults, and in which cells each can be made;
//! - [`plan`]: the order of the faults, drawn from one seed, so that a failure can be reproduced;
//! - [`world`]: the cell, its parts restarted as systemd does it, and its faults made and undone;
//! - [`episode`]: the execution of one plan, and its results;
//! - [`report`]: the results as tables.
//!
//! The same seed gives the same plan. The webhooks that a fault affects depend on the machine's
//! timing.

pub mod episode;
pub mod fault;
pub mod kept;
pub mod plan;
pub mod report;
pub mod sync;
pub mod world;
