//! Looks at a cell: what is left for each consumer, the overflow log of its receivers, and new webhooks.

use std::collections::BTreeSet;
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
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::StreamId;
use tokio::time::timeout;

use super::arrivals::ShopArrivals;
use super::drained::{ConsumerLeft, DrainLook, DrainScope, OverflowLook};
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
/// Gauge of a receiver: `SPILL_MAX`, or 0 without an overflow log.
const LIMIT: &str = "spillway_spill_limit_bytes";
/// Gauge of a receiver: webhooks in its overflow log.
const WEBHOOKS: &str = "spillway_spill_webhooks";

/// Looks at one cell, again and again.
pub(super) struct CellLooker {
    place: CellArgs,
    scope: DrainScope,
    /// Shops whose lanes are left out.
    except: BTreeSet<String>,
    /// Names of the consumers that are looked at; empty: all that the scope concerns.
    consumers: Vec<String>,
    /// Admin addresses of receivers.
    receivers: Vec<String>,
    client: HttpClient,
    connection: Option<(Redis, Connection)>,
    /// Only what was accepted up to this time is waited for, by Redis' clock.
    until_ms: Option<u64>,
    arrivals: Option<ShopArrivals>,
}

impl CellLooker {
    /// Prepares to look. Connects with the first look.
    pub(super) fn new(
        place: CellArgs,
        scope: DrainScope,
        except: BTreeSet<String>,
        consumers: Vec<String>,
        receivers: Vec<String>,
    ) -> Self {
        Self {
            place,
            scope,
            except,
            consumers,
            receivers,
            client: HttpClient::plain(),
            connection: None,
            until_ms: None,
            arrivals: None,
        }
    }

    /// Looks at the cell. After a failure, the next look connects again.
    pub(super) async fn look(&mut self) -> Result<DrainLook, Failure> {
        let (redis, mut connection) = self.connected().await?;
        // Read before the status: what is restored in between is a change of the number of accepted webhooks.
        let overflow = self.overflow(&redis, &mut connection).await?;
        let status = status::read(&redis, &mut connection).await?;
        let is_known = |name: &&String| status.consumers.iter().any(|known| known.name == **name);
        if let Some(name) = self.consumers.iter().find(|name| !is_known(name)) {
            return Err(unknown(name, &status));
        }
        let mut consumers = Vec::new();
        for consumer in status.consumers.iter().filter(|consumer| self.is_meant(consumer)) {
            consumers.push(self.left(&redis, &mut connection, consumer).await?);
        }
        consumers.extend(of_nobody(&status));
        let (arrived, is_blind) = self.arrived(&redis, &mut connection, &status).await?;
        self.connection = Some((redis, connection));
        Ok(DrainLook { accepted: status.queue.accepted, consumers, overflow, arrived, is_blind })
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
        match self.consumers.is_empty() {
            true => self.scope == DrainScope::All || consumer.delivers(),
            false => self.consumers.contains(&consumer.name),
        }
    }

    async fn left(
        &self,
        redis: &Redis,
        connection: &mut Connection,
        consumer: &ConsumerStatus,
    ) -> Result<ConsumerLeft, Failure> {
        let waiting = consumer.waiting;
        let webhooks = match &self.scope {
            _ if waiting == 0 => 0,
            DrainScope::All if self.except.is_empty() => waiting,
            DrainScope::All => {
                let reader = StreamReader::new(redis.clone(), &consumer.name);
                let rows = reader.lane_rows(connection).await?;
                let left_out = rows.iter().filter(|row| self.except.contains(&row.shop));
                waiting.saturating_sub(left_out.map(|row| row.waiting).sum())
            }
            DrainScope::SoFar => {
                let is_left = self.finds_older(redis, connection, consumer).await?;
                if is_left { waiting } else { 0 }
            }
            DrainScope::Shops(shops) => of_shops(&self.place, &consumer.name, shops).await?,
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
        let is_older =
            |row: &LaneRow| row.first.entry().ms <= until_ms && !self.except.contains(&row.shop);
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
        if restore::look(redis, connection).await?.is_empty() {
            return Ok(OverflowLook::Absent);
        }
        for address in &self.receivers {
            let url = format!("http://{address}/metrics");
            let asked = timeout(PATIENCE, self.client.get_up_to(&url, METRICS_BYTES_MAX)).await;
            let Ok(Ok(answer)) = asked else { continue };
            if answer.status == StatusCode::OK
                && let Some(webhooks) = overflow_of(&printable(&answer.body))
            {
                return Ok(OverflowLook::Webhooks(webhooks));
            }
        }
        Ok(OverflowLook::Unknown)
    }

    /// New webhooks of the shops since the last look, and true if too few of the new ones were seen. The first look
    /// begins to watch.
    async fn arrived(
        &mut self,
        redis: &Redis,
        connection: &mut Connection,
        status: &CellStatus,
    ) -> Result<(u64, bool), Failure> {
        let DrainScope::Shops(shops) = &self.scope else { return Ok((0, false)) };
        let accepted = status.queue.accepted;
        let arrived = self.arrivals.as_mut().map_or(0, ShopArrivals::take);
        let is_blind = self.arrivals.as_ref().is_some_and(|watch| watch.is_blind(accepted));
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

/// Counts what waits of some shops, by reading all of it.
async fn of_shops(
    place: &CellArgs,
    consumer: &str,
    shops: &Arc<BTreeSet<String>>,
) -> Result<u64, Failure> {
    let mut waiting = Waiting::for_consumer(place, consumer).await?;
    let own = shops.clone();
    let look = move |look: &Look<'_>| {
        u64::try_from(look.webhooks().filter(|met| own.contains(&met.shop())).count())
            .unwrap_or(u64::MAX)
    };
    let mut found = 0;
    let mut add = |webhooks: u64| -> ControlFlow<()> {
        found += webhooks;
        ControlFlow::Continue(())
    };
    waiting.main(look.clone(), &mut add).await?;
    // Read last: webhooks that leave the main stream while it is read would otherwise be missed.
    let mut lanes = waiting.lanes(&Filter::default()).await?;
    lanes.retain(|row| shops.contains(&row.shop));
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

/// Webhooks in the overflow log of a receiver, from its metrics; `None` if it has no log.
fn overflow_of(metrics: &str) -> Option<u64> {
    gauge(metrics, LIMIT).filter(|limit| *limit > 0)?;
    gauge(metrics, WEBHOOKS)
}

fn gauge(metrics: &str, name: &str) -> Option<u64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use spillway_queue::status::{LastSeen, LeaderInstance, LeaderStatus, QueueStatus};

    use super::*;

    #[test]
    fn only_a_receiver_with_an_overflow_log_reports_what_is_in_it() {
        let page = |limit: u64, webhooks: u64| {
            format!("# HELP {WEBHOOKS} Webhooks.\n{WEBHOOKS} {webhooks}\n{LIMIT} {limit}\n# EOF\n")
        };
        assert_eq!(overflow_of(&page(10, 3)), Some(3));
        assert_eq!(overflow_of(&page(10, 0)), Some(0));
        assert_eq!(overflow_of(&page(0, 0)), None, "SPILL_DIR is not set");
        assert_eq!(overflow_of("no metrics"), None);
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
