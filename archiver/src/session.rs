//! One leader's work, from its lease to its end.
//!
//! Path of a pack: read ahead (`intake`) → `overlap` (archived already?) → `filling` (the object that grows) →
//! `upload` (one put at a time) → `settling` (Redis advances its cursor, one settlement at a time). Invariants:
//! nothing is settled that is not durable in the archive. Objects are put in the order of the stream, and settled
//! in it. Nothing waits within an event: a search that waits for a key, or a Redis
//! that does not answer, holds up neither a put nor a settlement.
//! Bounded: one object that is filled, one on its way, one that is searched, one that `redundant` looks at, and the
//! packs of intake's channel. While both of the first are full, nothing is read from Redis.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_archive::index::PackRow;
use spillway_archive::{ArchiveStore, StoreError};
use spillway_consumer::End;
use spillway_consumer::intake::{self, IntakeEvent, Streams};
use spillway_consumer::settle::Settled;
use spillway_queue::consumers::ARCHIVE;
use spillway_queue::controls::OperatorControls;
use spillway_queue::leader::boottime;
use spillway_queue::read::{Entry, StreamRange};
use spillway_queue::settle::Settlement;
use spillway_webhook::StreamId;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::access::ArchiveAccess;
use crate::controls::{ControlsReader, ReadControls};
use crate::filling::{Filling, ObjectLimits};
use crate::overlap::Overlap;
use crate::settling::OwedSettlements;
use crate::{redundant, upload};

/// Time between two looks at the operator's controls.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Milliseconds of a day: objects of the day before the cursor are looked at, too.
const DAY_MS: u64 = 86_400_000;

/// State in Redis when the lease was taken.
pub(crate) struct Beginning {
    /// Every entry up to here is settled.
    pub cursor: StreamId,
    /// Mark of the last settlement.
    pub mark: Option<String>,
    /// Range of the stream.
    pub range: StreamRange,
    /// Controls in force.
    pub controls: OperatorControls,
}

impl Beginning {
    /// True if an earlier leader archived something. A consumer that begins at the end of the queue has a cursor, and
    /// settled nothing.
    pub(crate) fn has_archived(&self) -> bool {
        self.mark.is_some() && self.cursor > StreamId::ZERO
    }
}

/// One leader's work.
pub(crate) struct ArchiveSession {
    access: Arc<ArchiveAccess>,
    store: Arc<ArchiveStore>,
    arrived: mpsc::Receiver<IntakeEvent>,
    /// `None` while it is searched.
    overlap: Option<Overlap>,
    finding: Option<Work<FoundPack>>,
    filling: Filling,
    /// A pack that belongs to the next object.
    held: Option<Entry>,
    putting: Option<PendingPut>,
    settling: OwedSettlements,
    controls: ControlsReader,
    /// Deletion of redundant objects.
    cleaning: Option<Work<()>>,
}

/// Work that goes on while the session waits for something else.
type Work<T> = Pin<Box<dyn Future<Output = T>>>;

/// An object on its way, and the settlement that follows it.
struct PendingPut {
    done: Work<()>,
    settlement: Settlement,
}

/// Result of the search of a pack.
struct FoundPack {
    overlap: Overlap,
    entry: Entry,
    /// The pack's row in the object that holds it.
    row: Option<PackRow>,
}

/// Something that a session waits for.
enum SessionEvent {
    /// The object is in the archive.
    Put,
    Settled(Option<Settled>),
    Arrived(Option<IntakeEvent>),
    /// A pack was searched in the archive.
    Found(FoundPack),
    /// No redundant object is left.
    Cleaned,
    /// Time for a look at the controls.
    Look,
    /// Controls were read, or Redis did not answer.
    Looked(ReadControls),
    /// The object that is filled is due, or the process is to stop.
    Due,
}

impl ArchiveSession {
    /// Opens the archive and looks what of the queue is in it, before anything is read.
    pub(crate) async fn begin(access: Arc<ArchiveAccess>, beginning: Beginning) -> Self {
        let Beginning { cursor, mark, range, controls } = beginning;
        let settings = access.instance.settings.clone();
        let cell = access.leader.cell;
        let position = begin_after(cursor, &range);
        let before = StreamId { ms: position.ms.saturating_sub(DAY_MS), seq: 0 };
        // Opening alone asks no object store anything.
        let open = async || {
            let store = ArchiveStore::open(&settings.url)?;
            let objects = store.objects_from(cell, before).await?;
            Ok::<_, StoreError>((store, objects))
        };
        let (store, objects) = access.until_done("opening it", open).await;
        access.leader.show_trouble(None);
        store.remove_staged(cell, before).await;
        let store = Arc::new(store);
        let cleaning = redundant::clean(access.clone(), store.clone(), objects.clone(), before);
        let newest = match objects.iter().map(|object| object.name.last).max() {
            Some(newest) => Some(newest),
            None => newest_before(&access, &store, before).await,
        };
        tell_gap(newest, position);
        let ahead: Vec<_> =
            objects.into_iter().filter(|object| object.name.last > position).collect();
        tracing::info!(after = %cursor, archived_ahead = ahead.len(), "archiving");
        let limits = ObjectLimits { bytes: settings.object_bytes, delay: settings.max_delay };
        let redis = settings.common.redis.clone();
        let streams = (Streams::Main, cursor);
        let mut settling = OwedSettlements::start(redis.clone(), &access.leader.token, mark);
        // They are in force from here on, whichever leader read them first.
        settling.owe_controls(controls.version);
        let controls = ControlsReader::with(redis.clone(), controls);
        controls.show(&access.instance.metrics);
        Self {
            store,
            arrived: intake::start_with(&redis, ARCHIVE, streams, |found| found),
            overlap: Some(Overlap::with(ahead)),
            finding: None,
            filling: Filling::after(position, cell, limits),
            held: None,
            putting: None,
            settling,
            controls,
            cleaning: Some(Box::pin(cleaning)),
            access,
        }
    }

