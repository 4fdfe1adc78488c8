//! Fills a transaction: hands the records of packs to librdkafka as they arrive.
//!
//! Backpressure: while librdkafka's queue is full, nothing more is taken from intake. Its channel
//! fills up, and Redis is not read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_consumer::{DeliveredRedaction, End, Route};
use spillway_webhook::pack::Pack;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{StreamId, WebhookId};

use super::{Exporter, ProducerSession, Stop};
use super::{commit, controls, settling};
use crate::fault::{Call, Fault, KafkaFailure, judge};
use crate::intake::Arrived;
use crate::open::{Alone, Excluded, Open, RecordRef};

/// Longest time between two checks of librdkafka's reports and of leadership.
const TICK: Duration = Duration::from_millis(100);
/// Pause before a full queue is tried again.
const QUEUE_FULL_WAIT: Duration = Duration::from_millis(5);
/// Approximate bytes of a record in addition to key, value and request headers.
const RECORD_BYTES: usize = 512;

/// Pack whose records are being sent.
pub(super) struct Current {
    source: Source,
    pack: Arc<Pack>,
    next: u32,
}

enum Source {
    /// An entry of the main stream.
    Main(StreamId),
    /// A replayed webhook.
    Replay(StreamId, WebhookId),
}

/// Extent to which a pack was sent.
enum SentPart {
    Whole,
    /// The transaction must end here.
    Part,
}
/// Fills `open` until it is due. Leaves it empty if there was nothing to send for a while.
pub(super) fn fill(
    exporter: &mut Exporter,
    session: &mut ProducerSession,
    open: &mut Open,
) -> Result<(), Stop> {
    controls::take_controls(exporter, session);
    if controls::check_pause(exporter, session, open)? {
        return Ok(());
    }
    loop {
        if let Some(mut current) = session.current.take() {
            let sent = send_pack(exporter, session, open, &mut current)?;
            if matches!(sent, SentPart::Part) {
                session.current = Some(current);
                return Ok(());
            }
            if open.alone.is_some() {
                return Ok(());
            }
        }
        exporter.ensure_leadership()?;
        settling::hear_settled(exporter, session)?;
        let is_behind = !session.arrived.is_empty();
        let closes_in = open.closes_in(Instant::now(), is_behind);
        if exporter.shutdown.is_cancelled() || closes_in == Some(Duration::ZERO) {
            return Ok(());
        }
        match receive(exporter, session, closes_in.unwrap_or(TICK).min(TICK))? {
            Some(arrived) => take(session, open, arrived)?,
            // Nothing waits: handle Kafka's reports, and settle what is due.
            None if closes_in.is_none() => {
                session.link.poll(Duration::ZERO);
                return Ok(());
            }
            None => session.link.poll(Duration::ZERO),
        }
        if session.link.reports().has_failed() {
            return Err(Stop::Redo);
        }
    }
}

fn receive(
    exporter: &Exporter,
    session: &mut ProducerSession,
    patience: Duration,
) -> Result<Option<Arrived>, Stop> {
    if let Ok(arrived) = session.arrived.try_recv() {
        return Ok(Some(arrived));
    }
    let arrived = &mut session.arrived;
    exporter.runtime.block_on(async {
        tokio::select! {
            arrived = arrived.recv() => match arrived {
                Some(arrived) => Ok(Some(arrived)),
                None => {
                    tracing::error!("BUG: intake ended early; beginning again");
                    Err(Stop::Rebuild)
                }
            },
            () = tokio::time::sleep(patience) => Ok(None),
            () = exporter.shutdown.cancelled() => Ok(None),
            () = exporter.leader.lost.cancelled() => Ok(None),
        }
    })
}

/// Sends the rest of a pack.
fn send_pack(
    exporter: &mut Exporter,
    session: &mut ProducerSession,
    open: &mut Open,
    current: &mut Current,
) -> Result<SentPart, Stop> {
    let count = current.pack.count();
    while current.next < count {
        let place = current.place();
        if session.is_given_up(place) {
            current.step(open);
            continue;
        }
        if session.is_to_drop(place) {
            open.settlement.controls.dropped += 1;
            current.step(open);
            continue;
        }
        if count_if_excluded(exporter, current, &mut open.excluded) {
            current.step(open);
            continue;
        }
        let is_suspect = exporter.learned.suspects.contains(&place);
        if is_suspect && open.records() > 0 {
            return Ok(SentPart::Part);
        }
        if is_suspect {
            let pack = current.pack.clone();
            let index = current.next;
            let webhook = current.webhook(exporter.leader.cell, index);
            open.alone = Some(Alone { place, webhook, pack, index });
        }
        send_record(exporter, session, open, current)?;
        current.step(open);
        if is_suspect && current.next < count {
            return Ok(SentPart::Part);
        }
    }
    match current.source {
        Source::Main(id) => open.pass(id, u64::from(count), Instant::now()),
        Source::Replay(id, _) => {
            open.position.replay = id;
            open.settlement.replays.push(id);
        }
    }
    Ok(SentPart::Whole)
}

