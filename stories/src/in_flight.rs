//! Webhooks in flight when a downstreamer was killed, and the repeats that the kill caused.
//!
//! A webhook is in flight if the backend was sent it and Redis does not hold it as settled. After
//! the process is killed, neither can change until another one takes over the queue.

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

/// Time within which a Redis that was also killed is back.
const REDIS_WITHIN: Duration = Duration::from_secs(20);

/// Settings of a downstreamer whose settled webhooks are counted. Deduplication would settle
/// webhooks that are never sent. Webhooks that were stored twice, after an unknown outcome, would
/// be such duplicates.
pub const COUNTED: Settings<'static> = &[("DEDUP_WINDOW", "0")];

/// State of a queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    /// Requests that the backend was sent.
    pub received: usize,
    /// Webhooks among them that were not settled.
    pub in_flight: usize,
}

/// Webhooks that the backend was sent more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// For each kill, requests between it and the next kill for a webhook sent before it.
    pub after_kill: Vec<usize>,
    /// Requests for a webhook that the same process had already sent.
    pub unprovoked: usize,
}

impl Stock {
    /// Kills the downstreamer of a cell and takes stock. No other one may be running.
    pub async fn at_kill(downstreamer: &mut Service, cell: &Cell, backend: &Backend) -> Self {
        downstreamer.kill9();
        backend.hung_up().await;
        Self::take(cell, backend).await
    }

    /// Takes stock while no downstreamer runs. Not for queues with dead letters or replays, which
    /// are settled in two places.
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
    /// Counts the repeats. `kills` holds all kills, in order.
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

/// Number of webhooks that the consumer has settled, up to its cursor and after it.
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
