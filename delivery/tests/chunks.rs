//! Tests of chunks: a chunk holds no more than can be decoded, and is never taken for another.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{
    AttemptEnd, AttemptId, Backoff, ChunkFound, ChunkRead, Class, Classified, Config, Content,
    Controls, Core, DedupWindow, Drops, Effect, Event, LaneLoaded, Loaded, Now, PackKey, PackRead,
    PendingSettlement, ReadAgain, ReplayRead, ShopBounds, StateRole, Suppression, Tuning, Verdict,
};
use spillway_limiter::{Bounds, Signal};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::pack::RAW_BYTES_MAX;
use spillway_webhook::position::Position;
use spillway_webhook::{Spans, StoredRetry, StreamId};

#[path = "chunks/on_demand.rs"]
mod on_demand;

const SMALL: usize = 400;
const LARGE: usize = 60 << 20;

const CLASSIFIED: Classified = Classified {
    resource: 1,
    lane: 2,
    shop: 3,
    class: Class::Rest,
    is_barrier: false,
    coalesces: 0,
    role: StateRole::None,
    fingerprint: None,
    expires_at_ms: None,
    is_excluded: false,
};

/// Sizes of the webhooks of a pack.
#[derive(Debug, Clone)]
struct Sizes(Rc<Vec<usize>>);

impl Content for Sizes {
    type Evidence = ();
    type Filter = ();

    fn raw_bytes(&self) -> usize {
        self.0.iter().sum()
    }

    fn record_bytes(&self, index: u32) -> usize {
        self.0[index as usize]
    }

    fn pluck(&self, index: u32) -> Self {
        Self(Rc::new(vec![self.0[index as usize]]))
    }

    fn fingerprint(&self, _: u32) -> Option<Fingerprint> {
        None
    }

    fn shop_of((): &()) -> Option<u64> {
        None
    }

    fn is_matched(&self, _: u32, _: Position, (): &()) -> bool {
        false
    }

    fn dead_bytes(&self, _: u32, (): &()) -> u64 {
        0
    }
}

fn config() -> Config {
    let mut config = Config {
        bounds: Bounds { concurrency_min: 1, concurrency_max: 1, rate_max: None },
        shop_bounds: ShopBounds { concurrency_max: 1, spacing: Duration::ZERO },
        backoff: Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(1) },
        retry_for: Duration::from_secs(60),
        retry_refused_for: Duration::from_secs(60),
        coalesce_wait_max: Duration::ZERO,
        park_after: Duration::ZERO,
        index_bytes: 1 << 20,
        keeps_fingerprints: false,
        suppression: Suppression::default(),
        seed: 1,
        tuning: Tuning::default(),
    };
    config.tuning.settlements.every = Duration::ZERO;
    config
}

fn lease(until: Duration) -> Event<Sizes> {
    Event::Lease { until, dead_room: 0, may_move: true }
}

fn entry(number: u64) -> StreamId {
    StreamId { ms: number, seq: 0 }
}

/// A pack of many small webhooks that are settled, and a large one at the end that is not.
fn pack(number: u64) -> PackRead<Sizes> {
    let mut sizes = vec![100; SMALL];
    sizes.push(LARGE);
    let classified = vec![CLASSIFIED; sizes.len()];
    PackRead { entry: entry(number), classified, content: Sizes(Rc::new(sizes)) }
}

/// Raw bytes of each chunk that a settlement writes.
fn chunks(settlement: &PendingSettlement<Sizes>) -> Vec<usize> {
    let lanes = &settlement.lanes;
    let bytes = |at: &Position| lanes.moved[&at.entry()].record_bytes(at.index);
    lanes.chunks.written.iter().map(|chunk| chunk.positions.iter().map(bytes).sum()).collect()
}

#[test]
fn large_webhooks_among_small_ones_do_not_share_a_chunk() {
    let bits: HashMap<_, _> = (1..4).map(|number| (entry(number), vec![255; SMALL / 8])).collect();
    let mut core = Core::new(
        config(),
        Loaded { bits, ..Loaded::default() },
        DedupWindow::new(Duration::ZERO, 0),
    );
    let mut events = vec![lease(Duration::ZERO), Event::ReplaysLoaded];
    events.extend((1..4).map(|number| Event::Pack(pack(number))));
    let mut found = Vec::new();
    for step in 0..20 {
        let now = Now { at: Duration::from_secs(step), wall_ms: step * 1000 };
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadFront(entries) => {
                    events.push(Event::FrontRead(entries.iter().map(|one| pack(one.ms)).collect()));
                }
                Effect::Settle(settlement) => {
                    found.extend(chunks(&settlement));
                    events.push(Event::Settled);
                }
                _ => {}
            }
        }
        events.push(lease(Duration::ZERO));
    }
    assert_eq!(found.iter().sum::<usize>(), 3 * LARGE, "bytes that move");
    assert!(found.iter().all(|bytes| *bytes <= RAW_BYTES_MAX), "{found:?}");
}

