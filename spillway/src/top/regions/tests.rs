//! Estimates from streams of many kinds, read in part, are within their margins.

use std::collections::BTreeMap;

use super::*;
use crate::top::tally::{PackCounts, TopTally};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const SHOPS: usize = 20;

/// Packs by id, each with the shops of its webhooks.
type Stream = Vec<(StreamId, Vec<usize>)>;

/// Packs at these times. `shop` chooses the shop of each, given its time.
fn stream(
    random: &mut SmallRng,
    times_ms: impl IntoIterator<Item = u64>,
    shop: impl Fn(&mut SmallRng, u64) -> usize,
) -> Stream {
    let mut last = StreamId::ZERO;
    let packs = times_ms.into_iter().map(|ms| {
        last = match ms == last.ms {
            true => StreamId { ms, seq: last.seq + 1 },
            false => StreamId { ms, seq: 0 },
        };
        let webhooks = random.random_range(1..=20);
        (last, (0..webhooks).map(|_| shop(random, ms)).collect())
    });
    packs.collect()
}

fn any(random: &mut SmallRng, _: u64) -> usize {
    // The first shop sends half of all.
    if random.random_bool(0.5) { 0 } else { random.random_range(0..SHOPS) }
}

/// Reads up to `runs` runs.
fn read(stream: &Stream, runs: usize) -> (TopTally, Vec<StreamId>) {
    let last = stream.last().map_or(StreamId::ZERO, |pack| pack.0);
    let mut regions = Regions::new(stream[0].0, last, stream.len() as u64);
    let mut tally = TopTally::default();
    let mut met = Vec::new();
    for _ in 0..runs {
        let Some(region) = regions.next(1).pop() else { break };
        let first = stream.partition_point(|pack| pack.0 < region.from);
        let run: Vec<_> = stream[first..]
            .iter()
            .take(region.take)
            .take_while(|pack| pack.0 <= region.to)
            .collect();
        let ids: Vec<_> = run.iter().map(|pack| pack.0).collect();
        regions.read(&region, &ids);
        tally.add_run(run.iter().map(|(_, shops)| seen(shops)).collect());
        met.extend(ids);
    }
    let waiting = stream.iter().map(|pack| pack.1.len() as u64).sum();
    tally.stand_for(&regions.unread(), &regions.in_time(), waiting);
    (tally, met)
}

fn seen(shops: &[usize]) -> PackCounts {
    let mut seen = PackCounts::default();
    for shop in shops {
        seen.webhooks += 1;
        seen.count(shop.to_string(), 1);
    }
    seen
}

/// Streams of every kind, with a name.
fn kinds(random: &mut SmallRng) -> Vec<(&'static str, Stream)> {
    let day = 86_400_000;
    let steady = |random: &mut SmallRng, packs: u64, span_ms: u64| {
        let mut times: Vec<u64> =
            (0..packs).map(|_| day + random.random_range(0..span_ms)).collect();
        times.sort_unstable();
        times
    };
    let fast = steady(random, 20_000, 20_000);
    let slow = steady(random, 20_000, day);
    // A trickle all day, and two floods of 30 s.
    let mut bursts = steady(random, 1_000, day);
    for _ in 0..2 {
        let at = day + random.random_range(0..day);
        bursts.extend((0..10_000).map(|_| at + random.random_range(0..30_000)));
    }
    bursts.sort_unstable();
    // Packs appended in bulk: many in one millisecond, then none for a while.
    let fed = (0..20_000).map(|pack| day + pack / 40 * 25).collect::<Vec<u64>>();
    // A clock that was set back: Redis continues with the last millisecond.
    let mut stuck = steady(random, 4_000, 4_000);
    stuck.extend(vec![day + 4_000; 8_000]);
    // One shop sends most webhooks in the middle.
    let middle = (day + 8_000)..(day + 12_000);
    let flood = move |random: &mut SmallRng, ms: u64| {
        if middle.contains(&ms) && random.random_bool(0.9) { 7 } else { any(random, ms) }
    };
    // Each shop's connection belongs to one shard, and one shard finishes earlier.
    let shard = move |random: &mut SmallRng, ms: u64| {
        let shard = if ms > day + 17_000 { 1 } else { ms % 2 };
        2 * random.random_range(0..SHOPS / 2) + shard as usize
    };
    vec![
        ("shards", stream(random, fast.clone(), shard)),
        ("fast", stream(random, fast.clone(), any)),
        ("slow", stream(random, slow, any)),
        ("flood of one shop", stream(random, fast, flood)),
        ("bursts", stream(random, bursts, any)),
        ("fed", stream(random, fed, any)),
        ("stuck", stream(random, stuck, any)),
    ]
}

#[test]
fn a_sample_says_how_far_it_may_be_off() {
    let mut within: BTreeMap<&str, (u32, u32, f64)> = BTreeMap::new();
    for seed in 0..12 {
        let mut random = SmallRng::seed_from_u64(seed);
        for (kind, stream) in kinds(&mut random) {
            let (tally, met) = read(&stream, 150);
            assert!(met.len() * 4 < stream.len(), "{kind}: {} read", met.len());
            let counted = within.entry(kind).or_default();
            for row in tally.rows(SHOPS) {
                let shop: usize = row.name.parse().unwrap();
                let of_it =
                    |pack: &(_, Vec<usize>)| pack.1.iter().filter(|own| **own == shop).count();
                let whole: usize = stream.iter().map(of_it).sum();
                let apart = row.waiting.abs_diff(whole as u64);
                counted.0 += u32::from(apart <= row.off_by);
                counted.1 += 1;
                if shop == 0 {
                    counted.2 = counted.2.max(apart as f64 / whole as f64);
                }
            }
        }
    }
    for (kind, (hits, all, worst)) in within {
        assert!(hits * 100 >= all * 90, "{kind}: {hits} of {all}");
        assert!(worst < 0.25, "{kind}: the largest shop is {worst} off");
    }
}

#[test]
fn who_reads_on_has_read_each_once() {
    let mut random = SmallRng::seed_from_u64(3);
    for (kind, stream) in kinds(&mut random) {
        let (tally, mut met) = read(&stream, usize::MAX);
        met.sort_unstable();
        let all: Vec<_> = stream.iter().map(|pack| pack.0).collect();
        assert!(met == all, "{kind}: {} of {}", met.len(), all.len());
        assert!(tally.is_exact(), "{kind}");
    }
}

#[test]
fn one_entry_is_one_region() {
    let at = StreamId { ms: 6, seq: 0 };
    let mut one = Regions::new(at, at, 1);
    let regions = one.next(9);
    assert_eq!(regions.len(), 1);
    one.read(&regions[0], &[at]);
    assert!(one.is_read());
}
