//! `spillway restore-from-archive`: restores the queue of a cell whose Redis lost its disk, as far as the archive
//! reached. Everything is read, planned and counted before anything is written, and read again to be written.

mod checks;
mod lost;
mod noted;
mod plan;
mod report;
mod source;
mod target;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use spillway_archive::args::ArchiveArgs;
use spillway_archive::{ArchiveStore, Checkpoint, StoreError, checkpoint};
use spillway_process::Checker;
use spillway_queue::Connection;
use spillway_queue::consumers::{ARCHIVE, ConsumerKind, ConsumerName};
use spillway_queue::rebuild::{self, Rebuild, RebuildHold, RebuiltEntry, abandon};
use spillway_queue::status::{CellStatus, QueueStatus};
use spillway_webhook::StreamId;
use spillway_webhook::pack::Packer;

use self::checks::RestoreSigns;
use self::noted::RestoredNotes;
use self::plan::{ConsumerNeeds, KnownEnd, RestorePlanner};
use self::source::{ArchiveSource, RestoreArchive, SourcePack};
use self::target::RestoreTarget;
use crate::audited::{Actor, ChangeOrder, audited};
use crate::consent::{Confirmation, dry_run};
use crate::failure::Failure;
use crate::filter::moment_ms;
use crate::out::{Progress, count, line, now_ms, size};
use crate::place::CellArgs;

/// Bytes of one script. It bounds the time for which Redis serves nobody else.
const BATCH_BYTES: usize = 4 << 20;
/// Entries of one script.
const BATCH_ENTRIES: usize = 1_000;
/// Memory of Redis for an entry or for a row of bits, without its bytes.
const ENTRY_BYTES: u64 = 128;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    archive: ArchiveArgs,

    #[command(flatten)]
    place: CellArgs,

    /// Cell to restore, 8 hexadecimal digits; default: the only one in the archive
    #[arg(long)]
    cell: Option<String>,

    /// Without a checkpoint in the archive: restore what was stored in the queue at or after this RFC 3339 time,
    /// or this long ago, such as 2h
    #[arg(long, requires = "consumer")]
    from: Option<String>,

    /// With --from: a consumer that gets all of it; may be repeated
    #[arg(long, requires = "from")]
    consumer: Vec<ConsumerName>,

    /// Do not read the checkpoint, such as a damaged one or one of a newer version; with --from and --consumer
    #[arg(long, requires = "from")]
    ignore_checkpoint: bool,

    /// Restore in spite of what the report calls a doubt: an old checkpoint, a gap in the archive, or signs that the
    /// cell is alive
    #[arg(long)]
    force: bool,

    /// Only report what would be restored, which is the default
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// Remove what a restoration that did not end has written, so that the processes start with an empty queue
    #[arg(long, conflicts_with_all = ["yes", "dry_run", "cell", "from"])]
    abandon: bool,

    #[command(flatten)]
    confirmation: Confirmation,
}

/// State of the lost queue that a restoration begins with.
struct RestoreBasis {
    cell: u32,
    checkpoint: Option<Checkpoint>,
    consumers: Vec<ConsumerNeeds>,
    notes: RestoredNotes,
}

/// Size of what is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RestoreSize {
    bytes: u64,
    /// Entries and rows of bits.
    rows: u64,
}

/// Runs `spillway restore-from-archive`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let (redis, mut connection) = arguments.place.connect().await?;
    if arguments.abandon {
        let audit = connection.clone();
        let order = change("restore-from-archive --abandon");
        let actor = Actor::of_command();
        let is_removed = audited(&redis, &audit, &actor, order, async {
            let is_removed = abandon(&redis, &mut connection).await?;
            Ok((is_removed, u64::from(is_removed)))
        });
        let told = match is_removed.await? {
            true => "removed what an unfinished restoration had written",
            false => "no restoration is unfinished",
        };
        line(told)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut target = RestoreTarget::look(redis, &mut connection).await?;
    if !arguments.confirmation.yes {
        return restore(&arguments, &target, None).await.map(|()| ExitCode::SUCCESS);
    }
    let mut held = None;
    let redis = target.redis.clone();
    let audit = connection.clone();
    let order = change("restore-from-archive");
    let actor = Actor::of_command();
    let restored = audited(&redis, &audit, &actor, order, async {
        // Reading takes long: no receiver and no consumer may begin meanwhile. The mark of another run stays its own.
        let hold = held.insert(rebuild::hold(&target.redis, &mut connection).await?);
        // Somebody may have begun just before.
        target = RestoreTarget::look(target.redis.clone(), &mut connection).await?;
        restore(&arguments, &target, Some(&*hold)).await?;
        Ok(((), 1_u64))
    });
    let restored = restored.await;
    if let Some(hold) = held.filter(|hold| restored.is_err() && hold.is_new) {
        release(&arguments.place, &hold).await;
    }
    restored.map(|()| ExitCode::SUCCESS)
}

