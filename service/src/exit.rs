//! Exit codes, as sysexits.h names them, so that a supervisor can tell what a restart would help.

/// A wrong flag (EX_USAGE).
pub const USAGE: u8 = 64;
/// Redis or Kafka is not there and `EXIT_IF_UNAVAILABLE` is set (EX_UNAVAILABLE).
pub const UNAVAILABLE: u8 = 69;
/// A bad setting (EX_CONFIG).
pub const CONFIG: u8 = 78;
/// Anything else that ended the process.
pub const FAILED: u8 = 1;
