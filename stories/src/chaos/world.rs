//! A whole cell under load: its processes are kept running, and each kind of fault is made here.

mod faults;
mod mood;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::fault::Parts;
use super::kept::Kept;
use super::sync::Syncs;
use crate::backend::Backend;
use crate::cell::{CONCURRENCY, Cell};
use crate::clock::Clock;
use crate::disk::SmallDisk;
use crate::kafka_server::{KafkaOptions, KafkaServer};
use crate::kafka_topic::{Arrival, Topic};
use crate::ledger::Event;
use crate::port;
use crate::redis_server::{RedisServer, socket_in};
use crate::report::say;
use crate::service::Service;
use crate::settlements::{Duplicates, Recorder};
use crate::sick_disk::SickDisk;
use crate::way::Way;
use mood::Mood;
pub use mood::{BROKEN_SHOP, SHOPS};
use tokio::task::JoinSet;

/// Backlog of `ops/systemd/spillway-receiver.socket`.
const BACKLOG: u32 = 4096;
const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 6;
/// Size of Redis' disk. The receiver requires 1 GiB of free space next to the AOF.
const REDIS_DISK_MIB: u32 = 1400;
const SPILL_DISK_MIB: u32 = 64;
/// Longer than a slow backend takes, but short enough for a test.
const DELIVERY_TIMEOUT: (&str, &str) = ("DELIVERY_TIMEOUT", "2s");
/// Shorter than the stalls that faults cause.
const ACK_TIMEOUT: (&str, &str) = ("ACK_TIMEOUT", "1s");
/// Shortest value, so that webhooks are moved into lanes within a fault.
const PARK_AFTER: (&str, &str) = ("PARK_AFTER", "1s");
/// Exit code of our processes after which they may be restarted.
const FAILED: i32 = 1;

/// The cell. Fields are dropped in order: processes before their disks, and disks before the
/// directory.
#[derive(Debug)]
pub struct World {
    /// Parts of the cell.
    pub parts: Parts,
    /// Backend, which records what it is sent.
    pub backend: Backend,
    /// Tampering with Redis' syncs; it must be dropped before Redis.
    syncs: Option<Syncs>,
    receiver: Kept<Service>,
    downstreamers: Vec<Kept<Service>>,
    kafka: Option<Kafka>,
    redis: Kept<RedisServer>,
    ways: Ways,
    mood: Arc<Mood>,
    /// Records the settlements of the consumers.
    recorder: Arc<Recorder>,
    /// Tasks that send settlements again.
    repeating: JoinSet<()>,
    is_shop_paused: bool,
    clocks: Vec<Clock>,
    /// Permanent offset of each clock in seconds.
    clocks_off: Vec<i64>,
    /// Disk of the overflow log as the receiver sees it.
    spill_disk: SickDisk,
    disks: Option<Disks>,
    /// The largest resident memory seen, in bytes, by process.
    memory: BTreeMap<String, u64>,
    /// Our processes that ended by themselves, with their exit status.
    ended: Vec<String>,
    /// Number of invalid packs put into the queue.
    corrupt: usize,
    /// Number of faults made. Each may repeat what was in flight.
    faults: usize,
    cell: Cell,
}

#[derive(Debug)]
struct Kafka {
    producer: Kept<Service>,
    topic: Topic<Arrival>,
    broker: Kept<KafkaServer>,
    appeared: HashSet<Event>,
    seen: usize,
}

#[derive(Debug)]
struct Ways {
    clients: Way,
    receiver: Way,
    consumers: Way,
    backend: Way,
}

#[derive(Debug)]
struct Disks {
    redis: SmallDisk,
    spill: SmallDisk,
}

