//! Delays of deliveries in virtual time: one core, and a backend that is a function of the shop.
//! Nothing moves and nothing is lost.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{
    AttemptEnd, AttemptId, Backoff, Blocked, ChunkFound, ChunkRead, Class, Classified, Config,
    Content, Controls, Core, DedupWindow, Drops, Effect, Event, LaneLoaded, Loaded, Now, Outcome,
    PackKey, PackRead, PendingSettlement, ReadAgain, Scope, ShopBounds, StateRole, Suppression,
    Tuning, Verdict,
};
use spillway_limiter::{Bounds, Signal};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;
use spillway_webhook::{Spans, StoredRetry, StreamId};

#[path = "flow/bounded.rs"]
mod bounded;
#[path = "flow/crowded.rs"]
mod crowded;
#[path = "flow/gathered.rs"]
mod gathered;
#[path = "flow/hanging.rs"]
mod hanging;
#[path = "flow/overdue.rs"]
mod overdue;
#[path = "flow/partly.rs"]
mod partly;
#[path = "flow/recovery.rs"]
mod recovery;
#[path = "flow/replays.rs"]
mod replays;
#[path = "flow/slow.rs"]
mod slow;
#[path = "flow/turns.rs"]
mod turns;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const EPOCH_MS: u64 = 1_000_000_000;
/// Duration of a settlement.
const SETTLING: Duration = Duration::from_millis(2);
/// `DELIVERY_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// `RETRY_LONGEST`.
const LONGEST: Duration = Duration::from_secs(60);

/// Shop and kind of each webhook of a pack.
#[derive(Debug, Clone)]
struct Lanes(Rc<Vec<(u32, u8)>>);

impl Content for Lanes {
    type Evidence = ();
    /// Kind that a filter matches.
    type Filter = u8;

    fn raw_bytes(&self) -> usize {
        self.0.len() * 100
    }

    fn record_bytes(&self, _: u32) -> usize {
        100
    }

    fn pluck(&self, index: u32) -> Self {
        Self(Rc::new(vec![self.0[index as usize]]))
    }

    fn fingerprint(&self, _: u32) -> Option<Fingerprint> {
        None
    }

    fn shop_of(_: &u8) -> Option<u64> {
        None
    }

    fn is_matched(&self, index: u32, _: Position, kind: &u8) -> bool {
        self.0[index as usize].1 == *kind
    }

    fn dead_bytes(&self, _: u32, _: &()) -> u64 {
        100
    }
}

/// Function that returns the backend's answer to a webhook of a shop and kind at a time.
type Answers = dyn Fn(u32, u8, Duration) -> Answer;

#[derive(Debug, Clone, Copy)]
enum Answer {
    Takes(Duration),
    Fails(Duration),
    Resets(Duration),
    /// 503 with a pause of this length for the shop.
    PausesShop(Duration),
    /// 503 with an explicit pause of this length for everything.
    PausesAll(Duration),
    /// 503 with a `Retry-After` of this length.
    RetryAfter(Duration),
    Hangs,
    /// 503 after this time.
    Unavailable(Duration),
    /// 429 after this time.
    Overloaded(Duration),
    /// 403 after this time.
    Refuses(Duration),
    /// The payload of a stub can't be fetched. The backend is not asked.
    Unfetched(Duration),
    /// 200 after the time of a fetch and this time.
    Fetches(Duration, Duration),
}

impl Answer {
    fn took(self) -> Duration {
        match self {
            Self::Takes(took)
            | Self::Resets(took)
            | Self::Unavailable(took)
            | Self::Overloaded(took)
            | Self::Fails(took)
            | Self::Refuses(took)
            | Self::Unfetched(took) => took,
            Self::Fetches(fetching, took) => fetching + took,
            Self::PausesShop(_) | Self::PausesAll(_) | Self::RetryAfter(_) => MS,
            Self::Hangs => TIMEOUT,
        }
    }
}

enum Task {
    Accept(Vec<(u32, u8)>),
    End(AttemptId, Answer),
    Event(Box<Event<Lanes>>),
}

struct World {
    core: Core<Lanes>,
    now: Duration,
    tasks: BTreeMap<(Duration, u64), Task>,
    answers: Box<Answers>,
    number: u64,
    /// Newest pack.
    last: StreamId,
    /// True while the lease is renewed.
    has_lease: bool,
    /// Time by which the machine's clock is slow.
    clock_behind: Duration,
    cancelled: HashSet<AttemptId>,
    /// Times from acceptance to delivery, by shop and kind.
    took: BTreeMap<(u32, u8), Vec<Duration>>,
    /// Positions of what was delivered, in order.
    delivered: Vec<Position>,
    dead: u64,
    /// Number of settlements.
    settlements: usize,
    waiting: usize,
    version: u64,
    sent: HashMap<(u32, u8), u64>,
    /// Attempts of each webhook.
    attempts: HashMap<Position, u32>,
    /// Most attempts that began with one event.
    sends_max: usize,
    /// Most leads that one settlement recorded.
    leads_max: usize,
    /// Leads that all settlements recorded.
    leads: usize,
    /// Most leads that were recorded and not deleted.
    recorded_max: usize,
    recorded: HashSet<u64>,
    /// Packs and webhooks that the cursor passed: all, and most with one settlement.
    passed: (u64, u64),
    passed_max: (u64, u64),
    /// Set if as many webhooks are accepted as the core takes.
    has_backlog: bool,
    /// Accepted packs that wait until the leader takes them; `None` if it gets all at once.
    unread: Option<VecDeque<PackRead<Lanes>>>,
    /// Time spent on retries, as last written.
    spent: HashMap<Position, Duration>,
    /// Retry states, as last written.
    retries: HashMap<Position, StoredRetry>,
    settled: HashSet<Position>,
    /// Webhooks whose retry states were deleted.
    forgotten: HashSet<Position>,
    /// Packs that are being read for rests of lanes. Each is read once for all lanes.
    rests: HashSet<StreamId>,
    rests_read: usize,
    chunks: HashMap<(u64, u32), Vec<Position>>,
    /// Reads of the front of the main stream, and webhooks that moved.
    front_reads: usize,
    moved: usize,
    /// Failing times of lanes, as last written.
    failing: HashMap<u64, Spans>,
}

