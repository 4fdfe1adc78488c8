//! What was in flight when a downstreamer was killed, and what was repeated for it.
//!
//! In flight is what the backend had been sent and Redis does not hold as settled. With the
//! process gone neither can change, until another one takes the queue over.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use redis::RedisResult;

use crate::backend::Backend;
use crate::cell::{Cell, Settings};
use crate::receipt::Receipt;
use crate::redis_server::{connect, socket_in};
use crate::service::Service;
use crate::until::until_some;

/// A Redis that was killed too is back within this time.
const REDIS_WITHIN: Duration = Duration::from_secs(20);

/// For a downstreamer whose settled webhooks are counted: a duplicate is settled and never sent,
/// and a webhook whose storing was in doubt is sent again.
pub const COUNTED: Settings<'static> = &[("DEDUP_WINDOW", "0")];

/// Where a queue stood at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    /// Requests the backend had been sent.
    pub received: usize,
    /// Webhooks among them that were not settled.
    pub in_flight: usize,
}

/// What the backend was sent more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// For each kill, requests between it and the next one for a webhook sent before it.
    pub after_kill: Vec<usize>,
    /// Requests for a webhook already sent by the same process.
    pub unprovoked: usize,
}

impl Stock {
    /// Kills the downstreamer of a cell and takes stock. There may be no other at work.
    pub async fn at_kill(downstreamer: &mut Service, cell: &Cell, backend: &Backend) -> Self {
        downstreamer.kill9();
        backend.hung_up().await;
        Self::take(cell, backend).await
    }

    /// Takes stock while nobody delivers. Not for queues with dead letters or replays: those are
    /// settled in two places.
    pub async fn take(cell: &Cell, backend: &Backend) -> Self {
        let socket = socket_in(cell.directory());
        let ask = async || settled(&socket).await.ok();
        let settled = until_some("redis says what is settled", REDIS_WITHIN, ask).await;
        backend.look(|receipts| {
            let sent: HashSet<&str> = receipts.iter().map(Receipt::spillway_id).collect();
            let in_flight = sent.len().checked_sub(settled);
            let in_flight = in_flight
                .unwrap_or_else(|| panic!("{settled} are settled, {} were sent", sent.len()));
            Self { received: receipts.len(), in_flight }
        })
    }
}

impl Repeats {
    /// Counts. `kills` are all there were, in order.
    pub fn count(receipts: &[Receipt], kills: &[Stock]) -> Self {
        let ids = receipts.iter().map(Receipt::spillway_id);
        Self::count_ids(ids, kills)
    }

    fn count_ids<'a>(ids: impl Iterator<Item = &'a str>, kills: &[Stock]) -> Self {
        let mut repeats = Self { after_kill: vec![0; kills.len()], unprovoked: 0 };
        let mut last_sent_after: HashMap<&str, usize> = HashMap::new();
        for (number, id) in ids.enumerate() {
            let kills_before = kills.iter().filter(|kill| kill.received <= number).count();
            match last_sent_after.insert(id, kills_before) {
                None => {}
                Some(before) if before < kills_before => repeats.after_kill[kills_before - 1] += 1,
                Some(_) => repeats.unprovoked += 1,
            }
        }
        repeats
    }

    /// Fails the test if a kill repeated more than was in flight.
    #[track_caller]
    pub fn expect_in_flight(&self, kills: &[Stock]) {
        for (kill, repeated) in kills.iter().zip(&self.after_kill) {
            assert!(*repeated <= kill.in_flight, "{repeated} repeats: {kill:?} of {kills:?}");
        }
    }
}

/// How many webhooks the drain has settled, up to its cursor and behind it.
async fn settled(socket: &Path) -> RedisResult<usize> {
    let mut connection = connect(socket).await?;
    let mut pipe = redis::pipe();
    pipe.cmd("HMGET").arg("{spillway}:counts").arg("through:http").arg("open:http");
    pipe.cmd("HLEN").arg("{spillway}:http:lanes");
    pipe.cmd("XLEN").arg("{spillway}:http:dead");
    let (counts, lanes, dead): ([Option<usize>; 2], usize, usize) =
        pipe.query_async(&mut connection).await?;
    assert_eq!((lanes, dead), (0, 0), "lanes and dead letters");
    Ok(counts.into_iter().flatten().sum())
}

#[cfg(test)]
mod tests {
    use super::{Repeats, Stock};

    #[test]
    fn repeats_are_told_by_the_kill_before_them() {
        let kills = [(2, 2), (5, 2)].map(|(received, in_flight)| Stock { received, in_flight });
        let sent = ["a", "b", /* killed */ "b", "a", "c", /* killed */ "c", "d", "d"];
        let repeats = Repeats::count_ids(sent.into_iter(), &kills);
        assert_eq!(repeats, Repeats { after_kill: vec![2, 1], unprovoked: 1 });
        repeats.expect_in_flight(&kills);
    }
}