impl World {
    /// Starts everything in a cell and waits until it accepts webhooks.
    pub async fn start(cell: Cell, parts: Parts, seed: u64) -> Self {
        let directory = cell.directory();
        let disks = parts.disks.then(|| Disks::mount(directory));
        let clock = |name| parts.clocks.then(|| Clock::new(directory, name));
        let clocks = ["redis", "receiver", "downstreamer", "producer"].map(clock);
        let time = |of: usize| clocks[of].as_ref().map(Clock::environment).unwrap_or_default();
        let redis = start_redis(directory, disks.as_ref(), time(0));
        redis.ready().await;

        let socket = socket_in(directory);
        let recorder = Arc::default();
        let to_receiver = Way::to_redis(&socket, "receivers");
        let to_consumers = Way::of_consumers(&socket, "consumers", &recorder);
        let (backend, mood) = (Backend::start().await, Arc::new(Mood::new(seed)));
        backend.behave({
            let mood = Arc::clone(&mood);
            move |receipt| mood.answer(receipt)
        });
        let to_backend = Way::to(backend.address()).await;

        let spill = spill_place(directory, disks.as_ref(), parts);
        let spill_disk = SickDisk::new(directory, &spill);
        let mut settings = [time(1), spill_disk.environment()].concat();
        settings.push(("REDIS_URL", to_receiver.url()));
        settings.extend(parts.spill.then(|| ("SPILL_DIR", spill.display().to_string())));
        let receiver = start_receiver(&cell, &settings).await;
        let to_clients = Way::to(receiver.address()).await;

        let of_consumers = vec![("REDIS_URL", to_consumers.url())];
        let owned = [of_consumers.clone(), time(2)].concat();
        let mut settings = [&[DELIVERY_TIMEOUT, PARK_AFTER][..], &borrowed(&owned)].concat();
        // Without a topic that shows what is in the queue, the backend must receive every copy.
        settings.extend((!parts.kafka).then_some(("DEDUP_WINDOW", "0")));
        let downstreamers = (0..1 + usize::from(parts.standby))
            .map(|_| Kept::new(cell.downstreamer_starting(&to_backend.url(), &settings)))
            .collect();
        let kafka = match parts.kafka {
            true => Some(Kafka::start(&cell, &borrowed(&[of_consumers, time(3)].concat())).await),
            false => None,
        };
        Self {
            parts,
            backend,
            syncs: None,
            receiver: Kept::new(receiver),
            downstreamers,
            kafka,
            redis: Kept::new(redis),
            ways: Ways {
                clients: to_clients,
                receiver: to_receiver,
                consumers: to_consumers,
                backend: to_backend,
            },
            mood,
            recorder,
            repeating: JoinSet::new(),
            is_shop_paused: false,
            clocks_off: vec![0; clocks.len()],
            clocks: clocks.into_iter().flatten().collect(),
            spill_disk,
            disks,
            memory: BTreeMap::new(),
            ended: Vec::new(),
            corrupt: 0,
            faults: 0,
            cell,
        }
    }

    /// Address to which webhooks are sent.
    pub fn address(&self) -> std::net::SocketAddr {
        self.ways.clients.address()
    }

    /// Restarts processes that ended, and records the memory of the running ones.
    pub fn supervise(&mut self) {
        let ours = self.downstreamers.iter_mut().chain([&mut self.receiver]);
        for kept in ours.chain(self.kafka.as_mut().map(|kafka| &mut kafka.producer)) {
            if let Some(status) = kept.keep() {
                say(&format!("chaos: {} ended by itself: {status}", kept.process.name()));
                self.ended.push(format!("{}: {status}", kept.process.name()));
                assert_eq!(status.code(), Some(FAILED), "{}", kept.process.output());
            }
            if let Some(bytes) = kept.process.resident_bytes_if_alive() {
                // Without the number, so that successive receivers count as one.
                let (name, _) = kept.process.name().rsplit_once('-').expect("a name and a number");
                let largest = self.memory.entry(name.to_owned()).or_default();
                *largest = bytes.max(*largest);
            }
        }
        // Redis ends when it cannot write, and so does a broker.
        self.redis.keep();
        if let Some(kafka) = &mut self.kafka {
            kafka.broker.keep();
        }
    }

    /// True if the receiver reports that it is ready.
    pub async fn is_ready(&self) -> bool {
        self.receiver.process.is_ready().await
    }

    /// True if the backend acknowledged or refused the event for good, and the topic contains it
    /// too.
    pub fn has_arrived(&mut self, event: Event) -> bool {
        let id = event.webhook_id();
        let delivered = self.backend.has_delivered(&id) || self.mood.has_poisoned(&id);
        delivered && self.kafka.as_mut().is_none_or(|kafka| kafka.has_appeared(event))
    }

    /// True if nothing waits anywhere.
    pub async fn is_empty(&self) -> bool {
        let length = async |key| {
            let length: redis::RedisResult<u64> =
                self.redis.process.try_command(&["XLEN", key]).await;
            length.ok()
        };
        for key in ["{spillway}:in", "{spillway}:http:replays", "{spillway}:kafka:replays"] {
            if length(key).await != Some(0) {
                return false;
            }
        }
        let lanes: redis::RedisResult<u64> =
            self.redis.process.try_command(&["HLEN", "{spillway}:http:lanes"]).await;
        if lanes.ok() != Some(0) {
            return false;
        }
        let waiting = self.receiver.process.metric("spillway_spill_webhooks").await;
        !self.parts.spill || waiting == Some(0.0)
    }

    /// Makes the backend accept the broken shop's webhooks from now on.
    pub fn fix_shop(&self) {
        self.mood.fixes_shop();
    }

    /// Sends every recorded settlement to Redis again.
    pub async fn repeat_all_settlements(&self) {
        self.recorder.send_all_again(&socket_in(self.cell.directory())).await;
    }

    /// Results of the settlements that were sent again.
    pub fn duplicates(&self) -> Duplicates {
        self.recorder.duplicates()
    }

    /// Replays what the backend refused for good. The backend accepts everything now.
    pub async fn replay(&self) -> usize {
        let poisoned = self.mood.poisoned().len();
        if poisoned > 0 {
            let replayed = self.cell.spillway(&["dead", "replay", "--all", "--yes"]).await;
            assert!(replayed.status.success(), "{replayed:?}");
        }
        poisoned
    }

    /// Events that the backend refused for good.
    pub fn poisoned(&self) -> HashSet<Event> {
        self.mood.poisoned().iter().filter_map(|id| Event::of(id)).collect()
    }

