//! A purge: all stores of the cell, one after the other, then its record and the rewrite of the AOF.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_archive::args::ArchiveArgs;
use spillway_process::error::chain;
use spillway_queue::consumers::{self, ARCHIVE};
use spillway_queue::redactions;
use spillway_queue::rewrite::{self, RewriteOutcome};
use spillway_queue::status::{self, CellStatus};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::{StreamId, WebhookId};

use super::archived::ArchivePurge;
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

/// Everything that a purge works on.
pub(super) struct PurgePlace {
    place: CellArgs,
    archive: ArchiveArgs,
    spill_dir: Option<PathBuf>,
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
    ) -> Result<Self, Failure> {
        let (redis, mut connection) = place.connect().await?;
        let status = status::read(&redis, &mut connection).await?;
        let spill_dir = spill_dir.filter(|directory| !directory.as_os_str().is_empty());
        Ok(Self { place, archive, spill_dir, redis, connection, status })
    }

    /// Purges. Without a dry run, writes the record, and rewrites the AOF if nothing is left.
    pub(super) async fn run(
        &mut self,
        orders: &PurgeOrders,
        is_dry_run: bool,
    ) -> Result<PurgeReport, Failure> {
        let began = Instant::now();
        let mut report = PurgeReport { is_dry_run, ..PurgeReport::default() };
        self.queue(orders, &mut report).await?;
        self.overflow(orders, &mut report);
        self.archived(orders, &mut report).await?;
        let redis = &self.redis;
        report.counts.corrupt += corrupt(redis, &mut self.connection, orders).await?;
        if report.counts.corrupt > 0 {
            report.notes.push(format!(
                "{} that cannot be decoded shows data of somebody who is meant, in the archive or under corrupt: in \
                 Redis; delete it by hand",
                count(report.counts.corrupt, "pack"),
            ));
        }
        if is_dry_run {
            return Ok(report);
        }
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = report.record(orders, took_ms);
        if report.is_complete() {
            let done: Vec<WebhookId> = orders.iter().filter_map(|order| order.webhook).collect();
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
            Ok(RewriteOutcome::Failed) => {
                report.pending.push("Redis could not rewrite its AOF: see its log".to_owned());
                return Ok(());
            }
            Ok(RewriteOutcome::Unfinished) => {
                report.pending.push("Redis is still rewriting its AOF".to_owned());
                return Ok(());
            }
            Err(error @ QueueError::Refused(_)) => report
                .notes
                .push(format!("this Redis rewrites its AOF when it chooses to: {}", chain(&error))),
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
        // After those: a webhook that was under way may have become a dead letter meanwhile.
        for consumer in &self.status.consumers {
            let connection = &mut self.connection;
            dead::drop_dead(&self.redis, connection, &consumer.name, orders, report).await?;
        }
        if report.is_dry_run {
            return Ok(());
        }
        let mut remains = RemainsLook {
            redis: &self.redis,
            connection: &mut self.connection,
            consumers: &self.status.consumers,
            orders,
        };
        report.pending.extend(remains.wait().await?);
        Ok(())
    }

    fn overflow(&self, orders: &PurgeOrders, report: &mut PurgeReport) {
        let Some(directory) = &self.spill_dir else { return };
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
            Err(error) => report.notes.push(format!(
                "the overflow log {} cannot be looked at: {error}",
                directory.display()
            )),
        }
    }

    /// Objects of the archive. The cursor is read again: the archiver goes on while a purge works.
    async fn archived(
        &mut self,
        orders: &PurgeOrders,
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
        let cell = consumers::cell(&self.redis, &mut self.connection).await?;
        let Some(cell) = cell else { return Ok(()) };
        let cursor = archiver.map(|archiver| archiver.cursor.parse().unwrap_or(StreamId::ZERO));
        let archive = archive::open(&self.archive)?;
        ArchivePurge { archive: &archive, cell, cursor, orders }.run(report).await;
        Ok(())
    }
}
