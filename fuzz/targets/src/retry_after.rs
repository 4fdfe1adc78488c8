//! Any status with any Retry-After.
//!
//! Properties: no pause is longer than the longest one. Digits are seconds, however many there are.
//! A value that is neither digits nor a date is no pause. 2xx means delivered, whatever else the
//! answer contains.

use std::time::{Duration, SystemTime};

use downstreamer::judge::{AttemptOutcome, judge_at, parse_scope};
use spillway_delivery::Verdict;

const LONGEST: Duration = Duration::from_secs(600);

/// Runs the target. The input is two bytes of status and the value of the header.
pub fn run(data: &[u8]) {
    let [high, low, text @ ..] = data else { return };
    let status = 100 + u16::from_be_bytes([*high, *low]) % 500;
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (pauses, now) = (parse_scope(text), SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 31));
    let outcome = AttemptOutcome::Answered { status, retry_after: Some(text.to_owned()), pauses };
    match judge_at(&outcome, &[410], LONGEST, now) {
        Verdict::Delivered => assert!((200..300).contains(&status)),
        Verdict::Dead { .. } => assert_eq!(status, 410),
        Verdict::NotSent => panic!("an answer means that it was sent"),
        Verdict::Retry { pause, .. } => {
            assert!(pause <= LONGEST && !(200..300).contains(&status) && status != 410);
            let digits = text.trim();
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            if is_number && !digits.is_empty() {
                let seconds = digits.parse().unwrap_or(u64::MAX);
                assert_eq!(pause, LONGEST.min(Duration::from_secs(seconds)));
            } else if !digits.contains("GMT") && digits.len() < 20 {
                assert_eq!(pause, Duration::ZERO);
            }
        }
    }
}
