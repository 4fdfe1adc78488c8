//! Simulates a backend, the consumer in front of it and the limiter between them, in virtual time.
//! An hour takes about a second, and the same seed gives the same hour.
//!
//! A [`scenario`] is a file with the backend, the changes that happen to it and the expectations.
//! [`run`] plays it with one [`algorithm`] and fills a [`record`]. [`figure`] reads the figures of
//! the expectations from the record, and [`report`] writes them. No clock, no socket, no thread.

pub mod algorithm;
pub mod figure;
pub mod random;
pub mod record;
pub mod report;
pub mod run;
pub mod scenario;
pub mod server;