fn change(verb: &'static str) -> ChangeOrder {
    ChangeOrder { verb, consumer: String::new(), filter: "everything".to_owned() }
}

/// Reads and plans everything and, if that is meant, writes it.
async fn restore(
    arguments: &Arguments,
    target: &RestoreTarget,
    hold: Option<&RebuildHold>,
) -> Result<(), Failure> {
    let archive = open(&arguments.archive)?;
    let cell = arguments.choose_cell(&archive, target.cell).await?;
    let basis = arguments.basis(&archive, cell).await?;
    let source = ArchiveSource::find(archive.clone(), cell, &basis.consumers).await?;
    let source = source.ok_or_else(|| {
        Failure::Failed(format!("the archive holds no object of the cell {cell:08x}"))
    })?;
    let (planner, restored) = measure(&source, &basis).await?;
    let queue = &target.status.queue;
    report::print(&basis, &source, &planner, restored, queue.accepted)?;
    let doubts = basis.doubts(&archive, &source).await?;
    for doubt in &doubts {
        line(format_args!("doubt: {doubt}"))?;
    }
    // Reading took a while, in which nobody used the connection.
    let (_, mut connection) = arguments.place.connect().await?;
    let written = rebuild::written(&target.redis, &mut connection).await?;
    ensure_fits(queue, restored.memory_after(written, planner.entries))?;
    let Some(hold) = hold else {
        line(dry_run("", "restore it").trim_start())?;
        return Ok(());
    };
    if !doubts.is_empty() && !arguments.force {
        return Err(Failure::Failed(
            "not restored, because of the doubts above; add --force to restore it all the same"
                .to_owned(),
        ));
    }
    let rebuild = Rebuild::new(target.redis.clone(), basis.plan_id(&source, &planner), hold);
    write((&rebuild, &mut connection), target, &basis, &source, &planner).await?;
    line("restored: start the receivers, then the consumers")?;
    Ok(())
}

/// Lets the processes begin again, if nothing was written. If this fails, too, the next attempt takes the mark over,
/// and `--abandon` removes it.
async fn release(place: &CellArgs, hold: &RebuildHold) {
    if let Ok((redis, mut connection)) = place.connect().await {
        rebuild::release(&redis, &mut connection, hold).await.ok();
    }
}

impl Arguments {
    /// Cell that is meant: the one that was given, or the only one that is not this Redis' own.
    async fn choose_cell(
        &self,
        archive: &RestoreArchive,
        own: Option<u32>,
    ) -> Result<u32, Failure> {
        let cells = archive.store.cells().await?;
        let names = |cells: &[u32]| {
            let names: Vec<String> = cells.iter().map(|cell| format!("{cell:08x}")).collect();
            if names.is_empty() { "no cell".to_owned() } else { names.join(", ") }
        };
        let others: Vec<u32> = cells.iter().copied().filter(|cell| Some(*cell) != own).collect();
        let cell = match &self.cell {
            Some(text) => {
                let parsed = u32::from_str_radix(text, 16).ok().filter(|_| text.len() == 8);
                parsed.ok_or_else(|| {
                    Failure::Usage(format!("--cell {text:?} is not an id such as a1b2c3d4"))
                })?
            }
            None => match &others[..] {
                [only] => *only,
                _ => {
                    return Err(Failure::Usage(format!(
                        "name the cell with --cell; the archive holds {}",
                        names(&cells)
                    )));
                }
            },
        };
        if own == Some(cell) {
            return Err(Failure::Failed(format!(
                "this Redis is the cell {cell:08x}: its queue was not lost, or it was restored already"
            )));
        }
        if !cells.contains(&cell) {
            let held = names(&cells);
            return Err(Failure::Failed(format!(
                "the archive does not hold the cell {cell:08x}; it holds {held}"
            )));
        }
        Ok(cell)
    }

