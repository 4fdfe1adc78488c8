//! The kinds of faults.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Parts of a cell in addition to Redis, a receiver, a downstreamer and a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// A Kafka broker, and a producer that writes to it what the downstreamer also delivers.
    pub kafka: bool,
    /// An overflow directory for the receiver.
    pub spill: bool,
    /// A second downstreamer as a standby.
    pub standby: bool,
    /// Clocks that can be set.
    pub clocks: bool,
    /// Small separate disks for Redis and for the overflow log.
    pub disks: bool,
    /// True if the overflow log lies on Redis' disk.
    pub shares_disk: bool,
    /// A shop whose webhooks fail until the episode ends, so that its lane is never empty.
    pub broken_shop: bool,
}

/// Part that a fault affects. Two faults of the same part are never made together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The receiver's process.
    Receiver,
    /// The downstreamers' processes.
    Downstreamer,
    /// The Kafka producer's process.
    Producer,
    /// Redis, its memory and its disk.
    Redis,
    /// The connections to Redis.
    WayToRedis,
    /// The Kafka broker.
    Broker,
    /// The backend and the connections to it.
    Backend,
    /// The senders and their connections.
    Clients,
    /// The clocks.
    Clocks,
    /// The content of the queue.
    Data,
    /// Commands that were sent to Redis before.
    Duplicates,
    /// All parts at once.
    All,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $victim:ident, $lasts:expr, $says:expr;)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $(#[doc = $says] $kind,)* }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Part that the fault affects.
            pub fn victim(self) -> Victim {
                match self { $(Self::$kind => Victim::$victim,)* }
            }

            /// Duration of the fault in milliseconds.
            pub fn lasts_ms(self) -> RangeInclusive<u64> {
                match self { $(Self::$kind => $lasts,)* }
            }

            /// Description of the fault for a reader.
            pub fn says(self) -> &'static str {
                match self { $(Self::$kind => $says,)* }
            }
        }
    };
}

kinds! {
    ReceiverKilled: Receiver, 0..=300, "kill -9 of the receiver";
    ReceiverStopped: Receiver, 100..=2500, "SIGSTOP of the receiver";
    ReceiverRestarted: Receiver, 0..=100, "SIGTERM of the receiver";
    ReceiverLogBroken: Receiver, 0..=300, "kill -9 of the receiver; the next one's log is a pipe that nobody reads";
    DescriptorsGone: Receiver, 500..=2500, "the receiver can no longer open a file or a connection";
    DownstreamerKilled: Downstreamer, 0..=300, "kill -9 of every downstreamer";
    LeaderKilled: Downstreamer, 0..=300, "kill -9 of the downstreamer that leads, with a standby";
    DownstreamerStopped: Downstreamer, 100..=2500, "SIGSTOP of every downstreamer";
    LeaderAsleep: Downstreamer, 11_000..=13_000, "SIGSTOP of the leader until another has taken over";
    DownstreamerRestarted: Downstreamer, 0..=100, "SIGTERM of every downstreamer";
    ProducerKilled: Producer, 0..=300, "kill -9 of the Kafka producer";
    ProducerStopped: Producer, 100..=2500, "SIGSTOP of the Kafka producer";
    ProducerRestarted: Producer, 0..=100, "SIGTERM of the Kafka producer";
    BrokerKilled: Broker, 0..=1000, "kill -9 of the Kafka broker";
    BrokerStopped: Broker, 100..=3000, "SIGSTOP of the Kafka broker";
    RedisKilled: Redis, 0..=300, "kill -9 of Redis";
    RedisAway: Redis, 1000..=4000, "kill -9 of Redis, started again seconds later";
    RedisStopped: Redis, 100..=2500, "SIGSTOP of Redis";
    RedisFull: Redis, 200..=1500, "maxmemory reached";
    SyncSlow: Redis, 300..=1500, "every fdatasync of Redis takes 50 ms longer";
    SyncFails: Redis, 100..=300, "an fdatasync of Redis fails with EIO: Redis exits";
    RedisDiskFull: Redis, 200..=1500, "the disk of Redis is full: Redis exits, repeatedly";
    Rewrite: Redis, 50..=300, "an AOF rewrite";
    RewriteKilled: Redis, 0..=30, "kill -9 of Redis during an AOF rewrite";
    SpillDiskFull: Redis, 500..=2000, "Redis unavailable and the disk for the spill full";
    SpillDiskStalls: Redis, 800..=2500, "Redis unavailable, and the disk for the spill stalls";
    SpillDiskFails: Redis, 300..=1500, "Redis unavailable, and the disk for the spill returns EIO";
    FeedStalls: Redis, 300..=2500, "Redis unavailable and back, and the disk stalls while the spill is restored";
    EverythingKilled: All, 0..=300, "kill -9 of every process at once";
    SpillingKilled: All, 1000..=2500, "Redis unavailable, and kill -9 of the receiver while it spills";
    RepliesToReceiverLost: WayToRedis, 50..=500, "Redis' replies to the receiver lost after they took effect";
    RepliesToConsumersLost: WayToRedis, 50..=500, "Redis' replies to the consumers lost after they took effect";
    RequestsCut: WayToRedis, 50..=500, "requests to Redis cut in the middle";
    RedisSlow: WayToRedis, 300..=1500, "each reply of Redis 20 ms late";
    AppendsHeld: WayToRedis, 100..=16_000, "appends delayed on the network, to arrive late";
    SettlementsHeld: WayToRedis, 100..=12_000, "settlements delayed on the network, to arrive late";
    SettlementRepliesLost: WayToRedis, 50..=1500, "Redis' replies to settlements lost after these were applied";
    SettlementsRepeated: Duplicates, 500..=2500, "earlier settlements sent to Redis again";
    RedisHalfOpen: WayToRedis, 50..=500, "connections to Redis that are gone at one end only";
    BackendSlow: Backend, 300..=1500, "a backend that takes 300 ms";
    BackendFails: Backend, 100..=1500, "a backend that answers 500, 502, 503";
    BackendBusy: Backend, 100..=800, "a backend that answers 429 with Retry-After";
    BackendResets: Backend, 100..=1500, "a backend that resets connections";
    BackendHangs: Backend, 100..=1000, "a backend that never answers";
    BackendCutsShort: Backend, 100..=1500, "a backend that closes in the middle of its answer";
    BackendHalfOpen: Backend, 50..=500, "connections to the backend that are gone at one end only";
    ShopFails: Backend, 1500..=4000, "a backend that answers 500 to one shop";
    ShopHangs: Backend, 1500..=4000, "a backend that never answers one shop";
    ShopPaused: Data, 1500..=4000, "an operator's pause of one shop";
    BackendRepliesLost: Backend, 50..=300, "the backend's answers lost after it accepted the webhooks";
    ClientsCut: Clients, 50..=500, "the receiver's answers lost after it stored the webhooks";
    ClientsHalfOpen: Clients, 50..=300, "connections of clients that are gone at one end only";
    ClientsVanish: Clients, 50..=300, "clients that close in the middle of a webhook";
    ClockAhead: Clocks, 500..=2000, "clocks an hour ahead, and set back";
    ClockBehind: Clocks, 500..=2000, "clocks an hour behind, and corrected";
    ClockStepped: Clocks, 0..=500, "one clock or all, an hour ahead, behind or right, permanently";
    PoisonWebhooks: Data, 200..=1000, "webhooks that the backend refuses permanently";
    CorruptPacks: Data, 0..=50, "entries in the queue that are no packs";
}

