//! The frame of every Spillway process: settings, start and stop, logs, the admin endpoint.
//!
//! This crate knows nothing about a webhook. Except for the log subscriber, nothing in it is
//! global, so two servers fit in one process.

pub mod admin;
pub mod background;
pub mod clock;
pub mod consumer_gauges;
pub mod error;
pub mod exit;
pub mod failure_log;
mod file_watch;
pub mod generate;
pub mod listen;
mod log_output;
pub mod metrics;
pub mod metrics_token;
pub mod pem;
pub mod process_args;
pub mod redis_args;
pub mod reload;
pub mod setting_names;
pub mod settings;
pub mod show_settings;
pub mod shutdown;
pub mod start;
pub mod supervisor;
pub mod telemetry;
pub mod trace_args;
mod validity;
pub mod version;

pub use admin::Readiness;
pub use background::Background;
pub use process_args::ProcessArgs;
pub use settings::Checker;
pub use start::{ServerArgs, TaskThreads, start};
pub use version::version;
