//! The world around the core in virtual time: Redis and its delays, backends, leaders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{
    AttemptId, Controls, Event, Now, PackKey, PendingSettlement, ReadAgain, ReplayRead,
};
use spillway_webhook::StreamId;

use crate::backend::Backends;
use crate::counted::Counted;
use crate::leader::Leader;
use crate::liveness::Liveness;
use crate::plan::{Plan, ROOMY};
use crate::random::Random;
use crate::redis::{Letter, Redis, Refused};
use crate::shown::{Circumstances, Shown};
use crate::tally::Tally;
use crate::truth::{Truth, Violation};
use crate::webhook::{Bytes, Exclusion, Rules, Scheme, Webhook};

/// Wall clock at the start, in milliseconds.
const EPOCH_MS: u64 = 1_000_000;
/// Steps of the schedule that a failing seed prints.
const LOGGED: usize = 60;
/// Time between two renewals of the lease, and its length.
const LEASE_EVERY: Duration = Duration::from_millis(500);
const LEASE_FOR: Duration = Duration::from_secs(2);

/// A read from Redis.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Next,
    Read(PackKey),
    Front(Vec<StreamId>),
    Chunks(u64, u32, u32),
    Rest(u64, StreamId),
}

/// A scheduled event. The number is the token of the leader that it is for.
pub(crate) enum Task {
    /// Redis executes a read.
    Execute(u64, Request),
    /// The leader gets an event.
    Deliver(u64, Event<Bytes>),
    /// Redis gets a settlement. The flag is set if the leader waits for the reply.
    Apply(Rc<Letter>, bool),
    /// An attempt ends.
    End(u64, AttemptId),
    /// The world acts.
    Act,
    /// The worker detects that the data was replaced.
    Restart,
}

pub(crate) struct Due {
    at: Duration,
    order: u64,
    task: Task,
}

/// Operator controls in force, and the state of the environment.
pub(crate) struct Environment {
    pub has_lease: bool,
    pub lease_at: Duration,
    pub dead_room: u64,
    pub may_move: bool,
    pub controls: Controls<crate::webhook::Resource>,
    pub is_calm: bool,
}

/// Schedule so far, if it is kept.
pub(crate) struct Log {
    pub is_on: bool,
    lines: VecDeque<String>,
    most: usize,
}

pub(crate) struct World {
    pub random: Random,
    pub plan: Plan,
    pub scheme: Scheme,
    pub exclusion: Exclusion,
    pub now: Duration,
    pub redis: Redis,
    pub truth: Truth,
    pub shown: Shown,
    pub counted: Counted,
    pub backends: Backends,
    pub environment: Environment,
    pub liveness: Liveness,
    pub leader: Leader,
    pub agenda: BinaryHeap<Reverse<Due>>,
    pub log: Log,
    pub tally: Tally,
    /// Copy of older data, for a restore.
    pub copy: Option<(Redis, Truth)>,
    /// True if the leader works with data that was replaced.
    pub is_astray: bool,
}

impl Log {
    pub(crate) fn add(&mut self, now: Duration, line: impl FnOnce() -> String) {
        if self.is_on {
            if self.lines.len() == self.most {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{:>9.3} {}", now.as_secs_f64(), line()));
        }
    }

    pub(crate) fn print(&self) {
        self.lines.iter().for_each(|line| println!("{line}"));
    }
}

impl World {
    pub(crate) fn new(seed: u64, is_logged: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random);
        let scheme = plan.scheme;
        let exclusion = plan.exclusion(&mut random);
        let keeps_fingerprints = plan.config.keeps_fingerprints;
        let rules = Rules { scheme, keeps_fingerprints, exclusion };
        let redis = Redis::default();
        let truth = Truth::new(plan.dedup_window);
        let leader = Leader::new(&redis, &plan, rules, &truth, Duration::ZERO);
        let controls = Controls {
            version: 0,
            is_all_paused: false,
            shops: Default::default(),
            filters: Vec::new(),
            drops: Default::default(),
        };
        let environment = Environment {
            has_lease: true,
            lease_at: Duration::ZERO,
            dead_room: 1 << 20,
            may_move: true,
            controls,
            is_calm: false,
        };
        let mut world = Self {
            random,
            plan,
            scheme,
            exclusion,
            now: Duration::ZERO,
            redis,
            truth,
            shown: Shown::default(),
            counted: Counted::default(),
            backends: Backends::default(),
            environment,
            liveness: Liveness::default(),
            leader,
            agenda: BinaryHeap::new(),
            tally: Tally::default(),
            copy: None,
            is_astray: false,
            log: Log {
                is_on: is_logged,
                lines: VecDeque::new(),
                most: crate::setting("LINES").map_or(LOGGED, |most| most as usize),
            },
        };
        world.lead();
        world.tally = Tally::default();
        world.later(Duration::ZERO, Task::Act);
        world
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        EPOCH_MS + u64::try_from(self.now.as_millis()).expect("it is small")
    }

    pub(crate) fn later(&mut self, after: Duration, task: Task) {
        let order = self.random.next();
        self.agenda.push(Reverse(Due { at: self.now + after, order, task }));
    }

