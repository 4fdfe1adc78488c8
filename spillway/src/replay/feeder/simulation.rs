//! Replays of many shops, some of which fail, simulated with crashes: thousands of schedules by seed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use spillway_webhook::{Position, StreamId};

use super::{FeedLimits, FeedPass, Feeder, NextPass, Offer};

const SEEDS: u64 = 2_000;
/// Time at which shops that fail begin to work.
const HEALED_AT: Duration = Duration::from_secs(400);
/// Time by which the others are served, whatever the failing ones do.
const SERVED_BY: Duration = Duration::from_secs(300);
const END: Position = Position { ms: u64::MAX, seq: 0, index: 0 };

/// A generator that is the same everywhere (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn few(&mut self, bound: u64) -> usize {
        usize::try_from(self.below(bound)).expect("few")
    }

    fn is_one_of(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// Time that a shop takes for a webhook.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pace {
    Fast,
    Slow,
    Failing,
}

/// Archive, Redis and consumer of one replay.
struct World {
    chance: Chance,
    now: Duration,
    limits: FeedLimits,
    items: Vec<(String, Position)>,
    /// Resources of a shop. Replays of one resource are delivered one after the other.
    resources: u64,
    /// Time at which the last replay of a resource is settled.
    busy: HashMap<(String, u64), Duration>,
    paces: HashMap<String, Pace>,
    /// Replays that are not settled, with the time at which they are.
    stream: BTreeMap<StreamId, (String, Duration)>,
    after: Position,
    left: HashMap<String, Position>,
    /// Numbers of the webhooks that were fed, in their order.
    fed: Vec<usize>,
    later_passes: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let shops = 1 + chance.below(8);
        let mut paces = HashMap::new();
        for shop in 0..shops {
            let pace = match chance.below(5) {
                0 => Pace::Slow,
                1 => Pace::Failing,
                _ => Pace::Fast,
            };
            paces.insert(format!("shop-{shop}"), pace);
        }
        let mut items = Vec::new();
        for ms in 0..5 + chance.below(60) {
            for index in 0..1 + chance.below(6) {
                let shop = format!("shop-{}", chance.below(shops).min(chance.below(shops)));
                let index = u32::try_from(index).expect("few");
                items.push((shop, Position { ms: 10 + ms, seq: 0, index }));
            }
        }
        let resources = 1 + chance.below(4);
        let at_once = 1 + chance.few(12);
        let failing = paces.values().filter(|pace| **pace == Pace::Failing).count();
        let limits = FeedLimits {
            at_once,
            per_shop: at_once.div_ceil(4),
            open: at_once * 8,
            held: 1 + chance.few(30),
            held_bytes: 1 + chance.few(300),
            left: failing + 1 + chance.few(6),
        };
        Self {
            chance,
            now: Duration::ZERO,
            limits,
            items,
            resources,
            busy: HashMap::new(),
            paces,
            stream: BTreeMap::new(),
            after: Position::default(),
            left: HashMap::new(),
            fed: Vec::new(),
            later_passes: 0,
        }
    }

    /// A process that goes on from what Redis holds.
    fn resume(&self) -> Feeder<usize> {
        let open = self.stream.iter().map(|(id, (shop, _))| (*id, shop.clone())).collect();
        Feeder::new(self.limits, self.after, self.left.clone(), open, self.now)
    }

    fn settle(&mut self) {
        let now = self.now;
        self.stream.retain(|_, (_, due)| *due > now);
    }

    /// Writes a step, as Redis does. Returns the ids of its webhooks.
    fn write(&mut self, feeder: &mut Feeder<usize>) -> Vec<(String, StreamId)> {
        let step = feeder.take_step();
        self.after = step.after;
        for (shop, next) in step.left {
            match next {
                Some(next) => self.left.insert(shop, next),
                None => self.left.remove(&shop),
            };
        }
        let mut ids = Vec::new();
        for (shop, number) in step.webhooks {
            assert_eq!(self.items[number].0, shop);
            self.fed.push(number);
            let id = StreamId { ms: 1, seq: self.fed.len() as u64 };
            let resource = (shop.clone(), self.chance.below(self.resources));
            let begins = self.busy.get(&resource).map_or(self.now, |busy| self.now.max(*busy));
            let takes = match self.paces[&shop] {
                Pace::Fast => Duration::from_millis(1 + self.chance.below(100)),
                Pace::Slow => Duration::from_millis(1 + self.chance.below(700)),
                Pace::Failing => HEALED_AT.saturating_sub(begins) + Duration::from_millis(10),
            };
            self.busy.insert(resource, begins + takes);
            self.stream.insert(id, (shop.clone(), begins + takes));
            ids.push((shop, id));
        }
        self.check();
        ids
    }

    fn check(&self) {
        assert!(self.stream.len() <= self.limits.open, "{} are open", self.stream.len());
        assert!(self.left.len() <= self.limits.left, "{} shops are left", self.left.len());
        let mut of_shops: HashMap<&str, usize> = HashMap::new();
        for (shop, _) in self.stream.values() {
            *of_shops.entry(shop).or_default() += 1;
        }
        let most = of_shops.values().max().copied().unwrap_or(0);
        assert!(most <= self.limits.per_shop, "{most} are open of one shop");
    }

    /// True if all webhooks of shops that work are fed.
    fn is_served(&self) -> bool {
        let fed: HashSet<usize> = self.fed.iter().copied().collect();
        let mut items = self.items.iter().enumerate();
        items.all(|(number, (shop, _))| self.paces[shop] == Pace::Failing || fed.contains(&number))
    }

    /// Lets one process work until everything is fed, or until it is killed. Returns true if all is fed.
    fn work(&mut self, mut feeder: Feeder<usize>, is_killed: bool) -> bool {
        let mut next = 0;
        loop {
            self.now += Duration::from_millis(self.chance.below(10));
            self.settle();
            if is_killed && self.chance.is_one_of(150) {
                if self.chance.is_one_of(2) {
                    // Redis has the step, and the process is killed before it knows.
                    self.write(&mut feeder);
                }
                return false;
            }
            let open: HashSet<StreamId> = self.stream.keys().copied().collect();
            feeder.on_unsettled(&open, self.now);
            feeder.look(self.now);
            if feeder.is_step_due() || self.chance.is_one_of(4) {
                let ids = self.write(&mut feeder);
                feeder.on_written(ids, self.now);
            }
            let offer = match self.items.get(next) {
                Some((shop, position)) if feeder.pass() != FeedPass::Between => {
                    feeder.offer(shop, *position, 10, self.now, || next)
                }
                _ => Offer::EndPass,
            };
            match offer {
                Offer::Taken => next += 1,
                Offer::Wait => self.now += Duration::from_millis(50),
                Offer::EndPass => match self.end_pass(&mut feeder, next) {
                    NextPass::Wait => self.now += Duration::from_millis(100),
                    NextPass::Read { from } => {
                        self.later_passes += u32::from(feeder.pass() == FeedPass::Again);
                        next = self.items.partition_point(|(_, at)| *at < from);
                    }
                    NextPass::Done => {
                        self.write(&mut feeder);
                        while !feeder.is_written() {
                            self.write(&mut feeder);
                        }
                        return true;
                    }
                },
            }
            assert!(self.now < 10 * HEALED_AT, "it does not end");
            let is_late = self.now > SERVED_BY && self.now < HEALED_AT;
            assert!(!is_late || self.is_served(), "shops that fail hold up others");
        }
    }

    fn end_pass(&mut self, feeder: &mut Feeder<usize>, next: usize) -> NextPass {
        let ids = self.write(feeder);
        feeder.on_written(ids, self.now);
        let is_whole = feeder.pass() == FeedPass::Front && next == self.items.len();
        feeder.next_pass(is_whole.then_some(END))
    }
}

