//! The wall clock, in the form in which times are stored.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time in milliseconds since the Unix epoch; 0 before it.
pub fn wall_clock_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
