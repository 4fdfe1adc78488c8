//! The operator's command against a real Redis: what it lists, replays, drops and forgets.

#![allow(clippy::unwrap_used, reason = "a failed step fails its test")]

mod cell;
mod dead;
mod doctor;
mod queue;