    /// Reads the checkpoint, or takes what the flags say in its place.
    async fn basis(&self, archive: &RestoreArchive, cell: u32) -> Result<RestoreBasis, Failure> {
        let checkpoint = match self.ignore_checkpoint {
            true => None,
            false => checkpoint::read(&archive.store, cell).await.map_err(of_checkpoint)?,
        };
        let consumers = match (&checkpoint, &self.from) {
            (Some(checkpoint), None) => {
                let own = checkpoint.consumers.iter().filter(|one| one.name != ARCHIVE);
                own.map(ConsumerNeeds::of).collect()
            }
            (None, Some(from)) => {
                let ms = moment_ms("--from", from, now_ms())?;
                let after = StreamId { ms, seq: 0 }.previous();
                let named = self.consumer.iter().filter(|name| ***name != *ARCHIVE);
                let of = |name: &ConsumerName| {
                    ConsumerNeeds::after(name, ConsumerKind::of_default_name(name), after)
                };
                named.map(of).collect()
            }
            (Some(_), Some(_)) => {
                return Err(Failure::Usage(
                    "the archive has a checkpoint, which says what each consumer needs: leave out --from and \
                     --consumer, or add --ignore-checkpoint"
                        .to_owned(),
                ));
            }
            (None, None) => {
                return Err(Failure::Usage(
                    "the archive has no checkpoint of this cell: give --from and --consumer; each of these consumers \
                     gets everything since then"
                        .to_owned(),
                ));
            }
        };
        let notes = match &checkpoint {
            Some(checkpoint) => RestoredNotes::find(archive, cell, checkpoint).await?,
            None => RestoredNotes::default(),
        };
        Ok(RestoreBasis { cell, checkpoint, consumers, notes })
    }
}

/// A checkpoint that cannot be read stops nobody who knows what the consumers need.
fn of_checkpoint(error: StoreError) -> Failure {
    match error {
        StoreError::Unusable(text) => Failure::Failed(format!(
            "{text}; to restore without it, give --ignore-checkpoint, --from and --consumer"
        )),
        other => other.into(),
    }
}

fn open(arguments: &ArchiveArgs) -> Result<RestoreArchive, Failure> {
    let mut checker = Checker::default();
    let url = arguments.url(&mut checker);
    let keys = arguments.keys(&mut checker).ring();
    let url = checker.finish(url)?.ok_or_else(|| Failure::Usage("set ARCHIVE_URL".to_owned()))?;
    Ok(RestoreArchive { store: Arc::new(ArchiveStore::open(&url)?), keys })
}

/// Reads everything once: what is damaged, or has no key, is found before anything is written.
async fn measure(
    source: &ArchiveSource,
    basis: &RestoreBasis,
) -> Result<(RestorePlanner, RestoreSize), Failure> {
    let mut planner = RestorePlanner::new(basis.consumers.clone());
    let mut restored = RestoreSize::default();
    let mut packer = Packer::new();
    let mut progress = Progress::new();
    let mut reader = source.reader();
    while let Some(found) = reader.next().await? {
        progress.tell(|| format!("reading, {} so far", count(planner.entries, "pack")));
        let Some(planned) = planner.add(found.entry, found.facts.as_deref()) else { continue };
        restored.add(&entry_of(&found, planned, &mut packer));
    }
    Ok((planner, restored))
}

impl RestoreSize {
    fn add(&mut self, entry: &RebuiltEntry) {
        self.bytes += u64::try_from(entry.size_bytes()).unwrap_or(u64::MAX);
        self.rows += 1 + u64::try_from(entry.bits.len()).unwrap_or(0);
    }

    /// Memory that Redis needs for it, with a tenth in reserve.
    fn memory(self) -> u64 {
        let bytes = self.bytes.saturating_add(self.rows.saturating_mul(ENTRY_BYTES));
        bytes.saturating_add(bytes / 10)
    }

    /// The same for what is left of it, after `written` of all entries.
    fn memory_after(self, written: u64, entries: u64) -> u64 {
        let part = u128::from(entries.saturating_sub(written)) * u128::from(self.memory());
        u64::try_from(part / u128::from(entries.max(1))).unwrap_or(u64::MAX)
    }
}

/// Checks that Redis has room for everything.
fn ensure_fits(queue: &QueueStatus, needed: u64) -> Result<(), Failure> {
    let QueueStatus { bytes, limit_bytes, .. } = *queue;
    if limit_bytes == 0 || bytes.saturating_add(needed) <= limit_bytes {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "this takes about {} of memory, and Redis has {} left: raise its maxmemory to {} or more, and more for new \
         webhooks",
        size(needed),
        size(limit_bytes.saturating_sub(bytes)),
        size(bytes.saturating_add(needed)),
    )))
}

