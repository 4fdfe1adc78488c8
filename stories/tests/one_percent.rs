//! One percent of the shops fail, one percent hang, one percent are paused and one percent exceed
//! their rate. The healthy shops do not notice, for half an hour.
//!
//! The suite uses small numbers. `make endure-shops` uses 1,000 and 20,000 shops at 2,000 webhooks
//! per second, for half an hour between two calm phases of five minutes. `DURATION` overrides the
//! seconds of the bad phase, `CALM` those of each calm phase, and `RATE` the webhooks per second.
//! If the calm phases disagree, the machine was loud, and all three phases are repeated.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stories::cell::{Cell, Settings};
use stories::endurance::crowd::Crowd;
use stories::endurance::lanes::left_over;
use stories::endurance::record::Record;
use stories::endurance::results;
use stories::endurance::samples::{Sample, Sampler, largest};
use stories::endurance::sender::{CONNECTIONS, Sender};
use stories::endurance::sink::{Reply, Sink};
use stories::measure::{Loud, Phases, until_quiet};
use stories::redis_server::{RedisServer, socket_in};
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

const QUEUE: &str = "{spillway}:in";
const DEAD: &str = "{spillway}:http:dead";
const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "products/update";
const WINDOW: Duration = Duration::from_secs(10);
/// Time that the backend takes for a webhook of a healthy shop.
const WORK: Duration = Duration::from_millis(5);
const INDEX_BYTES_MAX: f64 = (128 << 20) as f64;
/// Smaller differences to calm are ignored.
const NOISE: Duration = Duration::from_millis(2);
/// Shorter waiting times are no delay in the suite, whose binaries are not optimised.
const NO_DELAY: Duration = Duration::from_secs(1);
/// At the start of a phase, and after each restart, the limiter learns the capacity of the backend.
const WARM_UP: Duration = Duration::from_secs(5);
/// The downstreamer has caught up if a healthy webhook is delivered within this time.
const CAUGHT_UP: Duration = Duration::from_millis(500);
/// Deliveries that SIGKILL may repeat: those under way, and those that wait for settlement.
const REPEATS_MAX: u64 = 64 + 256;
/// Growth of the main stream over calm, in packs accepted within `PARK_AFTER`.
const STREAM_PART_MAX: f64 = 1.5;

/// Fault that affects one shop in a hundred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ill {
    Fails,
    Hangs,
    Paused,
    OverRate,
}

impl Ill {
    fn of(shop: u32) -> Option<Self> {
        match shop % 100 {
            1 => Some(Self::Fails),
            2 => Some(Self::Hangs),
            3 => Some(Self::Paused),
            4 => Some(Self::OverRate),
            _ => None,
        }
    }

    fn is_over_rate(shop: u32) -> bool {
        Self::of(shop) == Some(Self::OverRate)
    }
}

/// Number of shops, and the volume of those that exceed their rate.
#[derive(Clone, Copy, Debug)]
struct Scale {
    name: &'static str,
    shops: u32,
    /// Rate limit of a shop per second, more than the healthy shops need after a restart.
    shop_rate: u32,
    /// Additional turns of a busy shop.
    busy_turns: u32,
}

/// A phase: the webhooks sent, their times, and the samples.
struct Phase {
    name: &'static str,
    numbers: Range<u32>,
    time: Range<Duration>,
    /// Windows in which the downstreamer was away or catching up.
    away: Vec<Range<Duration>>,
    samples: Vec<Sample>,
}

struct App {
    scale: Scale,
    crowd: Crowd,
    sent: u32,
    record: Arc<Record>,
    sink: Sink,
    downstreamer: Service,
    receiver: Service,
    redis: RedisServer,
    cell: Cell,
}

/// A number from the environment, such as `DURATION=60`.
fn given(name: &str, usual: u32, full: u32) -> u32 {
    let given = std::env::var(name).ok();
    given.map_or(size(usual, full), |text| text.parse().expect("a number"))
}

/// Length of the bad phase.
fn bad_duration() -> Duration {
    Duration::from_secs(given("DURATION", 40, 1_800).into())
}

/// Length of each calm phase.
fn calm_duration() -> Duration {
    Duration::from_secs(given("CALM", 10, 300).into())
}

/// Webhooks per second of all shops together.
fn rate() -> u32 {
    given("RATE", 500, 2_000)
}

/// Number of webhooks of a phase, a multiple of the number of connections.
fn webhooks(duration: Duration) -> u32 {
    (rate() * duration.as_secs() as u32).next_multiple_of(CONNECTIONS)
}

