//! Start of a session: becomes the only producer, and finds the position to continue from.

use std::time::Duration;

use rdkafka::error::KafkaError;
use spillway_consumer::End;
use spillway_process::error::chain;
use spillway_queue::QueueError;
use spillway_queue::controls::OperatorControls;
use spillway_queue::read::{ConsumerProgress, StreamRange};

use super::settling::Owed;
use super::{DENIED_PAUSE, Exporter, ProducerSession, REDONE_OFTEN, Stop};
use super::{controls, settling};
use crate::fault::{Call, Fault, KafkaFailure, judge};
use crate::link::Link;
use crate::resume::{Committed, Gap, decide, with_known_replay};

/// Pause before Redis or Kafka is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// Does everything before the first transaction.
pub(super) fn begin(exporter: &mut Exporter) -> Result<ProducerSession, Stop> {
    settling::settle_under_way(exporter)?;
    let mut link = Link::build(&exporter.settings, exporter.leader.cell, &exporter.calls).map_err(
        |error| {
            exporter.trouble(format!("kafka_refuses: {error}").into());
            exporter.pause(DENIED_PAUSE).err().unwrap_or(Stop::Rebuild)
        },
    )?;
    exporter.metrics.producers.inc();
    // Become the only producer first, then look: the previous one may be about to commit.
    ask(exporter, &mut link, Call::Init, |link| link.init())?;
    link.reports().forget_trouble();
    ask(exporter, &mut link, Call::Look, |link| link.look_for_topic())?;
    let kafka = ask(exporter, &mut link, Call::Look, Link::cursor)?;
    let (progress, span, controls) = progress(exporter)?;
    let (committed, gap) = decide(kafka, progress.cursor, &span);
    let committed = with_known_replay(committed, progress.last_replay);
    if let Some(gap) = gap {
        tell(exporter, &gap);
    }
    if kafka.is_none() && progress.through > 0 {
        // A broker forgets the cursor 7 days after the last commit. By then Redis' own is
        // equal.
        tracing::warn!(
            from = %progress.cursor,
            "kafka has no cursor of this cell; going on from redis'. If there were commits in \
             the last days, this is another kafka, or another topic"
        );
    }
    tracing::info!(
        from = %committed,
        redis = %progress.cursor,
        kafka = kafka.map(|Committed { position, .. }| position.to_string()),
        "producing"
    );
    controls::show_pauses(exporter, &controls);
    // Answers mean little if no transaction has succeeded for long.
    if exporter.learned.redone < REDONE_OFTEN {
        exporter.well(&link);
    }
    let mut owed = Owed::after(progress.cursor);
    // They are in force from here on, whichever leader read them first.
    owed.settlement.controls.done = (controls.version > 0).then_some(controls.version);
    Ok(ProducerSession {
        link,
        arrived: exporter.intake(progress.cursor),
        current: None,
        committed,
        through: progress.through,
        owed,
        given_up: progress.done,
        controls_looked_at: controls.version,
        controls,
    })
}

/// Repeats a call until it succeeds or can't succeed any more.
fn ask<T>(
    exporter: &Exporter,
    link: &mut Link,
    call: Call,
    ask: impl Fn(&mut Link) -> Result<T, KafkaError>,
) -> Result<T, Stop> {
    loop {
        match ask(link) {
            Ok(answer) => return Ok(answer),
            Err(error) => wait_for(exporter, link, call, &error)?,
        }
    }
}

/// Shows that Kafka does not answer yet, or not as needed, and waits.
fn wait_for(exporter: &Exporter, link: &Link, call: Call, error: &KafkaError) -> Result<(), Stop> {
    // A report of librdkafka is more specific than the time-out of a call.
    let told = link.reports().trouble();
    let is_denial = told.as_ref().is_some_and(|trouble| trouble.is_denial);
    match judge(call, KafkaFailure::from(error)) {
        Fault::Retry if is_denial => {
            exporter.trouble(told.map(|trouble| trouble.reason()).unwrap_or_default());
            exporter.pause(DENIED_PAUSE)
        }
        Fault::Retry => {
            let topic = &exporter.settings.topic;
            let because = told.map_or_else(
                || format!("kafka_unavailable: {error} (topic {topic})").into(),
                |trouble| trouble.reason(),
            );
            exporter.trouble(because);
            exporter.pause(PAUSE)
        }
        _ => Err(exporter.stop(link, call, error)),
    }
}

/// Reads the state of this consumer from Redis. Repeats until Redis answers.
fn progress(
    exporter: &mut Exporter,
) -> Result<(ConsumerProgress, StreamRange, OperatorControls), Stop> {
    loop {
        let runtime = exporter.runtime.clone();
        match runtime.block_on(exporter.queue.read_progress()) {
            Ok(progress) => return Ok(progress),
            Err(QueueError::Unregistered) => {
                return Err(Stop::End(End::Stale));
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "the cursor could not be read from redis");
                exporter.queue.connection = None;
                exporter.pause(PAUSE)?;
            }
        }
    }
}

fn tell(exporter: &Exporter, gap: &Gap) {
    exporter.metrics.gap(gap.kind());
    match gap {
        Gap::Ahead { last, cursor } => tracing::error!(
            redis_ends_at = %last, %cursor,
            "redis lost data: kafka's cursor is ahead of it. What was accepted between the two \
             is lost here (kafka has it up to its cursor); what is left behind redis' cursor \
             is sent again"
        ),
        Gap::Behind { cursor, redis } => tracing::error!(
            %cursor, redis_cursor = %redis,
            "kafka's cursor is behind redis': kafka lost commits, or the consumer was told to \
             begin later. Webhooks between the two may be missing in the topic"
        ),
        Gap::Freed { cursor, oldest, webhooks } => tracing::error!(
            %cursor, %oldest, webhooks,
            "webhooks were freed while the consumer was not registered: they are not in the topic"
        ),
    }
}
