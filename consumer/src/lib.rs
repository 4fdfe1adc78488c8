//! The part that all consumers of the queue share, for any target of the webhooks.
//!
//! [`leader_election`]: leader election, with standbys that take over. [`intake`]: reads the stream
//! ahead, after a cursor. [`settle`]: records results, one settlement after the other. [`gauges`]
//! and [`watch`]: metrics of the queue in Redis. [`consumer_settings`] and [`routes`]: name and filter of a
//! consumer, and those of the others. [`redactions`]: notes who is to be forgotten.
//!
//! This crate knows neither HTTP, Kafka nor an archive. All that it decides about a webhook is which consumer it is
//! for.

pub mod consumer_settings;
pub mod gauges;
pub mod intake;
pub mod leader_election;
pub mod redactions;
pub mod routes;
pub mod settle;
pub mod watch;

pub use consumer_settings::{ConsumerSettings, NamedConsumerArgs};
pub use leader_election::{ElectionConfig, End, LeaderHandle, Leadership};
pub use redactions::DeliveredRedaction;
pub use routes::{Route, Routes};
