//! Looks at a cell: what is left for each consumer, the overflow log of its receivers, and new webhooks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use spillway_queue::controls::Filter;
use spillway_queue::lane::LaneRow;
use spillway_queue::read::StreamReader;
use spillway_queue::replay::{self, ReplayState};
use spillway_queue::restore;
use spillway_queue::status::{self, CellStatus, ConsumerStatus};
use spillway_queue::{Connection, QueueError, Redis, consumers};
use spillway_webhook::StreamId;
use tokio::time::timeout;

use super::arrivals::ShopArrivals;
use super::drained::{ConsumerLeft, DrainLook, DrainScope, OverflowLook};
use super::overflow::{LogReport, overflow_of};
use crate::failure::Failure;
use crate::http::HttpClient;
use crate::out::printable;
use crate::place::{CellArgs, unknown};
use crate::status::state_of;
use crate::walk::{Look, Waiting};

/// Time for the answer of a receiver.
const PATIENCE: Duration = Duration::from_secs(2);
/// Metrics of a receiver that are read: many times as much as it has.
const METRICS_BYTES_MAX: usize = 4 << 20;

/// Webhooks of a cell that a drain waits for.
pub(super) struct DrainAim {
    /// Webhooks that are waited for.
    pub scope: DrainScope,
    /// Shops whose lanes are left out, in lower case.
    pub except: BTreeSet<String>,
    /// Names of the consumers that are looked at; empty: all that the scope concerns.
    pub consumers: Vec<String>,
    /// Admin addresses of all receivers.
    pub receivers: Vec<String>,
    /// True if a Redis without a cell, or a cell without consumers, counts as drained.
    pub allows_empty: bool,
}

/// Looks at one cell, again and again.
pub(super) struct CellLooker {
    place: CellArgs,
    aim: DrainAim,
    client: HttpClient,
    connection: Option<(Redis, Connection)>,
    /// Only what was accepted up to this time is waited for, by Redis' clock.
    until_ms: Option<u64>,
    arrivals: Option<ShopArrivals>,
    /// Shops of the scope of which webhooks were seen.
    met: BTreeSet<String>,
}

impl CellLooker {
    /// Prepares to look. Connects with the first look.
    pub(super) fn new(place: CellArgs, aim: DrainAim) -> Self {
        Self {
            place,
            aim,
            client: HttpClient::plain(),
            connection: None,
            until_ms: None,
            arrivals: None,
            met: BTreeSet::new(),
        }
    }

    /// Looks at the cell. After a failure, the next look connects again.
    pub(super) async fn look(&mut self) -> Result<DrainLook, Failure> {
        let (redis, mut connection) = self.connected().await?;
        // Read before the status: what is restored in between is a change of the number of accepted webhooks.
        let overflow = self.overflow(&redis, &mut connection).await?;
        let status = status::read(&redis, &mut connection).await?;
        let cell = consumers::cell(&redis, &mut connection).await?;
        if let Some(why) = nothing_in(cell, &status).filter(|_| !self.aim.allows_empty) {
            return Err(Failure::Failed(why.to_owned()));
        }
        let is_known = |name: &&String| status.consumers.iter().any(|known| known.name == **name);
        if let Some(name) = self.aim.consumers.iter().find(|name| !is_known(name)) {
            return Err(unknown(name, &status));
        }
        let meant = status.consumers.iter().filter(|consumer| self.is_meant(consumer));
        let meant: Vec<&ConsumerStatus> = meant.collect();
        let mut left = Vec::new();
        for consumer in meant {
            left.push(self.left(&redis, &mut connection, consumer).await?);
        }
        left.extend(of_nobody(&status));
        let (arrived, is_blind) = self.arrived(&redis, &mut connection, &status).await?;
        self.connection = Some((redis, connection));
        Ok(DrainLook {
            accepted: status.queue.accepted,
            consumers: left,
            overflow,
            arrived,
            is_blind,
            unseen: self.unseen(),
        })
    }