    /// Records that appeared in the topic.
    pub fn arrivals(&self) -> Option<Vec<Arrival>> {
        self.kafka.as_ref().map(|kafka| kafka.topic.all())
    }

    /// The largest resident memory seen, in bytes, by process.
    pub fn memory(&self) -> &BTreeMap<String, u64> {
        &self.memory
    }

    /// Our processes that ended by themselves.
    pub fn ended(&self) -> &[String] {
        &self.ended
    }

    /// Maximum number of repeats at the backend: for each fault the webhooks in flight, plus each
    /// answer that was lost in transit.
    pub fn repeats_max(&self) -> usize {
        self.faults * CONCURRENCY + self.ways.backend.replies_lost()
    }

    /// Fails the test if an invalid pack was lost, or if a process panicked.
    pub async fn expect_sound(&self) {
        let keys: Vec<String> = self.redis.process.command(&["KEYS", "{spillway}:corrupt:*"]).await;
        assert_eq!(keys.len(), self.corrupt, "corrupt packs that were set aside");
        let services = self.downstreamers.iter().chain([&self.receiver]);
        for kept in services.chain(self.kafka.as_ref().map(|kafka| &kafka.producer)) {
            let output = kept.process.output();
            assert!(!output.contains("panicked"), "{}: {output}", kept.process.name());
        }
    }

    /// Prints the state of everything and where events are missing, for a test that is about to
    /// fail.
    pub async fn explain(&mut self, missing: &[Event]) {
        for event in missing.iter().take(10) {
            let id = event.webhook_id();
            let appeared = self.kafka.as_mut().map(|kafka| kafka.has_appeared(*event));
            let delivered = self.backend.has_delivered(&id);
            say(&format!("{id}: delivered: {delivered}, in the topic: {appeared:?}"));
        }
        for kept in self.downstreamers.iter().chain([&self.receiver]) {
            let readyz = kept.process.admin("/readyz").await.map(|answer| answer.text());
            say(&format!("{}: {readyz:?}", kept.process.name()));
        }
        let status = self.cell.spillway(&["status"]).await;
        say(&String::from_utf8_lossy(&status.stdout));
    }
}

impl Kafka {
    async fn start(cell: &Cell, settings: &[(&str, &str)]) -> Self {
        let broker = cell.kafka_with(&KafkaOptions::default()).await;
        broker.topic(TOPIC, PARTITIONS, &[]).await;
        let topic = Topic::arrivals(broker.clients(), TOPIC, PARTITIONS);
        let producer = cell.kafka_producer(&broker, settings);
        // Webhooks that the other consumer settles before this one registers are not kept for it.
        producer.ready().await;
        let producer = Kept::new(producer);
        let (appeared, seen) = (HashSet::new(), 0);
        Self { producer, topic, broker: Kept::new(broker), appeared, seen }
    }

    fn has_appeared(&mut self, event: Event) -> bool {
        if !self.appeared.contains(&event) {
            let new = self.topic.after(self.seen);
            self.seen += new.len();
            self.appeared.extend(new.iter().filter_map(|arrival| arrival.event));
        }
        self.appeared.contains(&event)
    }
}

impl Disks {
    fn mount(directory: &Path) -> Self {
        let mount = |name: &str, mib| SmallDisk::mount(directory.join(name), mib);
        let redis = mount("redis-disk", REDIS_DISK_MIB).expect("root may mount a disk");
        let spill = mount("spill-disk", SPILL_DISK_MIB).expect("root may mount a disk");
        Self { redis, spill }
    }
}

fn spill_place(directory: &Path, disks: Option<&Disks>, parts: Parts) -> PathBuf {
    let disk = disks.map_or(directory, |disks| {
        if parts.shares_disk { disks.redis.path() } else { disks.spill.path() }
    });
    disk.join("spill")
}

async fn start_receiver(cell: &Cell, settings: &[(&'static str, String)]) -> Service {
    // The socket is held here as systemd holds it: connections wait for the next receiver. With a
    // shorter backlog than the unit's, a request would wait in the network for longer than its
    // sender does, and arrive after its retry.
    let socket = port::listen(port::free(), BACKLOG).expect("listen on the receiver's socket");
    let socket = Arc::new(socket);
    let receiver = cell.receiver_on(&socket, &[&[ACK_TIMEOUT], &borrowed(settings)[..]].concat());
    receiver.ready().await;
    receiver
}

fn start_redis(
    directory: &Path,
    disks: Option<&Disks>,
    environment: Vec<(&'static str, String)>,
) -> RedisServer {
    let disk = disks.map_or(directory, |disks| disks.redis.path()).display().to_string();
    let environment = environment.into_iter().map(|(key, value)| (key.to_owned(), value));
    RedisServer::start_in(directory, &["--dir", &disk], environment.collect())
}

fn borrowed<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    settings.iter().map(|(key, value)| (*key, value.as_str())).collect()
}

/// Time within which a fault must take effect.
const TAKES_HOLD_WITHIN: Duration = Duration::from_secs(10);
