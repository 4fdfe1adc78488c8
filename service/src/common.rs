//! Settings that every process has.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use spillway_queue::Redis;

use crate::redis_args::RedisArgs;
use crate::settings::Checker;
use crate::telemetry::LogFormat;

/// The common settings as written.
#[derive(Clone, Args)]
pub struct Common {
    /// The cell's Redis.
    #[command(flatten)]
    pub redis: RedisArgs,

    /// How logs are written to standard error: text or json. RUST_LOG sets what is written, such
    /// as info or debug
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    pub log_format: String,

    /// Exit with code 69 when Redis or Kafka is absent at start, rather than wait for it: true or
    /// false
    #[arg(long, env = "EXIT_IF_UNAVAILABLE", default_value = "false")]
    pub exit_if_unavailable: String,

    /// Read settings from this file where flags and the environment set none: KEY=value lines, as
    /// systemd's EnvironmentFile= reads them
    #[arg(long)]
    pub env_file: Option<PathBuf>,

    /// Check the settings and exit: 0 if they are good, 78 if not
    #[arg(long)]
    pub check: bool,
}

const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// The common settings, checked.
#[derive(Clone)]
pub struct CommonChecked {
    /// The cell's Redis.
    pub redis: Redis,
    /// How logs are written.
    pub log_format: LogFormat,
    /// Whether to give up when Redis is absent at start.
    pub exit_if_unavailable: bool,
}

// Written by hand: the URL may hold a password.
impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common").field("redis", &self.redis).finish_non_exhaustive()
    }
}

impl fmt::Debug for CommonChecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommonChecked")
            .field("log_format", &self.log_format)
            .finish_non_exhaustive()
    }
}

impl Common {
    /// Checks them.
    pub fn check(&self, checker: &mut Checker) -> CommonChecked {
        let redis = self.redis.check(checker);
        CommonChecked {
            redis,
            log_format: checker.choice("LOG_FORMAT", &self.log_format, &LOG_FORMATS),
            exit_if_unavailable: checker.flag("EXIT_IF_UNAVAILABLE", &self.exit_if_unavailable),
        }
    }
}
