//! Settings that every process has.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use spillway_queue::Redis;

use crate::metrics_token::MetricsToken;
use crate::redis_args::RedisArgs;
use crate::reload::FromFiles;
use crate::settings::Checker;
use crate::telemetry::LogFormat;
use crate::trace_args::{TraceArgs, TraceSettings};

/// The common settings as given, before they are checked.
#[derive(Clone, Args)]
pub struct ProcessArgs {
    /// The cell's Redis.
    #[command(flatten)]
    pub redis: RedisArgs,

    /// Format of the log on standard error: text or json. RUST_LOG sets the level, such as info or
    /// debug
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    pub log_format: String,

    /// File with bearer tokens for /metrics, one per line: without one of them it answers 401. Read again
    /// on SIGHUP, and within 10 s of a change. Not set: /metrics needs none
    #[arg(long, env = "METRICS_TOKEN_FILE")]
    pub metrics_token_file: Option<PathBuf>,

    /// Exit with code 69 when Redis or Kafka is absent at start, instead of waiting for it: true or
    /// false
    #[arg(long, env = "EXIT_IF_UNAVAILABLE", default_value = "false")]
    pub exit_if_unavailable: String,

    /// Traces.
    #[command(flatten)]
    pub trace: TraceArgs,

    /// Read settings from this file where flags and the environment set none: KEY=value lines, as
    /// systemd's EnvironmentFile= reads them; may be given several times: a later file overrides an
    /// earlier one
    #[arg(long = "env-file", value_name = "ENV_FILE")]
    pub env_files: Vec<PathBuf>,

    /// Check the settings and exit: 0 if they are good, 78 if not
    #[arg(long)]
    pub check: bool,

    /// Print the settings in force and exit, one per line: name, origin (flag, environment, env file,
    /// default) and value, separated by tabs. Secrets are hidden, and nothing is checked
    #[arg(long)]
    pub show_settings: bool,
}

const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// The common settings after the check.
#[derive(Clone)]
pub struct ProcessSettings {
    /// The cell's Redis.
    pub redis: Redis,
    /// Format of the log.
    pub log_format: LogFormat,
    /// Bearer tokens for `/metrics`, if it needs one.
    pub metrics_token: Option<Arc<MetricsToken>>,
    /// True if the process exits when Redis or Kafka is absent at start.
    pub exit_if_unavailable: bool,
    /// Traces, if they are wanted.
    pub trace: Option<TraceSettings>,
}

// Written by hand: the URL may hold a password.
impl fmt::Debug for ProcessArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessArgs").field("redis", &self.redis).finish_non_exhaustive()
    }
}

impl fmt::Debug for ProcessSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessSettings")
            .field("log_format", &self.log_format)
            .finish_non_exhaustive()
    }
}

impl ProcessArgs {
    /// Checks the settings.
    pub fn check(&self, checker: &mut Checker) -> ProcessSettings {
        let redis = self.redis.check(checker);
        let token = self.metrics_token_file.clone().map(MetricsToken::read).transpose();
        let token = token.unwrap_or_else(|problem| {
            checker.mistake("METRICS_TOKEN_FILE", problem);
            None
        });
        ProcessSettings {
            redis,
            log_format: checker.choice("LOG_FORMAT", &self.log_format, &LOG_FORMATS),
            metrics_token: token.map(Arc::new),
            exit_if_unavailable: checker.flag("EXIT_IF_UNAVAILABLE", &self.exit_if_unavailable),
            trace: self.trace.check(checker),
        }
    }
}

impl ProcessSettings {
    /// State that is read again when its files change.
    pub fn states(&self) -> Vec<Arc<dyn FromFiles>> {
        let token = self.metrics_token.clone();
        token.map(|token| token as Arc<dyn FromFiles>).into_iter().collect()
    }
}
