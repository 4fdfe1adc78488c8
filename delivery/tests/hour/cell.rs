//! A cell in virtual time: a load, a backend, and a leader that is replaced twice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{
    AttemptEnd, AttemptId, Backoff, Config, Controls, Core, DedupWindow, Dispatch, Drops, Effect,
    Event, Loaded, Now, Outcome, PendingSettlement, ShopBounds, Suppression, Tuning, Verdict,
};
use spillway_limiter::{Bounds, Signal};
use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::load::{Health, Ills, Load, PACKS_PER_SECOND, Webhook, Webhooks, mixed};
use crate::number;
use crate::store::Store;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const EPOCH_MS: u64 = 1_700_000_000_000;
/// `DELIVERY_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// `RETRY_LONGEST`.
const LONGEST: Duration = Duration::from_secs(60);
/// Packs that are read before the core requests them.
const READ_AHEAD: usize = 4;
/// Duration of a settlement and of a read in Redis.
const SETTLING: Duration = MS;
const READING: Duration = Duration::from_micros(300);
/// Time without a leader after one was killed.
const NOBODY_LEADS: Duration = Duration::from_secs(12);
/// Time after that until waits are compared again.
const CATCHES_UP: Duration = Duration::from_secs(12);
/// Time within which everything is delivered after the load.
const ENDS_WITHIN: Duration = Duration::from_secs(4 * 3600);
/// Factor between the limits of two buckets of waiting times.
const BUCKET: f64 = 1.02;

enum Task {
    Accept,
    Event(u64, Event<Webhooks>),
    End(u64, AttemptId),
    Apply(u64, Box<PendingSettlement<Webhooks>>),
    Lead,
}

/// Counts of the webhooks of shops of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub accepted: u64,
    pub delivered: u64,
    pub dead: u64,
}

/// Results of an hour.
#[derive(Default)]
pub(crate) struct Played {
    tallies: HashMap<u8, Tally>,
    /// Waits of the healthy shops, counted by bucket, except while other shops catch up.
    waits: BTreeMap<u32, u64>,
    /// Longest wait of the healthy shops while recovered shops catch up: each shop has its turn.
    pub catching_up_wait: Duration,
    /// Longest wait of a recovered shop, for webhooks of the last sixth of the load except its last
    /// second.
    pub recovered_wait: Duration,
    /// Failed attempts of recovering shops, by the second in which they ended.
    failed_in: BTreeMap<u64, u32>,
    /// Packs of the main stream that were read again for rests of lanes.
    pub rest_reads: u64,
    /// Largest size of the index, in bytes.
    pub index_bytes: usize,
    /// Largest number of packs in the main stream.
    pub main_packs: usize,
    lane_webhooks: u64,
    /// Time after the load until nothing was left.
    emptied_in: Duration,
}

impl Played {
    pub(crate) fn of(&self, health: Health) -> Tally {
        self.tallies.get(&(health as u8)).copied().unwrap_or_default()
    }

    fn of_mut(&mut self, health: Health) -> &mut Tally {
        self.tallies.entry(health as u8).or_default()
    }

    /// A percentile of the waits of healthy shops.
    pub(crate) fn wait(&self, part: f64) -> Duration {
        let all: u64 = self.waits.values().sum();
        let mut left = (all as f64 * part) as u64;
        for (bucket, count) in &self.waits {
            if *count > left {
                return Duration::from_secs_f64(BUCKET.powi(*bucket as i32) * 1e-6);
            }
            left -= count;
        }
        Duration::MAX
    }

    /// Largest number of failed attempts in one second, between two times.
    pub(crate) fn most_failed(&self, from: Duration, to: Duration) -> u32 {
        self.failed_in
            .range(from.as_secs()..to.as_secs())
            .map(|(_, count)| *count)
            .max()
            .unwrap_or(0)
    }

