//! The link to Kafka: one transactional producer, and the cursor that its transactions move.
//!
//! Blocking: one thread uses it and does nothing else. Each call has a time limit, but librdkafka
//! does not keep them all. [`crate::calls`] notices a call that does not return. The link decides
//! nothing: [`crate::fault`] judges errors.

use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::Offset;

use crate::calls::{Calls, Entered};
use crate::format::Encoded;
use crate::options;
use crate::position::CellPosition;
use crate::reports::Reports;
use crate::resume::Committed;
use crate::settings::ProducerSettings;

/// Time limit of one call that checks if Kafka answers. It is repeated.
const LOOK: Duration = Duration::from_secs(3);
/// Time limit for the broker to take the cursor into the transaction.
const OFFSETS: Duration = Duration::from_secs(15);
/// Time limit for a commit. After it, the outcome is unknown.
const COMMIT: Duration = Duration::from_secs(30);
/// Time limit for an abort. The next producer ends what is not aborted by then.
const ABORT: Duration = Duration::from_secs(10);
/// Time limit of one step of an abort, and time for reports before each step.
const ABORT_STEP: Duration = Duration::from_millis(50);
const ABORT_HEARS: Duration = Duration::from_millis(2);
/// Events of librdkafka that are received after a wait.
const EVENTS_MAX: usize = 8;
/// Partition that the cursor is stored under. Every topic has it.
const CURSOR_PARTITION: i32 = 0;

/// Transactional producer of one cell.
pub(crate) struct Link {
    producer: BaseProducer<Reports>,
    cursor_options: ClientConfig,
    topic: String,
    group: Option<ConsumerGroupMetadata>,
    calls: Calls,
    /// Dropped after all fields above: the destruction of a producer is a call, too.
    at_last: Option<Entered>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.at_last = Some(self.calls.enter());
    }
}

impl Link {
    /// Builds the producer. It connects in the background.
    ///
    /// # Errors
    /// If librdkafka refuses its options.
    pub(crate) fn build(
        settings: &ProducerSettings,
        cell: u32,
        calls: &Calls,
    ) -> Result<Self, KafkaError> {
        let options = options::producer(settings, cell);
        let producer = BaseProducer::from_config_and_context(&options, Reports::default())?;
        let cursor_options = options::cursor_reader(settings, cell);
        Ok(Self {
            producer,
            cursor_options,
            topic: settings.topic.clone(),
            group: None,
            calls: calls.clone(),
            at_last: None,
        })
    }

    /// Reports of librdkafka that [`Link::poll`] has received.
    pub(crate) fn reports(&self) -> &Reports {
        self.producer.context()
    }

    /// Makes this the only producer of the transactional id. Aborts what another left open, and
    /// fences that one. Can be repeated after a time-out.
    ///
    /// # Errors
    /// From Kafka.
    pub(crate) fn init(&self) -> Result<(), KafkaError> {
        let _call = self.calls.enter();
        let asked = self.producer.init_transactions(LOOK);
        self.poll(Duration::ZERO);
        asked
    }