/// True if the filter excludes the next webhook, which is counted then. An operator who replays a
/// webhook wants it in the topic.
fn count_if_excluded(exporter: &Exporter, current: &Current, excluded: &mut Excluded) -> bool {
    if matches!(current.source, Source::Replay(..)) {
        return false;
    }
    let view = current.pack.view(current.next);
    let route = exporter.queue.routes.route(view.target, &view);
    excluded.webhooks += u64::from(route != Route::Here);
    excluded.unmatched += u64::from(route == Route::Nowhere);
    route != Route::Here
}

fn send_record(
    exporter: &mut Exporter,
    session: &ProducerSession,
    open: &mut Open,
    current: &Current,
) -> Result<(), Stop> {
    let link = &session.link;
    commit::begin_transaction(exporter, session, open)?;
    let view = current.pack.view(current.next);
    let webhook = current.webhook(exporter.leader.cell, current.next);
    let tracer = exporter.metrics.tracer.as_ref();
    let span = open.spans.begin(tracer, &view, webhook, &exporter.settings.topic);
    let traceparent = span.as_ref().map(|span| span.context().to_string());
    let mut is_counted = false;
    let began = Instant::now();
    loop {
        let is_replay = matches!(current.source, Source::Replay(..));
        let record = exporter.encoder.encode(&view, webhook, traceparent.as_deref(), is_replay);
        if record.is_fallback && !std::mem::replace(&mut is_counted, true) {
            exporter.metrics.fallbacks.count_bytes(view.topic().as_deref());
        }
        let bytes = record.value.len() + record.key.len() + RECORD_BYTES;
        let Err(error) = link.send(record, open.records()) else {
            open.sent(current.place(), view.received_at_ms, bytes, Instant::now());
            open.spans.add(span);
            open.redactions.extend(DeliveredRedaction::of(&current.pack, current.next, webhook));
            return Ok(());
        };
        let is_empty = link.in_flight() == 0;
        match judge(Call::Send, KafkaFailure::from(&error)) {
            Fault::Retry if !is_empty => wait_for_room(exporter, session, began)?,
            // The record is larger than the queue: it would never fit.
            Fault::Retry | Fault::Refused => {
                link.reports().refuse(open.records(), &error);
                open.sent(current.place(), view.received_at_ms, 0, Instant::now());
                open.spans.add(span);
                return Err(Stop::Redo);
            }
            _ => return Err(exporter.stop(link, Call::Send, &error)),
        }
    }
}

fn wait_for_room(
    exporter: &Exporter,
    session: &ProducerSession,
    since: Instant,
) -> Result<(), Stop> {
    session.link.poll(QUEUE_FULL_WAIT);
    exporter.ensure_leadership()?;
    if session.link.reports().has_failed() {
        return Err(Stop::Redo);
    }
    commit::tell_if_slow(exporter, session, since);
    if exporter.shutdown.is_cancelled() {
        return Err(Stop::End(End::Stopped));
    }
    Ok(())
}

impl ProducerSession {
    /// Returns true if the webhook is a dead letter already.
    fn is_given_up(&self, place: RecordRef) -> bool {
        let RecordRef::Main(id, index) = place else { return false };
        let byte = self.given_up.get(&id).and_then(|bits| bits.get(index as usize / 8));
        byte.is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }
}

impl Current {
    fn place(&self) -> RecordRef {
        match self.source {
            Source::Main(id) => RecordRef::Main(id, self.next),
            Source::Replay(id, _) => RecordRef::Replay(id),
        }
    }

    fn webhook(&self, cell: u32, index: u32) -> WebhookId {
        match self.source {
            Source::Main(entry) => WebhookId { cell, entry, index },
            Source::Replay(_, webhook) => webhook,
        }
    }

    /// Goes to the next record, and moves the transaction's position after this one.
    fn step(&mut self, open: &mut Open) {
        self.next += 1;
        if let Source::Main(id) = self.source {
            open.position.part = Some((id, self.next));
        }
    }
}

/// Makes the next pack to send of what arrived, or moves the transaction at once.
fn take(session: &mut ProducerSession, open: &mut Open, arrived: Arrived) -> Result<(), Stop> {
    let committed = session.committed;
    match arrived {
        // Committed before, and not settled: settle it in Redis now.
        Arrived::Pack(id, pack) if id <= committed.entry => {
            session.owe_passed(id, u64::from(pack.count()));
        }
        Arrived::Pack(id, pack) => {
            let next = committed.done_of(id);
            session.current = Some(Current { source: Source::Main(id), pack, next });
        }
        Arrived::Corrupt(id) if id <= committed.entry => {
            session.owed.settlement.corrupt.packs.push(id);
            session.owe_passed(id, 0);
        }
        Arrived::Corrupt(id) => {
            open.settlement.corrupt.packs.push(id);
            open.pass(id, 0, Instant::now());
        }
        Arrived::Replayed(id, _, _) if id <= committed.replay => {
            session.owed.settlement.replays.push(id)
        }
        Arrived::Replayed(id, webhook, pack) => {
            let source = Source::Replay(id, webhook);
            session.current = Some(Current { source, pack, next: 0 });
        }
        Arrived::CorruptReplay(id) if id <= committed.replay => {
            session.owed.settlement.corrupt.replays.push(id);
        }
        Arrived::CorruptReplay(id) => {
            open.settlement.corrupt.replays.push(id);
            open.position.replay = open.position.replay.max(id);
        }
        Arrived::Mark => {}
        Arrived::OlderData => return Err(Stop::End(End::Stale)),
    }
    Ok(())
}