    fn waited(&mut self, webhook: &Webhook, load: &Load, wait: Duration) {
        let since = webhook.position.ms - EPOCH_MS;
        if load.health(webhook.shop) == Health::Recovers
            && Duration::from_millis(since) > load.length * 5 / 6
            // The last ones are delivered by the leader that begins after the load.
            && Duration::from_millis(since) + SECOND < load.length
        {
            self.recovered_wait = self.recovered_wait.max(wait);
        }
        if !load.is_compared(webhook.shop) {
            return;
        }
        if load.is_catching_up(Duration::from_millis(since)) {
            self.catching_up_wait = self.catching_up_wait.max(wait);
            return;
        }
        let bucket = (wait.as_secs_f64() * 1e6).max(1.0).log(BUCKET) as u32;
        *self.waits.entry(bucket).or_default() += 1;
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (half, most) = (self.wait(0.5), self.wait(0.99));
        let mebibytes = self.index_bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "p50 {half:.1?}, p99 {most:.1?}; index {mebibytes:.1} MiB, {} packs in the main stream, \
             {} webhooks in lanes at most, {} packs read again; empty {:.0?} after the load",
            self.main_packs, self.lane_webhooks, self.rest_reads, self.emptied_in
        )?;
        for health in Health::ALL {
            let Tally { accepted, delivered, dead } = self.of(health);
            if accepted == 0 {
                continue;
            }
            write!(f, "; {health:?}: {accepted} accepted, {delivered} delivered, {dead} dead")?;
        }
        Ok(())
    }
}

/// An attempt under way.
struct InFlight {
    webhook: Webhook,
    health: Health,
    began: Duration,
}

/// The leader at work.
struct Leader {
    core: Core<Webhooks>,
    began: Duration,
    read_to: StreamId,
    being_read: usize,
    attempts: HashMap<AttemptId, InFlight>,
}

pub(crate) struct Cell<'a> {
    load: &'a Load,
    store: Store,
    now: Duration,
    tasks: BTreeMap<(Duration, u64), Task>,
    task_number: u64,
    accepted: u64,
    /// Number of each pack's first webhook, by the time of acceptance.
    first_numbers: HashMap<u64, u64>,
    /// Number of the current leader.
    term: u64,
    leader: Option<Leader>,
    /// Newest delivered webhook of each resource, and the leader that delivered it.
    newest: HashMap<u64, (Position, u64)>,
    settled: u64,
    sampled_at: Duration,
    away_until: Duration,
    played: Played,
}

impl<'a> Cell<'a> {
    pub(crate) fn new(load: &'a Load) -> Self {
        let mut cell = Self {
            load,
            store: Store::default(),
            now: Duration::ZERO,
            tasks: BTreeMap::new(),
            task_number: 0,
            accepted: 0,
            first_numbers: HashMap::new(),
            term: 0,
            leader: None,
            newest: HashMap::new(),
            settled: 0,
            sampled_at: Duration::ZERO,
            away_until: CATCHES_UP,
            played: Played::default(),
        };
        cell.lead();
        cell.later(MS, Task::Accept);
        for third in 1..3 {
            cell.later(load.length * third / 3, Task::Lead);
        }
        cell
    }

    fn later(&mut self, delay: Duration, task: Task) {
        self.task_number += 1;
        self.tasks.insert((self.now + delay, self.task_number), task);
    }

    fn config(&self) -> Config {
        let is_held_back = self.load.ills == Ills::Hundredth && !self.is_over();
        Config {
            bounds: Bounds { concurrency_min: 1, concurrency_max: 64, rate_max: None },
            shop_bounds: ShopBounds {
                concurrency_max: u32::MAX,
                spacing: if is_held_back { self.load.spacing() } else { Duration::ZERO },
            },
            backoff: Backoff { first: SECOND, longest: LONGEST },
            retry_for: self.load.retry_for,
            retry_refused_for: self.load.retry_for,
            coalesce_wait_max: 300 * SECOND,
            park_after: self.load.park_after,
            index_bytes: self.load.index_bytes,
            keeps_fingerprints: false,
            suppression: Suppression::default(),
            seed: u64::from(number("SEED", 7)) + self.term,
            tuning: Tuning::default(),
        }
    }

    /// True if the load has ended, and with it all failures.
    fn is_over(&self) -> bool {
        self.now >= self.load.length
    }

    fn health(&self, shop: u32) -> Health {
        if self.is_over() { Health::Well } else { self.load.health(shop) }
    }

    /// Replaces the leader by one that begins with the stored state.
    fn lead(&mut self) {
        self.term += 1;
        let loaded = if self.term == 1 { Loaded::default() } else { self.store.load() };
        let core = Core::new(self.config(), loaded, DedupWindow::new(Duration::ZERO, 0));
        self.leader = Some(Leader {
            core,
            began: self.now,
            read_to: self.store.cursor(),
            being_read: 0,
            attempts: HashMap::new(),
        });
        let controls = Controls {
            version: self.term,
            is_all_paused: false,
            shops: (0..self.load.shops)
                .filter(|shop| self.health(*shop) == Health::Paused)
                .map(|shop| u64::from(shop) + 1)
                .collect::<HashSet<_>>(),
            filters: Vec::new(),
            drops: Drops::default(),
        };
        self.drive(vec![Event::Controls(controls), Event::ReplaysLoaded]);
    }