impl Scale {
    fn new(name: &'static str, shops: u32) -> Self {
        let shop_rate = (5 * rate() / shops).max(1);
        let busy_rate = |turns: u32| {
            let share = f64::from(turns + 1) / f64::from(shops + shops / 100 * turns);
            share * f64::from(rate())
        };
        // They send about twice what they may.
        let is_busy = |turns: &u32| busy_rate(*turns) >= 1.8 * f64::from(shop_rate);
        let busy_turns = (1..1_000).find(is_busy).expect("one shop in a hundred can be busy");
        Self { name, shops, shop_rate, busy_turns }
    }
}

fn park_after() -> Duration {
    Duration::from_secs(size(3, 60))
}

impl App {
    async fn start(scale: Scale) -> Self {
        let webhooks = webhooks(bad_duration()) + 2 * webhooks(calm_duration());
        let cell = Cell::alone();
        let redis = cell.redis(&[]).await;
        let record = Arc::new(Record::new(webhooks));
        let crowd = Crowd::new(TOPIC, 0..scale.shops, 0..webhooks)
            .with_busy(Ill::is_over_rate, scale.busy_turns);
        let sink = Sink::start(vec![crowd.clone()], &record).await;
        let receiver = cell.receiver(&[]).await;
        let downstreamer = start_downstreamer(&cell, &sink, &[]).await;
        let app = Self { scale, crowd, sent: 0, record, sink, downstreamer, receiver, redis, cell };
        app.heal();
        app
    }

    fn heal(&self) {
        self.sink.behave(|_| Reply::After(WORK));
    }

    fn fall_ill(&self) {
        self.sink.behave(|shop| match Ill::of(shop) {
            Some(Ill::Fails) => Reply::Status(500),
            Some(Ill::Hangs) => Reply::Hang,
            Some(Ill::Paused | Ill::OverRate) | None => Reply::After(WORK),
        });
    }

