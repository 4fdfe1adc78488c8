//! The queue in Redis. This is the only crate that names a Redis command.
//!
//! A consumer is a named reader of the queue with its own cursor. One of its instances is the
//! leader; the others are standbys.
//!
//! The path of a pack: [`append`] (the receiver writes it) → [`read`] (a consumer reads it after
//! its cursor) → [`settle`] (one script records outcomes and dead letters, changes the [`lane`]s in
//! which the rest waits, advances the cursor and trims). Other modules: [`leader`] (leader
//! election), [`dead`] (dead letters), [`consumers`] (registered consumers), [`controls`] (an operator's
//! controls), [`history`] (outcomes of webhooks), [`replay`] (replays of archived webhooks), [`restore`]
//! (restores what a receiver spilled to its disk), [`checkpoint`] and [`rebuild`] (state of the consumers for an
//! archive, and a queue that is restored from one), [`shares`] (shops that take much of what waits),
//! [`redactions`] (who is to be forgotten), [`purge_lease`] (one purge at a time), [`audit`] (who changed what),
//! [`gaps`] (webhooks that may be missing), [`rhythm`] (how often shops and topics come) and [`accepting`] (when receivers
//! accepted webhooks), [`status`] and [`health`] (reports for operators), [`rewrite`] (rewrites of the AOF).
//!
//! Every write of a consumer or of an operator is one Lua script with `allow-oom`. It is atomic, and
//! works on a Redis that is completely full, because only consumers can empty it. A replay of archived
//! webhooks fills Redis, so a full one refuses it. What a leader
//! writes is fenced by its token. The registration of consumers and what operators order is not.

pub mod accepting;
pub mod access;
mod aof_disk;
pub mod append;
pub mod audit;
pub mod checkpoint;
pub mod cluster;
pub mod connect;
pub mod consumers;
pub mod controls;
pub mod dead;
pub mod error;
pub mod gaps;
pub mod health;
pub mod history;
pub mod keys;
pub mod lane;
pub mod leader;
mod open;
pub mod permissions;
pub mod purge_lease;
pub mod read;
pub mod rebuild;
pub mod redactions;
pub mod replay;
pub mod restore;
pub mod rewrite;
pub mod rhythm;
pub mod sentinel;
pub mod settle;
pub mod shares;
pub mod status;

pub use aof_disk::AofDisk;
pub use connect::{Connection, Redis};
pub use error::QueueError;
pub use keys::{ConsumerKeys, Keys};
