//! Simulates a backend, the drain in front of it and the limiter between them, in virtual time: an
//! hour takes about a second, and the same seed gives the same hour.
//!
//! A [`scenario`] is a file: what the backend is, what happens to it and what is to be expected.
//! [`run`] plays it with one [`algorithm`] into a [`record`], from which [`figure`] reads what the
//! expectations name, and [`report`] writes them down. No clock, no socket, no thread.

pub mod algorithm;
pub mod figure;
pub mod random;
pub mod record;
pub mod report;
pub mod run;
pub mod scenario;
pub mod server;
