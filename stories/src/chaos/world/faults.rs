//! Makes and undoes each kind of fault.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::{sleep, timeout};

use super::mood::ONE_SHOP;
use super::{TAKES_HOLD_WITHIN, World};
use crate::chaos::fault::Kind;
use crate::chaos::sync::Syncs;
use crate::client::Connection;
use crate::redis_server::socket_in;
use crate::shop;
use crate::sick_disk::Health;
use crate::until::until;
use crate::way::Trouble;
use crate::webhook::Webhook;

const HOUR_S: i64 = 3600;
const SYNC_DELAY_US: u32 = 50_000;
const REDIS_DELAY: Duration = Duration::from_millis(20);
/// Free memory of a full Redis.
const ROOM_BYTES: u64 = 100_000;
/// Number of clients that vanish at a time.
const CLIENTS: usize = 20;
/// Time between two settlements that are sent again.
const BETWEEN_DUPLICATES: Duration = Duration::from_millis(10);
/// Time limit of a command to a Redis that may just have ended.
const ANSWER: Duration = Duration::from_secs(2);

impl World {
    /// Makes a fault.
    pub async fn strike(&mut self, kind: Kind, chance: &mut StdRng) {
        self.faults += 1;
        match kind {
            Kind::ReceiverKilled => self.receiver.kill9(),
            Kind::ReceiverStopped => self.receiver.sigstop(),
            Kind::ReceiverRestarted => self.receiver.sigterm().await,
            Kind::ReceiverLogBroken => self.receiver.kill9_and_break_log(),
            Kind::DescriptorsGone => self.receiver.process.limit_files(true),
            Kind::ProducerKilled => self.producer().kill9(),
            Kind::ProducerStopped => self.producer().sigstop(),
            Kind::ProducerRestarted => self.producer().sigterm().await,
            Kind::BrokerKilled => self.kafka().broker.kill9(),
            Kind::BrokerStopped => self.kafka().broker.sigstop(),
            Kind::DownstreamerKilled
            | Kind::DownstreamerStopped
            | Kind::DownstreamerRestarted
            | Kind::LeaderKilled
            | Kind::LeaderAsleep => self.strike_downstreamers(kind).await,
            Kind::RedisKilled
            | Kind::RedisAway
            | Kind::RedisStopped
            | Kind::RedisFull
            | Kind::SyncSlow
            | Kind::SyncFails
            | Kind::RedisDiskFull
            | Kind::Rewrite
            | Kind::RewriteKilled
            | Kind::SpillDiskFull
            | Kind::SpillDiskStalls
            | Kind::SpillDiskFails => self.strike_redis(kind, chance).await,
            Kind::EverythingKilled => self.kill_everything(),
            Kind::SpillingKilled => self.kill_while_spilling().await,
            Kind::FeedStalls => self.stall_while_fed().await,
            Kind::AppendsHeld => self.ways.receiver.suffers(Trouble::HoldsAppends),
            Kind::RepliesToReceiverLost => self.ways.receiver.suffers(Trouble::LosesReplies),
            Kind::RepliesToConsumersLost => self.ways.consumers.suffers(Trouble::LosesReplies),
            Kind::SettlementsHeld => self.ways.consumers.suffers(Trouble::HoldsSettlements),
            Kind::SettlementRepliesLost => {
                self.ways.consumers.suffers(Trouble::LosesSettlementReplies);
            }
            Kind::SettlementsRepeated => self.repeat_settlements(),
            Kind::RequestsCut => self.trouble_redis(Trouble::CutsRequests),
            Kind::RedisSlow => self.trouble_redis(Trouble::Delays(REDIS_DELAY)),
            Kind::RedisHalfOpen => self.trouble_redis(Trouble::Swallows),
            Kind::BackendHalfOpen => self.ways.backend.suffers(Trouble::Swallows),
            Kind::BackendRepliesLost => self.ways.backend.suffers(Trouble::LosesReplies),
            Kind::BackendSlow
            | Kind::BackendFails
            | Kind::BackendBusy
            | Kind::BackendResets
            | Kind::BackendHangs
            | Kind::BackendCutsShort
            | Kind::ShopFails
            | Kind::ShopHangs => self.mood.suffers(Some(kind)),
            Kind::ShopPaused => self.pause_shop().await,
            Kind::ClientsCut => self.ways.clients.suffers(Trouble::LosesReplies),
            Kind::ClientsHalfOpen => self.ways.clients.suffers(Trouble::Swallows),
            Kind::ClientsVanish => self.vanish(chance).await,
            Kind::ClockAhead => self.set_clocks(HOUR_S, chance),
            Kind::ClockBehind => self.set_clocks(-HOUR_S, chance),
            Kind::ClockStepped => self.step_clocks(chance),
            Kind::PoisonWebhooks => self.mood.poisons(true),
            Kind::CorruptPacks => self.corrupt(chance).await,
        }
    }