/// First of the kinds that are resources of one lane and whose events stand for each other.
const COALESCED: u8 = 200;
/// Kind of events that stand for each other if they have the same index in their packs.
const PAIRED: u8 = COALESCED - 1;
/// First of the kinds of the priority class.
const PRIORITY: u8 = 150;
/// Kind whose webhooks belong to one resource and are delivered one after the other.
const IN_LINE: u8 = 149;
/// Kind whose webhooks wait for all earlier ones of their shop and hold back all later ones.
const BARRIER: u8 = 148;
/// Kind whose webhooks are stubs. Their payloads expire an hour and a minute after the start.
const STUB: u8 = 147;
/// First of the kinds that are barriers, too, in the lane of [`COALESCED`].
const TOPICS: u8 = 240;

fn config(concurrency_max: usize) -> Config {
    Config {
        bounds: Bounds { concurrency_min: 1, concurrency_max, rate_max: None },
        shop_bounds: ShopBounds { concurrency_max: u32::MAX, spacing: Duration::ZERO },
        backoff: Backoff { first: SECOND, longest: LONGEST },
        retry_for: 48 * 3600 * SECOND,
        retry_refused_for: 1800 * SECOND,
        coalesce_wait_max: 300 * SECOND,
        park_after: 100_000 * SECOND,
        index_bytes: 128 << 20,
        keeps_fingerprints: false,
        suppression: Suppression::default(),
        seed: 7,
        tuning: Tuning::default(),
    }
}