    /// From now on, only what was accepted by now is waited for.
    pub(super) async fn mark(&mut self) -> Result<(), Failure> {
        let (redis, mut connection) = self.connected().await?;
        let status = status::read(&redis, &mut connection).await?;
        // The clock may have been set back since.
        let last = newest(&redis, &mut connection, &status).await?;
        self.until_ms = Some(status.now_ms.max(last.ms));
        self.connection = Some((redis, connection));
        Ok(())
    }

    async fn connected(&mut self) -> Result<(Redis, Connection), Failure> {
        match self.connection.take() {
            Some(connected) => Ok(connected),
            None => self.place.connect().await,
        }
    }

    /// True if a consumer is waited for. An archive keeps no order between cells, so only a cell that shall be empty
    /// waits for it.
    fn is_meant(&self, consumer: &ConsumerStatus) -> bool {
        match self.aim.consumers.is_empty() {
            true => self.aim.scope == DrainScope::All || consumer.delivers(),
            false => self.aim.consumers.contains(&consumer.name),
        }
    }

    fn is_excepted(&self, row: &LaneRow) -> bool {
        self.aim.except.contains(&row.shop.to_ascii_lowercase())
    }

    /// Shops that are waited for, and of which no webhook was seen so far.
    fn unseen(&self) -> BTreeSet<String> {
        match &self.aim.scope {
            DrainScope::Shops(shops) => shops.difference(&self.met).cloned().collect(),
            DrainScope::All | DrainScope::SoFar => BTreeSet::new(),
        }
    }

    async fn left(
        &mut self,
        redis: &Redis,
        connection: &mut Connection,
        consumer: &ConsumerStatus,
    ) -> Result<ConsumerLeft, Failure> {
        let waiting = consumer.waiting;
        let webhooks = match &self.aim.scope {
            _ if waiting == 0 => 0,
            DrainScope::All if self.aim.except.is_empty() => waiting,
            DrainScope::All => {
                let reader = StreamReader::new(redis.clone(), &consumer.name);
                let rows = reader.lane_rows(connection).await?;
                let left_out = rows.iter().filter(|row| self.is_excepted(row));
                waiting.saturating_sub(left_out.map(|row| row.waiting).sum())
            }
            DrainScope::SoFar => {
                let is_left = self.finds_older(redis, connection, consumer).await?;
                if is_left { waiting } else { 0 }
            }
            DrainScope::Shops(shops) => {
                let found = of_shops(&self.place, &consumer.name, shops).await?;
                let webhooks: u64 = found.values().sum();
                self.met.extend(found.into_keys());
                webhooks
            }
        };
        let replays = replay::list(redis, connection, &consumer.name).await?;
        let replays = replays.iter().filter(|record| record.state == ReplayState::Running).count();
        Ok(ConsumerLeft {
            name: consumer.name.clone(),
            webhooks,
            replays: u64::try_from(replays).unwrap_or(u64::MAX),
            held: held(consumer),
            dead_letters: consumer.dead.letters,
        })
    }

    /// True if a webhook waits that was accepted until the mark. Without a mark, that is any.
    async fn finds_older(
        &self,
        redis: &Redis,
        connection: &mut Connection,
        consumer: &ConsumerStatus,
    ) -> Result<bool, QueueError> {
        let Some(until_ms) = self.until_ms else { return Ok(true) };
        let cursor: StreamId = consumer.cursor.parse().unwrap_or(StreamId::ZERO);
        let reader = StreamReader::new(redis.clone(), &consumer.name);
        let first = reader.main_after(connection, cursor, 1).await?;
        if first.first().is_some_and(|entry| entry.id.ms <= until_ms) {
            return Ok(true);
        }
        // Read after the main stream, which webhooks leave for their lane. The age in the status may be older than
        // the rows, which are written with each change.
        let is_older = |row: &LaneRow| row.first.entry().ms <= until_ms && !self.is_excepted(row);
        if reader.lane_rows(connection).await?.iter().any(is_older) {
            return Ok(true);
        }
        let replays = reader.replays_after(connection, StreamId::ZERO, 1).await?;
        Ok(!replays.is_empty())
    }