    /// Undoes all faults. Processes that ended are restarted by [`World::supervise`].
    pub async fn heal(&mut self) {
        self.syncs = None;
        if let Some(disks) = &self.disks {
            disks.redis.clear();
            disks.spill.clear();
        }
        self.spill_disk.is(Health::Well);
        self.receiver.process.limit_files(false);
        for kept in self.downstreamers.iter_mut().chain([&mut self.receiver]) {
            kept.sigcont();
        }
        if let Some(kafka) = &mut self.kafka {
            kafka.producer.sigcont();
            kafka.broker.sigcont();
        }
        self.redis.is_held = false;
        self.redis.sigcont();
        // If Redis ended meanwhile, its next start has no limit.
        self.ask_redis(&["CONFIG", "SET", "maxmemory", "0"]).await;
        for way in
            [&self.ways.clients, &self.ways.receiver, &self.ways.consumers, &self.ways.backend]
        {
            way.suffers(Trouble::None);
        }
        self.repeating.abort_all();
        if std::mem::take(&mut self.is_shop_paused) {
            let resumed = self.cell.spillway(&["resume", "--all"]).await;
            assert!(resumed.status.success(), "{resumed:?}");
        }
        self.mood.suffers(None);
        self.mood.poisons(false);
        for (clock, off) in self.clocks.iter().zip(&self.clocks_off) {
            clock.set(*off);
        }
    }

    async fn strike_downstreamers(&mut self, kind: Kind) {
        let leader = self.leader().await;
        match kind {
            Kind::LeaderKilled => self.downstreamers[leader].kill9(),
            Kind::LeaderAsleep => self.downstreamers[leader].sigstop(),
            _ => {
                for kept in &mut self.downstreamers {
                    match kind {
                        Kind::DownstreamerStopped => kept.sigstop(),
                        Kind::DownstreamerRestarted => kept.sigterm().await,
                        _ => kept.kill9(),
                    }
                }
            }
        }
    }

    async fn strike_redis(&mut self, kind: Kind, chance: &mut StdRng) {
        let process = self.redis.process.id();
        match kind {
            Kind::RedisStopped => self.redis.sigstop(),
            Kind::RedisAway => {
                self.redis.is_held = true;
                self.redis.kill9();
            }
            Kind::RedisFull => {
                let limit = (self.redis_memory().await + ROOM_BYTES).to_string();
                self.ask_redis(&["CONFIG", "SET", "maxmemory", &limit]).await;
            }
            Kind::SyncSlow => self.syncs = Some(Syncs::delayed(process, SYNC_DELAY_US).await),
            Kind::SyncFails => {
                self.syncs = Some(Syncs::failing(process).await);
                let redis = &mut self.redis.process;
                until("redis ends", TAKES_HOLD_WITHIN, async || {
                    // Redis syncs only what was written, and the shops may be silent just now.
                    let write = redis.try_command::<redis::Value>(&["SET", "chaos:write", "1"]);
                    timeout(ANSWER, write).await.ok();
                    !redis.is_running()
                })
                .await;
            }
            Kind::RedisDiskFull => self.disks.as_ref().expect("its own disk").redis.fill(),
            Kind::SpillDiskFull => {
                self.disks.as_ref().expect("its own disk").spill.fill();
                self.redis.is_held = true;
                self.redis.kill9();
            }
            Kind::SpillDiskStalls | Kind::SpillDiskFails => {
                self.redis.is_held = true;
                self.redis.kill9();
                // By then webhooks wait for the overflow log.
                sleep(Duration::from_millis(chance.random_range(0..=300))).await;
                let stalls = kind == Kind::SpillDiskStalls;
                self.spill_disk.is(if stalls { Health::Stalls } else { Health::Fails });
            }
            Kind::Rewrite => self.ask_redis(&["BGREWRITEAOF"]).await,
            Kind::RewriteKilled => {
                self.ask_redis(&["BGREWRITEAOF"]).await;
                sleep(Duration::from_millis(chance.random_range(0..50))).await;
                self.redis.kill9();
            }
            _ => self.redis.kill9(),
        }
    }

    fn kill_everything(&mut self) {
        self.redis.kill9();
        self.receiver.kill9();
        self.downstreamers.iter_mut().for_each(|kept| kept.kill9());
        if let Some(kafka) = &mut self.kafka {
            kafka.producer.kill9();
            kafka.broker.kill9();
        }
    }

    async fn kill_while_spilling(&mut self) {
        self.spill().await;
        self.receiver.kill9();
    }

    async fn stall_while_fed(&mut self) {
        self.spill().await;
        self.redis.is_held = false;
        // Redis is restarted and checked at about this time.
        sleep(Duration::from_millis(100)).await;
        self.supervise();
        sleep(Duration::from_millis(400)).await;
        self.spill_disk.is(Health::Stalls);
    }

