//! Exit codes with the names of sysexits.h, from which a supervisor can tell if a restart helps.

/// A wrong flag (EX_USAGE).
pub const USAGE: u8 = 64;
/// Redis or Kafka is absent and `EXIT_IF_UNAVAILABLE` is set (EX_UNAVAILABLE).
pub const UNAVAILABLE: u8 = 69;
/// A bad setting (EX_CONFIG).
pub const CONFIG: u8 = 78;
/// Anything else that ended the process.
pub const FAILED: u8 = 1;