    async fn overflow(
        &self,
        redis: &Redis,
        connection: &mut Connection,
    ) -> Result<OverflowLook, Failure> {
        let claim = restore::look(redis, connection).await?;
        let mut reports = Vec::new();
        for address in &self.aim.receivers {
            reports.push(self.report(address).await);
        }
        Ok(overflow_of(&claim, &reports))
    }

    /// Asks a receiver for the state of its overflow log.
    async fn report(&self, address: &str) -> LogReport {
        let url = format!("http://{address}/metrics");
        match timeout(PATIENCE, self.client.get_up_to(&url, METRICS_BYTES_MAX)).await {
            Ok(Ok(answer)) if answer.status == StatusCode::OK => {
                LogReport::parse(&printable(&answer.body))
            }
            Ok(Ok(_) | Err(_)) | Err(_) => LogReport::Silent,
        }
    }

    /// New webhooks of the shops since the last look, and true if too few of the new ones were seen. The first look
    /// begins to watch.
    async fn arrived(
        &mut self,
        redis: &Redis,
        connection: &mut Connection,
        status: &CellStatus,
    ) -> Result<(u64, bool), Failure> {
        let DrainScope::Shops(shops) = &self.aim.scope else { return Ok((0, false)) };
        let accepted = status.queue.accepted;
        let arrived = self.arrivals.as_mut().map_or(0, ShopArrivals::take);
        let is_blind = self.arrivals.as_ref().is_some_and(|watch| watch.is_blind(accepted));
        if let Some(watch) = self.arrivals.as_ref().filter(|_| arrived > 0) {
            self.met.extend(watch.shops_met());
        }
        if is_blind || self.arrivals.is_none() {
            let after = newest(redis, connection, status).await?;
            let watch = ShopArrivals::start(redis.clone(), shops.clone(), after, accepted);
            self.arrivals = Some(watch);
        }
        Ok((arrived, is_blind))
    }
}

/// Id of the newest entry. The stream exists from the first pack or consumer on.
async fn newest(
    redis: &Redis,
    connection: &mut Connection,
    status: &CellStatus,
) -> Result<StreamId, QueueError> {
    if status.consumers.is_empty() && status.queue.packs == 0 {
        return Ok(StreamId::ZERO);
    }
    StreamReader::new(redis.clone(), "").last(connection).await
}

/// Reason why nothing can wait in this Redis, and what to do if something should; `None` if something can. Most often,
/// another Redis is meant.
fn nothing_in(cell: Option<u32>, status: &CellStatus) -> Option<&'static str> {
    if cell.is_none() {
        return Some(
            "no cell is in this redis: no receiver or consumer ever used it with this prefix. Check REDIS_URL, its \
             database too, and REDIS_PREFIX. With --allow-empty it counts as drained",
        );
    }
    let is_unused = status.consumers.is_empty() && status.queue.webhooks == 0;
    is_unused.then_some(
        "no consumer is registered in this cell, and nothing is stored in it. Check that it is the cell that you mean: \
         REDIS_URL and REDIS_PREFIX. With --allow-empty it counts as drained",
    )
}

/// Webhooks of a cell without consumers.
fn of_nobody(status: &CellStatus) -> Option<ConsumerLeft> {
    let is_left = status.consumers.is_empty() && status.queue.webhooks > 0;
    is_left.then(|| ConsumerLeft {
        name: "no consumer".to_owned(),
        webhooks: status.queue.webhooks,
        held: Some("none is registered: start a downstreamer".to_owned()),
        ..ConsumerLeft::default()
    })
}

