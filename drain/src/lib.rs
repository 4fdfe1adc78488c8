//! What every drain of the queue does, whatever it lets the webhooks out into.
//!
//! [`ownership`]: one instance at a time, a standby that takes over. [`intake`]: the stream read
//! ahead, behind a cursor. [`settle`]: what is done recorded, one settlement after the other.
//! [`gauges`] and [`watch`]: what Redis says about the queue.
//!
//! Nothing here knows HTTP or Kafka, and nothing decides about a webhook.

pub mod gauges;
pub mod intake;
pub mod ownership;
pub mod settle;
pub mod watch;

pub use ownership::{End, Place, Seat, Tenure};
