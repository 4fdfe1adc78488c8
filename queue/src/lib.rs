//! The queue in Redis: the only crate that names a Redis command.
//!
//! The path of a pack: [`append`] (receiver writes it) → [`read`] (a drain reads it behind its
//! cursor) → [`settle`] (one script records what is done, dead-letters, changes the [`lane`]s in
//! which the rest waits, advances the cursor and trims). Beside it: [`owner`] (one instance per
//! drain), [`dead`] (dead letters), [`drains`] (who reads), [`orders`] (what an operator tells a drain), [`history`] (what became of a webhook),
//! [`feed`] (what a receiver spilled to its disk), [`shares`] (which shops take much of what waits),
//! [`status`] and [`health`] (what an operator asks), [`rewrite`] (when the AOF is rewritten).
//!
//! Every write of a drain is one Lua script with `allow-oom`: atomic, fenced by the owner's token,
//! and it works on a Redis that is full to the brim, because only draining can empty it.

pub mod access;
pub mod append;
pub mod cluster;
pub mod connect;
pub mod dead;
pub mod drains;
pub mod error;
pub mod feed;
pub mod health;
pub mod history;
pub mod keys;
pub mod lane;
pub mod orders;
pub mod owner;
pub mod permissions;
pub mod read;
pub mod rewrite;
pub mod sentinel;
pub mod settle;
pub mod shares;
pub mod status;

pub use connect::{Connection, Redis};
pub use error::QueueError;
pub use keys::Keys;
