//! The part that all consumers of the queue share, for any target of the webhooks.
//!
//! [`leader_election`]: leader election, with standbys that take over. [`intake`]: reads the stream
//! ahead, after a cursor. [`settle`]: records results, one settlement after the other. [`gauges`]
//! and [`watch`]: metrics of the queue in Redis.
//!
//! This crate knows neither HTTP nor Kafka, and decides nothing about a webhook.

pub mod gauges;
pub mod intake;
pub mod leader_election;
pub mod settle;
pub mod watch;

pub use leader_election::{ElectionConfig, End, LeaderHandle, Leadership};