/// Positions of the two webhooks of a chunk.
fn pair(from: u64) -> Vec<Position> {
    vec![Position::new(entry(from), 0), Position::new(entry(from + 1), 0)]
}

fn one_chunk(known: &[Position]) -> LaneLoaded {
    LaneLoaded {
        lane: CLASSIFIED.lane,
        shop: CLASSIFIED.shop,
        is_other_scheme: false,
        first_chunk: 1,
        last_chunk: 1,
        waiting: 2,
        first: known[0],
        last: known[1],
        failing: Spans::default(),
        is_tripped: false,
        is_suspect: false,
    }
}

/// Effects of the core when it reads a chunk again and gets one that holds `found`.
fn reads_again(found: &[Position]) -> Vec<Effect<Sizes>> {
    let known = pair(1);
    let sizes = |positions: &[Position]| Sizes(Rc::new(vec![100; positions.len()]));
    let mut config = config();
    config.tuning.cache_bytes = 0;
    let lanes = vec![one_chunk(&known)];
    let loaded = Loaded { cursor: entry(9), lanes, ..Loaded::default() };
    let mut core = Core::new(config, loaded, DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::from_secs(60)), Event::ReplaysLoaded];
    for step in 0..10 {
        let now = Now { at: Duration::from_secs(step), wall_ms: step * 1000 };
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane, .. } => {
                    let chunk = ChunkFound::Read(ChunkRead {
                        number: 1,
                        records: known.iter().map(|at| (*at, CLASSIFIED)).collect(),
                        bits: Vec::new(),
                        retries: Vec::new(),
                        content: sizes(&known),
                    });
                    events.push(Event::ChunksRead { lane, chunks: vec![chunk] });
                    // Another pack displaces it from the cache.
                    events.push(Event::Pack(pack(step + 10)));
                }
                Effect::Read(key @ PackKey::Chunk(..)) => {
                    let again = ReadAgain { content: sizes(found), positions: found.to_vec() };
                    return core.on(vec![Event::Read(key, Some(again))], now);
                }
                _ => {}
            }
        }
    }
    panic!("the chunk is not read again");
}

#[test]
fn another_chunk_of_the_same_number_is_not_sent() {
    let is_sent = |effect: &Effect<Sizes>| matches!(effect, Effect::Send(_));
    let is_restart = |effect: &Effect<Sizes>| matches!(effect, Effect::Restart(_));
    assert!(reads_again(&pair(1)).iter().any(is_sent));
    for found in [&pair(3)[..], &pair(1)[..1], &[]] {
        let effects = reads_again(found);
        assert!(effects.iter().any(is_restart) && !effects.iter().any(is_sent), "{effects:?}");
    }
}

/// The chunk is requested while a settlement is under way. The settlement cannot have removed it.
#[test]
fn a_chunk_that_is_gone_is_read_once_and_the_leader_begins_again() {
    let known = pair(1);
    let mut config = config();
    config.tuning.cache_bytes = 0;
    let loaded = Loaded { cursor: entry(9), lanes: vec![one_chunk(&known)], ..Loaded::default() };
    let mut core = Core::new(config, loaded, DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::from_secs(600)), Event::ReplaysLoaded];
    let (mut reads, mut settlements) = (0, 0);
    for step in 0..200 {
        let now = Now { at: Duration::from_millis(20 * step), wall_ms: 20 * step };
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane, .. } => {
                    let chunk = ChunkFound::Read(ChunkRead {
                        number: 1,
                        records: known.iter().map(|at| (*at, CLASSIFIED)).collect(),
                        bits: Vec::new(),
                        retries: Vec::new(),
                        content: Sizes(Rc::new(vec![100; known.len()])),
                    });
                    events.push(Event::ChunksRead { lane, chunks: vec![chunk] });
                    // Another pack displaces it from the cache, and one is to be settled.
                    events.push(Event::Pack(pack(10 + 2 * step)));
                    events.push(Event::Corrupt(entry(11 + 2 * step)));
                }
                Effect::Read(key @ PackKey::Chunk(..)) => {
                    reads += 1;
                    events.push(Event::Read(key, None));
                }
                Effect::Settle(_) => settlements += 1,
                Effect::Restart(_) => {
                    assert_eq!((reads, settlements), (1, 1));
                    return;
                }
                _ => {}
            }
        }
    }
    panic!("{reads} reads, and no new beginning");
}

fn controls(version: u64, paused: Range<u64>) -> Controls<()> {
    Controls {
        version,
        is_all_paused: false,
        shops: paused.collect(),
        filters: Vec::new(),
        drops: Drops::default(),
    }
}

