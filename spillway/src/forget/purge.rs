//! A purge: all stores of the cell, one after the other, then its record and the rewrite of the AOF.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_archive::args::ArchiveArgs;
use spillway_process::error::chain;
use spillway_queue::consumers::{self, ARCHIVE};
use spillway_queue::dead::now_ms;
use spillway_queue::purge_lease::{LEASE, PurgeLease};
use spillway_queue::redactions;
use spillway_queue::replay::{self, ReplayRecord, ReplayState};
use spillway_queue::rewrite::{self, RewriteOutcome};
use spillway_queue::status::{self, CellStatus};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::{Position, StreamId};

use super::archived::{ArchivePurge, LeftObjects, SearchedCell};
use super::finished::FinishedDays;
use super::order::PurgeOrders;
use super::remains::{RemainsLook, corrupt};
use super::report::PurgeReport;
use super::{dead, spill, waiting};
use crate::archive;
use crate::failure::Failure;
use crate::out::count;
use crate::place::CellArgs;

/// Time for a rewrite of the AOF. Redis writes 100 MB a second and more.
const REWRITE_PATIENCE: Duration = Duration::from_secs(600);

/// Time between two renewals of the lease.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Time without a renewal after which a purge stops: another one may begin soon.
const UNRENEWED_MAX: Duration = Duration::from_secs(40);
const _: () = assert!(UNRENEWED_MAX.as_secs() + RENEW_EVERY.as_secs() < LEASE.as_secs());

/// Reach of a purge, beside what its orders say.
#[derive(Debug, Clone)]
pub(super) struct PurgeReach {
    /// Cells beside the own one.
    pub cells: Vec<u32>,
    /// Time after its writing from which an object is touched.
    pub settled_after: Duration,
    /// Time for which it waits until nothing is left in Redis.
    pub patience: Duration,
    /// True for an order by hand: an overflow log that was not looked at is reported.
    pub is_by_hand: bool,
}

/// Everything that a purge works on.
pub(super) struct PurgePlace {
    place: CellArgs,
    archive: ArchiveArgs,
    spill_dir: Option<PathBuf>,
    reach: PurgeReach,
    /// Redis of the cell.
    pub redis: Redis,
    /// Connection to it.
    pub connection: Connection,
    /// Status when the command began.
    pub status: CellStatus,
}

impl PurgePlace {
    /// Connects to Redis. The archive is opened when it is needed.
    pub(super) async fn open(
        place: CellArgs,
        archive: ArchiveArgs,
        spill_dir: Option<PathBuf>,
        reach: PurgeReach,
    ) -> Result<Self, Failure> {
        let (redis, mut connection) = place.connect().await?;
        let status = status::read(&redis, &mut connection).await?;
        let spill_dir = spill_dir.filter(|directory| !directory.as_os_str().is_empty());
        Ok(Self { place, archive, spill_dir, reach, redis, connection, status })
    }

    /// Purges, while it has the lease. Returns `None` if another purge is at work. A dry run needs no lease.
    pub(super) async fn run(
        &mut self,
        orders: &PurgeOrders,
        is_dry_run: bool,
    ) -> Result<Option<PurgeReport>, Failure> {
        if is_dry_run {
            return self.purge(orders, None).await.map(Some);
        }
        let (redis, mut connection) = self.place.connect().await?;
        let Some(lease) = PurgeLease::take(&redis, &mut connection).await? else { return Ok(None) };
        let ended = tokio::select! {
            ended = self.purge(orders, Some(&lease)) => ended,
            failure = renew(&lease, &mut connection) => Err(failure),
        };
        // Otherwise it ends by itself.
        lease.release(&mut connection).await.ok();
        ended.map(Some)
    }

