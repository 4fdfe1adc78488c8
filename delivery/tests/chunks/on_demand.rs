//! Packs and chunks that are read on demand.

use super::*;

/// Number of chunks that are read again at once, of `count` lanes with one webhook of `bytes` each.
/// The chunks existed at start, or this leader wrote them.
fn read_again_at_once(count: u64, bytes: usize, are_written: bool) -> usize {
    let lanes = (100..100 + count).map(|lane| LaneLoaded {
        lane,
        shop: lane,
        waiting: 1,
        ..one_chunk(&[Position::new(entry(lane), 0); 2])
    });
    let loaded = match are_written {
        true => Loaded::default(),
        false => Loaded { cursor: entry(100 + count), lanes: lanes.collect(), ..Loaded::default() },
    };
    let of_lane = |lane| Classified { lane, shop: lane, resource: lane, ..CLASSIFIED };
    let small = |entry: StreamId| PackRead {
        entry,
        classified: vec![of_lane(entry.ms)],
        content: Sizes(Rc::new(vec![bytes])),
    };
    let mut config = config();
    config.tuning.cache_bytes = 0;
    config.bounds = Bounds { concurrency_min: 64, concurrency_max: 64, rate_max: None };
    let mut core = Core::new(config, loaded, DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::ZERO), Event::ReplaysLoaded];
    if are_written {
        // Paused webhooks move into lanes.
        events.push(Event::Controls(controls(1, 100..100 + count)));
        events.extend((100..100 + count).map(|lane| Event::Pack(small(entry(lane)))));
    }
    let mut again = 0;
    for step in 0..130 {
        let now = Now { at: Duration::from_secs(step), wall_ms: 1_000 * step };
        if step == 60 {
            events.push(Event::Controls(controls(2, 0..0)));
        }
        // Nothing may be sent before all webhooks are indexed and others have displaced them from
        // the cache.
        if step == 80 {
            events.extend([Event::Pack(pack(1_000)), lease(Duration::from_secs(600))]);
        }
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane, .. } => {
                    let classified = of_lane(lane);
                    let chunk = ChunkFound::Read(ChunkRead {
                        number: 1,
                        records: vec![(Position::new(entry(lane), 0), classified)],
                        bits: Vec::new(),
                        retries: Vec::new(),
                        content: Sizes(Rc::new(vec![bytes])),
                    });
                    events.push(Event::ChunksRead { lane, chunks: vec![chunk] });
                }
                Effect::Read(PackKey::Chunk(..)) => again += 1,
                Effect::Read(key @ PackKey::Main(entry)) => {
                    let again = ReadAgain { content: small(entry).content, positions: Vec::new() };
                    events.push(Event::Read(key, Some(again)));
                }
                Effect::ReadFront(entries) => {
                    let front = entries.into_iter().filter(|entry| entry.ms < 1_000);
                    events.push(Event::FrontRead(front.map(small).collect()));
                }
                Effect::Send(dispatch) => {
                    events.push(ends(dispatch.id, Verdict::Delivered, Signal::Done));
                }
                Effect::Settle(_) => events.push(Event::Settled),
                _ => {}
            }
        }
    }
    again
}

#[test]
fn few_large_chunks_are_read_again_at_once_and_more_small_ones() {
    for are_written in [false, true] {
        assert_eq!(read_again_at_once(40, 1 << 20, are_written), 4);
        let small = read_again_at_once(40, 1 << 10, are_written);
        assert!((16..=32).contains(&small), "{small}");
    }
}

/// Sizes of the two webhooks of shop X, each in its own chunk: a small one and a large one.
const OF_X: [usize; 2] = [100, 17 << 20];

fn bytes_of(lane: u64, number: u32) -> Sizes {
    Sizes(Rc::new(vec![if lane == 1 { OF_X[number as usize - 1] } else { 100 }]))
}

fn place(lane: u64, number: u32) -> Position {
    Position::new(entry(10 * lane + u64::from(number)), 0)
}

fn lane_of_chunks(lane: u64, last_chunk: u32) -> LaneLoaded {
    LaneLoaded {
        lane,
        shop: lane,
        last_chunk,
        waiting: u64::from(last_chunk),
        first: place(lane, 1),
        last: place(lane, last_chunk),
        ..one_chunk(&pair(1))
    }
}

