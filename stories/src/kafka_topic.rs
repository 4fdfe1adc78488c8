//! A reader of a topic, as a consumer of Spillway's users would be. It uses `read_committed`,
//! starts at the first record, and survives restarts of the broker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::Offset;
use rdkafka::{ClientConfig, TopicPartitionList};

use crate::ledger::Event;
use crate::receipt::{BodyHash, hash};
use crate::until::until;

/// Time without a record after which another consumer reads on.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// A complete record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Partition.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
    /// Key.
    pub key: Vec<u8>,
    /// Headers, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Value.
    pub value: Vec<u8>,
    /// Timestamp, in milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
}

/// The parts of a raw record that the checks need.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Partition.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
    /// Event of the record; `None` if it is not an event of the test.
    pub event: Option<Event>,
    /// Hash of the Spillway id.
    pub spillway_id: BodyHash,
    /// Hash of the body.
    pub body_hash: BodyHash,
}

/// A topic that is read until this value is dropped.
#[derive(Debug)]
pub struct Topic<T> {
    read: Arc<Mutex<Vec<T>>>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Record {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(|headers| {
            let pair = |header: rdkafka::message::Header<'_, &[u8]>| {
                (header.key.to_owned(), header.value.unwrap_or_default().to_vec())
            };
            headers.iter().map(pair).collect()
        });
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().unwrap_or_default().to_vec(),
            headers: headers.unwrap_or_default(),
            value: message.payload().unwrap_or_default().to_vec(),
            timestamp_ms: message.timestamp().to_millis().unwrap_or_default(),
        }
    }

    /// First header with this name, as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(have, _)| have == name);
        found.map(|(_, value)| std::str::from_utf8(value).expect("a header of text"))
    }
}

impl Arrival {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let header = |name: &str| {
            let mut headers = message.headers().into_iter().flat_map(|headers| headers.iter());
            headers.find(|header| header.key == name).and_then(|header| header.value)
        };
        let webhook_id = header("x-shopify-webhook-id").unwrap_or_default();
        Self {
            partition: message.partition(),
            offset: message.offset(),
            event: std::str::from_utf8(webhook_id).ok().and_then(Event::of),
            spillway_id: hash(header("spillway-id").unwrap_or_default()),
            body_hash: hash(message.payload().unwrap_or_default()),
        }
    }
}

impl Topic<Record> {
    /// Reads complete records.
    pub fn records(clients: ClientConfig, name: &str, partitions: i32) -> Self {
        Self::read(clients, name, partitions, Record::of)
    }
}

impl Topic<Arrival> {
    /// Reads raw records of a load, with only the parts that the checks need.
    pub fn arrivals(clients: ClientConfig, name: &str, partitions: i32) -> Self {
        Self::read(clients, name, partitions, Arrival::of)
    }
}

impl<T: Send + Clone + 'static> Topic<T> {
    fn read(
        mut clients: ClientConfig,
        name: &str,
        partitions: i32,
        of: fn(&BorrowedMessage<'_>) -> T,
    ) -> Self {
        // Explicit although it is librdkafka's default, because Java's default differs.
        clients.set("isolation.level", "read_committed").set("enable.auto.commit", "false");
        clients.set("group.id", "reader-of-the-tests").set("reconnect.backoff.max.ms", "500");
        let mut from = TopicPartitionList::new();
        for partition in 0..partitions {
            let added = from.add_partition_offset(name, partition, Offset::Beginning);
            added.expect("a partition");
        }
        let (read, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (read, stop) = (Arc::clone(&read), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    read_on(&clients, &mut from, &read, &stop, of);
                }
            })
        };
        Self { read, stop, reader: Some(reader) }
    }

    /// Number of records read.
    pub fn count(&self) -> usize {
        self.entries().len()
    }

    /// All records read.
    pub fn all(&self) -> Vec<T> {
        self.entries().clone()
    }

    /// Records read after the first `seen`.
    pub fn after(&self, seen: usize) -> Vec<T> {
        self.entries()[seen..].to_vec()
    }

    /// Waits until `count` records are read.
    pub async fn reaches(&self, count: usize, within: Duration) {
        until(&format!("{count} records are read"), within, async || self.count() >= count).await;
    }

    fn entries(&self) -> MutexGuard<'_, Vec<T>> {
        self.read.lock().expect("no reader panicked")
    }
}

/// Reads on with a new consumer, and moves `from`, until nothing has come for a while: a consumer does
/// not always find a broker again that stood still.
fn read_on<T>(
    clients: &ClientConfig,
    from: &mut TopicPartitionList,
    read: &Mutex<Vec<T>>,
    stop: &AtomicBool,
    of: fn(&BorrowedMessage<'_>) -> T,
) {
    let consumer: BaseConsumer = clients.create().expect("a consumer");
    consumer.assign(from).expect("the topic is assigned");
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) && last.elapsed() < READ_AGAIN_AFTER {
        // An unavailable broker is an error here; the next poll tries again.
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) {
            let next = Offset::Offset(message.offset() + 1);
            let moved = from.set_partition_offset(message.topic(), message.partition(), next);
            moved.expect("one of its partitions");
            read.lock().expect("no looker panicked").push(of(&message));
            last = Instant::now();
        }
    }
}

impl<T> Drop for Topic<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}