    async fn spillway(&self, arguments: &[&str]) {
        let output = self.cell.spillway(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    async fn pause_shops(&self) {
        let paused = (0..self.scale.shops).filter(|shop| Ill::of(*shop) == Some(Ill::Paused));
        let mut count = 0;
        for shop in paused {
            self.spillway(&["pause", "--shop", &shop::domain(shop.into())]).await;
            count += 1;
        }
        let are_read =
            async || self.downstreamer.metric("spillway_pauses").await == Some(f64::from(count));
        until("the pauses are read", SOON, are_read).await;
    }

    /// Restarts the downstreamer with other settings.
    async fn restart_with(&mut self, settings: Settings<'_>) {
        self.downstreamer.sigterm();
        self.downstreamer.exit(SOON).await;
        self.downstreamer = start_downstreamer(&self.cell, &self.sink, settings).await;
    }

    /// Sends for the duration of a phase.
    async fn phase(&mut self, name: &'static str, is_ill: bool) -> Phase {
        let duration = if is_ill { bad_duration() } else { calm_duration() };
        let numbers = self.sent..self.sent + webhooks(duration);
        self.sent = numbers.end;
        let socket = socket_in(self.cell.directory());
        let admin = self.downstreamer.admin_address();
        let sampler = Sampler::start(socket, admin, Arc::clone(&self.record));
        let began = self.record.elapsed();
        let sender = Sender {
            address: self.receiver.address(),
            crowd: Arc::new(self.crowd.clone()),
            record: Arc::clone(&self.record),
            rate: Some(f64::from(rate())),
        };
        let sent = numbers.clone();
        let sending = tokio::spawn(async move { sender.send_some(sent).await });
        let mut away = Vec::from([began..began + WARM_UP]);
        if is_ill {
            away.append(&mut self.restarts(&numbers).await);
        }
        sending.await.expect("everything was sent");
        let time = began..self.record.elapsed();
        Phase { name, numbers, time, away, samples: sampler.stop() }
    }

    /// Sends SIGTERM after a third of the time, and SIGKILL after two thirds. Returns the windows
    /// in which the healthy shops had to wait for the next leader.
    async fn restarts(&mut self, numbers: &Range<u32>) -> Vec<Range<Duration>> {
        let mut away = Vec::new();
        for is_killed in [false, true] {
            sleep(bad_duration() / 3).await;
            let from = self.record.elapsed();
            if is_killed {
                self.downstreamer.kill9();
            } else {
                self.downstreamer.sigterm();
                self.downstreamer.exit(SOON).await;
            }
            self.downstreamer.restart();
            self.downstreamer.leads().await;
            let leads = self.record.elapsed();
            self.caught_up(numbers).await;
            let to = self.record.elapsed();
            say(&format!(
                "{}: leads again after {:?}, has caught up after {:?}",
                self.scale.name,
                leads - from,
                to - from
            ));
            // Webhooks accepted just before also had to wait.
            away.push(from.saturating_sub(Duration::from_secs(1))..to + WARM_UP);
        }
        away
    }

    /// Waits until no healthy webhook waits that was accepted more than `CAUGHT_UP` ago.
    async fn caught_up(&self, numbers: &Range<u32>) {
        let is_healthy = |number: u32| Ill::of(self.crowd.shop(number)).is_none();
        until("the healthy shops have caught up", 5 * SOON, async || {
            sleep(CAUGHT_UP).await;
            let before = Duration::ZERO..self.record.elapsed().saturating_sub(CAUGHT_UP);
            self.record.waits(numbers.clone(), &before, is_healthy).undelivered == 0
        })
        .await;
    }

    fn p99(&self, phase: &Phase, window: &Range<Duration>) -> Option<(Duration, Duration, usize)> {
        let is_healthy = |number: u32| Ill::of(self.crowd.shop(number)).is_none();
        let mut waits = self.record.waits(phase.numbers.clone(), window, is_healthy);
        let undelivered = waits.undelivered;
        (!waits.is_empty()).then(|| (waits.percentile(0.5), waits.percentile(0.99), undelivered))
    }

    /// The figures of a phase. Windows in which the downstreamer was away are excluded from the
    /// total.
    fn figures(&self, phase: &Phase) -> Value {
        let mut windows = Vec::new();
        let mut from = phase.time.start;
        while from + WINDOW <= phase.time.end {
            let window = from..from + WINDOW;
            let is_away = phase.away.iter().any(|away| overlap(away, &window));
            if let Some((p50, p99, undelivered)) = self.p99(phase, &window) {
                windows.push(json!({
                    "at": from.as_secs_f64(), "p50_ms": p50.as_secs_f64() * 1e3,
                    "p99_ms": p99.as_secs_f64() * 1e3, "undelivered": undelivered,
                    "is_away": is_away,
                }));
            }
            from += WINDOW;
        }
        let is_healthy = |number: u32| Ill::of(self.crowd.shop(number)).is_none();
        let mut waits = self.record.waits_outside(phase.numbers.clone(), &phase.away, is_healthy);
        let (p50, p99) = (waits.percentile(0.5), waits.percentile(0.99));
        let is_away = |at: Duration| phase.away.iter().any(|away| away.contains(&at));
        let calm: Vec<Sample> =
            phase.samples.iter().filter(|one| !is_away(one.at)).cloned().collect();
        let of = |name: &'static str| largest(&phase.samples, |one| one.gauge(name));
        json!({
            "phase": phase.name, "healthy_webhooks": waits.len(),
            "undelivered": waits.undelivered,
            "seconds": (phase.time.end - phase.time.start).as_secs_f64(),
            "p50_ms": p50.as_secs_f64() * 1e3, "p99_ms": p99.as_secs_f64() * 1e3,
            "packs_max": largest(&calm, |one| Some(one.packs as f64)),
            "stream_bytes_max": largest(&calm, |one| Some(one.stream_bytes as f64)),
            "packs_per_second": packs_per_second(&phase.samples),
            "index_bytes_max": of("index_bytes"), "resident_bytes_max": of("resident_bytes"),
            "lane_webhooks_max": of("lane_webhooks"), "lanes_blocked_max": of("lanes_blocked"),
            "windows": windows,
            "samples": phase.samples.iter().map(Sample::value).collect::<Vec<_>>(),
        })
    }

    /// Waits until nothing waits any more. Fails unless everything was delivered once and in order.
    async fn nothing_left(&self, within: Duration) -> Duration {
        let began = Instant::now();
        until("everything is delivered", within, async || {
            self.redis.stream_len(QUEUE).await == 0 && left_over(&self.redis).await.is_empty()
        })
        .await;
        let dead = self.redis.stream_len(DEAD).await;
        assert_eq!(dead, 0, "dead letters");
        began.elapsed()
    }
}

async fn start_downstreamer(cell: &Cell, sink: &Sink, settings: Settings<'_>) -> Service {
    let park_after = format!("{}s", park_after().as_secs());
    let mut own = vec![
        ("PARK_AFTER", park_after.as_str()),
        ("DELIVERY_TIMEOUT", "4s"),
        ("RETRY_FIRST", ""),
        ("RETRY_LONGEST", "30s"),
    ];
    own.extend_from_slice(settings);
    let downstreamer = cell.downstreamer_starting(&sink.url(), &own);
    downstreamer.leads().await;
    downstreamer
}

fn overlap(one: &Range<Duration>, other: &Range<Duration>) -> bool {
    one.start < other.end && other.start < one.end
}

fn packs_per_second(samples: &[Sample]) -> f64 {
    let known: Vec<&Sample> = samples.iter().filter(|sample| sample.appended > 0).collect();
    let (Some(first), Some(last)) = (known.first(), known.last()) else { return 0.0 };
    let seconds = (last.at - first.at).as_secs_f64().max(1.0);
    last.appended.saturating_sub(first.appended) as f64 / seconds
}

fn figure(phase: &Value, name: &str) -> f64 {
    phase[name].as_f64().unwrap_or(f64::NAN)
}

/// Message if the index was too large. A loud machine does not enlarge it.
fn index_exceeded(bad: &Value) -> Option<String> {
    let index = figure(bad, "index_bytes_max");
    (index > INDEX_BYTES_MAX).then(|| format!("the index is {index} bytes"))
}

/// Limits relative to calm that were exceeded.
fn exceeded(calm: &[Value; 2], bad: &Value) -> Result<Vec<String>, Loud> {
    let mut exceeded = Vec::new();
    for part in ["p50", "p99"] {
        let name = format!("{part}_ms");
        let time = |phase: &Value| Duration::from_secs_f64(figure(phase, &name) / 1e3);
        let phases = Phases { before: time(&calm[0]), fault: time(bad), after: time(&calm[1]) };
        let ignored = size(NO_DELAY, phases.calmest() + NOISE);
        exceeded.extend(phases.delay(&format!("{part} of the healthy"), ignored)?);
    }
    // The load is the same in all phases. If a busy receiver puts more webhooks into a pack for a
    // while, a phase has fewer packs per second on average than in some seconds.
    let most_of = |name: &str| calm.iter().map(|one| figure(one, name)).fold(0.0, f64::max);
    let pace = most_of("packs_per_second").max(figure(bad, "packs_per_second"));
    let parked = STREAM_PART_MAX * park_after().as_secs_f64() * pace;
    let packs = figure(bad, "packs_max");
    let most = most_of("packs_max") + parked;
    if packs > most {
        exceeded.push(format!("the main stream has {packs} packs, at most {most:.0}"));
    }
    Ok(exceeded)
}

async fn healthy_shops_flow(scale: Scale) {
    until_quiet(scale.name, || round(scale)).await;
}

/// Plays the three phases. Completeness, order and the size of the index are checked on a loud
/// machine, too.
async fn round(scale: Scale) -> Result<(), Loud> {
    let mut app = App::start(scale).await;
    let before = app.phase("calm before", false).await;
    app.restart_with(&[("SHOP_MAX_RATE", &scale.shop_rate.to_string())]).await;
    app.pause_shops().await;
    app.fall_ill();
    let bad = app.phase("bad", true).await;
    let bad_figures = app.figures(&bad);
    app.heal();
    app.spillway(&["resume", "--all"]).await;
    app.restart_with(&[]).await;
    let healed = app.nothing_left(size(2 * SOON, 30 * SOON)).await;
    let after = app.phase("calm after", false).await;
    app.cell.stop_measuring();
    app.nothing_left(SOON).await;
    let calm = [app.figures(&before), app.figures(&after)];
    for figures in [&calm[0], &bad_figures, &calm[1]] {
        let mut short = figures.clone();
        short["samples"] = json!(null);
        short["windows"] = json!(null);
        say(&format!("{}: {short}", scale.name));
    }
    let outcome = app.record.expect_sound(scale.name, 0..app.sent, REPEATS_MAX);
    let mut broken = Vec::from_iter(index_exceeded(&bad_figures));
    let compared = exceeded(&calm, &bad_figures).map(|more| broken.extend(more));
    let loud = compared.as_ref().err().map(|Loud(text)| text);
    results::write(
        "one-percent",
        scale.name,
        json!({
            "phases": [&calm[0], &bad_figures, &calm[1]], "healed_seconds": healed.as_secs_f64(),
            "accepted": outcome.accepted, "delivered": outcome.delivered,
            "repeats": outcome.repeats, "broken": broken.iter().chain(loud).collect::<Vec<_>>(),
            "park_after_seconds": park_after().as_secs_f64(), "rate": rate(),
        }),
    );
    assert!(broken.is_empty(), "{}: {broken:?}", scale.name);
    compared
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_shops_flow_while_one_in_a_hundred_fails_hangs_or_is_held_back() {
    healthy_shops_flow(Scale::new("1,000 shops", size(200, 1_000))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_shops_flow_while_one_in_a_hundred_fails_hangs_or_is_held_back() {
    if !size(false, true) {
        say("plays under ENDURE=1 only: four minutes even when it is small");
        return;
    }
    healthy_shops_flow(Scale::new("20,000 shops", 20_000)).await;
}
