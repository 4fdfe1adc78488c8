//! Writes the state of all consumers beside the objects, so that a queue whose disk is lost can be restored from
//! the archive. It runs beside the session, and nothing waits for it.

use std::convert::Infallible;
use std::time::Duration;

use spillway_archive::checkpoint::{self, DONE_MAX, LANES_MAX};
use spillway_archive::store::ArchiveUrl;
use spillway_archive::{ArchiveStore, Checkpoint, ConsumerCheckpoint, LaneMark};
use spillway_process::error::chain;
use spillway_process::failure_log::FailureLog;
use spillway_queue::Connection;
use spillway_queue::checkpoint::{ConsumerState, QueueState, read_state};
use spillway_queue::lane::LaneRow;
use spillway_webhook::lane_hash;
use tokio::time::{Instant, sleep};

use crate::access::ArchiveAccess;

/// Shortest time between two checkpoints. A put costs as much as an object; 10 s are 8,640 a day.
const EVERY_MIN: Duration = Duration::from_secs(10);
/// Checkpoints in the longest time that a webhook waits for its object. What was delivered after the last one is
/// delivered again after a restoration, so it should be newer than most of what an archive lacks.
const IN_MAX_DELAY: u32 = 6;
/// Shortest time while a consumer has more lanes than are kept: all rows are read each time, and a million are 300 MB.
const EVERY_MANY: Duration = Duration::from_secs(60);
const _: () =
    assert!(EVERY_MIN.as_secs() < EVERY_MANY.as_secs(), "many lanes are read more rarely");
/// Time after which a checkpoint is written again although nothing changed: somebody may have deleted it, or a late write
/// of a former leader may have taken its place.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Time limit for an answer of Redis.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection, and the state that was written last.
struct CheckpointWriter<'a> {
    access: &'a ArchiveAccess,
    /// False until something of this cell was found in the archive, if an earlier leader archived something.
    is_right_place: bool,
    connection: Option<Connection>,
    written: Option<(Checkpoint, Instant)>,
    /// True if a consumer has more lanes than are kept.
    has_many_lanes: bool,
    /// Rows of lanes that could not be read last time.
    unreadable: u64,
}

/// Writes a checkpoint whenever the state is another one, for as long as this instance leads. With `has_archived`, an
/// earlier leader archived something: an archive without it is probably another place, and gets no checkpoint before
/// its first object. `spillway forget` takes one for a sign that the archive is there.
pub(crate) async fn run(access: &ArchiveAccess, has_archived: bool) -> Infallible {
    let every = every(access.instance.settings.max_delay);
    let mut writer = CheckpointWriter {
        access,
        is_right_place: !has_archived,
        connection: None,
        written: None,
        has_many_lanes: false,
        unreadable: 0,
    };
    let mut failures = FailureLog::default();
    loop {
        match writer.write_if_changed().await {
            Ok(now_ms) => {
                let seconds = i64::try_from(now_ms / 1_000).unwrap_or(i64::MAX);
                access.instance.metrics.checkpoint.set(seconds);
                if failures.on_success() {
                    tracing::info!("the checkpoint of the consumers is written again");
                }
            }
            Err(error) => {
                writer.connection = None;
                if let Some(failures) = failures.on_failure(Instant::now()) {
                    tracing::warn!(
                        error,
                        failures,
                        "the checkpoint of the consumers could not be written; trying again"
                    );
                }
            }
        }
        sleep(if writer.has_many_lanes { every.max(EVERY_MANY) } else { every }).await;
    }
}

impl CheckpointWriter<'_> {
    /// Returns the time at which the state was read, in milliseconds since the Unix epoch.
    async fn write_if_changed(&mut self) -> Result<u64, String> {
        let access = self.access;
        let cell = access.leader.cell;
        let redis = &access.instance.settings.common.redis;
        if self.connection.is_none() {
            let connected = redis.connect(Some(ANSWER_TIMEOUT)).await;
            self.connection = Some(connected.map_err(|error| chain(&error))?);
        }
        let connection = self.connection.as_mut().expect("BUG: just connected");
        let done_max = u64::try_from(DONE_MAX).unwrap_or(u64::MAX);
        // One more than are kept: its first position is that of all others.
        let state = read_state(redis, connection, done_max, LANES_MAX + 1).await;
        let state = state.map_err(|error| chain(&error))?;
        // The consumers of another cell, or none at all, must not take the place of ours.
        if state.cell.as_deref() != Some(&*format!("{cell:08x}")) {
            return Err("redis does not hold this cell any more".to_owned());
        }
        self.has_many_lanes = state.consumers.iter().any(|one| one.lanes.rows.len() > LANES_MAX);
        let unreadable: u64 = state.consumers.iter().map(|one| one.lanes.unreadable).sum();
        if unreadable > self.unreadable {
            tracing::error!(
                rows = unreadable,
                "rows of lanes can't be read, so the checkpoint of the consumers lacks them"
            );
        }
        self.unreadable = unreadable;
        let checkpoint = of_state(cell, state);
        let read_at_ms = checkpoint.read_at_ms;
        let is_written = self.written.as_ref().is_some_and(|(written, at)| {
            written.is_same_state(&checkpoint) && at.elapsed() < AGAIN_AFTER
        });
        if is_written {
            return Ok(read_at_ms);
        }
        // A leader that lost its lease must not write over what the next one has written since.
        access.leased().await;
        let store = ArchiveStore::open(&access.instance.settings.url);
        let store = store.map_err(|error| access.failed(&error))?;
        if !self.is_right_place {
            let found = checkpoint::holds_nothing_of(&store, cell).await;
            if found.map_err(|error| access.failed(&error))? {
                return Err(nothing_there(cell, &access.instance.settings.url));
            }
            self.is_right_place = true;
        }
        let written = checkpoint::write(&store, cell, &checkpoint).await;
        written.map_err(|error| access.failed(&error))?;
        self.written = Some((checkpoint, Instant::now()));
        Ok(read_at_ms)
    }
}