    /// Returns a delay of Redis.
    pub(crate) fn delay(&mut self) -> Duration {
        let is_late = !self.environment.is_calm && self.random.chance(20);
        let most = self.plan.latency_ms * if is_late { 20 } else { 1 };
        self.random.ms(0, most)
    }

    /// Starts a new leader with the state in Redis.
    pub(crate) fn lead(&mut self) {
        self.redis.token += 1;
        self.redis.forget_times(self.plan.config.index_bytes);
        self.is_astray = false;
        self.tally.takeovers += 1;
        self.tally.cuts += self.leader.core.counts().cuts;
        self.tally.excluded += self.leader.core.counts().undelivered.excluded;
        self.leader = Leader::new(&self.redis, &self.plan, self.rules(), &self.truth, self.now);
        self.environment.lease_at = Duration::ZERO;
        self.push_controls();
    }

    /// Rules of the leader.
    pub(crate) fn rules(&self) -> Rules {
        let keeps_fingerprints = self.plan.config.keeps_fingerprints;
        Rules { scheme: self.scheme, keeps_fingerprints, exclusion: self.exclusion }
    }

    pub(crate) fn push_controls(&mut self) {
        self.leader.inbox.push(Event::Controls(self.environment.controls.clone()));
    }

    /// Advances to the next scheduled event.
    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        self.tally.steps += 1;
        let tick = self.random.ms(0, 1000).min(self.plan.tick);
        let wakes = self.leader.wakes_at().max(self.now + tick.max(Duration::from_micros(100)));
        let next = self.agenda.peek().map_or(wakes, |Reverse(due)| due.at.min(wakes));
        let next = if self.leader.inbox.is_empty() { next } else { self.now };
        self.now = self.now.max(next);
        self.count_time();
        while self.agenda.peek().is_some_and(|Reverse(due)| due.at <= self.now) {
            let Some(Reverse(due)) = self.agenda.pop() else { break };
            self.happen(due.task)?;
        }
        self.read_ahead();
        self.renew_lease();
        self.drive()?;
        self.check_liveness()
    }

    fn happen(&mut self, task: Task) -> Result<(), Violation> {
        match task {
            Task::Execute(token, request) => self.execute(token, &request),
            Task::Deliver(token, event) if token == self.leader.token => {
                self.leader.inbox.push(event);
            }
            Task::Deliver(..) => {}
            Task::Apply(letter, is_awaited) => self.apply(&letter, is_awaited)?,
            Task::End(token, id) if token == self.leader.token => self.end_attempt(id),
            Task::End(..) => {}
            Task::Act => self.act(),
            Task::Restart if self.is_astray => self.take_over()?,
            Task::Restart => {}
        }
        Ok(())
    }

    fn execute(&mut self, token: u64, request: &Request) {
        if token != self.leader.token {
            return;
        }
        let rules = self.rules();
        let redis = &self.redis;
        let event = match request {
            Request::Next => {
                let mut after = redis.main.range(self.leader.read_to.next()..);
                let Some((entry, _)) = after.next() else {
                    self.leader.is_reading = false;
                    return;
                };
                let pack = redis.pack(*entry, rules);
                Event::Pack(pack.expect("it is there"))
            }
            Request::Read(PackKey::Main(entry)) => Event::Read(
                PackKey::Main(*entry),
                redis.main.get(entry).map(|webhooks| read_again(webhooks.clone(), false)),
            ),
            Request::Read(PackKey::Chunk(lane, number)) => {
                let chunk = redis.chunks.get(&(*lane, *number));
                let chunk = chunk.filter(|chunk| !chunk.is_spoiled);
                let bytes = chunk.map(|chunk| read_again(chunk.webhooks.clone(), true));
                Event::Read(PackKey::Chunk(*lane, *number), bytes)
            }
            Request::Read(PackKey::Replay(id)) => {
                let bytes = redis.replays.get(id).map(|webhook| read_again(vec![*webhook], false));
                Event::Read(PackKey::Replay(*id), bytes)
            }
            Request::Front(entries) => {
                let packs = entries.iter().map(|entry| redis.pack(*entry, rules));
                Event::FrontRead(packs.map_while(|pack| pack).collect())
            }
            Request::Chunks(lane, first, count) => {
                self.tally.chunks_read += u64::from(*count);
                // Returns fewer chunks than requested, as if reading all of them took too long.
                let fewer = u32::try_from(self.random.below(4)).expect("below four");
                let count = count - fewer.min(count - 1);
                let chunks =
                    (*first..first + count).map(|number| redis.chunk(*lane, number, rules));
                Event::ChunksRead { lane: *lane, chunks: chunks.collect() }
            }
            Request::Rest(lane, entry) => {
                let pack = redis.pack(*entry, rules);
                Event::RestRead { lane: *lane, entry: *entry, pack }
            }
        };
        let delay = self.delay();
        self.later(delay, Task::Deliver(token, event));
    }

    /// Handles a settlement that arrives at Redis.
    pub(crate) fn apply(&mut self, letter: &Rc<Letter>, is_awaited: bool) -> Result<(), Violation> {
        let replays: BTreeMap<_, _> = self.redis.replays.clone();
        let is_mine = letter.mark.0 == self.leader.token;
        if self.is_astray {
            // The settlement names a predecessor that no longer exists.
            return if is_mine { self.take_over() } else { Ok(()) };
        }
        match self.redis.apply(letter) {
            Ok(true) => {
                let mark = letter.mark;
                self.log.add(self.now, || format!("applied {mark:?}"));
                let wall_ms = self.wall_ms();
                self.tally.settled(&letter.settlement);
                check_retries(&letter.settlement, wall_ms)?;
                for dead in &letter.settlement.dead {
                    self.check_dead(self.truth.webhook(dead.position)?, dead.reason)?;
                }
                self.check_states(letter)?;
                self.truth.check_applied(letter, &self.redis, &replays, wall_ms)?;
            }
            Ok(false) => {}
            Err(Refused::Older) if is_awaited && is_mine => {
                return Err("a settlement is refused without a takeover".to_owned());
            }
            Err(_) => return Ok(()),
        }
        if is_awaited && is_mine {
            let delay = self.delay();
            if !self.environment.is_calm && self.random.chance(100) {
                // The reply is lost.
                self.later(delay, Task::Apply(letter.clone(), true));
            } else {
                self.later(delay, Task::Deliver(self.leader.token, Event::Settled));
            }
        }
        Ok(())
    }

    /// Checks what a settlement drops against the states that the backends have. The truth does not know of
    /// the settlement yet.
    fn check_states(&mut self, letter: &Letter) -> Result<(), Violation> {
        let circumstances = self.circumstances();
        for record in &letter.settlement.records {
            let is_replay = !self.truth.unsettled.contains(&record.position);
            if !is_replay {
                let webhook = *self.truth.webhook(record.position)?;
                self.shown.settled(&webhook, record.outcome, circumstances)?;
            }
        }
        Ok(())
    }

    /// Circumstances under which updates are dropped now.
    pub(crate) fn circumstances(&self) -> Circumstances {
        let suppression = self.plan.config.suppression;
        let knows_all = self.tally.takeovers == 0 && suppression.bytes == ROOMY;
        Circumstances { drops_stale: suppression.drops_stale, knows_all }
    }

    /// Reads the main stream in order, and replays.
    fn read_ahead(&mut self) {
        let token = self.leader.token;
        let is_behind = self.redis.main.range(self.leader.read_to.next()..).next().is_some();
        if is_behind && !self.leader.is_reading && self.leader.core.takes_packs() {
            self.leader.is_reading = true;
            let delay = self.delay();
            self.later(delay, Task::Execute(token, Request::Next));
        }
        if self.environment.is_calm || self.random.chance(300) {
            self.read_replays();
        }
    }

    /// Reads replays in order while the core takes them, one or several at each step.
    fn read_replays(&mut self) {
        for _ in 0..self.random.pick(&[1, 4, 64]) {
            if !self.leader.core.takes_replays() {
                return;
            }
            let mut new = self.redis.replays.range(self.leader.replays_to.next()..);
            let Some((id, webhook)) = new.next().map(|(id, webhook)| (*id, *webhook)) else {
                if !std::mem::replace(&mut self.leader.are_replays_loaded, true) {
                    self.leader.inbox.push(Event::ReplaysLoaded);
                }
                return;
            };
            let replay: ReplayRead<Bytes> = self.leader.replay(id, &webhook);
            self.leader.inbox.push(Event::Replay(replay));
        }
    }

    fn renew_lease(&mut self) {
        if !self.environment.has_lease || self.now < self.environment.lease_at {
            return;
        }
        self.environment.lease_at = self.now + LEASE_EVERY;
        self.counted.leads_until = self.now + LEASE_FOR + self.plan.tick;
        let until = self.counted.leads_until - self.leader.began;
        let Environment { dead_room, may_move, .. } = self.environment;
        self.leader.inbox.push(Event::Lease { until, dead_room, may_move });
    }

    /// Time on the leader's clocks.
    pub(crate) fn leader_now(&self) -> Now {
        Now { at: self.now - self.leader.began, wall_ms: self.wall_ms() }
    }
}

fn read_again(webhooks: Vec<Webhook>, is_chunk: bool) -> ReadAgain<Bytes> {
    let positions = webhooks.iter().filter(|_| is_chunk).map(|webhook| webhook.position);
    ReadAgain { positions: positions.collect(), content: Bytes::of(webhooks) }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Checks that no webhook has spent more time on retries than its age.
fn check_retries(settlement: &PendingSettlement<Bytes>, wall_ms: u64) -> Result<(), Violation> {
    let all = [&settlement.main.retries, &settlement.lanes.retries];
    for (position, state) in all.into_iter().flat_map(|changes| &changes.written) {
        // Rounded up to the next millisecond.
        let age = Duration::from_millis(wall_ms.saturating_sub(position.ms) + 1);
        if state.spent > age || state.refused > state.spent {
            return Err(format!("{position}: {state:?} after {age:?}"));
        }
    }
    Ok(())
}