/// Hash of a number, another for each number: the core's tables take hashes as they are.
/// Source: the output function of SplitMix64 (Steele, Lea and Flood 2014).
fn hash(number: u64) -> u64 {
    let hash = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

fn classified(shop: u32, kind: u8, entry: u64, index: usize) -> Classified {
    let shop = u64::from(shop) + 1;
    let coalesces = if kind >= TOPICS { kind } else { u8::from(kind >= PAIRED) };
    let own = hash((entry << 24) + index as u64);
    Classified {
        resource: if kind == PAIRED {
            hash(shop << 32 | index as u64)
        } else if coalesces > 0 || kind == IN_LINE {
            u64::MAX - (shop << 8 | u64::from(kind.min(TOPICS)))
        } else {
            own
        },
        lane: shop << 8 | u64::from(kind.min(COALESCED)),
        shop,
        class: if (PRIORITY..COALESCED).contains(&kind) { Class::Priority } else { Class::Rest },
        is_barrier: kind == BARRIER,
        coalesces: u32::from(coalesces),
        role: StateRole::None,
        fingerprint: None,
        expires_at_ms: (kind == STUB).then_some(EPOCH_MS + 61 * 60_000),
        is_excluded: false,
    }
}

fn pack(entry: StreamId, lanes: &[(u32, u8)]) -> PackRead<Lanes> {
    let all = lanes.iter().enumerate();
    let classified = all.map(|(index, (shop, kind))| classified(*shop, *kind, entry.seq, index));
    PackRead { entry, classified: classified.collect(), content: Lanes(Rc::new(lanes.to_vec())) }
}

impl World {
    fn new(config: Config, answers: Box<Answers>) -> Self {
        Self::load(config, answers, Loaded::default())
    }

    /// Creates a leader from the state in Redis.
    fn load(config: Config, answers: Box<Answers>, loaded: Loaded) -> Self {
        let core = Core::new(config, loaded, DedupWindow::new(Duration::ZERO, 0));
        let mut world = Self {
            core,
            now: Duration::ZERO,
            tasks: BTreeMap::new(),
            answers,
            number: 0,
            last: StreamId::default(),
            has_lease: true,
            clock_behind: Duration::ZERO,
            cancelled: HashSet::new(),
            took: BTreeMap::new(),
            delivered: Vec::new(),
            dead: 0,
            settlements: 0,
            waiting: 0,
            version: 0,
            sent: HashMap::new(),
            attempts: HashMap::new(),
            sends_max: 0,
            leads_max: 0,
            leads: 0,
            recorded_max: 0,
            recorded: HashSet::new(),
            passed: (0, 0),
            passed_max: (0, 0),
            has_backlog: false,
            unread: None,
            spent: HashMap::new(),
            retries: HashMap::new(),
            settled: HashSet::new(),
            failing: HashMap::new(),
            forgotten: HashSet::new(),
            rests: HashSet::new(),
            rests_read: 0,
            chunks: HashMap::new(),
            front_reads: 0,
            moved: 0,
        };
        world.step(vec![Event::ReplaysLoaded]);
        world
    }

    fn later(&mut self, at: Duration, task: Task) {
        self.number += 1;
        self.tasks.insert((at, self.number), task);
    }

    fn lease(&self) -> Event<Lanes> {
        let until = self.now + SECOND;
        Event::Lease { until, dead_room: 1 << 30, may_move: true }
    }

    fn wall_ms(&self) -> u64 {
        EPOCH_MS + (self.now - self.clock_behind).as_millis() as u64
    }

    /// Schedules an answer of Redis.
    fn happens(&mut self, event: Event<Lanes>) {
        self.later(self.now + SETTLING, Task::Event(Box::new(event)));
    }

    /// Pauses the webhooks of a kind, or none, as an operator.
    fn pause(&mut self, kind: Option<u8>) {
        self.version += 1;
        let controls = Controls {
            version: self.version,
            is_all_paused: false,
            shops: HashSet::new(),
            filters: kind.into_iter().collect(),
            drops: Drops::default(),
        };
        self.step(vec![Event::Controls(controls)]);
    }

    /// Drops webhooks of the main stream, as an operator.
    fn drop_main(&mut self, main: HashMap<StreamId, Vec<u8>>) {
        self.version += 1;
        let controls = Controls {
            version: self.version,
            is_all_paused: false,
            shops: HashSet::new(),
            filters: Vec::new(),
            drops: Drops { main, ..Drops::default() },
        };
        self.step(vec![Event::Controls(controls)]);
    }

    /// Accepts one webhook for each of `lanes` at `at`.
    fn accept(&mut self, at: Duration, lanes: impl IntoIterator<Item = (u32, u8)>) {
        let lanes: Vec<_> = lanes.into_iter().collect();
        self.waiting += lanes.len();
        self.later(at, Task::Accept(lanes));
    }

    fn step(&mut self, mut events: Vec<Event<Lanes>>) {
        events.extend(self.has_lease.then(|| self.lease()));
        let now = Now { at: self.now, wall_ms: self.wall_ms() };
        let mut sends = 0;
        for effect in self.core.on(events, now) {
            match effect {
                Effect::Send(dispatch) => {
                    sends += 1;
                    self.sends_max = self.sends_max.max(sends);
                    let (shop, kind) = dispatch.content.0[dispatch.record_index as usize];
                    *self.sent.entry((shop, kind)).or_default() += 1;
                    *self.attempts.entry(dispatch.position).or_default() += 1;
                    let answer = (self.answers)(shop, kind, self.now);
                    self.later(self.now + answer.took(), Task::End(dispatch.id, answer));
                }
                Effect::Cancel(id) => drop(self.cancelled.insert(id)),
                Effect::Settle(settlement) => self.settle(&settlement),
                Effect::ReadRest { lane, entry } => {
                    assert!(self.rests.insert(entry), "{entry} is being read already");
                    self.rests_read += 1;
                    let pack = PACKS.with_borrow(|packs| Some(pack(entry, packs.get(&entry)?)));
                    self.happens(Event::RestRead { lane, entry, pack });
                }
                Effect::ReadChunks { lane, first, .. } => {
                    let own = self.chunks.get(&(lane, first));
                    let own = own.map(|positions| self.written_chunk(first, positions));
                    let chunk = own.unwrap_or_else(|| stored_chunk(lane, first));
                    let chunks = vec![ChunkFound::Read(chunk)];
                    self.happens(Event::ChunksRead { lane, chunks });
                }
                Effect::Read(key) => {
                    let again = self.read_again(key);
                    self.happens(Event::Read(key, Some(again)));
                }
                Effect::ReadFront(entries) => {
                    self.front_reads += 1;
                    let front = PACKS.with_borrow(|packs| {
                        entries.iter().map(|entry| pack(*entry, &packs[entry])).collect()
                    });
                    self.happens(Event::FrontRead(front));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Notes what a settlement changes.
    fn settle(&mut self, settlement: &PendingSettlement<Lanes>) {
        self.settlements += 1;
        let records = settlement.records.iter();
        let delivered = records.filter(|one| one.outcome == Outcome::Delivered);
        self.delivered.extend(delivered.map(|one| one.position));
        for record in &settlement.records {
            let lane = self.lane_of(record.position);
            let at = Duration::from_millis(record.position.ms.saturating_sub(EPOCH_MS));
            self.took.entry(lane).or_default().push(self.now.saturating_sub(at));
            self.waiting -= 1;
            self.settled.insert(record.position);
        }
        self.dead += settlement.dead.len() as u64;
        let retries = [&settlement.main.retries, &settlement.lanes.retries];
        for position in retries.iter().flat_map(|changes| &changes.deleted) {
            self.spent.remove(position);
            self.retries.remove(position);
            self.forgotten.insert(*position);
        }
        for (position, retry) in retries.iter().flat_map(|changes| &changes.written) {
            self.spent.insert(*position, retry.spent);
            self.retries.insert(*position, *retry);
        }
        let rows = settlement.lanes.rows.written.iter();
        self.failing.extend(rows.map(|row| (row.lane, row.failing.clone())));
        for chunk in &settlement.lanes.chunks.written {
            self.moved += chunk.positions.len();
            self.chunks.insert((chunk.lane, chunk.number), chunk.positions.clone());
        }
        let leads = settlement.lanes.leads.written.len();
        self.leads_max = self.leads_max.max(leads);
        self.leads += leads;
        let leads = &settlement.lanes.leads;
        self.recorded.retain(|hash| !leads.deleted.contains(hash));
        self.recorded.extend(leads.written.iter().map(|(hash, _)| *hash));
        self.recorded_max = self.recorded_max.max(self.recorded.len());
        let main = &settlement.main;
        let (packs, webhooks) = (main.entries_passed, main.webhooks_passed);
        self.passed = (self.passed.0 + packs, self.passed.1 + webhooks);
        self.passed_max = (self.passed_max.0.max(packs), self.passed_max.1.max(webhooks));
        self.happens(Event::Settled);
    }

    /// A chunk that the leader wrote.
    fn written_chunk(&self, number: u32, positions: &[Position]) -> ChunkRead<Lanes> {
        let lanes: Vec<_> = positions.iter().map(|at| self.lane_of(*at)).collect();
        let all = positions.iter().zip(&lanes);
        let records = all.map(|(at, (shop, kind))| {
            (*at, classified(*shop, *kind, at.entry().seq, at.index as usize))
        });
        let records = records.collect();
        let mut bits = vec![0; positions.len().div_ceil(8)];
        for (index, _) in positions.iter().enumerate().filter(|(_, at)| self.settled.contains(at)) {
            bits[index / 8] |= 1 << (index % 8);
        }
        let retries = positions.iter().filter_map(|at| Some((*at, *self.retries.get(at)?)));
        ChunkRead {
            number,
            records,
            bits,
            retries: retries.collect(),
            content: Lanes(Rc::new(lanes)),
        }
    }

    fn read_again(&self, key: PackKey) -> ReadAgain<Lanes> {
        let (positions, lanes) = match key {
            PackKey::Main(entry) => (Vec::new(), PACKS.with_borrow(|packs| packs[&entry].clone())),
            PackKey::Chunk(lane, number) => {
                let positions = self.chunks[&(lane, number)].clone();
                let lanes = positions.iter().map(|position| self.lane_of(*position)).collect();
                (positions, lanes)
            }
            PackKey::Replay(_) => panic!("{key:?}"),
        };
        ReadAgain { content: Lanes(Rc::new(lanes)), positions }
    }

    /// Accepted packs have the time of their acceptance as id. See [`World::run`].
    fn lane_of(&self, position: Position) -> (u32, u8) {
        if position.ms < EPOCH_MS {
            return lane_of_stored(position);
        }
        PACKS.with_borrow(|packs| packs[&position.entry()][position.index as usize])
    }

    /// Runs until everything is settled, or until `end`. Returns the number of webhooks left.
    fn run(&mut self, end: Duration) -> usize {
        while self.waiting > 0 && self.now < end {
            let wakes_at = self.core.wakes_at().max(self.now + MS);
            let next = self.tasks.first_key_value().map_or(wakes_at, |((at, _), _)| *at);
            self.now = self.now.max(next.min(wakes_at));
            if self.has_backlog && self.core.takes_packs() {
                self.accept(self.now, (0..20).map(|shop| (shop, 0)));
            }
            let mut events = Vec::new();
            while let Some(entry) = self.tasks.first_entry()
                && entry.key().0 <= self.now
            {
                events.extend(match entry.remove() {
                    Task::Accept(lanes) => {
                        // Ids never decrease.
                        let ms = self.wall_ms().max(self.last.ms);
                        let entry = StreamId { ms, seq: self.last.seq + 1 };
                        self.last = entry;
                        let read = pack(entry, &lanes);
                        PACKS.with_borrow_mut(|packs| packs.insert(entry, lanes));
                        match &mut self.unread {
                            Some(unread) => {
                                unread.push_back(read);
                                None
                            }
                            None => Some(Event::Pack(read)),
                        }
                    }
                    Task::End(id, _) if self.cancelled.contains(&id) => None,
                    Task::End(id, answer) => Some(Event::Ended(end_of(id, answer))),
                    Task::Event(event) => {
                        if let Event::RestRead { entry, .. } = &*event {
                            self.rests.remove(entry);
                        }
                        Some(*event)
                    }
                });
            }
            if let Some(unread) = self.unread.as_mut().filter(|_| self.core.takes_packs()) {
                let count = unread.len().min(64);
                events.extend(unread.drain(..count).map(Event::Pack));
            }
            if events.is_empty() {
                events.push(Event::Tick);
            }
            self.step(events);
        }
        self.waiting
    }

    /// Longest time that a webhook of a shop took.
    fn longest(&self, shop: u32) -> Duration {
        let of = self.took.iter().filter(|((one, _), _)| *one == shop);
        of.flat_map(|(_, took)| took).max().copied().unwrap_or(Duration::MAX)
    }
}

thread_local! {
    static PACKS: std::cell::RefCell<BTreeMap<StreamId, Vec<(u32, u8)>>> = const {
        std::cell::RefCell::new(BTreeMap::new())
    };
    /// Webhooks that a leader finds in chunks of one webhook each, unless they are of another kind.
    static IN_CHUNKS: std::cell::RefCell<Vec<StreamId>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn end_of(id: AttemptId, answer: Answer) -> AttemptEnd<()> {
    let retry = Verdict::Retry { pause: Duration::ZERO, scope: None, is_refusal: false };
    let (verdict, signal, took) = match answer {
        Answer::Takes(took) => (Verdict::Delivered, Signal::Done, took),
        Answer::Fails(took) => (retry, Signal::Failed, took),
        Answer::Resets(took) => (retry, Signal::Broken, took),
        Answer::Unavailable(took) => (retry, Signal::Unavailable { retry_after: None }, took),
        Answer::Overloaded(took) => (retry, Signal::Overloaded { retry_after: None }, took),
        Answer::PausesShop(pause) => {
            let scope = Some(Scope::Shop);
            (Verdict::Retry { pause, scope, is_refusal: false }, Signal::Failed, MS)
        }
        Answer::PausesAll(pause) => {
            let signal = Signal::Unavailable { retry_after: Some(pause) };
            (Verdict::Retry { pause, scope: Some(Scope::All), is_refusal: false }, signal, MS)
        }
        Answer::RetryAfter(pause) => {
            let signal = Signal::Unavailable { retry_after: Some(pause) };
            (Verdict::Retry { pause, scope: None, is_refusal: false }, signal, MS)
        }
        Answer::Refuses(took) => {
            let verdict = Verdict::Retry { pause: Duration::ZERO, scope: None, is_refusal: true };
            (verdict, Signal::Done, took)
        }
        Answer::Unfetched(took) => {
            let scope = Some(Scope::Resource);
            let pause = Duration::ZERO;
            (Verdict::Retry { pause, scope, is_refusal: false }, Signal::Failed, took)
        }
        Answer::Fetches(fetching, took) => (Verdict::Delivered, Signal::Done, fetching + took),
        Answer::Hangs => (retry, Signal::TimedOut, TIMEOUT),
    };
    let fetching = match answer {
        Answer::Fetches(fetching, _) => fetching,
        _ => Duration::ZERO,
    };
    AttemptEnd { id, verdict, signal, is_unconnected: false, took, fetching, evidence: () }
}

fn slow(took: Duration) -> Box<Answers> {
    Box::new(move |_, _, _| Answer::Takes(took))
}

/// Sends one webhook of each of `shops` at once to a backend that takes `took` for each.
fn burst(shops: u32, took: Duration) -> World {
    let mut world = World::new(config(64), slow(took));
    world.accept(MS, (0..shops).map(|shop| (shop, 0)));
    world.run(200 * took + 20 * SECOND);
    world
}

#[test]
fn a_slow_backend_is_not_cut_off_from_the_start() {
    for took in [400 * MS, 700 * MS, SECOND, 3 * SECOND, 10 * SECOND, 25 * SECOND] {
        for shops in [1, 2, 3, 50, 500] {
            let world = burst(shops, took);
            let first = world.took.values().flatten().min().copied().unwrap_or(Duration::MAX);
            assert!(first <= 4 * took + SECOND, "{took:?}, {shops} shops: first after {first:?}");
            assert_eq!(world.waiting, 0, "{took:?}, {shops} shops, after {:?}", world.now);
        }
    }
}

#[test]
fn a_backend_that_becomes_slow_is_not_cut_off() {
    for took in [SECOND, 3 * SECOND, 10 * SECOND] {
        let answers =
            move |_, _, at: Duration| Answer::Takes(if at < 10 * SECOND { 5 * MS } else { took });
        let mut world = World::new(config(16), Box::new(answers));
        for tick in 0..200 {
            world.accept(100 * MS * tick, (0..10).map(|shop| (shop, 0)));
        }
        // At ten seconds 1,000 webhooks are left. Half of the slots are enough for them.
        let left = world.run(10 * SECOND + took * 1_000 / 8 + 20 * took);
        assert_eq!(left, 0, "{took:?}");
    }
}

const X: u32 = 0;
const Y: u32 = 1;

/// Shop X gets the answer `of_x` up to `until`. All others are healthy.
fn unwell(of_x: Answer, until: Duration) -> Box<Answers> {
    Box::new(move |shop, _, at| if shop == X && at < until { of_x } else { Answer::Takes(5 * MS) })
}

/// The backend has served both shops, so they are known.
fn known(config: Config, answers: Box<Answers>) -> World {
    let mut world = World::new(config, answers);
    world.accept(MS, [(Y, 0), (2, 0)]);
    world
}

#[test]
fn a_hanging_shop_with_three_kinds_does_not_take_a_quiet_backend_down() {
    for concurrency_max in [1, 2, 3, 16] {
        let hours = 2 * 3600 * SECOND;
        for seed in 0..20 {
            let config = Config { seed, ..config(concurrency_max) };
            let mut world = known(config, unwell(Answer::Hangs, hours));
            for minute in 0..60 {
                world.accept(minute * 60 * SECOND, [(X, 0), (X, 1), (X, 2)]);
                world.accept(minute * 60 * SECOND + 45 * SECOND, [(Y, 0)]);
            }
            world.run(3600 * SECOND);
            let longest = world.longest(Y);
            // With a single slot, a hanging lane cannot be distinguished from a slow backend.
            let most = if concurrency_max == 1 { TIMEOUT + 2 * SECOND } else { 2 * SECOND };
            assert!(longest < most, "{concurrency_max} at once, seed {seed}: {longest:?}");
        }
    }
}

#[test]
fn a_shop_whose_connections_break_does_not_pause_a_quiet_backend() {
    let mut world = known(config(16), unwell(Answer::Resets(MS), 2 * 3600 * SECOND));
    for minute in 0..60 {
        world.accept(minute * 60 * SECOND, [(X, 0), (X, 1), (X, 2)]);
        if minute % 5 == 4 {
            world.accept(minute * 60 * SECOND + 30 * SECOND, [(Y, 0)]);
        }
    }
    world.run(3600 * SECOND);
    assert!(world.longest(Y) < SECOND, "{:?}", world.longest(Y));
}

#[test]
fn a_lane_that_hung_for_a_day_is_found_well_within_two_minutes() {
    let day = 24 * 3600 * SECOND;
    let mut world = known(config(16), unwell(Answer::Hangs, day));
    for minute in 0..(24 * 60) {
        world.accept(minute * 60 * SECOND, [(X, 0), (Y, 0)]);
    }
    world.run(day);
    let left = world.waiting;
    assert!(left > 1_400, "{left}");
    world.run(day + 300 * SECOND);
    assert_eq!(world.waiting, 0);
    assert!(world.now < day + 120 * SECOND, "{:?} after", world.now - day);
}

#[test]
fn what_is_overdue_of_a_hanging_lane_is_given_up_faster_than_it_comes() {
    let retry_for = 3600 * SECOND;
    let config = Config { retry_for, ..config(16) };
    let hours = 12 * 3600;
    let mut world = known(config, unwell(Answer::Hangs, Duration::MAX));
    for minute in 0..(hours / 60) {
        world.accept(minute * 60 * SECOND, [(X, 0), (Y, 0)]);
    }
    world.run(hours * SECOND);
    // Webhooks of the last hour may wait, and as many again.
    assert!(world.waiting < 120, "{} wait, {} are given up", world.waiting, world.dead);
}

#[test]
fn a_shop_is_left_alone_for_as_long_as_was_asked_for() {
    let pause = 5 * SECOND;
    let mut world = known(
        config(16),
        Box::new(move |shop, kind, _| {
            if (shop, kind) == (X, 0) { Answer::PausesShop(pause) } else { Answer::Takes(5 * MS) }
        }),
    );
    world.accept(2 * MS, [(X, 0)]);
    // At this time the wait of the webhook itself is longer.
    for second in 100..3_000 {
        world.accept(second * SECOND, [(X, 1)]);
    }
    world.run(3_010 * SECOND);
    let of_kind = &world.took[&(X, 1)];
    let longest = of_kind.iter().max().copied().unwrap_or_default();
    assert!(longest < pause + SECOND, "{longest:?}");
}

#[test]
fn a_leader_that_ends_does_not_wait_for_what_hangs() {
    let mut world = known(config(16), unwell(Answer::Hangs, Duration::MAX));
    world.accept(SECOND, (0..8).map(|kind| (X, kind)));
    world.run(3 * SECOND);
    world.step(vec![Event::Stop]);
    world.run(5 * SECOND);
    assert!(world.core.is_quiet());
    assert_eq!(world.waiting, 8);
}

#[test]
fn a_lane_that_hangs_is_said_to_hang_and_not_to_have_failed_sixteen_times() {
    let mut world = known(config(16), unwell(Answer::Hangs, Duration::MAX));
    world.accept(SECOND, [(X, 0)]);
    world.run(40 * SECOND);
    let status = world.core.status();
    let reasons: Vec<_> = status.blocked.iter().map(|lane| lane.reason).collect();
    assert_eq!(reasons, [Blocked::LaneSuspect]);
}

#[test]
fn a_backend_that_goes_down_and_comes_back_is_counted() {
    let answers =
        |_, _, at: Duration| if at < 60 * SECOND { Answer::Resets(MS) } else { Answer::Takes(MS) };
    let mut world = World::new(config(16), Box::new(answers));
    for shop in 0..20 {
        world.accept(SECOND, [(shop, 0)]);
    }
    world.run(59 * SECOND);
    let status = world.core.status();
    assert!(status.is_down);
    assert!(status.blocked.iter().all(|lane| lane.reason == Blocked::BackendDown), "{status:?}");
    assert_eq!(world.run(200 * SECOND), 0);
    let counts = world.core.counts().backend;
    assert_eq!((counts.went_down, counts.came_back), (1, 1));
}

#[test]
fn a_failing_shop_whose_events_stand_for_each_other_leaves_room_for_others() {
    let config = Config { index_bytes: 128 << 10, ..config(16) };
    let mut world = known(config, unwell(Answer::Fails(MS), Duration::MAX));
    // 55 resources with about 5,000 events, which is more than the index holds.
    for tick in 0..100 {
        world.accept(SECOND + 20 * MS * tick, (COALESCED..=u8::MAX - 1).map(|kind| (X, kind)));
    }
    for second in 4..60 {
        world.accept(second * SECOND, [(Y, 0)]);
    }
    world.run(62 * SECOND);
    assert!(world.core.counts().cuts > 0);
    assert!(world.longest(Y) < SECOND, "{:?}", world.longest(Y));
    assert_eq!(world.took[&(Y, 0)].len(), 57);
    // While the circuit breaker is open, only leads of probes are recorded.
    assert!(world.leads_max <= 2, "{} leads in one settlement", world.leads_max);
}

#[test]
fn time_in_which_nothing_was_tried_is_not_spent_on_retries() {
    let retry_for = 3600 * SECOND;
    let config = Config { retry_for, retry_refused_for: retry_for, ..config(16) };
    let mut world = known(config, unwell(Answer::Fails(MS), Duration::MAX));
    world.accept(SECOND, (0..20).map(|_| (X, 1)));
    world.accept(SECOND, [(Y, 0)]);
    world.pause(Some(1));
    world.run(2 * retry_for);
    assert_eq!(world.sent.get(&(X, 1)), None);
    world.pause(None);
    world.run(3 * retry_for - 120 * SECOND);
    assert_eq!(world.dead, 0, "after an hour at most");
    assert!(world.sent[&(X, 1)] > 60, "{:?}", world.sent);
    world.run(3 * retry_for + 180 * SECOND);
    assert_eq!(world.dead, 20, "after an hour");
}

#[test]
fn a_pause_amid_the_retries_is_not_spent_on_them() {
    let retry_for = 3600 * SECOND;
    let mut world =
        known(Config { retry_for, ..config(16) }, unwell(Answer::Fails(MS), Duration::MAX));
    world.accept(SECOND, (0..20).map(|_| (X, 1)));
    world.accept(SECOND, [(Y, 0)]);
    world.run(retry_for / 2);
    world.pause(Some(1));
    world.run(2 * retry_for);
    world.pause(None);
    world.run(2 * retry_for + retry_for / 3);
    assert_eq!(world.dead, 0, "half an hour was spent, and twenty minutes");
    world.run(2 * retry_for + retry_for / 2 + 180 * SECOND);
    assert_eq!(world.dead, 20);
}

#[test]
fn a_pause_is_not_taken_off_the_time_for_retries_twice() {
    let retry_for = 3600 * SECOND;
    let mut world =
        known(Config { retry_for, ..config(16) }, unwell(Answer::Fails(MS), Duration::MAX));
    // Too few to open the circuit breaker.
    world.accept(SECOND, (0..3).map(|_| (X, 1)));
    world.accept(SECOND, [(Y, 0)]);
    world.run(retry_for / 2);
    for hour in 1..4 {
        world.pause(Some(1));
        world.run(hour * retry_for);
    }
    world.pause(None);
    world.run(3 * retry_for + retry_for / 3);
    assert_eq!(world.dead, 0, "half an hour was spent, and twenty minutes");
    world.run(3 * retry_for + retry_for / 2 + 180 * SECOND);
    assert_eq!(world.dead, 3);
}

#[test]
fn a_paused_webhook_does_not_stop_the_time_of_others_of_its_lane() {
    let retry_for = 3600 * SECOND;
    let mut world =
        known(Config { retry_for, ..config(16) }, unwell(Answer::Fails(MS), Duration::MAX));
    // These resources share one lane.
    world.accept(SECOND, (0..3).map(|one| (X, COALESCED + one)));
    world.accept(SECOND, [(Y, 0)]);
    for part in 1..5 {
        world.pause(Some(COALESCED));
        world.run(part * retry_for * 2 / 5);
    }
    assert_eq!(world.dead, 2);
    assert!(world.waiting > 0);
}

#[test]
fn a_stall_of_the_whole_backend_cuts_hardly_anything_off() {
    let answers = |shop: u32, _, at: Duration| {
        let took = MS + MS * (shop * 7 % 9);
        let is_stalled = at + took >= 10 * SECOND && at < 11 * SECOND;
        Answer::Takes(if is_stalled { 11 * SECOND - at + took } else { took })
    };
    let mut world = World::new(config(64), Box::new(answers));
    for tick in 0..1_500 {
        world.accept(10 * MS * tick, (0..40).map(|one| ((tick * 40 + one) % 500, 0)));
    }
    world.run(30 * SECOND);
    assert_eq!(world.waiting, 0);
    let cut_off = world.core.counts().cut_off;
    assert!(cut_off <= 2, "{cut_off} cut off");
}

#[test]
fn hundreds_of_shops_that_begin_to_hang_leave_slots_to_the_others() {
    let answers = |shop: u32, _, _: Duration| {
        if shop.is_multiple_of(4) { Answer::Hangs } else { Answer::Takes(5 * MS) }
    };
    let mut world = World::new(config(64), Box::new(answers));
    for tick in 0..600 {
        // Each shop sends once in eight seconds.
        world.accept(100 * MS * tick, (0..10).map(|one| ((tick * 10 + one) % 800, 0)));
    }
    world.run(62 * SECOND);
    let healthy = world.took.iter().filter(|((shop, _), _)| !shop.is_multiple_of(4));
    let mut took: Vec<Duration> = healthy.flat_map(|(_, took)| took).copied().collect();
    took.sort_unstable();
    let (count, p99) = (took.len(), took[took.len() * 99 / 100]);
    assert_eq!(count, 4_500);
    assert!(p99 < SECOND, "{p99:?}");
}

/// Most chunks of a lane.
const CHUNKS: u32 = 100;

/// Position of the only webhook of a chunk that a leader finds. The lane's hash contains shop and
/// kind.
fn stored_at(lane: u64, number: u32) -> Position {
    Position::new(StreamId { ms: EPOCH_MS - u64::from(CHUNKS - number), seq: lane }, 0)
}

/// Shop and kind of a webhook that a leader finds in a chunk. In lanes of several chunks, the first
/// webhook is of kind 1.
fn lane_of_stored(position: Position) -> (u32, u8) {
    let shop = (position.seq >> 8) - 1;
    let is_first = position.ms == EPOCH_MS - u64::from(CHUNKS) && shop < FIRST_OF_ONE;
    (shop, u8::from(is_first))
}

/// First shop whose lane has one chunk.
const FIRST_OF_ONE: u32 = 1_000;

fn stored_chunk(lane: u64, number: u32) -> ChunkRead<Lanes> {
    let other = IN_CHUNKS.with_borrow(|ids| ids.get(number as usize).copied());
    let position = other.map_or_else(|| stored_at(lane, number), |id| Position::new(id, 0));
    let (shop, kind) = lane_of_stored(position);
    let classified = Classified { lane, ..classified(shop, 0, lane + u64::from(number), 0) };
    ChunkRead {
        number,
        records: vec![(position, classified)],
        bits: Vec::new(),
        retries: Vec::new(),
        content: Lanes(Rc::new(vec![(shop, kind)])),
    }
}

/// A lane of a shop with `chunks` chunks of one webhook each.
fn stored_lane(shop: u32, chunks: u32) -> LaneLoaded {
    let Classified { lane, shop, .. } = classified(shop, 0, 0, 0);
    LaneLoaded {
        lane,
        shop,
        is_other_scheme: false,
        first_chunk: 0,
        last_chunk: chunks - 1,
        waiting: u64::from(chunks),
        first: stored_at(lane, 0),
        last: stored_at(lane, chunks - 1),
        failing: Spans::default(),
        is_tripped: false,
        is_suspect: false,
    }
}

/// A leader that begins with a lane of a shop. The first webhook of the lane always fails.
fn with_lane(config: Config, shop: u32, chunks: u32) -> World {
    let cursor = StreamId { ms: EPOCH_MS, seq: 0 };
    let loaded = Loaded { cursor, lanes: vec![stored_lane(shop, chunks)], ..Loaded::default() };
    let answers = |_, kind, _: Duration| {
        if kind == 1 { Answer::Fails(MS) } else { Answer::Takes(20 * MS) }
    };
    let mut world = World::load(config, Box::new(answers), loaded);
    world.waiting = chunks as usize;
    world
}

#[test]
fn a_lane_with_a_webhook_that_fails_is_read_while_a_backlog_fills_the_index() {
    let mut config = config(4);
    config.index_bytes = 96 << 10;
    config.tuning.chunks_at_once = 1;
    let mut world = with_lane(config, 500, 40);
    world.has_backlog = true;
    world.run(60 * SECOND);
    let delivered = world.took.get(&(500, 0)).map_or(0, Vec::len);
    assert_eq!(delivered, 39, "of 40 webhooks, of which one fails");
}

#[test]
fn an_index_full_of_what_can_not_be_cut_is_read_into_as_soon_as_there_is_room() {
    const BYTES: usize = 96 << 10;
    let mut config = config(4);
    config.index_bytes = BYTES;
    config.tuning.chunks_at_once = 1;
    // The lane could be sent if there were room for its rest.
    let mut world = with_lane(config, 500, CHUNKS);
    // One webhook per lane, which fails. Nothing can be cut.
    let mut failing = 600..FIRST_OF_ONE;
    while world.core.status().index_bytes < BYTES / 100 * 60 {
        world.accept(world.now, failing.by_ref().take(5).map(|shop| (shop, 1)));
        world.run(world.now + MS);
    }
    world.has_backlog = true;
    world.run(10 * SECOND);
    let bytes = world.core.status().index_bytes;
    assert!(bytes > BYTES / 8 * 7, "{bytes} of {BYTES}");
    let delivered = |world: &World| world.took.values().map(Vec::len).sum::<usize>();
    let before = delivered(&world);
    assert_eq!(world.core.counts().backend.went_down, 0);
    world.run(30 * SECOND);
    let since = delivered(&world) - before;
    assert!(since >= 300, "{since} delivered in 20 s");
}

#[test]
fn a_pack_is_read_once_for_all_lanes_whose_rest_it_is_next_of() {
    const PACKS: u32 = 80;
    let mut config = config(64);
    config.index_bytes = 96 << 10;
    let is_unwell = |shop, at| shop >= 600 && at < 60 * SECOND;
    let answers = move |shop, _, at| {
        if is_unwell(shop, at) { Answer::Fails(MS) } else { Answer::Takes(MS) }
    };
    let mut world = known(config, Box::new(answers));
    for number in 0..PACKS {
        world.accept(SECOND + 10 * MS * number, (600..640).map(|shop| (shop, 1)));
    }
    assert_eq!(world.run(600 * SECOND), 0);
    let read = world.rests_read;
    assert!(read > 0, "windows were cut");
    assert!(read < 20 * PACKS as usize, "{read} reads for {PACKS} packs of 40 lanes");
}

#[test]
fn webhooks_that_fail_again_do_not_take_a_quiet_backend_down() {
    let answers =
        |_, kind, _: Duration| if kind == 1 { Answer::Fails(MS) } else { Answer::Takes(MS) };
    let mut world = known(config(16), Box::new(answers));
    world.accept(SECOND, (0..8).map(|shop| (shop, 1)));
    world.accept(SECOND + 500 * MS, [(Y, 0)]);
    world.run(600 * SECOND);
    assert_eq!(world.waiting, 8);
    assert_eq!(world.core.counts().backend.went_down, 0);
}

#[test]
fn a_corrupt_pack_in_the_part_of_a_lane_that_is_not_indexed_is_passed_over() {
    let mut world = with_lane(config(4), 500, 2);
    // The first webhook fails, so the cursor stays before it.
    world.accept(MS, [(1, 1), (2, 0)]);
    let corrupt = StreamId { ms: EPOCH_MS + 2, seq: 1 };
    world.later(2 * MS, Task::Event(Box::new(Event::Corrupt(corrupt))));
    world.accept(3 * MS, [(500, 0)]);
    world.accept(4 * MS, [(3, 0)]);
    world.run(10 * SECOND);
    let delivered: usize = world.took.values().map(Vec::len).sum();
    assert_eq!((delivered, world.waiting), (4, 2), "all but those that fail");
}

/// A failing shop beside one that is served, and the position of its first webhook.
fn one_that_fails(loaded: Loaded) -> (World, Position) {
    let answers = |shop, _, _: Duration| {
        if shop == X { Answer::Fails(5 * MS) } else { Answer::Takes(5 * MS) }
    };
    let backoff = Backoff { first: SECOND, longest: SECOND };
    let config = Config { backoff, retry_for: 15 * SECOND, ..config(4) };
    let mut world = World::load(config, Box::new(answers), loaded);
    world.accept(SECOND, [(X, 0)]);
    for tick in 1..400 {
        world.accept(SECOND + tick * 100 * MS, [(Y, 0)]);
    }
    let entry = StreamId { ms: EPOCH_MS + 1_000, seq: 1 };
    (world, Position::new(entry, 0))
}

/// Retry state after `attempts` attempts.
fn tried(attempts: u32, spent: Duration) -> StoredRetry {
    StoredRetry { attempts, spent, ..StoredRetry::default() }
}

#[test]
fn time_spent_on_retries_is_known_to_the_next_leader_before_anything_moves() {
    let (mut world, position) = one_that_fails(Loaded::default());
    world.run(8 * SECOND);
    let spent = world.spent[&position];
    assert!(spent > 5 * SECOND && spent <= 7 * SECOND, "{spent:?}");
    world.step(vec![Event::Stop]);
    world.run(9 * SECOND);
    assert!(world.spent[&position] >= 7 * SECOND, "{:?}", world.spent[&position]);

    let cursor = StreamId { ms: EPOCH_MS, seq: 0 };
    let passed = Position::new(cursor, 3);
    let retries = vec![(position, tried(9, 10 * SECOND)), (passed, tried(2, SECOND))];
    let (mut world, position) = one_that_fails(Loaded { cursor, retries, ..Loaded::default() });
    world.run(5 * SECOND);
    assert_eq!(world.dead, 0);
    world.run(8 * SECOND);
    assert_eq!(world.dead, 1);
    assert_eq!(world.forgotten, HashSet::from([position, passed]));
}

#[test]
fn retry_states_that_a_leader_finds_have_a_quarter_of_the_index() {
    let at = |ms| Position::new(StreamId { ms: EPOCH_MS + ms, seq: 0 }, 0);
    let retries = (0..400).rev().map(|ms| (at(ms), tried(1, SECOND))).collect();
    let config = Config { index_bytes: 64 << 10, ..config(4) };
    let loaded = Loaded { retries, ..Loaded::default() };
    let world = World::load(config, Box::new(|_, _, _| Answer::Takes(5 * MS)), loaded);
    // The oldest states fit, of 172 bytes each.
    assert_eq!(world.forgotten, (96..400).map(at).collect());
}

#[test]
fn time_spent_on_retries_goes_on_after_a_restart() {
    let mut world = with_lane(config(4), 500, 2);
    world.run(1_000 * SECOND);
    let position = stored_at(classified(500, 0, 0, 0).lane, 0);
    let before = world.spent[&position];
    world.step(vec![Event::Stop]);
    world.run(1_001 * SECOND);
    let spent = world.spent[&position];
    assert!(before < spent, "{before:?}, then {spent:?}");
    // The time counts from the read of the chunk.
    assert!(spent >= 995 * SECOND && spent <= 1_001 * SECOND, "{spent:?}");
    let failing = world.failing[&classified(500, 0, 0, 0).lane].total();
    assert!(failing >= 995 * SECOND && failing <= 1_001 * SECOND, "{failing:?}");
}

#[test]
fn lanes_that_hung_under_the_last_leader_hold_a_part_of_the_slots_only() {
    const HANGING: u32 = FIRST_OF_ONE;
    let lanes = (HANGING..HANGING + 60).map(|shop| LaneLoaded {
        failing: Spans::one(EPOCH_MS - 1_000, SECOND),
        is_suspect: true,
        ..stored_lane(shop, 1)
    });
    let cursor = StreamId { ms: EPOCH_MS, seq: 0 };
    let loaded = Loaded { cursor, lanes: lanes.collect(), ..Loaded::default() };
    let answers = |shop, _, _: Duration| {
        if shop >= HANGING { Answer::Hangs } else { Answer::Takes(5 * MS) }
    };
    let mut world = World::load(config(64), Box::new(answers), loaded);
    for tick in 0..2_000 {
        world.accept(10 * MS * tick, (0..10).map(|shop| (shop, 0)));
    }
    for second in [2, 5, 12, 15] {
        world.run(second * SECOND);
        let hanging: u64 =
            world.sent.iter().filter(|((shop, _), _)| *shop >= HANGING).map(|(_, sent)| sent).sum();
        let in_flight = world.core.status().in_flight;
        assert!(hanging > 0 && in_flight <= 16 + 10, "{in_flight} at {second} s, {hanging} sent");
    }
    let longest = (0..10).map(|shop| world.longest(shop)).max();
    assert!(longest < Some(100 * MS), "{longest:?}");
}

#[test]
fn many_small_packs_move_at_once() {
    const PACKS: usize = 4_000;
    let config = Config { park_after: SECOND, ..config(64) };
    let mut world = World::new(config, slow(5 * MS));
    world.pause(Some(9));
    for number in 0..PACKS as u32 {
        world.accept(MS * (number / 100), [(number % 200, 9)]);
    }
    assert_eq!(world.run(8 * SECOND), PACKS);
    assert_eq!(world.moved, PACKS);
    assert!(world.front_reads <= PACKS / 40, "{} looks", world.front_reads);
}

#[test]
fn a_pack_at_hand_moves_as_soon_as_nothing_of_it_is_under_way() {
    let config = Config { park_after: 10 * MS, ..config(64) };
    let mut world = World::new(config, slow(90 * MS));
    world.pause(Some(9));
    // The first shop is paused. The second one is under way until shortly after the scan at 500 ms.
    world.accept(480 * MS, [(1, 9), (2, 0)]);
    world.run(560 * MS);
    assert_eq!((world.moved, world.front_reads), (0, 1));
    world.run(700 * MS);
    assert_eq!((world.moved, world.front_reads), (1, 1));
}