/// Writes everything into Redis, or what is left of it after an attempt that did not end.
async fn write(
    (rebuild, connection): (&Rebuild, &mut Connection),
    target: &RestoreTarget,
    basis: &RestoreBasis,
    source: &ArchiveSource,
    measured: &RestorePlanner,
) -> Result<(), Failure> {
    let names: Vec<String> = basis.consumers.iter().map(|one| one.name.clone()).collect();
    let mut written = rebuild.begin(connection, &names).await?;
    if written > 0 {
        line(format_args!("going on after {}", count(written, "pack")))?;
    }
    let mut planner = RestorePlanner::new(basis.consumers.clone());
    let mut packer = Packer::new();
    let mut progress = Progress::new();
    let mut batch: Vec<RebuiltEntry> = Vec::new();
    let mut batch_bytes = 0;
    let mut reader = source.reader();
    while let Some(found) = reader.next().await? {
        let Some(planned) = planner.add(found.entry, found.facts.as_deref()) else { continue };
        if planner.entries <= written {
            continue;
        }
        let entry = entry_of(&found, planned, &mut packer);
        batch_bytes += entry.size_bytes();
        batch.push(entry);
        if batch_bytes >= BATCH_BYTES || batch.len() >= BATCH_ENTRIES {
            written = rebuild.add(connection, written, &batch).await?;
            batch.clear();
            batch_bytes = 0;
            progress.tell(|| format!("written: {written} of {}", count(measured.entries, "pack")));
        }
    }
    if !batch.is_empty() {
        rebuild.add(connection, written, &batch).await?;
    }
    if planner.entries != measured.entries {
        return Err(Failure::Failed("the archive changed meanwhile: run this again".to_owned()));
    }
    let end = KnownEnd::of(basis.checkpoint.as_ref(), source.span.1);
    let mut queue = planner.queue(basis.cell, end, at_end(&names, &target.status));
    queue.notes = basis.notes.rebuilt();
    queue.lost = lost::notes(&source.gaps, source.span.1, now_ms());
    Ok(rebuild.finish(connection, &queue).await?)
}

impl RestoreBasis {
    /// Reasons not to restore. The archive is looked at again: it must not have changed.
    async fn doubts(
        &self,
        archive: &RestoreArchive,
        source: &ArchiveSource,
    ) -> Result<Vec<String>, Failure> {
        let mut has_changed = source.grew_meanwhile().await?;
        if let Some(known) = &self.checkpoint {
            has_changed |=
                checkpoint::read(&archive.store, self.cell).await?.as_ref() != Some(known);
        }
        let signs = RestoreSigns {
            checkpoint: self.checkpoint.as_ref(),
            newest: &source.newest,
            gaps: &source.gaps,
            has_changed,
            now_ms: now_ms(),
        };
        Ok(signs.doubts())
    }

    /// Text that names the plan. Another archive, another checkpoint or other flags make another one.
    fn plan_id(&self, source: &ArchiveSource, measured: &RestorePlanner) -> String {
        let read_at_ms = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.read_at_ms);
        let RestorePlanner { entries, webhooks, .. } = measured;
        let begins = self.consumers.iter().map(|one| one.begins_after().to_string());
        let begins = begins.collect::<Vec<_>>().join(",");
        let names = self.consumers.iter().map(|one| &*one.name).collect::<Vec<_>>().join(",");
        let reach = source.span.1;
        format!("{:08x}/{read_at_ms}/{reach}/{entries}/{webhooks}/{names}/{begins}", self.cell)
    }
}

/// Consumers that get nothing: the archive's own, and those that were added to this Redis since.
fn at_end(names: &[String], status: &CellStatus) -> Vec<(String, Option<ConsumerKind>)> {
    let known = status.consumers.iter().map(|one| (one.name.clone(), one.kind()));
    let known = known.filter(|(name, _)| name != ARCHIVE && !names.contains(name));
    known.chain([(ARCHIVE.to_owned(), Some(ConsumerKind::Archiver))]).collect()
}

fn entry_of(found: &SourcePack, planned: plan::PlannedEntry, packer: &mut Packer) -> RebuiltEntry {
    let pack = found.restored(&planned, packer);
    RebuiltEntry { id: planned.id, pack, bits: planned.bits }
}

#[cfg(test)]
mod tests {
    use spillway_queue::status::ConsumerStatus;

    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_memory_that_it_needs() {
        let queue = |limit_bytes| QueueStatus { bytes: 50, limit_bytes, ..QueueStatus::default() };
        let restored = RestoreSize { bytes: 744, rows: 2 };
        assert_eq!(restored.memory_after(0, 4), 1_100);
        assert_eq!(restored.memory_after(3, 4), 275, "the last quarter");
        assert!(ensure_fits(&queue(0), 1_100).is_ok());
        assert!(ensure_fits(&queue(1_150), 1_100).is_ok());
        let told = ensure_fits(&queue(1_149), 1_100).expect_err("too little").to_string();
        assert!(told.contains("raise its maxmemory"), "{told}");
    }

    #[test]
    fn consumers_of_this_redis_that_the_lost_one_had_not_begin_at_the_end() {
        let of = |name: &str| ConsumerStatus { name: name.to_owned(), ..ConsumerStatus::default() };
        let consumers = ["archive", "http", "new"].map(of).into();
        let status = CellStatus { consumers, ..CellStatus::default() };
        let names = at_end(&["http".to_owned()], &status).into_iter().map(|(name, _)| name);
        assert_eq!(names.collect::<Vec<_>>(), ["new", "archive"]);
    }
}
