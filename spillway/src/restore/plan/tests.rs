//! The plan against a model: thousands of random queues, each with consumers that have settled some of it in the
//! order of each resource.

use std::collections::{BTreeMap, HashMap, HashSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spillway_archive::LaneMark;

use super::*;

/// Lane and number of a resource. The lane's number is also that of its shop and kind.
type ModelResource = (u64, u64);

#[derive(Clone)]
struct ModelPack {
    entry: StreamId,
    webhooks: Vec<ModelResource>,
    erased: HashSet<u32>,
}

struct ModelConsumer {
    checkpoint: ConsumerCheckpoint,
    unsettled: HashSet<Position>,
    firsts: HashMap<u64, Position>,
    /// Webhooks that were settled while the checkpoint was made, so they may come again.
    repeated: HashSet<Position>,
}

/// Shop of a lane: two lanes each.
fn shop(lane: u64) -> u64 {
    lane / 2
}

fn facts(pack: &ModelPack) -> Vec<LaneFacts> {
    let of = |(index, (lane, _)): (u32, &ModelResource)| LaneFacts {
        lanes: [*lane, *lane, 1_000 + shop(*lane)],
        shop: 2_000 + shop(*lane),
        is_erased: pack.erased.contains(&index),
    };
    (0..).zip(&pack.webhooks).map(of).collect()
}

fn packs(chance: &mut StdRng) -> Vec<ModelPack> {
    let mut entry = StreamId { ms: 1_000, seq: 0 };
    let count = chance.random_range(1..30);
    let mut packs = Vec::new();
    for _ in 0..count {
        entry = match chance.random_range(0..3) {
            0 => entry.next(),
            _ => StreamId { ms: entry.ms + chance.random_range(1..50), seq: 0 },
        };
        let webhooks: Vec<ModelResource> = (0..chance.random_range(1..12))
            .map(|_| (chance.random_range(0..6), chance.random_range(0..3)))
            .collect();
        let erased = (0..webhooks.len() as u32).filter(|_| chance.random_range(0..20) == 0);
        let erased = erased.collect();
        packs.push(ModelPack { entry, webhooks, erased });
    }
    packs
}

/// A consumer that settled a beginning of each resource, in the order of the queue. What it has not settled up to its
/// cursor is in lanes.
fn consumer(name: &str, packs: &[ModelPack], chance: &mut StdRng) -> ModelConsumer {
    let at = chance.random_range(0..=packs.len());
    let cursor = if at == 0 { StreamId::ZERO } else { packs[at - 1].entry };
    let failing: HashSet<u64> = (0..6).filter(|_| chance.random_range(0..4) == 0).collect();
    let mut stopped: HashSet<ModelResource> = HashSet::new();
    let mut unsettled = HashSet::new();
    let mut done: BTreeMap<StreamId, Vec<u8>> = BTreeMap::new();
    for pack in packs {
        for (index, resource) in (0u32..).zip(&pack.webhooks) {
            let position = Position::new(pack.entry, index);
            let may_stop = pack.entry > cursor || failing.contains(&resource.0);
            if may_stop && chance.random_range(0..3) == 0 {
                stopped.insert(*resource);
            }
            if stopped.contains(resource) {
                unsettled.insert(position);
            } else if pack.entry > cursor {
                let bits = done.entry(pack.entry).or_insert_with(|| vec![0; 2]);
                bits[index as usize / 8] |= 1 << (index % 8);
            }
        }
    }
    let mut repeated = HashSet::new();
    let mut lanes_through = cursor;
    if chance.random_range(0..2) == 0 {
        repeated = unsettled.clone();
        lanes_through = settle_more(packs, at, &mut unsettled, chance);
        if chance.random_range(0..2) == 0 {
            // Cursor and bits could not be read as those of one moment.
            done.clear();
            let after = packs.iter().filter(|pack| pack.entry > cursor);
            repeated.extend(after.flat_map(positions));
        }
    }
    let mut checkpoint = ConsumerCheckpoint::new(name.to_owned(), None, cursor);
    let firsts = set_lanes(&mut checkpoint, packs, lanes_through, &unsettled, chance);
    checkpoint.set_done(done.into_iter());
    ModelConsumer { checkpoint, unsettled, firsts, repeated }
}

fn positions(pack: &ModelPack) -> impl Iterator<Item = Position> {
    let entry = pack.entry;
    (0u32..).zip(&pack.webhooks).map(move |(index, _)| Position::new(entry, index))
}

/// Settles the beginning of some resources after the cursor was read, in order. Returns the new cursor, after at least
/// `at` packs.
fn settle_more(
    packs: &[ModelPack],
    at: usize,
    unsettled: &mut HashSet<Position>,
    chance: &mut StdRng,
) -> StreamId {
    let mut stopped: HashSet<ModelResource> = HashSet::new();
    for pack in packs {
        for (position, resource) in positions(pack).zip(&pack.webhooks) {
            if !unsettled.contains(&position) || stopped.contains(resource) {
                continue;
            }
            if chance.random_range(0..2) == 0 {
                unsettled.remove(&position);
            } else {
                stopped.insert(*resource);
            }
        }
    }
    let at = chance.random_range(at..=packs.len());
    if at == 0 { StreamId::ZERO } else { packs[at - 1].entry }
}

/// Writes the lanes of everything that is not settled up to an entry. Returns the position from which on each lane
/// is restored.
fn set_lanes(
    checkpoint: &mut ConsumerCheckpoint,
    packs: &[ModelPack],
    through: StreamId,
    unsettled: &HashSet<Position>,
    chance: &mut StdRng,
) -> HashMap<u64, Position> {
    let mut firsts: HashMap<u64, Position> = HashMap::new();
    let mut waiting: HashMap<u64, u64> = HashMap::new();
    for pack in packs.iter().filter(|pack| pack.entry <= through) {
        for (position, (lane, _)) in positions(pack).zip(&pack.webhooks) {
            if unsettled.contains(&position) {
                firsts.entry(*lane).or_insert(position);
                *waiting.entry(*lane).or_default() += 1;
            }
        }
    }
    let is_by_shop = chance.random_range(0..4) == 0;
    let mark = |(lane, first): (&u64, &Position)| LaneMark {
        lane: (!is_by_shop).then_some(*lane),
        shop: 2_000 + shop(*lane),
        first: *first,
        waiting: waiting[lane],
    };
    checkpoint.set_lanes(firsts.iter().map(mark).collect());
    if is_by_shop {
        let mut by_shop: HashMap<u64, Position> = HashMap::new();
        for (lane, first) in &firsts {
            let known = by_shop.entry(shop(*lane)).or_insert(*first);
            *known = (*first).min(*known);
        }
        let spread = (0..6).filter_map(|lane| Some((lane, *by_shop.get(&shop(lane))?)));
        firsts = spread.collect();
    }
    if chance.random_range(0..5) == 0 && !checkpoint.lanes.is_empty() {
        // There are more lanes than are kept.
        let kept = chance.random_range(0..checkpoint.lanes.len());
        let floor = checkpoint.lanes[kept].first;
        checkpoint.lanes.truncate(kept);
        checkpoint.floor = Some(floor);
        for lane in 0..6 {
            let first = firsts.entry(lane).or_insert(floor);
            *first = floor.min(*first);
        }
    }
    firsts
}

/// Webhooks that a consumer reads of a restored queue.
fn view(
    name: &str,
    queue: &RebuiltQueue,
    entries: &[(StreamId, PlannedEntry)],
) -> (HashSet<Position>, u64) {
    let own = queue.consumers.iter().find(|own| own.name == name).expect("it is restored");
    let (mut seen, mut waiting) = (HashSet::new(), 0);
    for (entry, planned) in entries.iter().filter(|(_, planned)| planned.id > own.cursor) {
        let bits = planned.bits.iter().find(|(of, _)| of == name).map(|(_, bits)| &bits[..]);
        for (index, is_kept) in (0u32..).zip(&planned.kept) {
            let is_settled = bits.is_some_and(|bits| is_set(bits, index));
            waiting += u64::from(!is_settled);
            if *is_kept && !is_settled {
                seen.insert(Position::new(*entry, index));
            }
        }
    }
    assert_eq!(queue.appended - own.through - own.open, waiting, "what waits for {name}");
    let before = entries.iter().filter(|(_, planned)| planned.id <= own.cursor).count() as u64;
    assert_eq!(own.entries, before);
    (seen, waiting)
}

fn check(model: &ModelConsumer, packs: &[ModelPack], seen: &HashSet<Position>) {
    let cursor = model.checkpoint.cursor;
    let mut by_resource: BTreeMap<ModelResource, Vec<bool>> = BTreeMap::new();
    for pack in packs {
        for (index, resource) in (0u32..).zip(&pack.webhooks) {
            let position = Position::new(pack.entry, index);
            let is_seen = seen.contains(&position);
            if pack.erased.contains(&index) {
                assert!(!is_seen, "erased: {position}");
                continue;
            }
            by_resource.entry(*resource).or_default().push(is_seen);
            let is_unsettled = model.unsettled.contains(&position);
            assert!(is_seen || !is_unsettled, "left out: {position}, cursor {cursor}");
            let is_of_lane = model.firsts.get(&resource.0).is_some_and(|first| position >= *first);
            let may_come = is_unsettled || is_of_lane || model.repeated.contains(&position);
            assert!(!is_seen || may_come, "settled: {position}, cursor {cursor}");
        }
    }
    for (resource, seen) in by_resource {
        assert!(seen.is_sorted(), "no end of {resource:?}: {seen:?}");
    }
}

#[test]
fn nothing_that_is_archived_and_not_settled_is_left_out_and_little_else_is_in() {
    for seed in 0..5_000 {
        let mut chance = StdRng::seed_from_u64(seed);
        let all = packs(&mut chance);
        let models: Vec<ModelConsumer> = ["billing", "http", "kafka"]
            .iter()
            .map(|name| consumer(name, &all, &mut chance))
            .collect();
        let archived = &all[..chance.random_range(0..=all.len())];
        let needs: Vec<ConsumerNeeds> =
            models.iter().map(|model| ConsumerNeeds::of(&model.checkpoint)).collect();
        let begin = needs.iter().map(ConsumerNeeds::begins_after).min().expect("some");
        let mut planner = RestorePlanner::new(needs);
        let mut entries = Vec::new();
        for pack in archived.iter().filter(|pack| pack.entry > begin) {
            let planned = planner.add(pack.entry, Some(&facts(pack)));
            entries.extend(planned.map(|planned| (pack.entry, planned)));
        }
        assert!(entries.iter().all(|(entry, planned)| planned.id == *entry), "seed {seed}");
        let end = KnownEnd { last: all[all.len() - 1].entry, appended: 7 };
        let queue = planner.queue(1, end, vec![("archive".to_owned(), None)]);
        assert_eq!(queue.entries, entries.len() as u64);
        assert!(queue.consumers.iter().all(|one| one.cursor <= queue.last), "seed {seed}");
        for model in &models {
            let (seen, _) = view(&model.checkpoint.name, &queue, &entries);
            check(model, archived, &seen);
        }
        let (seen, waiting) = view("archive", &queue, &entries);
        assert_eq!((seen.len(), waiting), (0, 0), "the archive has all of it");
    }
}

const LANE: LaneFacts = LaneFacts { lanes: [1, 1, 2], shop: 3, is_erased: false };

const fn id(ms: u64, seq: u64) -> StreamId {
    StreamId { ms, seq }
}

#[test]
fn two_packs_of_one_id_are_both_written_in_their_order() {
    let mut planner = RestorePlanner::new(vec![ConsumerNeeds::after("http", None, id(4, 0))]);
    let mut written = |entry| planner.add(entry, Some(&[LANE])).map(|planned| planned.id);
    assert_eq!(written(id(4, 0)), None, "it is settled");
    assert_eq!(written(id(5, 0)), Some(id(5, 0)));
    assert_eq!(written(id(5, 0)), Some(id(5, 1)), "the next free one");
    assert_eq!(written(id(5, 1)), Some(id(5, 2)), "the order stays");
    assert_eq!(written(id(6, 0)), Some(id(6, 0)));
    assert_eq!((planner.entries, planner.shifted), (4, 2));
}

#[test]
fn a_pack_that_cannot_be_decoded_is_written_for_those_that_have_not_passed_it() {
    let after = |name, ms| ConsumerNeeds::after(name, None, id(ms, 0));
    let mut planner = RestorePlanner::new(vec![after("http", 4), after("kafka", 9)]);
    assert_eq!(planner.add(id(4, 0), None), None);
    let planned = planner.add(id(7, 0), None).expect("http needs it");
    assert_eq!((planned.kept, planned.bits), (vec![], vec![]));
    let queue = planner.queue(1, KnownEnd::default(), Vec::new());
    assert_eq!((queue.consumers[0].cursor, queue.consumers[0].entries), (id(4, 0), 0));
    assert_eq!((queue.consumers[1].cursor, queue.consumers[1].entries), (id(9, 0), 1));
    assert_eq!(queue.last, id(9, 0), "no later webhook is before a cursor");
}