    /// Checks that the topic exists.
    ///
    /// # Errors
    /// From Kafka.
    pub(crate) fn look_for_topic(&self) -> Result<(), KafkaError> {
        let _call = self.calls.enter();
        let metadata = self.producer.client().fetch_metadata(Some(&self.topic), LOOK);
        self.poll(Duration::ZERO);
        let metadata = metadata?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == self.topic);
        match topic.map(|topic| (topic.error(), topic.partitions().is_empty())) {
            Some((None, false)) => Ok(()),
            Some((Some(error), _)) => Err(KafkaError::MetadataFetch(error.into())),
            Some((None, true)) | None => {
                Err(KafkaError::MetadataFetch(Code::UnknownTopicOrPartition))
            }
        }
    }

    /// Returns the committed cursor. `None` if there is none (yet, or any more: a broker forgets it
    /// 7 days after the last commit, when Redis' own cursor is equal anyway). Must be called after
    /// [`Link::init`]: otherwise a commit of another producer could be missed.
    ///
    /// # Errors
    /// From Kafka.
    pub(crate) fn cursor(&mut self) -> Result<Option<Committed>, KafkaError> {
        let _call = self.calls.enter();
        let consumer: BaseConsumer = self.cursor_options.create()?;
        let mut asked = TopicPartitionList::new();
        asked.add_partition(&self.topic, CURSOR_PARTITION);
        let found = consumer.committed_offsets(asked, LOOK)?;
        let found = found.find_partition(&self.topic, CURSOR_PARTITION);
        let committed = match found {
            Some(found) => {
                found.error()?;
                committed(found.offset(), found.metadata())
            }
            None => None,
        };
        self.group = consumer.group_metadata();
        Ok(committed)
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// From librdkafka.
    pub(crate) fn begin(&self) -> Result<(), KafkaError> {
        let _call = self.calls.enter();
        self.producer.begin_transaction()
    }

    /// Hands a record to librdkafka. If it fails, that is reported under `number`.
    ///
    /// # Errors
    /// From librdkafka, including [`Code::QueueFull`].
    pub(crate) fn send(&self, record: Encoded<'_>, number: usize) -> Result<(), KafkaError> {
        let _call = self.calls.enter();
        let record = BaseRecord::with_opaque_to(&self.topic, number)
            .key(record.key)
            .payload(record.value)
            .timestamp(record.timestamp_ms)
            .headers(record.headers);
        self.producer.send(record).map_err(|(error, _)| error)
    }

    /// Number of records that were handed over, and neither delivered nor failed.
    pub(crate) fn in_flight(&self) -> usize {
        usize::try_from(self.producer.in_flight_count()).unwrap_or(0)
    }

    /// Receives librdkafka's reports, after `wait`. A wait within rdkafka would keep the core busy for
    /// up to a millisecond at its end.
    pub(crate) fn poll(&self, wait: Duration) {
        let _call = self.calls.enter();
        std::thread::sleep(wait);
        // Each call receives one event. A report of many records is one.
        let events = if wait.is_zero() { 1 } else { EVENTS_MAX };
        for _ in 0..events {
            self.producer.poll(Duration::ZERO);
        }
    }

    /// Adds the cursor to the transaction: it moves only if the records appear.
    ///
    /// # Errors
    /// From Kafka.
    pub(crate) fn move_cursor(&self, to: &CellPosition, through: u64) -> Result<(), KafkaError> {
        let _call = self.calls.enter();
        let mut offsets = TopicPartitionList::new();
        let mut cursor = offsets.add_partition(&self.topic, CURSOR_PARTITION);
        cursor.set_offset(Offset::Offset(through.cast_signed()))?;
        cursor.set_metadata(to.to_string());
        let group = self.group.as_ref().ok_or(KafkaError::OffsetFetch(Code::NoOffset))?;
        self.producer.send_offsets_to_transaction(&offsets, group, OFFSETS)
    }

    /// Commits. All records must be delivered before. Waiting for them here would be slower, since
    /// rdkafka checks only once in 100 ms.
    ///
    /// # Errors
    /// From Kafka.
    pub(crate) fn commit(&self) -> Result<(), KafkaError> {
        let _call = self.calls.enter();
        self.producer.commit_transaction(COMMIT)
    }

    /// Aborts: none of the transaction's records appears. Works in short steps, as librdkafka
    /// allows. It waits until every record is reported, and reports are only received between the
    /// steps.
    ///
    /// # Errors
    /// From Kafka.
    pub(crate) fn abort(&self) -> Result<(), KafkaError> {
        let _call = self.calls.enter();
        let began = Instant::now();
        loop {
            self.poll(ABORT_HEARS);
            let ended = self.producer.abort_transaction(ABORT_STEP);
            match ended.as_ref().map_err(KafkaError::rdkafka_error_code) {
                Err(Some(Code::OperationTimedOut)) if began.elapsed() < ABORT => {}
                _ => return ended,
            }
        }
    }
}

fn committed(offset: Offset, metadata: &str) -> Option<Committed> {
    let Offset::Offset(offset) = offset else { return None };
    match metadata.parse() {
        Ok(position) => {
            Some(Committed { position, through: u64::try_from(offset).unwrap_or_default() })
        }
        Err(error) => {
            tracing::error!(
                %error,
                "the cursor in kafka is not one of ours: somebody else committed to our group; \
                 going on from redis' cursor"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rdkafka::message::OwnedHeaders;
    use spillway_process::{Checker, ServerArgs};

    use super::*;
    use crate::settings::ProducerArgs;

    #[test]
    fn handing_a_record_over_is_a_call_that_is_watched() {
        let written = ProducerArgs::parse_from(["kafka_producer", "--kafka-url", "127.0.0.1:9"]);
        let settings = written.check(&mut Checker::default());
        let calls = Calls::default();
        let link = Link::build(&settings, 1, &calls).expect("good options");
        let before = calls.returned();
        let record = Encoded {
            key: "key",
            value: b"{}",
            headers: OwnedHeaders::new(),
            timestamp_ms: 1,
            is_fallback: false,
        };
        // Without a transaction.
        assert!(link.send(record, 0).is_err());
        assert_eq!(calls.returned(), before + 1);
    }
}