fn chunk_of(lane: u64, number: u32) -> ChunkFound<Sizes> {
    let resource = 10 * lane + u64::from(number);
    ChunkFound::Read(ChunkRead {
        number,
        records: vec![(
            place(lane, number),
            Classified { shop: lane, lane, resource, ..CLASSIFIED },
        )],
        bits: Vec::new(),
        retries: Vec::new(),
        content: bytes_of(lane, number),
    })
}

fn again(lane: u64, number: u32) -> Event<Sizes> {
    let content = bytes_of(lane, number);
    let again = ReadAgain { content, positions: vec![place(lane, number)] };
    Event::Read(PackKey::Chunk(lane, number), Some(again))
}

fn fails(id: AttemptId) -> Event<Sizes> {
    let verdict = Verdict::Retry { pause: Duration::ZERO, scope: None, is_refusal: false };
    ends(id, verdict, Signal::Failed)
}

fn ends(id: AttemptId, verdict: Verdict, signal: Signal) -> Event<Sizes> {
    Event::Ended(AttemptEnd {
        id,
        verdict,
        signal,
        is_unconnected: false,
        took: Duration::from_millis(1),
        fetching: Duration::ZERO,
        evidence: (),
    })
}

/// Shop 1 is X. Shop 2 has an attempt under way all the time. Shop 3 is paused at first.
#[test]
fn bytes_that_can_not_go_now_leave_room_for_those_of_other_shops() {
    let lanes = vec![lane_of_chunks(1, 2), lane_of_chunks(2, 1), lane_of_chunks(3, 1)];
    let loaded = Loaded { cursor: entry(99), lanes, ..Loaded::default() };
    let mut config = config();
    config.tuning.cache_bytes = 0;
    config.index_bytes = 64 << 20;
    config.bounds = Bounds { concurrency_min: 4, concurrency_max: 4, rate_max: None };
    let mut core = Core::new(config, loaded, DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::from_secs(600)), Event::ReplaysLoaded];
    events.push(Event::Controls(controls(1, 3..4)));
    let (mut is_withheld, mut failed_at) = (false, None);
    for step in 0..200 {
        let now = Now { at: Duration::from_millis(100 * step), wall_ms: 100 * step };
        // The first webhook of X is due again, and that of shop 3 may go, too.
        let is_due = failed_at.is_some_and(|at| at + 15 <= step);
        if is_due && std::mem::take(&mut is_withheld) {
            events.push(again(1, 2));
            events.push(Event::Controls(controls(2, 0..0)));
        }
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadChunks { lane, first, count } => {
                    let chunks = (first..first + count).map(|number| chunk_of(lane, number));
                    events.push(Event::ChunksRead { lane, chunks: chunks.collect() });
                }
                Effect::Read(PackKey::Chunk(3, _)) => return,
                Effect::Read(PackKey::Chunk(1, 2)) if !is_due => is_withheld = true,
                Effect::Read(PackKey::Chunk(lane, number)) => events.push(again(lane, number)),
                Effect::Send(dispatch) if dispatch.shop == 1 => {
                    failed_at.get_or_insert(step);
                    events.push(fails(dispatch.id));
                }
                Effect::Settle(_) => events.push(Event::Settled),
                _ => {}
            }
        }
    }
    panic!("the webhook of shop 3 is not read; X failed at {failed_at:?}");
}

#[test]
fn a_front_pack_that_is_gone_is_noticed_although_all_of_it_is_paused() {
    let mut core = Core::new(config(), Loaded::default(), DedupWindow::new(Duration::ZERO, 0));
    let mut events = vec![lease(Duration::from_secs(600)), Event::ReplaysLoaded];
    events.push(Event::Controls(controls(1, CLASSIFIED.shop..CLASSIFIED.shop + 1)));
    events.push(Event::Pack(pack(10)));
    for step in 0..100 {
        let now = Now { at: Duration::from_millis(100 * step), wall_ms: 100 * step };
        for effect in core.on(std::mem::take(&mut events), now) {
            match effect {
                Effect::ReadFront(_) => events.push(Event::FrontRead(Vec::new())),
                Effect::Read(key) => events.push(Event::Read(key, None)),
                Effect::Settle(_) => events.push(Event::Settled),
                Effect::Restart(_) => return,
                _ => {}
            }
        }
    }
    panic!("the leader does not begin again");
}