/// Counts what waits of each of some shops, by reading all of it.
async fn of_shops(
    place: &CellArgs,
    consumer: &str,
    shops: &Arc<BTreeSet<String>>,
) -> Result<BTreeMap<String, u64>, Failure> {
    let mut waiting = Waiting::for_consumer(place, consumer).await?;
    let own = shops.clone();
    let look = move |look: &Look<'_>| {
        let shops = look.webhooks().map(|met| met.shop().to_ascii_lowercase());
        let mut counts = BTreeMap::<String, u64>::new();
        shops
            .filter(|shop| own.contains(shop))
            .for_each(|shop| *counts.entry(shop).or_default() += 1);
        counts
    };
    let mut found = BTreeMap::<String, u64>::new();
    let mut add = |counts: BTreeMap<String, u64>| -> ControlFlow<()> {
        for (shop, webhooks) in counts {
            *found.entry(shop).or_default() += webhooks;
        }
        ControlFlow::Continue(())
    };
    waiting.main(look.clone(), &mut add).await?;
    // Read last: webhooks that leave the main stream while it is read would otherwise be missed.
    let mut lanes = waiting.lanes(&Filter::default()).await?;
    lanes.retain(|row| shops.contains(&row.shop.to_ascii_lowercase()));
    waiting.aside(&lanes, look, &mut add).await?;
    Ok(found)
}

/// Reason why a consumer does not go on, or what its leader reports; `None` if it works as usual.
fn held(consumer: &ConsumerStatus) -> Option<String> {
    if !consumer.has_live_leader() {
        return Some("no leader runs".to_owned());
    }
    if !consumer.pauses.is_empty() {
        return Some("paused by an operator".to_owned());
    }
    let state = state_of(consumer).filter(|state| state.contains([':', ';']))?;
    Some(printable(state.as_bytes()))
}

#[cfg(test)]
mod tests {
    use spillway_queue::status::{LastSeen, LeaderInstance, LeaderStatus, QueueStatus};

    use super::*;

    #[test]
    fn a_redis_without_a_cell_or_consumers_is_not_taken_for_a_drained_cell() {
        let mut status = CellStatus::default();
        assert!(nothing_in(None, &status).is_some_and(|told| told.contains("no cell")));
        assert!(nothing_in(Some(1), &status).is_some_and(|told| told.contains("no consumer")));
        status.queue = QueueStatus { webhooks: 3, ..QueueStatus::default() };
        assert_eq!(nothing_in(Some(1), &status), None, "they are waited for");
        status = CellStatus { consumers: vec![ConsumerStatus::default()], ..CellStatus::default() };
        assert_eq!(nothing_in(Some(1), &status), None);
    }

    #[test]
    fn webhooks_without_a_consumer_are_left() {
        let mut status = CellStatus::default();
        assert_eq!(of_nobody(&status), None);
        status.queue = QueueStatus { webhooks: 3, ..QueueStatus::default() };
        assert_eq!(of_nobody(&status).map(|left| left.webhooks), Some(3));
        status.consumers.push(ConsumerStatus::default());
        assert_eq!(of_nobody(&status), None);
    }

    #[test]
    fn a_consumer_that_does_not_go_on_says_why() {
        assert_eq!(held(&ConsumerStatus::default()).as_deref(), Some("no leader runs"));
        let with = |state: &str| {
            let (host, state) = ("a".to_owned(), state.to_owned());
            let instance = Some(LeaderInstance { host, pid: 1, state });
            let leader = Some(LeaderStatus { token: "t".to_owned(), instance });
            let last_seen = LastSeen { ago_seconds: Some(0.5), at_ms: 1 };
            held(&ConsumerStatus { leader, last_seen, ..ConsumerStatus::default() })
        };
        assert_eq!(with("ready"), None);
        assert_eq!(with("ready; 2 lanes wait").as_deref(), Some("ready; 2 lanes wait"));
    }
}