    /// Archives until the process is to stop, or Redis holds something else than was read.
    pub(crate) async fn run(mut self, shutdown: &CancellationToken) -> End {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Err(end) = self.step(&mut looks, shutdown).await {
                return end;
            }
        }
    }

    /// Does what can be done now, and waits for the next event.
    async fn step(
        &mut self,
        looks: &mut Interval,
        shutdown: &CancellationToken,
    ) -> Result<(), End> {
        let is_stopping = shutdown.is_cancelled();
        self.put_what_is_due(is_stopping)?;
        self.take_held()?;
        self.settling.begin(&mut self.controls.current)?;
        let is_idle = self.putting.is_none() && self.filling.is_empty() && self.settling.is_done();
        if is_stopping && is_idle {
            return Err(End::Stopped);
        }
        match self.next(looks, shutdown).await {
            SessionEvent::Put => {
                let put = self.putting.take();
                self.settling.owe(put.map(|put| put.settlement).unwrap_or_default());
            }
            SessionEvent::Settled(settled) => self.settling.on_result(settled)?,
            SessionEvent::Arrived(found) => self.on_arrived(found)?,
            SessionEvent::Found(found) => self.on_found(found)?,
            SessionEvent::Cleaned => self.cleaning = None,
            SessionEvent::Look => self.controls.look(self.access.leader.controls()),
            SessionEvent::Looked(read) => {
                if let Some(version) = self.controls.on_read(read) {
                    tracing::info!(version, "an operator changed the controls");
                    self.controls.show(&self.access.instance.metrics);
                    self.settling.owe_controls(version);
                }
            }
            SessionEvent::Due => {}
        }
        Ok(())
    }

    async fn next(&mut self, looks: &mut Interval, shutdown: &CancellationToken) -> SessionEvent {
        let is_stopping = shutdown.is_cancelled();
        let may_take = !is_stopping
            && self.held.is_none()
            && self.finding.is_none()
            && self.filling.has_room()
            && !self.controls.is_paused();
        // Without a lease, the next look at the controls finds out whether there is one again.
        let may_put = self.putting.is_none() && self.holds_lease();
        let due_at = self.filling.due_at().filter(|_| may_put);
        tokio::select! {
            biased;
            () = done(self.putting.as_mut().map(|put| &mut put.done)) => SessionEvent::Put,
            settled = self.settling.result() => SessionEvent::Settled(settled),
            () = shutdown.cancelled(), if !is_stopping => SessionEvent::Due,
            () = until(due_at) => SessionEvent::Due,
            _ = looks.tick() => SessionEvent::Look,
            read = self.controls.read() => SessionEvent::Looked(read),
            found = done(self.finding.as_mut()) => SessionEvent::Found(found),
            found = self.arrived.recv(), if may_take => SessionEvent::Arrived(found),
            () = done(self.cleaning.as_mut()) => SessionEvent::Cleaned,
        }
    }

    /// True if a put may begin. A leader that slept must not write what another one has written since.
    fn holds_lease(&self) -> bool {
        self.access.leader.holds(boottime())
    }

    /// Begins to put the object that is filled, if it is due and no other is on its way.
    fn put_what_is_due(&mut self, is_stopping: bool) -> Result<(), End> {
        if self.putting.is_some() || self.filling.is_empty() || !self.holds_lease() {
            return Ok(());
        }
        let is_due = self.filling.due_at().is_none_or(|due_at| due_at <= Instant::now());
        if !is_due && !is_stopping {
            return Ok(());
        }
        let (writer, settlement) = self.filling.take();
        let Some(writer) = writer else {
            // All of it is in the archive already.
            self.settling.owe(settlement);
            return Ok(());
        };
        let Some(object) = writer.finish() else {
            tracing::error!("BUG: an object without packs; beginning again");
            return Err(End::Stale);
        };
        let access = self.access.clone();
        let store = self.store.clone();
        let done = Box::pin(async move { upload::put(&access, &store, &object).await });
        self.putting = Some(PendingPut { done, settlement });
        Ok(())
    }

    fn on_arrived(&mut self, found: Option<IntakeEvent>) -> Result<(), End> {
        match found {
            Some(IntakeEvent::Main(entry)) if entry.id <= self.filling.position() => {
                tracing::warn!(entry = %entry.id, "an entry arrived twice; beginning again");
                Err(End::Stale)
            }
            Some(IntakeEvent::Main(entry)) => {
                self.find(entry);
                Ok(())
            }
            Some(IntakeEvent::Replay(_) | IntakeEvent::ReplaysLoaded | IntakeEvent::CaughtUp) => {
                Ok(())
            }
            Some(IntakeEvent::OlderData) => Err(End::Stale),
            None => {
                tracing::error!("BUG: intake ended early; beginning again");
                Err(End::Stale)
            }
        }
    }

    /// Begins to search a pack in the archive, unless nothing can hold it.
    fn find(&mut self, entry: Entry) {
        let Some(mut overlap) = self.overlap.take_if(|overlap| !overlap.is_over()) else {
            self.held = Some(entry);
            return;
        };
        let access = self.access.clone();
        let store = self.store.clone();
        self.finding = Some(Box::pin(async move {
            let row = overlap.find(&access, &store, &entry).await;
            FoundPack { overlap, entry, row }
        }));
    }

    fn on_found(&mut self, found: FoundPack) -> Result<(), End> {
        let FoundPack { overlap, entry, row } = found;
        self.finding = None;
        self.overlap = Some(overlap);
        if let Some(row) = row {
            self.filling.pass(&row);
            return Ok(());
        }
        self.held = Some(entry);
        self.take_held()
    }

    /// Adds the pack that waits, unless it belongs to the next object and this one is not on its way yet.
    fn take_held(&mut self) -> Result<(), End> {
        let Some(entry) = self.held.take() else { return Ok(()) };
        if !self.filling.accepts(entry.id) {
            self.filling.close();
            self.held = Some(entry);
            return Ok(());
        }
        let keys = self.access.instance.settings.keys.ring();
        match self.filling.add(entry, &keys, Instant::now()) {
            Ok(row) => {
                self.tell_corrupt(&row);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "nothing can be encrypted; beginning again");
                Err(End::Stale)
            }
        }
    }

    fn tell_corrupt(&self, row: &PackRow) {
        if row.is_corrupt {
            self.access.instance.metrics.corrupt.inc();
            tracing::error!(
                entry = %row.entry,
                "corrupt pack: archived as it is, and stored under corrupt:"
            );
        }
    }
}

