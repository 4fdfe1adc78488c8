//! The queue against a real Redis: each test has a private one on a unix socket.
//!
//! One binary, so that it is linked once: a file for each module of the crate, and beside them what
//! they share: the [`server`], a [`proxy`] that cuts connections, and a [`drain`] to settle with.

mod append;
mod dead;
mod drain;
mod drains;
mod full;
mod health;
mod lanes;
mod orders;
mod owner;
mod permissions;
mod proxy;
mod read;
mod server;
mod settle;
mod shares;
mod status;
mod trim;
