//! Any triggered-at, at any time, in any window.
//!
//! Properties: an accepted time lies in the window, and a refused one does not. A time that is
//! written is read back the same.

use std::time::Duration;

use spillway_webhook::freshness::{FreshnessWindow, NotFresh, check, millis, rfc3339};

/// Last millisecond that RFC 3339 can express.
const LAST_MS: u64 = 253_402_300_799_999;

/// Runs the target. The input is eight bytes of the current time, four of each bound, and the value
/// of the header.
pub fn run(data: &[u8]) {
    let Some((now, rest)) = data.split_first_chunk() else { return };
    let Some((age, rest)) = rest.split_first_chunk() else { return };
    let Some((skew, text)) = rest.split_first_chunk() else { return };
    let seconds = |bytes: &[u8; 4]| Duration::from_secs(u32::from_le_bytes(*bytes).into());
    let now_ms = u64::from_le_bytes(*now);
    let window = FreshnessWindow { age_max: seconds(age), skew_max: seconds(skew), required: true };
    let age_ms = millis(text).map(|triggered| i128::from(now_ms) - triggered);
    let (oldest, newest) =
        (window.age_max.as_millis() as i128, window.skew_max.as_millis() as i128);
    match check(Some(text), now_ms, &window) {
        Ok(()) => assert!(age_ms.is_some_and(|age| -newest <= age && age <= oldest)),
        Err(NotFresh::Stale) => assert!(age_ms.is_some_and(|age| age > oldest)),
        Err(NotFresh::FromTheFuture) => assert!(age_ms.is_some_and(|age| age < -newest)),
        Err(NotFresh::Malformed) => assert!(age_ms.is_none()),
        Err(NotFresh::Missing) => panic!("it is not missing"),
    }
    let written = rfc3339(now_ms);
    if now_ms <= LAST_MS {
        assert_eq!(millis(written.as_bytes()), Some(now_ms.into()), "{written}");
    }
}