/// Waits until the work is done; for ever, if there is none.
async fn done<T>(work: Option<&mut Work<T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Waits until `due_at`; for ever, if there is none.
async fn until(due_at: Option<Instant>) {
    match due_at {
        Some(due_at) => sleep_until(due_at).await,
        None => std::future::pending().await,
    }
}

/// Entry after which the next object begins. A consumer that never settled has no cursor: what was before the
/// oldest entry that is left, or all if none is, was freed without it.
fn begin_after(cursor: StreamId, range: &StreamRange) -> StreamId {
    if cursor > StreamId::ZERO {
        return cursor;
    }
    range.oldest.map_or(range.last, StreamId::previous)
}

/// Newest entry in the objects that end before `before`, once without repetition: only a warning depends on it.
async fn newest_before(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    before: StreamId,
) -> Option<StreamId> {
    match store.newest_before(access.leader.cell, before).await {
        Ok(newest) => newest.map(|object| object.name.last),
        Err(error) => {
            let error = access.failed(&error);
            tracing::warn!(
                error,
                "older days cannot be listed: a gap before the queue is not noticed"
            );
            None
        }
    }
}

/// Reports a gap between the archive, which ends with `newest`, and the queue: the consumer was removed, or told
/// to begin later.
fn tell_gap(newest: Option<StreamId>, position: StreamId) {
    if let Some(newest) = newest.filter(|newest| *newest < position) {
        tracing::error!(
            archived_through = %newest,
            queue_begins_after = %position,
            "webhooks between the two are not in the archive, if there were any: the consumer was not registered"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_never_settled_begins_right_before_the_oldest_entry() {
        let id = |ms, seq| StreamId { ms, seq };
        let range = |oldest| StreamRange { oldest, last: id(9, 0), trimmed: 0 };
        assert_eq!(begin_after(id(5, 1), &range(Some(id(7, 3)))), id(5, 1));
        assert_eq!(begin_after(StreamId::ZERO, &range(Some(id(7, 3)))), id(7, 2));
        assert_eq!(begin_after(StreamId::ZERO, &range(None)), id(9, 0), "all was freed");
    }
}