/// One fault of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kinds to make: one, or two at once.
    pub kinds: Vec<Kind>,
    /// Time without a fault before it.
    pub after: Duration,
    /// Duration of the fault.
    pub lasts: Duration,
    /// Seed for random choices while the fault is made.
    pub chance: u64,
}

impl Kind {
    /// True if the fault can be made in a cell with these parts.
    pub fn fits(self, parts: &Parts) -> bool {
        match self {
            Self::ProducerKilled
            | Self::ProducerStopped
            | Self::ProducerRestarted
            | Self::BrokerKilled
            | Self::BrokerStopped => parts.kafka,
            Self::LeaderKilled | Self::LeaderAsleep => parts.standby,
            Self::RedisDiskFull => parts.disks,
            Self::SpillDiskFull => parts.disks && parts.spill && !parts.shares_disk,
            Self::SpillingKilled
            | Self::SpillDiskStalls
            | Self::SpillDiskFails
            | Self::FeedStalls => parts.spill,
            Self::ClockAhead | Self::ClockBehind | Self::ClockStepped => parts.clocks,
            _ => true,
        }
    }

    /// True if the fault is worst when many senders come at once.
    pub fn wants_burst(self) -> bool {
        matches!(
            self,
            Self::ReceiverStopped
                | Self::DescriptorsGone
                | Self::RedisStopped
                | Self::RedisAway
                | Self::SpillDiskStalls
                | Self::FeedStalls
                | Self::AppendsHeld
                | Self::RepliesToReceiverLost
                | Self::RedisHalfOpen
        )
    }

    /// True if the two kinds may be made together.
    pub fn goes_with(self, other: Self) -> bool {
        let (one, two) = (self.victim(), other.victim());
        let is_redis = |victim| matches!(victim, Victim::Redis | Victim::Data);
        // It begins once webhooks are spilled, which takes a receiver and senders.
        let is_fed = [self, other].contains(&Self::FeedStalls);
        let feeds = |victim| matches!(victim, Victim::Receiver | Victim::Clients);
        one != two
            && ![one, two].contains(&Victim::All)
            && !(is_redis(one) && is_redis(two))
            && !(is_fed && (feeds(one) || feeds(two)))
    }
}
