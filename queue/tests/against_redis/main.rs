//! The queue against a real Redis: each test has a private one on a unix socket.
//!
//! All tests are one binary, so that it is linked once. There is a file for each module of the
//! crate. They share the [`server`], a [`proxy`] that cuts connections, and a [`consumer`] to settle
//! with.

mod accepting;
mod append;
mod audit;
mod audit_keep;
mod consumer;
mod consumers;
mod controls;
mod dead;
mod full;
mod gaps;
mod health;
mod lanes;
mod leader;
mod permissions;
mod proxy;
mod read;
mod rebuild;
mod replay;
mod restore;
mod rhythm;
mod server;
mod settle;
mod shares;
mod status;
mod trim;
