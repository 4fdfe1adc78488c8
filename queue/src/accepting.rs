//! Times in which receivers accepted webhooks. In the others nothing could come, which is no silence of a shop.
//!
//! Stored as one text: the time until which webhooks were accepted, and the holes before that. The script merges what
//! several receivers report: a hole is a time in which none of them accepted any.

use std::time::Duration;

use redis::{Script, cmd};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::gaps::{KEPT_FOR, NOTES_MAX};

/// Holes that are kept: some 3 KB. The oldest of the rest count as time in which webhooks could come.
const HOLES_KEPT: usize = 100;

/// Time in which a receiver accepted webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedTime {
    /// Begin, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// End, in milliseconds since the Unix epoch.
    pub to_ms: u64,
}

/// Times in which no receiver accepted webhooks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedTimes(Vec<(u64, u64)>);

impl ClosedTimes {
    /// Milliseconds of these times that lie between two times.
    pub fn between(&self, from_ms: u64, to_ms: u64) -> u64 {
        let parts = self.0.iter();
        parts.map(|(from, to)| to_ms.min(*to).saturating_sub(from_ms.max(*from))).sum()
    }

    fn parse(text: &str) -> Self {
        let mut numbers = text.split(' ').map_while(|number| number.parse::<u64>().ok()).skip(1);
        let mut times = Vec::new();
        while let (Some(from), Some(to)) = (numbers.next(), numbers.next()) {
            times.push((from, to));
        }
        Self(times)
    }
}

/// Reports times in which a receiver accepted webhooks, oldest first, also to a full Redis. `now_ms` is the receiver's clock.
/// With the first report of a
/// process, `noted` is given: a hole before it that is as long is noted as a gap, once.
///
/// # Errors
/// [`QueueError`] from Redis. The same times may be reported again.
pub async fn report(
    redis: &Redis,
    connection: &mut Connection,
    times: &[AcceptedTime],
    noted: Option<Duration>,
    now_ms: u64,
) -> Result<(), QueueError> {
    let script = Script::new(include_str!("lua/accepting.lua"));
    let mut call = script.key(redis.keys.gaps_accepting());
    call.key(redis.keys.gaps());
    call.arg(noted.map(|least| millis(least).to_string()).unwrap_or_default());
    call.arg(NOTES_MAX).arg(millis(KEPT_FOR)).arg(HOLES_KEPT).arg(now_ms);
    for time in times {
        call.arg(time.from_ms).arg(time.to_ms);
    }
    let _: u64 = call.invoke_async(connection).await?;
    Ok(())
}

/// Reads the times in which no receiver accepted webhooks.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn read(redis: &Redis, connection: &mut Connection) -> Result<ClosedTimes, QueueError> {
    let text: Option<String> =
        cmd("GET").arg(redis.keys.gaps_accepting()).query_async(connection).await?;
    Ok(ClosedTimes::parse(&text.unwrap_or_default()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_times_are_read_as_the_script_writes_them() {
        let closed = ClosedTimes::parse("900 100 200 300 350");
        assert_eq!(closed, ClosedTimes(vec![(100, 200), (300, 350)]));
        assert_eq!(closed.between(0, 1000), 150);
        assert_eq!(closed.between(150, 320), 70);
        assert_eq!(closed.between(210, 290), 0);
        assert_eq!(closed.between(320, 150), 0, "a clock that was set back");
        assert_eq!(ClosedTimes::parse(""), ClosedTimes::default());
        assert_eq!(ClosedTimes::parse("900 100"), ClosedTimes::default());
    }
}