    /// Keeps Redis down until webhooks are in the overflow log.
    async fn spill(&mut self) {
        self.redis.is_held = true;
        self.redis.kill9();
        until("webhooks are spilled", TAKES_HOLD_WITHIN, async || {
            self.receiver.process.metric("spillway_spill_webhooks").await > Some(0.0)
        })
        .await;
    }

    /// Sends settlements again until the fault ends, whichever instance leads.
    fn repeat_settlements(&mut self) {
        let recorder = Arc::clone(&self.recorder);
        let socket = socket_in(self.cell.directory());
        self.repeating.spawn(async move {
            loop {
                recorder.send_one_again(&socket).await;
                sleep(BETWEEN_DUPLICATES).await;
            }
        });
    }

    async fn pause_shop(&mut self) {
        let domain = shop::domain(ONE_SHOP);
        let paused = self.cell.spillway(&["pause", "--shop", &domain]).await;
        assert!(paused.status.success(), "{paused:?}");
        self.is_shop_paused = true;
    }

    fn trouble_redis(&self, trouble: Trouble) {
        self.ways.receiver.suffers(trouble);
        self.ways.consumers.suffers(trouble);
    }

    /// Opens connections that send part of a webhook and never the rest.
    async fn vanish(&self, chance: &mut StdRng) {
        let webhook = Webhook::product(u64::MAX, "never-whole", vec![b'x'; 4000]).encode();
        for _ in 0..CLIENTS {
            let part = chance.random_range(1..webhook.len());
            if let Ok(mut connection) = Connection::open(self.address()).await {
                connection.write(&webhook[..part]).await.ok();
            }
        }
    }

    /// Sets one clock or all clocks.
    fn set_clocks(&self, seconds: i64, chance: &mut StdRng) {
        let number = chance.random_range(0..=self.clocks.len());
        match self.clocks.get(number) {
            Some(clock) => clock.set(seconds),
            None => self.clocks.iter().for_each(|clock| clock.set(seconds)),
        }
    }

    /// Sets one clock or all clocks permanently.
    fn step_clocks(&mut self, chance: &mut StdRng) {
        let number = chance.random_range(0..=self.clocks.len());
        let seconds = HOUR_S * chance.random_range(-1..=1);
        for (clock, off) in self.clocks_off.iter_mut().enumerate() {
            if number == clock || number == self.clocks.len() {
                *off = seconds;
            }
        }
        for (clock, off) in self.clocks.iter().zip(&self.clocks_off) {
            clock.set(*off);
        }
    }

    /// Adds invalid packs: noise, an empty one, a truncated one and one with a flipped bit.
    async fn corrupt(&mut self, chance: &mut StdRng) {
        type Entry = (String, Vec<(String, Vec<u8>)>);
        let Ok(Ok(mut connection)) = timeout(ANSWER, self.redis.process.connection()).await else {
            return;
        };
        let mut newest = redis::cmd("XREVRANGE");
        newest.arg("{spillway}:in").arg("+").arg("-").arg("COUNT").arg(1);
        let entries: Vec<Entry> = newest.query_async(&mut connection).await.unwrap_or_default();
        let mut packs = vec![vec![0x5a; chance.random_range(1..4096)], Vec::new()];
        if let Some((_, fields)) = entries.first() {
            let whole = &fields[0].1;
            packs.push(whole[..whole.len() / 2].to_vec());
            let mut spoilt = whole.clone();
            let place = chance.random_range(0..spoilt.len());
            spoilt[place] ^= 1 << chance.random_range(0..8);
            packs.push(spoilt);
        }
        for pack in packs {
            let mut add = redis::cmd("XADD");
            add.arg("{spillway}:in").arg("*").arg("p").arg(pack);
            let added = add.query_async::<String>(&mut connection).await;
            self.corrupt += usize::from(added.is_ok());
        }
    }

    /// Number of the downstreamer that leads; the first if none reports that it does.
    async fn leader(&self) -> usize {
        for (number, kept) in self.downstreamers.iter().enumerate() {
            if kept.process.is_leader().await {
                return number;
            }
        }
        0
    }

    async fn redis_memory(&self) -> u64 {
        let info = timeout(ANSWER, self.redis.process.try_command::<String>(&["INFO", "memory"]));
        let info = info.await.ok().and_then(Result::ok).unwrap_or_default();
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
    }

    /// Sends a command to Redis and ignores an error.
    async fn ask_redis(&self, words: &[&str]) {
        let asked = timeout(ANSWER, self.redis.process.try_command::<redis::Value>(words));
        if let Ok(Err(error)) = asked.await {
            // Redis just ended or is starting because of another fault.
            crate::report::say(&format!("chaos: {words:?}: {error}"));
        }
    }

    fn kafka(&mut self) -> &mut super::Kafka {
        self.kafka.as_mut().expect("a fault of Kafka's befalls a cell that has one")
    }

    fn producer(&mut self) -> &mut super::Kept<super::Service> {
        &mut self.kafka().producer
    }
}