    /// Purges. With a lease, writes the record, and rewrites the AOF if nothing is left. Without one, it is a dry run.
    async fn purge(
        &mut self,
        orders: &PurgeOrders,
        lease: Option<&PurgeLease>,
    ) -> Result<PurgeReport, Failure> {
        let began = Instant::now();
        let mut report = PurgeReport { is_dry_run: lease.is_none(), ..PurgeReport::default() };
        self.replays(orders, &mut report).await?;
        self.queue(orders, &mut report).await?;
        self.overflow(orders, &mut report).await?;
        self.archived(orders, lease, &mut report).await?;
        let redis = &self.redis;
        report.counts.corrupt += corrupt(redis, &mut self.connection, orders).await?;
        if report.counts.corrupt > 0 {
            report.notes.push(format!(
                "{} that cannot be decoded shows data of somebody who is meant, in the archive or under corrupt: in \
                 Redis; delete it by hand",
                count(report.counts.corrupt, "pack"),
            ));
        }
        if report.is_dry_run {
            return Ok(report);
        }
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = report.record(orders, took_ms);
        if report.is_complete() {
            let done = orders.notes();
            let connection = &mut self.connection;
            let mark = redactions::record(&self.redis, connection, &record, Some(&done)).await?;
            self.rewrite(&mark, &mut report).await?;
        } else if !report.counts.is_empty() {
            redactions::record(&self.redis, &mut self.connection, &record, None).await?;
        }
        Ok(report)
    }