    /// Plays the load, and then continues until nothing is left.
    pub(crate) fn play(mut self) -> Played {
        let end = self.load.length + ENDS_WITHIN;
        let mut is_healed = false;
        while !(self.is_over() && self.store.is_empty() && self.settled == self.accepted) {
            assert!(self.now < end, "{} are left", self.accepted - self.settled);
            let wakes_at = self.leader.as_ref().map_or(Duration::MAX, |leader| {
                (leader.began + leader.core.wakes_at()).max(self.now + MS / 10)
            });
            let next = self.tasks.first_key_value().map_or(wakes_at, |((at, _), _)| *at);
            self.now = self.now.max(next.min(wakes_at));
            if self.is_over() && !is_healed {
                is_healed = true;
                self.lead();
            }
            let mut events = Vec::new();
            while let Some(entry) = self.tasks.first_entry()
                && entry.key().0 <= self.now
            {
                let task = entry.remove();
                events.extend(self.does(task));
            }
            if events.is_empty() {
                events.push(Event::Tick);
            }
            self.drive(events);
            self.read_ahead();
        }
        self.played.emptied_in = self.now.saturating_sub(self.load.length);
        self.played
    }

    fn does(&mut self, task: Task) -> Option<Event<Webhooks>> {
        match task {
            Task::Accept => {
                self.accept();
                None
            }
            Task::Event(term, event) => {
                if term != self.term {
                    return None;
                }
                if let (Event::Pack(_), Some(leader)) = (&event, self.leader.as_mut()) {
                    leader.being_read -= 1;
                }
                Some(event)
            }
            Task::End(term, id) => (term == self.term).then(|| self.end(id)).flatten(),
            Task::Apply(term, settlement) => {
                if term != self.term {
                    return None;
                }
                self.store.apply(&settlement);
                self.count(&settlement);
                Some(Event::Settled)
            }
            Task::Lead => {
                if self.leader.take().is_some() {
                    self.term += 1;
                    self.away_until = self.now + NOBODY_LEADS + CATCHES_UP;
                    self.later(NOBODY_LEADS, Task::Lead);
                } else {
                    self.lead();
                }
                None
            }
        }
    }

    /// Appends a pack.
    fn accept(&mut self) {
        let each = f64::from(self.load.rate) / PACKS_PER_SECOND;
        let to = (self.now.as_secs_f64() * PACKS_PER_SECOND * each) as u64;
        let entry = StreamId { ms: EPOCH_MS + self.now.as_millis() as u64, seq: 1 };
        let numbers = self.accepted..to.max(self.accepted + 1);
        self.first_numbers.insert(entry.ms, numbers.start);
        let webhooks: Vec<Webhook> = (0..)
            .zip(numbers.clone())
            .map(|(index, number)| {
                let (shop, resource) = self.load.webhook(number);
                Webhook { position: Position::new(entry, index), shop, resource }
            })
            .collect();
        for webhook in &webhooks {
            let health = self.load.health(webhook.shop);
            self.played.of_mut(health).accepted += 1;
        }
        self.accepted = numbers.end;
        self.store.main.insert(entry, Rc::new(webhooks));
        self.played.main_packs = self.played.main_packs.max(self.store.main.len());
        let next = Duration::from_secs_f64(1.0 / PACKS_PER_SECOND);
        if self.now + next < self.load.length {
            self.later(next, Task::Accept);
        }
    }

    fn read_ahead(&mut self) {
        let Some(leader) = self.leader.as_mut() else { return };
        let mut read = Vec::new();
        while leader.core.takes_packs() && leader.being_read < READ_AHEAD {
            let Some(pack) = self.store.pack_after(leader.read_to) else { break };
            leader.read_to = pack.entry;
            leader.being_read += 1;
            read.push(pack);
        }
        for pack in read {
            self.later(READING, Task::Event(self.term, Event::Pack(pack)));
        }
    }

