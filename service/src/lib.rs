//! The rim that every Spillway process shares: settings, start and stop, logs, the admin endpoint.
//!
//! Nothing here knows a webhook. Nothing here is global but the log subscriber, so two servers fit
//! in one process.

pub mod admin;
pub mod background;
pub mod clock;
pub mod common;
pub mod drain_gauges;
pub mod error;
pub mod exit;
pub mod generate;
pub mod listen;
pub mod metrics;
pub mod redis_args;
pub mod settings;
pub mod shutdown;
pub mod start;
pub mod supervisor;
pub mod telemetry;

pub use admin::Readiness;
pub use background::Background;
pub use common::Common;
pub use settings::Checker;
pub use start::{Written, start};
