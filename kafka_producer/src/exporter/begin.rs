//! Start of a session: becomes the only producer, and finds the position to continue from.

use std::time::Duration;

use rdkafka::error::KafkaError;
use spillway_consumer::End;
use spillway_process::error::chain;
use spillway_queue::consumers::KAFKA;
use spillway_queue::controls::{self, OperatorControls};
use spillway_queue::read::{ConsumerProgress, StreamRange};
use spillway_queue::{Connection, QueueError};

use super::settling::Owed;
use super::{DENIED_PAUSE, Exporter, ProducerSession, REDONE_OFTEN, Stop};
use crate::fault::{Call, Fault, KafkaFailure, judge};
use crate::link::Link;
use crate::resume::{Committed, Gap, decide};

/// Pause before Redis or Kafka is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit for an answer of Redis.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl Exporter {
    /// Does everything before the first transaction.
    pub(super) fn begin(&mut self) -> Result<ProducerSession, Stop> {
        self.settle_under_way()?;
        let mut link =
            Link::build(&self.settings, self.leader.cell, &self.calls).map_err(|error| {
                self.trouble(format!("kafka_refuses: {error}").into());
                self.pause(DENIED_PAUSE).err().unwrap_or(Stop::Rebuild)
            })?;
        self.metrics.producers.inc();
        // Become the only producer first, then look: the previous one may be about to commit.
        self.ask(&mut link, Call::Init, |link| link.init())?;
        link.reports().forget_trouble();
        self.ask(&mut link, Call::Look, |link| link.look_for_topic())?;
        let kafka = self.ask(&mut link, Call::Look, Link::cursor)?;
        let (progress, span, controls) = self.progress()?;
        let (committed, gap) = decide(kafka, progress.cursor, &span);
        if let Some(gap) = gap {
            self.tell(&gap);
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
        self.show_pauses(&controls);
        // Answers mean little if no transaction has succeeded for long.
        if self.learned.redone < REDONE_OFTEN {
            self.well(&link);
        }
        let mut owed = Owed::after(progress.cursor);
        // They are in force from here on, whichever leader read them first.
        owed.settlement.controls.done = (controls.version > 0).then_some(controls.version);
        Ok(ProducerSession {
            link,
            arrived: self.intake(progress.cursor),
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
        &self,
        link: &mut Link,
        call: Call,
        ask: impl Fn(&mut Link) -> Result<T, KafkaError>,
    ) -> Result<T, Stop> {
        loop {
            match ask(link) {
                Ok(answer) => return Ok(answer),
                Err(error) => self.wait_for(link, call, &error)?,
            }
        }
    }

    /// Shows that Kafka does not answer yet, or not as needed, and waits.
    fn wait_for(&self, link: &Link, call: Call, error: &KafkaError) -> Result<(), Stop> {
        // A report of librdkafka is more specific than the time-out of a call.
        let told = link.reports().trouble();
        let is_denial = told.as_ref().is_some_and(|trouble| trouble.is_denial);
        match judge(call, KafkaFailure::from(error)) {
            Fault::Retry if is_denial => {
                self.trouble(told.map(|trouble| trouble.reason()).unwrap_or_default());
                self.pause(DENIED_PAUSE)
            }
            Fault::Retry => {
                let topic = &self.settings.topic;
                let because = told.map_or_else(
                    || format!("kafka_unavailable: {error} (topic {topic})").into(),
                    |trouble| trouble.reason(),
                );
                self.trouble(because);
                self.pause(PAUSE)
            }
            _ => Err(self.stop(link, call, error)),
        }
    }

    /// Reads the state of this consumer from Redis. Repeats until Redis answers.
    fn progress(&mut self) -> Result<(ConsumerProgress, StreamRange, OperatorControls), Stop> {
        loop {
            let runtime = self.runtime.clone();
            match runtime.block_on(self.read_progress()) {
                Ok(progress) => return Ok(progress),
                Err(QueueError::Unregistered) => {
                    return Err(Stop::End(End::Stale));
                }
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "the cursor could not be read from redis"
                    );
                    self.queue.connection = None;
                    self.pause(PAUSE)?;
                }
            }
        }
    }

    async fn read_progress(
        &mut self,
    ) -> Result<(ConsumerProgress, StreamRange, OperatorControls), QueueError> {
        let mut connection = self.connected().await?.clone();
        let progress = self.queue.reader.progress(&mut connection).await?;
        let controls = controls::read(&self.queue.redis, &mut connection, KAFKA).await?;
        Ok((progress, self.queue.reader.span(&mut connection).await?, controls))
    }

    /// Connection for the few reads that the leader itself makes.
    pub(super) async fn connected(&mut self) -> Result<&mut Connection, QueueError> {
        if self.queue.connection.is_none() {
            self.queue.connection = Some(self.queue.redis.connect(Some(ANSWER_TIMEOUT)).await?);
        }
        Ok(self.queue.connection.as_mut().expect("BUG: just connected"))
    }

    fn tell(&self, gap: &Gap) {
        self.metrics.gap(gap.kind());
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
}
