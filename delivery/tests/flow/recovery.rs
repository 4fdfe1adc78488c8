//! All lanes fail, and some of them recover. Recovered lanes are found and then served, although
//! the rest keeps failing.
//!
//! Each seed determines how many lanes there are, how they fail, their load, the slots of the
//! backend, and which lanes recover when. `RECOVERY_SEEDS` runs more seeds, `RECOVERY_SEED` runs
//! one.

use super::*;

#[path = "../simulation/random.rs"]
mod random;

use random::{Random, mix};

/// Number of the first shop that recovers. Lower ones never recover.
const RECOVERING: u32 = 1_000;
/// Number of the first shop that arrives later and also fails.
const NEW: u32 = 2_000;
/// Time between two probes of a refusing backend: ten seconds. With slices it is less.
const PROBE: Duration = Duration::from_secs(10);
/// Duration of a slow failure.
const SLOW: Duration = Duration::from_secs(12);
/// Rounds of probes within which a lane that has recovered is found.
const ROUNDS: u32 = 3;
/// Time in addition to the rounds.
const BESIDE: Duration = Duration::from_secs(300);
/// Time that found lanes have to catch up.
const CATCHES_UP: Duration = Duration::from_secs(600);
/// Longest wait of a webhook accepted after its lane was found.
const SERVED_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug, Clone)]
struct Plan {
    slots: usize,
    bounds: Bounds,
    ills: Vec<Answer>,
    shops: u32,
    kinds: u8,
    recovering: u32,
    /// Time at which the recovering shops recover, except for kinds that never do.
    at: Duration,
    /// Set if only the last kind of a recovering shop recovers.
    in_part: bool,
    well: Duration,
    /// Time between two webhooks of a lane.
    every: Option<Duration>,
    first: u32,
    /// Time between two new shops.
    new_every: Option<Duration>,
    is_served_before: bool,
    seed: u64,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ways = [
            Answer::Hangs,
            Answer::Hangs,
            Answer::Fails(5 * MS),
            Answer::Fails(700 * MS),
            Answer::Fails(SLOW),
            Answer::Refuses(5 * MS),
            Answer::Refuses(2 * SECOND),
            Answer::Resets(MS),
            Answer::PausesShop(500 * MS),
            Answer::PausesShop(20 * SECOND),
            Answer::RetryAfter(300 * MS),
        ];
        let slots = random.pick(&[1, 2, 4, 16, 16, 64]);
        let least = if random.chance(500) { 1 } else { slots };
        let rate_max = random.pick(&[None, None, None, Some(10.0)]);
        let mut plan = Self {
            slots,
            bounds: Bounds { concurrency_min: least, concurrency_max: slots, rate_max },
            ills: (0..random.pick(&[1, 1, 2, 3])).map(|_| random.pick(&ways)).collect(),
            shops: random.pick(&[1, 3, 12, 40]),
            kinds: random.pick(&[1, 1, 2, 3]),
            recovering: random.pick(&[1, 1, 3, 10]),
            at: random.pick(&[20, 60, 200, 900]) * SECOND,
            in_part: random.chance(300),
            well: random.pick(&[5 * MS, 5 * MS, 300 * MS, 2 * SECOND, 12 * SECOND]),
            every: random.pick(&[None, Some(20), Some(60), Some(300)]).map(Duration::from_secs),
            first: random.pick(&[1, 1, 5, 15]),
            new_every: random.pick(&[None, None, Some(120)]).map(Duration::from_secs),
            is_served_before: random.chance(500),
            seed,
        };
        // Recovered lanes can be served with half of the slots and of the rate.
        if let Some(every) = plan.every {
            let lanes = plan.recovering * u32::from(plan.kinds);
            plan.well = plan.well.min(every * plan.slots as u32 / (2 * lanes));
            let all = f64::from(plan.lanes()) / every.as_secs_f64();
            plan.bounds.rate_max = plan.bounds.rate_max.map(|rate| f64::max(rate, 2.0 * all));
        }
        plan
    }

    /// Number of lanes that fail at first.
    fn lanes(&self) -> u32 {
        (self.shops + self.recovering) * u32::from(self.kinds)
    }

    fn recovers(&self, shop: u32, kind: u8) -> bool {
        (RECOVERING..NEW).contains(&shop) && (!self.in_part || kind + 1 == self.kinds)
    }

    /// Time after the recovery within which each recovering lane is served for the first time.
    fn bound(&self) -> Duration {
        let has = |is: fn(&Answer) -> bool| self.ills.iter().any(is);
        let may_refuse = has(|ill| matches!(ill, Answer::Refuses(_)));
        // A refusing backend has one probe at a time, and so has one with few slots.
        let is_single = may_refuse || self.slots < 4;
        let is_slow = has(|ill| matches!(ill, Answer::Hangs | Answer::Fails(SLOW))) && is_single;
        let round = ROUNDS * if is_slow { TIMEOUT + PROBE } else { PROBE };
        let least = BESIDE + round * self.lanes();
        // New shops arrive meanwhile.
        let Some(every) = self.new_every else { return least };
        let new = round.div_duration_f64(every);
        (least + self.at.mul_f64(new)).mul_f64(1.0 / (1.0 - new.min(0.75)))
    }

    /// True if recovered lanes are served in full. If most shops refuse forever, all lanes wait for
    /// probes because of the circuit breaker on refusals. Slow failures of most shops hold most of
    /// the slots. A shop waits as long as pauses for its other kinds last.
    fn is_served(&self) -> bool {
        !self.ills.iter().any(|ill| match ill {
            Answer::Refuses(_) | Answer::Fails(SLOW) => true,
            Answer::PausesShop(_) => self.in_part,
            _ => false,
        })
    }

    /// Time in which waiting webhooks are served with half of the slots.
    fn catches_up(&self, found: Duration) -> Duration {
        let arrived = self.every.map_or(0.0, |every| found.div_duration_f64(every));
        let lanes = f64::from(self.recovering * u32::from(self.kinds));
        let waiting = lanes * (f64::from(self.first) + arrived);
        let each = self.well.as_secs_f64() / self.slots as f64;
        let each = each.max(self.bounds.rate_max.map_or(0.0, |rate| 1.0 / rate));
        CATCHES_UP + Duration::from_secs_f64(8.0 * waiting * each)
    }

    fn answers(&self) -> Box<Answers> {
        let plan = self.clone();
        Box::new(move |shop, kind, now| {
            let is_well = (now < SECOND && plan.is_served_before)
                || (now >= plan.at && plan.recovers(shop, kind));
            if is_well {
                return Answer::Takes(plan.well);
            }
            let lane = u64::from(shop) << 8 | u64::from(kind);
            plan.ills[(mix(lane ^ plan.seed) % plan.ills.len() as u64) as usize]
        })
    }

    /// Creates the load up to `end`. Returns the acceptance times of each lane, too.
    fn world(&self, end: Duration) -> (World, HashMap<(u32, u8), Vec<Duration>>) {
        let config = Config {
            bounds: self.bounds,
            seed: self.seed,
            retry_refused_for: 48 * 3600 * SECOND,
            ..config(self.slots)
        };
        PACKS.with_borrow_mut(BTreeMap::clear);
        let mut world = World::new(config, self.answers());
        let mut random = Random::new(self.seed + 1);
        let mut accepted = HashMap::new();
        let mut accept = |world: &mut World, at: Duration, lane| {
            accepted.entry(lane).or_insert_with(Vec::new).push(at);
            world.accept(at, [lane]);
        };
        if self.is_served_before {
            let shops = RECOVERING..RECOVERING + self.recovering;
            shops.for_each(|shop| accept(&mut world, MS, (shop, 0)));
        }
        let shops = (0..self.shops).chain(RECOVERING..RECOVERING + self.recovering);
        for (shop, kind) in shops.flat_map(|shop| (0..self.kinds).map(move |kind| (shop, kind))) {
            for _ in 0..self.first {
                accept(&mut world, random.ms(1_000, 18_000), (shop, kind));
            }
            let mut at = random.ms(20_000, 80_000);
            while let Some(every) = self.every.filter(|_| at < end) {
                accept(&mut world, at, (shop, kind));
                at += every;
            }
        }
        if let Some(every) = self.new_every {
            let new = (1..).map(|number| (NEW + number, every * number));
            for (shop, at) in new.take_while(|(_, at)| *at < end) {
                world.accept(at, [(shop, 0)]);
            }
        }
        accepted.values_mut().for_each(|times| times.sort_unstable());
        (world, accepted)
    }

    /// Plays the plan. Returns the longest time until a lane was found, and the longest wait after
    /// it.
    fn play(&self) -> Result<(Duration, Duration), String> {
        let end = self.at + self.bound();
        let (mut world, accepted) = self.world(end + self.catches_up(end) + 400 * SECOND);
        let recovered = (RECOVERING..RECOVERING + self.recovering)
            .flat_map(|shop| (0..self.kinds).map(move |kind| (shop, kind)))
            .filter(|(shop, kind)| self.recovers(*shop, *kind));
        let recovered: Vec<_> = recovered.collect();
        let count = |world: &World, lane| world.took.get(&lane).map_or(0, Vec::len);
        world.run(self.at);
        let before: Vec<usize> = recovered.iter().map(|lane| count(&world, *lane)).collect();
        let mut found = vec![None; recovered.len()];
        while found.iter().any(Option::is_none) {
            if world.now >= end {
                let missing = found.iter().filter(|at| at.is_none()).count();
                return Err(format!("{missing} lanes not found within {:?}", self.bound()));
            }
            world.run(world.now + SECOND);
            for (index, lane) in recovered.iter().enumerate() {
                if count(&world, *lane) > before[index] {
                    found[index].get_or_insert(world.now.saturating_sub(self.at));
                }
            }
        }
        let found = found.into_iter().flatten().max().unwrap_or_default();
        world.run(world.now + self.catches_up(world.now));
        let mut waited = Duration::ZERO;
        for _ in 0..30 {
            world.run(world.now + 10 * SECOND);
            for lane in &recovered {
                // The test counts webhooks of a lane and assumes that the oldest were delivered.
                let oldest = accepted[lane].get(count(&world, *lane));
                let wait = oldest.map_or(Duration::ZERO, |at| world.now.saturating_sub(*at));
                waited = waited.max(wait);
            }
        }
        Ok((found, waited))
    }
}

#[test]
fn what_recovers_is_found_and_served_beside_what_never_does() {
    let given = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = given("RECOVERY_SEED")
        .map_or(0..given("RECOVERY_SEEDS").unwrap_or(60), |seed| seed..seed + 1);
    let mut failed = Vec::new();
    for seed in seeds {
        let plan = Plan::new(seed);
        match plan.play() {
            Ok((found, waited)) => {
                println!(
                    "{seed}: found {found:.0?} of {:?}, waited {waited:.1?}; {plan:?}",
                    plan.bound()
                );
                if waited > SERVED_WITHIN && plan.is_served() {
                    failed.push(format!(
                        "seed {seed}: waited {waited:?} after it was found; {plan:?}"
                    ));
                }
            }
            Err(why) => failed.push(format!("seed {seed}: {why}; {plan:?}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