/// Text for an archive that lacks what earlier leaders wrote.
fn nothing_there(cell: u32, url: &ArchiveUrl) -> String {
    format!(
        "nothing of cell {cell:08x} is in the archive {url} although something was archived: is it the right place? The \
         checkpoint is written after the first object"
    )
}

/// Time between two checkpoints.
fn every(max_delay: Duration) -> Duration {
    (max_delay / IN_MAX_DELAY).max(EVERY_MIN)
}

fn of_state(cell: u32, state: QueueState) -> Checkpoint {
    let consumers = state.consumers.into_iter().map(of_consumer).collect();
    let mut checkpoint = Checkpoint::new(cell, state.now_ms, consumers);
    checkpoint.last = state.last;
    checkpoint.appended = state.appended;
    checkpoint.redactions = state.redactions.iter().map(ToString::to_string).collect();
    checkpoint
}

fn of_consumer(state: ConsumerState) -> ConsumerCheckpoint {
    let kind = state.kind.map(|kind| kind.label().to_owned());
    let mut consumer = ConsumerCheckpoint::new(state.name, kind, state.progress.cursor);
    consumer.set_lanes(state.lanes.rows.iter().map(of_lane).collect());
    consumer.unreadable = state.lanes.unreadable;
    consumer.set_done(state.progress.done.into_iter());
    consumer
}

fn of_lane(row: &LaneRow) -> LaneMark {
    let shop = row.shop.as_bytes();
    let known = [lane_hash::of_kind(shop, row.kind.as_bytes()), lane_hash::of_shop(shop)];
    // Before Events were known, their kinds were the names of their types. A webhook of such a lane is not found by
    // its kind today.
    let is_known = known.contains(&row.lane) && !row.kind.starts_with(char::is_uppercase);
    LaneMark {
        lane: is_known.then_some(row.lane),
        shop: lane_hash::of_domain(shop),
        first: row.first,
        waiting: row.waiting,
    }
}

#[cfg(test)]
mod tests {
    use spillway_queue::lane::KeyScheme;
    use spillway_webhook::{Position, Spans};

    use super::*;

    fn row(lane: u64, kind: &str) -> LaneRow {
        LaneRow {
            lane,
            shop: "a.example".to_owned(),
            kind: kind.to_owned(),
            scheme: KeyScheme::Kind,
            first_chunk: 1,
            last_chunk: 1,
            waiting: 3,
            first: Position { ms: 4, seq: 0, index: 1 },
            last: Position { ms: 7, seq: 0, index: 0 },
            failing: Spans::default(),
            tripped: false,
            suspect: false,
        }
    }

    #[test]
    fn a_lane_of_earlier_rules_stands_for_all_of_its_shop() {
        let shop = b"a.example";
        let known = lane_hash::of_kind(shop, b"order");
        let mark = of_lane(&row(known, "order"));
        assert_eq!((mark.lane, mark.shop), (Some(known), lane_hash::of_domain(shop)));
        assert_eq!((mark.first.ms, mark.waiting), (4, 3));
        assert_eq!(
            of_lane(&row(lane_hash::of_shop(shop), "")).lane,
            Some(lane_hash::of_shop(shop))
        );
        assert_eq!(of_lane(&row(7, "order")).lane, None);
        assert_eq!(of_lane(&row(lane_hash::of_kind(shop, b"Order"), "Order")).lane, None);
    }

    #[test]
    fn checkpoints_come_several_times_in_the_longest_delay_and_at_most_every_ten_seconds() {
        assert_eq!(every(Duration::from_secs(1)), EVERY_MIN);
        assert_eq!(every(Duration::from_secs(60)), EVERY_MIN);
        assert_eq!(every(Duration::from_secs(3_600)), Duration::from_secs(600));
    }
}