    fn drive(&mut self, mut events: Vec<Event<Webhooks>>) {
        let Some(leader) = self.leader.as_mut() else { return };
        let at = self.now - leader.began;
        events.push(Event::Lease { until: at + SECOND, dead_room: 1 << 40, may_move: true });
        let wall_ms = EPOCH_MS + self.now.as_millis() as u64;
        let effects = leader.core.on(events, Now { at, wall_ms });
        if self.now >= self.sampled_at + 100 * MS {
            self.sampled_at = self.now;
            let status = leader.core.status();
            self.played.index_bytes = self.played.index_bytes.max(status.index_bytes);
            self.played.lane_webhooks = self.played.lane_webhooks.max(status.stored);
        }
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect<Webhooks>) {
        let event = match effect {
            Effect::Send(dispatch) => return self.send(&dispatch),
            Effect::Cancel(id) => {
                self.leader.as_mut().and_then(|leader| leader.attempts.remove(&id));
                return;
            }
            Effect::Settle(settlement) => {
                return self.later(SETTLING, Task::Apply(self.term, settlement));
            }
            Effect::Read(key) => Event::Read(key, self.store.again(key)),
            Effect::ReadFront(entries) => {
                let packs = entries.iter().map_while(|entry| self.store.pack(*entry));
                Event::FrontRead(packs.collect())
            }
            Effect::ReadChunks { lane, first, count } => {
                let numbers = first..first + count;
                let chunks = numbers.map(|number| self.store.chunk(lane, number)).collect();
                Event::ChunksRead { lane, chunks }
            }
            Effect::ReadRest { lane, entry } => {
                self.played.rest_reads += 1;
                Event::RestRead { lane, entry, pack: self.store.pack(entry) }
            }
            Effect::Restart(reason) => panic!("restart: {reason}"),
        };
        self.later(READING, Task::Event(self.term, event));
    }

    fn send(&mut self, dispatch: &Dispatch<Webhooks>) {
        let webhook = dispatch.content.0[dispatch.record_index as usize];
        let health = self.health(webhook.shop);
        assert_ne!(health, Health::Paused, "{webhook:?} is paused, and sent");
        let took = match health {
            Health::Hangs => TIMEOUT,
            // Three to eight milliseconds.
            _ => 3 * MS + MS * (mixed(self.task_number) % 6) as u32,
        };
        let Some(leader) = self.leader.as_mut() else { return };
        let attempt = InFlight { webhook, health, began: self.now };
        leader.attempts.insert(dispatch.id, attempt);
        self.later(took, Task::End(self.term, dispatch.id));
    }

    /// Ends an attempt, unless it was cut off.
    fn end(&mut self, id: AttemptId) -> Option<Event<Webhooks>> {
        let attempt = self.leader.as_mut()?.attempts.remove(&id)?;
        let InFlight { webhook, health, began } = attempt;
        let retry = Verdict::Retry { pause: Duration::ZERO, scope: None, is_refusal: false };
        let fails = match health {
            Health::Fails => true,
            Health::FailsInPart => webhook.is_failing_part(),
            Health::Recovers => began < self.load.recovers_at(),
            _ => false,
        };
        if fails && health == Health::Recovers {
            *self.played.failed_in.entry(self.now.as_secs()).or_default() += 1;
        }
        let (verdict, signal) = match health {
            _ if fails => (retry, Signal::Failed),
            Health::Hangs => (retry, Signal::TimedOut),
            _ => (Verdict::Delivered, Signal::Done),
        };
        if verdict == Verdict::Delivered {
            let newest = self.newest.insert(webhook.resource, (webhook.position, self.term));
            // The next leader repeats webhooks that were not settled.
            let is_after =
                newest.is_none_or(|(newest, term)| newest < webhook.position || term < self.term);
            assert!(is_after, "{webhook:?} after {newest:?}");
            let accepted_at = Duration::from_millis(webhook.position.ms - EPOCH_MS);
            if accepted_at >= self.away_until {
                self.played.waited(&webhook, self.load, self.now - accepted_at);
            }
        }
        let took = self.now - began;
        let fetching = Duration::ZERO;
        let is_unconnected = false;
        let end = AttemptEnd { id, verdict, signal, is_unconnected, took, fetching, evidence: () };
        Some(Event::Ended(end))
    }

    /// Counts the settled webhooks.
    fn count(&mut self, settlement: &PendingSettlement<Webhooks>) {
        for record in &settlement.records {
            let shop = self.shop_of(record.position);
            let tally = self.played.of_mut(self.load.health(shop));
            match record.outcome {
                Outcome::Delivered => tally.delivered += 1,
                Outcome::Dead => tally.dead += 1,
                other => panic!("{other:?}"),
            }
            self.settled += 1;
        }
    }

    fn shop_of(&self, position: Position) -> u32 {
        let number = self.first_numbers[&position.ms] + u64::from(position.index);
        self.load.webhook(number).0
    }
}
