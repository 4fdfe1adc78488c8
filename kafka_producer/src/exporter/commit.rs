//! End of a transaction: its records and the cursor appear together, or not at all.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use spillway_consumer::End;
use spillway_process::clock::wall_clock_ms;

use super::settling;
use super::{Exporter, ProducerSession, Stop};
use crate::fault::{Call, Fault, KafkaFailure, judge};
use crate::open::{Excluded, Open};

/// Time between checks for the delivery of all records.
const DELIVERED_TICK: Duration = Duration::from_millis(2);
/// Time after which records under way are reported.
const SLOW: Duration = Duration::from_secs(3);
/// Reason for that if librdkafka reports none.
const UNSAID: &str = "kafka_unavailable: records wait for a broker to take them";
/// Times that the cursor is offered to a coordinator that is not ready.
const OFFERS_MAX: u32 = 10;
/// Time within which the records that an abort removes from the queue are reported.
const PURGE_MAX: Duration = Duration::from_secs(5);
/// Pause between two offers.
const OFFER_PAUSE: Duration = Duration::from_millis(200);
/// Commits `open`, and notes the settlement for Redis.
pub(super) fn commit(
    exporter: &mut Exporter,
    session: &mut ProducerSession,
    open: &mut Open,
) -> Result<(), Stop> {
    begin_transaction(exporter, session, open)?;
    await_delivery(exporter, session)?;
    let through = session.through + open.settlement.passed.map_or(0, |passed| passed.webhooks);
    move_cursor(exporter, session, open, through)?;
    note_redactions(exporter, open)?;
    let link = &session.link;
    link.commit().map_err(|error| exporter.stop(link, Call::Commit, &error))?;
    exporter.metrics.committed(&open.received_at_ms, wall_clock_ms());
    let Excluded { webhooks, unmatched } = open.excluded;
    exporter.metrics.routes.excluded.inc_by(webhooks);
    exporter.metrics.routes.unmatched.inc_by(unmatched);
    open.end_spans(exporter.metrics.tracer.as_ref(), None);
    exporter.well(link);
    session.through = through;
    session.committed = open.position;
    exporter.learned.committed(open);
    session.owe(std::mem::take(&mut open.settlement));
    settling::hear_settled(exporter, session)
}

/// Begins the transaction in Kafka, unless it has begun.
pub(super) fn begin_transaction(
    exporter: &Exporter,
    session: &ProducerSession,
    open: &mut Open,
) -> Result<(), Stop> {
    let link = &session.link;
    if !open.has_begun {
        link.begin().map_err(|error| exporter.stop(link, Call::Begin, &error))?;
        open.has_begun = true;
    }
    Ok(())
}

/// Notes in Redis the redactions among the records, all of which the brokers have. After the commit it would be too
/// late: a producer that is killed then never looks at them again.
fn note_redactions(exporter: &Exporter, open: &mut Open) -> Result<(), Stop> {
    let redis = &exporter.queue.redis;
    let consumer = exporter.queue.routes.name();
    for redaction in open.redactions.drain(..) {
        exporter.runtime.block_on(async {
            tokio::select! {
                () = redaction.note(redis, consumer) => Ok(()),
                () = exporter.leader.lost.cancelled() => Err(Stop::End(End::Lost)),
                () = exporter.shutdown.cancelled() => Err(Stop::End(End::Stopped)),
            }
        })?;
    }
    Ok(())
}

/// Waits until every record is on all in-sync replicas, or one has failed.
fn await_delivery(exporter: &mut Exporter, session: &mut ProducerSession) -> Result<(), Stop> {
    let began = Instant::now();
    loop {
        let in_flight = session.link.in_flight();
        let wait = if in_flight == 0 { Duration::ZERO } else { DELIVERED_TICK };
        session.link.poll(wait);
        if session.link.reports().has_failed() {
            return Err(Stop::Redo);
        }
        if in_flight == 0 {
            return Ok(());
        }
        exporter.ensure_leadership()?;
        settling::hear_settled(exporter, session)?;
        tell_if_slow(exporter, session, began);
    }
}

/// Shows why records have been under way for long.
pub(super) fn tell_if_slow(exporter: &Exporter, session: &ProducerSession, since: Instant) {
    if since.elapsed() > SLOW {
        let trouble = session.link.reports().trouble();
        exporter.trouble(trouble.map_or_else(|| UNSAID.into(), |trouble| trouble.reason()));
    }
}

fn move_cursor(
    exporter: &Exporter,
    session: &ProducerSession,
    open: &Open,
    through: u64,
) -> Result<(), Stop> {
    let link = &session.link;
    let mut offers = 0;
    loop {
        let Err(error) = link.move_cursor(&open.position, through) else { return Ok(()) };
        offers += 1;
        match judge(Call::Offsets, KafkaFailure::from(&error)) {
            Fault::Retry if offers < OFFERS_MAX => {
                exporter.ensure_leadership()?;
                link.poll(OFFER_PAUSE);
            }
            Fault::Retry => {
                exporter.trouble.last_error.replace(Some(error.to_string()));
                return Err(Stop::Rebuild);
            }
            _ => return Err(exporter.stop(link, Call::Offsets, &error)),
        }
    }
}

/// Aborts `open`. Afterwards all records that failed, or that the abort removed from the queue,
/// are reported.
pub(super) fn abort(
    exporter: &Exporter,
    session: &ProducerSession,
    open: &Open,
) -> Result<(), Stop> {
    let link = &session.link;
    if open.has_begun {
        link.abort().map_err(|error: KafkaError| exporter.stop(link, Call::Abort, &error))?;
        exporter.metrics.aborted();
    }
    let aborted_at = Instant::now();
    while link.in_flight() > 0 {
        link.poll(DELIVERED_TICK);
        if aborted_at.elapsed() > PURGE_MAX {
            return Err(Stop::Rebuild);
        }
    }
    link.poll(Duration::ZERO);
    Ok(())
}
