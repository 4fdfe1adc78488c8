//! The beginning of a session: become the one producer, learn where to go on.

use std::time::Duration;

use rdkafka::error::KafkaError;
use spillway_drain::End;
use spillway_queue::drains::KAFKA;
use spillway_queue::orders::{self, Orders};
use spillway_queue::read::{Progress, Span};
use spillway_queue::{Connection, QueueError};
use spillway_service::error::chain;

use super::settling::Owed;
use super::{DENIED_PAUSE, Drain, REDONE_OFTEN, Session, Stop};
use crate::fault::{Call, Failure, Fault, judge};
use crate::link::Link;
use crate::resume::{Committed, Gap, decide};

/// Before Redis or Kafka is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for an answer of Redis.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl Drain {
    /// Everything up to the first transaction.
    pub(super) fn begin(&mut self) -> Result<Session, Stop> {
        self.settle_under_way()?;
        let mut link =
            Link::build(&self.settings, self.tenure.cell, &self.calls).map_err(|error| {
                self.trouble(format!("kafka_refuses: {error}").into());
                self.pause(DENIED_PAUSE).err().unwrap_or(Stop::Rebuild)
            })?;
        self.metrics.producers.inc();
        // First become the only one, then look: the one before may be about to commit.
        self.ask(&mut link, Call::Init, |link| link.init())?;
        link.reports().forget_trouble();
        self.ask(&mut link, Call::Look, |link| link.look_for_topic())?;
        let kafka = self.ask(&mut link, Call::Look, Link::cursor)?;
        let (progress, span, orders) = self.progress()?;
        let (committed, gap) = decide(kafka, progress.cursor, &span);
        if let Some(gap) = gap {
            self.tell(&gap);
        }
        if kafka.is_none() && progress.through > 0 {
            // A broker forgets it 7 days after the last commit, when Redis' own is equal anyway.
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
        self.show_pauses(&orders);
        // That it answers says little where no transaction has come to its end for long.
        if self.learned.redone < REDONE_OFTEN {
            self.well(&link);
        }
        let mut owed = Owed::after(progress.cursor);
        // They are in force from here on, whoever read them first.
        owed.settlement.orders.done = (orders.version > 0).then_some(orders.version);
        Ok(Session {
            link,
            arrived: self.intake(progress.cursor),
            current: None,
            committed,
            through: progress.through,
            owed,
            given_up: progress.done,
            orders_looked_at: orders.version,
            orders,
        })
    }

    /// Asks until there is an answer, or it is clear that none will come.
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

    /// Kafka does not answer yet, or not as we need it.
    fn wait_for(&self, link: &Link, call: Call, error: &KafkaError) -> Result<(), Stop> {
        // What librdkafka said on its own tells more than that a call timed out.
        let told = link.reports().trouble();
        let is_denial = told.as_ref().is_some_and(|trouble| trouble.is_denial);
        match judge(call, Failure::from(error)) {
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

    /// What Redis holds, as soon as it says so.
    fn progress(&mut self) -> Result<(Progress, Span, Orders), Stop> {
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
                    self.connection = None;
                    self.pause(PAUSE)?;
                }
            }
        }
    }

    async fn read_progress(&mut self) -> Result<(Progress, Span, Orders), QueueError> {
        let mut connection = self.connected().await?.clone();
        let progress = self.reader.progress(&mut connection).await?;
        let orders = orders::read(&self.redis, &mut connection, KAFKA).await?;
        Ok((progress, self.reader.span(&mut connection).await?, orders))
    }

    /// The connection for the few reads of the drain itself.
    pub(super) async fn connected(&mut self) -> Result<&mut Connection, QueueError> {
        if self.connection.is_none() {
            self.connection = Some(self.redis.connect(Some(ANSWER_TIMEOUT)).await?);
        }
        Ok(self.connection.as_mut().expect("BUG: just connected"))
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
                "kafka's cursor is behind redis': kafka lost commits, or the drain was told to \
                 begin later. Webhooks between the two may be missing in the topic"
            ),
            Gap::Freed { cursor, oldest, webhooks } => tracing::error!(
                %cursor, %oldest, webhooks,
                "webhooks were freed while the drain was not registered: they are not in the topic"
            ),
        }
    }
}