/// Drops webhooks of a pack or chunk that is read again. Redis settles them before it answers the
/// read.
fn drop_while_read_again(loaded: Loaded, first: Vec<Event<Sizes>>, drops: impl Fn() -> Drops) {
    let mut config = config();
    config.tuning.cache_bytes = 0;
    let mut core = Core::new(config, loaded, DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::ZERO), Event::ReplaysLoaded];
    events.extend(first);
    let (mut asked, mut dropped_at) = (None, None);
    for step in 0..60 {
        let now = Now { at: Duration::from_secs(step), wall_ms: 1_000 * step };
        if step == 2 {
            // Another pack displaces it from the cache before anything may be sent.
            events.extend([Event::Pack(pack(10)), lease(Duration::from_secs(600))]);
        }
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane, .. } => {
                    let chunk = ChunkFound::Read(ChunkRead {
                        number: 1,
                        records: pair(1).iter().map(|at| (*at, CLASSIFIED)).collect(),
                        bits: Vec::new(),
                        retries: Vec::new(),
                        content: Sizes(Rc::new(vec![100; 2])),
                    });
                    events.push(Event::ChunksRead { lane, chunks: vec![chunk] });
                }
                Effect::Read(key @ (PackKey::Chunk(..) | PackKey::Replay(_))) => {
                    asked = Some(key);
                    let drops = drops();
                    events.push(Event::Controls(Controls { drops, ..controls(1, 0..0) }));
                }
                Effect::Settle(settlement) => {
                    let is_gone = !settlement.lanes.chunks.deleted.is_empty()
                        || !settlement.replays.settled.is_empty();
                    match asked.take().filter(|_| is_gone) {
                        // Redis has applied the settlement, but the result of the read arrives
                        // first.
                        Some(key) => {
                            events.push(Event::Read(key, None));
                            dropped_at = Some(step);
                        }
                        None => events.push(Event::Settled),
                    }
                }
                Effect::Restart(reason) => panic!("{reason}"),
                _ => {}
            }
        }
        if dropped_at.is_some_and(|at| at + 5 == step) {
            events.push(Event::Settled);
        }
    }
    assert!(dropped_at.is_some(), "it was dropped while it was read");
}

#[test]
fn what_an_operator_drops_while_it_is_read_again_is_not_lost() {
    let known = pair(1);
    let loaded = Loaded { cursor: entry(9), lanes: vec![one_chunk(&known)], ..Loaded::default() };
    let main = || known.iter().map(|at| (at.entry(), vec![1])).collect();
    drop_while_read_again(loaded, Vec::new(), || Drops { main: main(), ..Drops::default() });

    let replay = ReplayRead {
        id: entry(500),
        position: Position::new(entry(1), 0),
        classified: CLASSIFIED,
        content: Sizes(Rc::new(vec![100])),
    };
    let loaded = Loaded { cursor: entry(9), ..Loaded::default() };
    let replays = || HashSet::from([entry(500)]);
    drop_while_read_again(loaded, vec![Event::Replay(replay)], || Drops {
        replays: replays(),
        ..Drops::default()
    });
}

#[test]
fn a_lane_of_many_is_read_while_thousands_of_one_are() {
    const LANES: u64 = 5_000;
    let mut lanes: Vec<LaneLoaded> = (0..LANES)
        .map(|lane| LaneLoaded {
            lane: 1_000 + lane,
            shop: 1_000 + lane,
            last_chunk: 1,
            waiting: 1,
            ..one_chunk(&[Position::new(entry(lane + 1), 0); 2])
        })
        .collect();
    lanes.push(LaneLoaded { last_chunk: 100, waiting: 9_000, ..one_chunk(&pair(1)) });
    let loaded = Loaded { cursor: entry(LANES + 9), lanes, ..Loaded::default() };
    let mut core = Core::new(
        Config { index_bytes: 64 << 20, ..config() },
        loaded,
        DedupWindow::new(Duration::ZERO, 0),
    );
    let mut events = vec![lease(Duration::ZERO), Event::ReplaysLoaded];
    // Redis answers in order; a consumer takes 64 answers at once.
    let (mut asked, mut read) = (VecDeque::new(), 0);
    for step in 0..1_000 {
        let now = Now { at: Duration::from_millis(step), wall_ms: step };
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane: 2, .. } => {
                    assert!(read < LANES / 10, "after {read} others");
                    return;
                }
                Effect::ReadChunks { lane, .. } => asked.push_back(lane),
                Effect::Settle(_) => events.push(Event::Settled),
                _ => {}
            }
        }
        let answered = asked.drain(..asked.len().min(64));
        for lane in answered {
            read += 1;
            let records = vec![(
                Position::new(entry(lane - 999), 0),
                Classified { lane, shop: lane, ..CLASSIFIED },
            )];
            let chunk = ChunkFound::Read(ChunkRead {
                number: 1,
                records,
                bits: Vec::new(),
                retries: Vec::new(),
                content: Sizes(Rc::new(vec![100])),
            });
            events.push(Event::ChunksRead { lane, chunks: vec![chunk] });
        }
    }
    panic!("not read beside {read} others");
}