    /// Rewrites the AOF, so that no file of Redis holds what was purged, and removes the mark of the purge.
    pub(super) async fn rewrite(
        &mut self,
        mark: &str,
        report: &mut PurgeReport,
    ) -> Result<(), Failure> {
        match rewrite::complete(&mut self.connection, REWRITE_PATIENCE).await {
            Ok(RewriteOutcome::Rewritten) => {}
            Ok(RewriteOutcome::NoAof) => report.notes.push("Redis has no AOF".to_owned()),
            Ok(RewriteOutcome::NotAllowed) => {
                let note =
                    "this Redis does not let us rewrite its AOF: it does that when it chooses to";
                report.notes.push(note.to_owned());
            }
            Ok(RewriteOutcome::Failed) => {
                report.pending.push("Redis could not rewrite its AOF: see its log".to_owned());
                return Ok(());
            }
            Ok(RewriteOutcome::Unfinished) => {
                report.pending.push("Redis is still rewriting its AOF".to_owned());
                return Ok(());
            }
            Err(error @ QueueError::Refused(_)) => {
                report.pending.push(format!("Redis does not rewrite its AOF: {}", chain(&error)));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(redactions::rewritten(&self.redis, &mut self.connection, mark).await?)
    }

    /// Waiting webhooks and dead letters of each consumer.
    async fn queue(
        &mut self,
        orders: &PurgeOrders,
        report: &mut PurgeReport,
    ) -> Result<(), Failure> {
        let shared = Arc::new(orders.clone());
        for consumer in &self.status.consumers {
            waiting::drop_waiting(&self.place, consumer, &shared, report).await?;
        }
        if !report.is_dry_run {
            let mut remains = RemainsLook {
                redis: &self.redis,
                connection: &mut self.connection,
                consumers: &self.status.consumers,
                orders,
                patience: self.reach.patience,
            };
            report.pending.extend(remains.wait().await?);
        }
        // After those: a webhook that waited or was under way may have become a dead letter meanwhile.
        for consumer in &self.status.consumers {
            let connection = &mut self.connection;
            dead::drop_dead(&self.redis, connection, &consumer.name, orders, report).await?;
        }
        Ok(())
    }

    /// Replays that are being fed with webhooks of before the orders: they bring back what is purged meanwhile.
    async fn replays(
        &mut self,
        orders: &PurgeOrders,
        report: &mut PurgeReport,
    ) -> Result<(), Failure> {
        for consumer in &self.status.consumers {
            let records = replay::list(&self.redis, &mut self.connection, &consumer.name).await?;
            for record in records.iter().filter(|record| may_feed(record, orders.through())) {
                report.pending.push(format!(
                    "the replay {} of {}, which delivers archived webhooks again: wait for it, or cancel it",
                    record.id, consumer.name,
                ));
            }
        }
        Ok(())
    }

    async fn overflow(
        &mut self,
        orders: &PurgeOrders,
        report: &mut PurgeReport,
    ) -> Result<(), Failure> {
        let Some(directory) = &self.spill_dir else {
            if self.reach.is_by_hand
                && redactions::claims_overflow(&self.redis, &mut self.connection).await?
            {
                report.pending.push(
                    "a receiver has an overflow log, which was not looked at: set SPILL_DIR, as root on its machine"
                        .to_owned(),
                );
            }
            return Ok(());
        };
        match spill::look(directory, orders) {
            Ok(found) => {
                if found.webhooks > 0 {
                    report.pending.push(format!(
                        "{} in the overflow log of a receiver, until Redis has them",
                        count(found.webhooks, "webhook"),
                    ));
                }
                if found.damaged > 0 {
                    report.notes.push(format!(
                        "{} of the overflow log was set aside and may hold anything: see docs/spill.md",
                        count(found.damaged, "segment"),
                    ));
                }
            }
            Err(error) => report.pending.push(format!(
                "the overflow log {} cannot be looked at: {error}",
                directory.display()
            )),
        }
        Ok(())
    }

    /// Objects of the archive. The cursor is read again: the archiver goes on while a purge works.
    async fn archived(
        &mut self,
        orders: &PurgeOrders,
        lease: Option<&PurgeLease>,
        report: &mut PurgeReport,
    ) -> Result<(), Failure> {
        let now = status::read(&self.redis, &mut self.connection).await?;
        let archiver = now.consumers.iter().find(|consumer| consumer.name == ARCHIVE);
        let is_set = self.archive.archive_url.as_ref().is_some_and(|url| !url.trim().is_empty());
        if !is_set {
            if archiver.is_some() {
                report.pending.push(
                    "this cell has an archive: set ARCHIVE_URL, as in /etc/spillway/archiver.env"
                        .to_owned(),
                );
            }
            return Ok(());
        }
        let own = consumers::cell(&self.redis, &mut self.connection).await?;
        let cursor = archiver.map(|archiver| archiver.cursor.parse().unwrap_or(StreamId::ZERO));
        let own = own.map(|cell| SearchedCell { cell, cursor, is_named: false });
        let named = |cell: &u32| SearchedCell { cell: *cell, cursor: None, is_named: true };
        let given = self.reach.cells.iter().map(named);
        let mut cells: Vec<SearchedCell> = own.into_iter().collect();
        cells.extend(given.filter(|given| own.is_none_or(|own| own.cell != given.cell)));
        let archive = archive::open(&self.archive)?;
        let finished = match lease {
            Some(lease) => {
                let (redis, connection) = self.place.connect().await?;
                Some(FinishedDays::read(&redis, connection, lease.clone(), orders).await?)
            }
            None => None,
        };
        let mut purge = ArchivePurge {
            archive: &archive,
            orders,
            now_ms: now_ms(&mut self.connection).await?,
            settled_after: self.reach.settled_after,
            finished,
            left: LeftObjects::default(),
        };
        purge.run(&cells, report).await;
        report.tell_other_cells(purge.others(&cells).await);
        Ok(())
    }
}

/// True if a replay may still feed webhooks of before `through`. Shops that are fed later lie anywhere.
fn may_feed(record: &ReplayRecord, through: Option<Position>) -> bool {
    let is_before = Some(record.after) < through || record.shops_left > 0;
    record.state == ReplayState::Running && is_before
}

/// Renews the lease until that fails.
async fn renew(lease: &PurgeLease, connection: &mut Connection) -> Failure {
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let asked = Instant::now();
        match lease.renew(connection).await {
            Ok(true) => renewed = asked,
            Ok(false) => {
                return Failure::Failed(
                    "another purge has taken over: this one has ended early".to_owned(),
                );
            }
            Err(error) if renewed.elapsed() > UNRENEWED_MAX => return error.into(),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_replay_of_older_webhooks_holds_a_purge_up() {
        let position = |ms| Position::new(StreamId { ms, seq: 0 }, 0);
        let record = |state, after, shops_left| ReplayRecord {
            id: "a1b2c3d4".to_owned(),
            spec: String::new(),
            state,
            step: 1,
            after: position(after),
            fed: 0,
            skipped: 0,
            shops_left,
            started_ms: 1,
            changed_ms: 1,
        };
        let may_feed = |state, after, shops_left| {
            may_feed(&record(state, after, shops_left), Some(position(9)))
        };
        assert!(may_feed(ReplayState::Running, 5, 0));
        assert!(may_feed(ReplayState::Running, 20, 1), "a shop is fed later");
        assert!(!may_feed(ReplayState::Running, 9, 0));
        assert!(!may_feed(ReplayState::Done, 5, 1) && !may_feed(ReplayState::Cancelled, 5, 0));
    }
}