fn replay(seed: u64) -> World {
    let mut world = World::new(seed);
    let mut kills = if world.chance.is_one_of(2) { 0 } else { world.chance.below(12) };
    loop {
        let feeder = world.resume();
        if world.work(feeder, kills > 0) {
            return world;
        }
        kills -= 1;
    }
}

#[test]
fn each_webhook_is_fed_once_in_the_order_of_its_shop_whatever_fails_and_is_killed() {
    for seed in 0..SEEDS {
        let world = replay(seed);
        let mut sorted = world.fed.clone();
        sorted.sort_unstable();
        let all: Vec<usize> = (0..world.items.len()).collect();
        assert_eq!(sorted, all, "seed {seed}: not each once");
        let mut last: HashMap<&str, usize> = HashMap::new();
        for number in &world.fed {
            let before = last.insert(&world.items[*number].0, *number);
            assert!(before < Some(*number), "seed {seed}: {number} came after {before:?}");
        }
        assert!(world.left.is_empty(), "seed {seed}: shops are left");
    }
}

#[test]
fn without_failures_the_archive_is_read_once() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        world.paces.values_mut().for_each(|pace| *pace = Pace::Fast);
        world.limits.left = world.paces.len() + 1;
        let feeder = world.resume();
        assert!(world.work(feeder, false), "seed {seed}");
        assert_eq!(world.later_passes, 0, "seed {seed}");
    }
}

#[test]
fn a_slow_shop_with_one_resource_is_not_left_while_something_of_it_is_settled() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        world.paces.values_mut().for_each(|pace| *pace = Pace::Slow);
        world.resources = 1;
        // The last one of a full share waits for longer than a stuck shop does.
        let (at_once, per_shop) = (128, 32);
        let (held, left) = (10_000, world.paces.len() + 1);
        world.limits =
            FeedLimits { at_once, per_shop, open: at_once * 8, held, held_bytes: 1 << 20, left };
        let feeder = world.resume();
        assert!(world.work(feeder, false), "seed {seed}");
        assert_eq!(world.later_passes, 0, "seed {seed}");
    }
}
