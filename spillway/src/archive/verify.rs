//! `spillway archive verify`: every byte, every pack, and the chain of the objects.

use std::process::ExitCode;

use serde_json::json;
use spillway_archive::chain::{ChainCheck, distinct_packs, groups};
use spillway_archive::erase::differing_entries;
use spillway_archive::index::ObjectIndex;
use spillway_archive::{ArchiveObject, ListedObject, ObjectName, StoreError};
use spillway_process::error::chain;
use spillway_webhook::StreamId;
use spillway_webhook::pack::Pack;

use super::OpenArchive;
use super::range::ObjectRange;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{Progress, count, line, size};

/// Results of all checks.
#[derive(Debug, Default)]
struct Verification {
    objects: u64,
    bytes: u64,
    /// Webhooks, each counted once.
    webhooks: u64,
    /// Packs that could not be decoded when they were archived.
    corrupt_packs: u64,
    /// Objects with entries that others have, too.
    overlapping: u64,
    /// Entries that several objects hold with other content.
    differing: u64,
    /// Webhooks that were erased.
    erased: u64,
    /// Damaged objects in whose place others were written.
    replaced: Vec<String>,
    problems: Vec<String>,
}

/// Verifies the objects of a range. The exit code is 1 if there is a problem.
pub(super) async fn run(
    archive: &OpenArchive,
    range: &ObjectRange,
    output: OutputArgs,
) -> Result<ExitCode, Failure> {
    let mut all = Verification::default();
    let mut progress = Progress::new();
    let mut check = ChainCheck::default();
    let mut cell = None;
    for day in range.days(&archive.store).await? {
        if cell.replace(day.cell) != Some(day.cell) {
            check = ChainCheck::default();
        }
        let replaced = range.replaced(&archive.store, &day).await?;
        all.replaced.extend(replaced.iter().map(ToString::to_string));
        // Objects lie within a day, and so do those that overlap.
        for group in groups(range.objects(&archive.store, &day).await?) {
            progress.tell(|| format!("{} so far, at {}", count(all.objects, "object"), day.day));
            all.add_group(archive, &group, &mut check).await?;
        }
    }
    all.print(output)?;
    Ok(if all.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Verification {
    async fn add_group(
        &mut self,
        archive: &OpenArchive,
        group: &[ListedObject],
        check: &mut ChainCheck,
    ) -> Result<(), Failure> {
        let before = self.objects;
        let mut indexes: Vec<ObjectIndex> = Vec::new();
        for ListedObject { name, bytes, .. } in group {
            // What cannot be read is a problem of its own, and no gap.
            let mut after = StreamId::ZERO;
            let read = archive.store.object(name, &archive.keys).await;
            let is_missing = matches!(read, Err(StoreError::Missing(_)));
            if is_missing && was_deleted(archive, name).await? {
                // It aged out, or lay within others. The entries before it may be gone, too.
                *check = ChainCheck::default();
                continue;
            }
            match read {
                Ok(object) => {
                    after = object.tail.header.after;
                    self.problems.extend(mistakes(name, &object));
                    self.erased += erased(&object);
                    self.corrupt_packs += object.tail.index.corrupt_packs() as u64;
                    indexes.push(object.tail.index);
                }
                Err(
                    error @ (StoreError::Bad(..) | StoreError::NoKey(..) | StoreError::Missing(_)),
                ) => {
                    self.problems.push(chain(&error));
                }
                Err(error) => return Err(error.into()),
            }
            self.objects += 1;
            self.bytes += bytes;
            if let Some(gap) = check.add(after, name.last) {
                let cell = ObjectName::cell_directory(name.cell);
                self.problems.push(format!(
                    "cell {cell}: entries after {} up to {} are in no object, if there were any",
                    gap.after, gap.through
                ));
            }
        }
        let there = self.objects - before;
        self.overlapping += if there > 1 { there } else { 0 };
        let indexes: Vec<&ObjectIndex> = indexes.iter().collect();
        self.differing += differing_entries(&indexes).len() as u64;
        let distinct = distinct_packs(&indexes).into_iter();
        let webhooks = distinct.map(|place| indexes[place.object].packs[place.pack].webhooks);
        self.webhooks += webhooks.map(u64::from).sum::<u64>();
        Ok(())
    }

    fn print(&self, output: OutputArgs) -> Result<(), Failure> {
        let Self {
            objects,
            bytes,
            webhooks,
            corrupt_packs,
            overlapping,
            differing,
            erased,
            replaced,
            problems,
        } = self;
        if output.is_json() {
            line(json!({
                "objects": objects,
                "bytes": bytes,
                "webhooks": webhooks,
                "corrupt_packs": corrupt_packs,
                "overlapping_objects": overlapping,
                "differing_entries": differing,
                "erased": erased,
                "replaced_objects": replaced,
                "problems": problems,
            }))?;
            return Ok(());
        }
        problems.iter().try_for_each(|problem| line(format_args!("problem: {problem}")))?;
        line(format_args!(
            "{} with {} in {}, {}",
            count(*objects, "object"),
            count(*webhooks, "webhook"),
            size(*bytes),
            count(problems.len() as u64, "problem"),
        ))?;
        if *corrupt_packs > 0 {
            let packs = count(*corrupt_packs, "pack");
            line(format_args!(
                "{packs} could not be decoded in the queue either, archived unchanged"
            ))?;
        }
        self.print_differences()
    }

    fn print_differences(&self) -> Result<(), Failure> {
        for name in &self.replaced {
            line(format_args!(
                "object {name} is damaged, and another one was written in its place: remove it when the archive allows it"
            ))?;
        }
        if self.overlapping > 0 {
            let objects = count(self.overlapping, "object");
            line(format_args!("{objects} overlap; each webhook is counted once"))?;
        }
        if self.differing > 0 {
            line(format_args!(
                "{} in several objects with other content: a `spillway forget` was cut off, and goes on when it runs \
                 again, or a restored Redis gave an id twice",
                count(self.differing, "pack"),
            ))?;
        }
        if self.erased > 0 {
            line(format_args!("{} erased (`spillway forget`)", count(self.erased, "webhook")))?;
        }
        Ok(())
    }
}

/// Number of webhooks of an object that were erased.
fn erased(object: &ArchiveObject) -> u64 {
    let numbers = 0..object.tail.index.packs.len();
    let packs = numbers.filter_map(|number| Pack::decode(&object.pack(number).ok()?).ok());
    packs
        .map(|pack| (0..pack.count()).filter(|index| pack.view(*index).is_erased()).count() as u64)
        .sum()
}

/// True if an object that was listed is in the list no more.
async fn was_deleted(archive: &OpenArchive, name: &ObjectName) -> Result<bool, StoreError> {
    let listed = archive.store.objects(name.cell, &name.day()).await?;
    Ok(listed.iter().all(|object| object.name != *name))
}

/// Contradictions between the name of an object, its index and its packs.
fn mistakes(name: &ObjectName, object: &ArchiveObject) -> Vec<String> {
    let index = &object.tail.index;
    let mut found = Vec::new();
    let is_named = index.entries() == Some((name.first, name.last))
        && index.webhooks() == name.webhooks
        && index.tag() == name.tag
        && object.tail.header.cell == name.cell;
    if !is_named {
        found.push(format!("object {name}: it holds something else than its name says"));
    }
    for (number, row) in index.packs.iter().enumerate() {
        let decoded =
            object.pack(number).map(|bytes| Pack::decode(&bytes).map(|pack| pack.count()));
        let problem = match decoded {
            Ok(Ok(webhooks)) if webhooks == row.webhooks && !row.is_corrupt => None,
            Ok(Err(_)) if row.is_corrupt => None,
            Ok(Ok(_)) => Some("other webhooks than the index says".to_owned()),
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        found
            .extend(problem.map(|problem| format!("object {name}, pack {}: {problem}", row.entry)));
    }
    found
}