/// Result of a core that reads a lane whose first chunk does not exist. With `is_written_lost`, the
/// chunk that the core wrote does not exist either.
fn misses_chunks(is_written_lost: bool) -> (bool, u64) {
    let lanes = vec![one_chunk(&pair(1))];
    let loaded = Loaded { cursor: entry(9), lanes, ..Loaded::default() };
    let mut core = Core::new(config(), loaded, DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::ZERO), Event::ReplaysLoaded, Event::Pack(pack(10))];
    let mut written = Vec::new();
    let mut asked = None;
    for step in 0..20 {
        let now = Now { at: Duration::from_secs(step), wall_ms: step * 1000 };
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane, first, .. } => asked = Some((lane, first)),
                Effect::ReadFront(entries) => {
                    events.push(Event::FrontRead(entries.iter().map(|one| pack(one.ms)).collect()));
                }
                Effect::Settle(settlement) => {
                    let chunks = &settlement.lanes.chunks.written;
                    written.extend(chunks.iter().flat_map(|chunk| chunk.positions.clone()));
                    events.push(Event::Settled);
                }
                Effect::Restart(_) => return (true, core.counts().lost),
                _ => {}
            }
        }
        if !written.is_empty()
            && let Some((lane, number)) = asked.take()
        {
            let is_lost = number == 1 || is_written_lost;
            let chunk = if is_lost {
                ChunkFound::Missing
            } else {
                ChunkFound::Read(ChunkRead {
                    number,
                    records: written.iter().map(|at| (*at, CLASSIFIED)).collect(),
                    bits: Vec::new(),
                    retries: Vec::new(),
                    content: Sizes(Rc::new(vec![100; written.len()])),
                })
            };
            events.push(Event::ChunksRead { lane, chunks: vec![chunk] });
        }
        events.push(lease(Duration::ZERO));
    }
    (false, core.counts().lost)
}

#[test]
fn a_chunk_that_this_leader_wrote_is_looked_for_by_the_next_one_before_it_is_given_up() {
    assert_eq!(misses_chunks(false), (false, 2), "what was loaded is lost");
    assert!(misses_chunks(true).0);
}

/// Retry time that a leader writes when it ends at 31 s, of a chunk that it could read only at 30
/// s.
#[test]
fn retries_go_on_while_a_chunk_can_not_be_read() {
    let known = pair(1);
    let stored = |refused, as_of_ms| StoredRetry {
        attempts: 3,
        spent: Duration::from_secs(10),
        refused,
        as_of_ms,
    };
    // This leader wrote one of them, at 12 s.
    let retries = [stored(Duration::ZERO, 0), stored(Duration::from_secs(4), 12_000)];
    let retries: Vec<_> = known.iter().copied().zip(retries).collect();
    let loaded = Loaded { cursor: entry(9), lanes: vec![one_chunk(&known)], ..Loaded::default() };
    let mut core = Core::new(config(), loaded, DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::from_secs(600)), Event::ReplaysLoaded];
    let (mut lane_read, mut written) = (None, Vec::new());
    for second in 0..40 {
        if second == 30 {
            let chunk = ChunkFound::Read(ChunkRead {
                number: 1,
                records: known.iter().map(|at| (*at, CLASSIFIED)).collect(),
                bits: Vec::new(),
                retries: retries.clone(),
                content: Sizes(Rc::new(vec![100; known.len()])),
            });
            let lane = lane_read.expect("the chunk is asked for");
            events.push(Event::ChunksRead { lane, chunks: vec![chunk] });
        }
        match second {
            15 => events.push(Event::Controls(controls(1, CLASSIFIED.shop..CLASSIFIED.shop + 1))),
            25 => events.push(Event::Controls(controls(2, 0..0))),
            _ => {}
        }
        if second == 31 {
            events.push(Event::Stop);
        }
        let now = Now { at: Duration::from_secs(second), wall_ms: second * 1000 };
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane, .. } => lane_read = Some(lane),
                Effect::Settle(settlement) => {
                    written.extend(settlement.lanes.retries.written);
                    events.push(Event::Settled);
                }
                _ => {}
            }
        }
    }
    let secs: Vec<_> =
        written.iter().map(|(_, state)| (state.spent.as_secs(), state.refused.as_secs())).collect();
    // Without the ten seconds for which an operator paused the shop.
    assert_eq!(secs, [(31, 0), (19, 13)]);
}
