//! Replays from the archive: exactly the webhooks of a window, each once, marked and in order, beside live traffic;
//! over kills of the command and of Redis, with a shop that fails or is to be forgotten, and what an operator may get
//! wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use serde_json::Value;
use stories::archive::ArchiveDirectory;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::post;
use stories::kafka_topic::{Record, Topic};
use stories::ledger::{Event, Ledger};
use stories::load::Load;
use stories::measure::{delays, percentile};
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook;

pub(crate) const SOON: Duration = Duration::from_secs(120);
const REPLAYED: &str = "Spillway-Replayed";
/// Topic of a Kafka producer.
const TOPIC: &str = "shopify-webhooks";
const RESOURCES: u64 = 60;
pub(crate) const SHOPS: u64 = 6;

/// A cell that archives, and a window of webhooks in its archive.
pub(crate) struct Replaying {
    pub(crate) archive: ArchiveDirectory,
    _archiver: Service,
    pub(crate) backend: Backend,
    downstreamer: Service,
    pub(crate) receiver: Service,
    pub(crate) redis: RedisServer,
    ledger: Arc<Ledger>,
    /// Events that were stored in the window.
    pub(crate) window: BTreeSet<Event>,
    from: String,
    to: String,
    pub(crate) cell: Cell,
}

fn load() -> Load {
    Load {
        connections: 8,
        resources: RESOURCES,
        shops: Some(1..1 + SHOPS),
        body_bytes: 100..=600,
        pause: Duration::from_millis(5),
        ..Load::steady(91)
    }
}

impl Replaying {
    /// Stores and delivers three phases of events of the same resources. The second one is the window.
    pub(crate) async fn start(cell: Cell, events: u64) -> Self {
        Self::start_with(cell, events, 3).await
    }

    /// Stores and delivers this many phases, of which the one in the middle is the window.
    async fn start_with(cell: Cell, events: u64, phases: u64) -> Self {
        let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        let receiver = cell.receiver(&[]).await;
        let downstreamer = cell.downstreamer(&backend, &[]).await;
        downstreamer.leads().await;
        let archiver = cell.archiver(&archive.url(), &[("ARCHIVE_MAX_DELAY", "1s")]);
        archiver.ready().await;
        let ledger = Arc::new(Ledger::default());
        let mut bounds = Vec::new();
        let mut window = BTreeSet::new();
        for phase in 0..phases {
            let before = ledger.stored_count();
            let load = Load { events: Some(events), ..load() };
            load.start_after(phase * events, receiver.address(), &ledger).join().await;
            if phase == phases / 2 {
                window.extend(ledger.stored_after(before));
            }
            // The bounds lie between milliseconds in which something was stored.
            tokio::time::sleep(Duration::from_millis(20)).await;
            bounds.push(webhook::now());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ledger.delivered_to(&backend, 10 * SOON).await;
        let is_freed = async || redis.stream_len("{spillway}:in").await == 0;
        until("all is delivered and archived", SOON, is_freed).await;
        let middle = bounds.drain(phases as usize / 2 - 1..).take(2).collect::<Vec<_>>();
        let [from, to] = middle.try_into().expect("three phases or more");
        let _archiver = archiver;
        Self {
            archive,
            _archiver,
            backend,
            downstreamer,
            receiver,
            redis,
            ledger,
            window,
            from,
            to,
            cell,
        }
    }

    pub(crate) fn arguments<'a>(&'a self, url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["replay", "--archive-url", url], more].concat()
    }

    /// Flags of a replay of the window.
    pub(crate) fn of_window<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["--all", "--from", self.from.as_str(), "--to", self.to.as_str()], more].concat()
    }

    async fn replay(&self, more: &[&str]) -> Output {
        let url = self.archive.url();
        self.cell.spillway(&self.arguments(&url, more)).await
    }

    pub(crate) async fn told(&self, more: &[&str]) -> String {
        let output = self.replay(more).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "spillway replay {more:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    async fn refused(&self, more: &[&str]) -> String {
        let output = self.replay(more).await;
        assert!(!output.status.success(), "spillway replay {more:?} succeeds");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub(crate) async fn records(&self) -> Vec<Value> {
        let listed = self.told(&["list", "-o", "json"]).await;
        listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Events that were delivered again, in the order of their arrival.
    pub(crate) fn replayed(&self) -> Vec<Event> {
        self.backend.look(|receipts| {
            let replayed = receipts.iter().filter(|one| one.delivered() && is_replay(one));
            replayed.map(Receipt::event).collect()
        })
    }

    pub(crate) async fn settled(&self) {
        let replays = async || self.redis.stream_len("{spillway}:http:replays").await == 0;
        until("all replays are settled", SOON, replays).await;
    }

    /// Checks that these events were delivered again, each once, and in order within each resource.
    fn expect_once(&self, expected: &BTreeSet<Event>) {
        let replayed = self.replayed();
        let distinct: BTreeSet<Event> = replayed.iter().copied().collect();
        assert_eq!(replayed.len(), distinct.len(), "some were delivered again twice");
        let missing = expected.difference(&distinct).count();
        let foreign = distinct.difference(expected).count();
        assert_eq!((missing, foreign), (0, 0), "missing, and not of the window");
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for event in replayed {
            let before = last.insert(event.resource, event.sequence);
            assert!(before < Some(event.sequence), "{event:?} came after {before:?}");
        }
    }
}

pub(crate) fn is_replay(receipt: &Receipt) -> bool {
    receipt.headers.text(REPLAYED) == Some("true")
}

/// Checks that live events arrived in order, and that no two requests about one resource overlap.
fn expect_in_turn(receipts: &[Receipt]) {
    let mut of_resources: BTreeMap<u64, Vec<&Receipt>> = BTreeMap::new();
    for receipt in receipts {
        of_resources.entry(receipt.event().resource).or_default().push(receipt);
    }
    for (resource, receipts) in of_resources {
        let mut free_at: Option<Instant> = None;
        let mut last = 0;
        for receipt in receipts {
            assert!(free_at <= Some(receipt.arrived), "two requests at once for {resource}");
            free_at = receipt.answered;
            if !is_replay(receipt) {
                let sequence = receipt.event().sequence;
                assert!(sequence > last, "{sequence} of {resource} came after {last}");
                last = sequence;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_is_delivered_again_once_in_order_beside_live_traffic() {
    // A day, and one of its hours.
    let (events, phases) = size((8, 3), (100, 24));
    let story = Replaying::start_with(Cell::measured(), events, phases).await;
    let live = Load { connections: 4, pause: Duration::from_millis(20), ..load() };
    let live = live.start_after(phases * events, story.receiver.address(), &story.ledger);
    let calm = Instant::now();
    tokio::time::sleep(size(Duration::from_secs(1), Duration::from_secs(30))).await;
    let began = Instant::now();
    // In the full size with a bound, as beside live traffic of which the machine can bear little more.
    let rate = size("100000", "200");
    let told = story.told(&story.of_window(&["--yes", "--rate", rate, "-o", "json"])).await;
    story.settled().await;
    let ended = Instant::now();
    live.stop().await;
    story.ledger.delivered_to(&story.backend, SOON).await;

    story.expect_once(&story.window);
    let receipts = story.backend.receipts();
    expect_in_turn(&receipts);
    let mut firsts = BTreeMap::new();
    for receipt in &receipts {
        let first = *firsts.entry(receipt.spillway_id()).or_insert(receipt);
        assert_eq!(first.body_hash, receipt.body_hash);
        assert!(!is_replay(first), "its id is that of the first time");
    }
    let told: Value = serde_json::from_str(told.lines().last().expect("a line")).expect("JSON");
    assert_eq!(told["fed"], story.window.len(), "{told}");
    let number = |name: &str| told[name].as_f64().expect("a number");
    let [read, needed] = ["objects_read", "objects"].map(number);
    assert!(read <= (1.1 * needed).ceil(), "{told}");

    let p99 = |window: std::ops::Range<Instant>| {
        let live = delays(&story.ledger, &receipts, &window, |one| !is_replay(one));
        percentile(&live, 0.99)
    };
    let first = receipts.iter().find(|one| is_replay(one)).expect("a replay").arrived - began;
    let [before, beside] = [p99(calm..began), p99(began..ended)];
    let ratio = beside.as_secs_f64() / before.as_secs_f64();
    say(&format!(
        "replay: {} of {} webhooks in {:?}, the first after {first:?}, from {read} objects; p99 of live traffic {before:?}, beside the replay {beside:?}: {ratio:.2} \
         times",
        story.window.len(),
        story.ledger.stored_count(),
        ended - began
    ));
    assert!(first < size(SOON, Duration::from_secs(5)), "the first one comes after {first:?}");
    // The window of the small size is over in half a second: that is no measure.
    assert!(ratio < size(f64::INFINITY, 1.5), "live traffic waits for the replay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_whose_command_is_killed_goes_on_without_a_gap_or_a_repeat() {
    let story = Replaying::start(Cell::busy(), size(8, 80)).await;
    let mut chance = chance(seed("replay", 92), 0);
    let url = story.archive.url();
    let rate = size("120", "600");
    let of_window = story.of_window(&["--yes", "--rate", rate]);
    let mut id: Option<String> = None;
    for _ in 0..size(5, 40) {
        let resume;
        let more = match &id {
            None => of_window.as_slice(),
            Some(id) => {
                resume = ["resume", id.as_str()];
                &resume[..]
            }
        };
        let mut command = story.cell.spillway_starting(&story.arguments(&url, more));
        tokio::time::sleep(Duration::from_millis(chance.random_range(50..900))).await;
        command.kill9();
        id = story
            .records()
            .await
            .first()
            .map(|record| record["replay"].as_str().expect("an id").to_owned());
    }
    let records = story.records().await;
    let [record] = &records[..] else { panic!("{records:?}") };
    let id = id.expect("it was begun");
    if record["state"] == "running" {
        // The one that was taken over is refused.
        let resume = ["resume", id.as_str()];
        let arguments = story.arguments(&url, &resume);
        let mut former = story.cell.spillway_starting(&arguments);
        let is_fed = async || story.records().await[0]["fed"] != record["fed"];
        until("the first one feeds", SOON, async || is_fed().await || !former.is_running()).await;
        let told = story.replay(&resume).await;
        let errors = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.status.success() || errors.contains("is done"), "{errors}");
        let ended = former.exit(SOON).await;
        assert!(ended.success() || former.output().contains("taken over"), "{}", former.output());
    }
    story.settled().await;
    story.expect_once(&story.window);
    assert_eq!(story.records().await[0]["state"], "done");
    assert!(story.refused(&["resume", &id]).await.contains("is done"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_fails_holds_up_no_other_one_and_is_served_once_it_works() {
    let story = Replaying::start(Cell::busy(), size(8, 80)).await;
    let failing = shop::domain(1);
    let sick = failing.clone();
    story.backend.behave(move |receipt| {
        let is_refused = is_replay(receipt) && receipt.shop() == sick;
        if is_refused { Behaviour::status(500) } else { Behaviour::ok() }
    });
    let url = story.archive.url();
    let of_window = story.of_window(&["--yes"]);
    let mut command = story.cell.spillway_starting(&story.arguments(&url, &of_window));
    let of_failing = |event: &&Event| shop::domain(1 + event.resource % SHOPS) == failing;
    let others = story.window.iter().filter(|event| !of_failing(event)).count();
    assert!(story.window.len() - others > 8, "the shop has more than its share");
    until("all others are served", SOON, async || story.replayed().len() == others).await;
    until("the shop is left for later", SOON, async || story.records().await[0]["shops_left"] == 1)
        .await;
    assert!(command.is_running());
    let replays = story.redis.stream_len("{spillway}:http:replays").await;
    assert!(replays <= 8, "{replays} of one shop");
    story.backend.behave(|_| Behaviour::ok());
    assert!(command.exit(SOON).await.success(), "{}", command.output());
    story.settled().await;
    story.expect_once(&story.window);
    assert!(story.downstreamer.is_leader().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_changes_nothing_filters_select_and_what_is_wrong_is_said() {
    let story = Replaying::start(Cell::shared(), 4).await;
    for more in [&[][..], &["--yes", "--dry-run"]] {
        let told = story.told(&story.of_window(more)).await;
        assert!(told.contains("would be delivered again to http"), "{told}");
        assert!(told.contains("dry run"), "{told}");
    }
    assert!(story.records().await.is_empty() && story.replayed().is_empty());

    let shop = shop::domain(2);
    let told = story.told(&story.of_window(&["--shop", &shop, "--yes"])).await;
    story.settled().await;
    let of_shop = |event: &&Event| shop::domain(1 + event.resource % SHOPS) == shop;
    let expected: BTreeSet<Event> = story.window.iter().filter(of_shop).copied().collect();
    assert!(!expected.is_empty() && told.contains(&format!("fed {}", expected.len())), "{told}");
    story.expect_once(&expected);

    let one = *story.window.iter().find(|event| !of_shop(event)).expect("of another shop");
    let id = one.webhook_id();
    story.told(&story.of_window(&["--webhook-id", &id, "--yes"])).await;
    story.settled().await;
    let expected = expected.into_iter().chain([one]).collect();
    story.expect_once(&expected);
    let nothing = story.told(&story.of_window(&["--topic", "orders/*", "--yes"])).await;
    assert!(nothing.contains("nothing that matches"), "{nothing}");

    for (more, expected) in [
        (&[][..], "give --from"),
        (&["--from", "yesterday"][..], "--from"),
        (&["--from", "30M", "--all"][..], "30m or 30months"),
        (&["--from", "1h", "--to", "2h"][..], "before --from"),
        (&["--from", "1h", "--cell", "x"][..], "--cell"),
        (&["--from", "1h"][..], "or --all"),
        (&["--from", "1h", "--all", "--consumer", "nobody"][..], "no consumer is named nobody"),
        (&["--from", "1h", "--all", "--consumer", "archive"][..], "delivers nothing"),
        (&["--from", "1h", "--at-once", "2000"][..], "at-once"),
        (&["--from", "1h", "list"][..], "no subcommand"),
        (&["resume", "00000000"][..], "has no replay"),
        (&["cancel", "00000000"][..], "has no replay"),
    ] {
        let told = story.refused(more).await;
        assert!(told.contains(expected), "{more:?}: {told}");
    }
    let output = story.cell.spillway(&["replay", "--all", "--from", "1h"]).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("ARCHIVE_URL"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_replay_feeds_nothing_more() {
    let story = Replaying::start(Cell::shared(), 8).await;
    let url = story.archive.url();
    let of_window = story.of_window(&["--yes", "--rate", "20"]);
    let mut command = story.cell.spillway_starting(&story.arguments(&url, &of_window));
    until("it feeds", SOON, async || !story.replayed().is_empty()).await;
    let records = story.records().await;
    let id = records[0]["replay"].as_str().expect("an id");
    assert!(story.told(&["cancel", id]).await.contains("cancelled"));
    assert!(!command.exit(SOON).await.success());
    assert!(command.output().contains("was cancelled"), "{}", command.output());
    story.settled().await;
    let fed = story.records().await[0]["fed"].as_u64().expect("a number");
    assert_eq!(story.replayed().len() as u64, fed);
    assert!(fed < story.window.len() as u64, "it had ended");
    assert!(story.refused(&["resume", id]).await.contains("was cancelled"));
    assert!(story.told(&["cancel", id]).await.contains("already"));
    assert!(story.told(&["list"]).await.contains("cancelled"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_during_a_replay_loses_and_repeats_nothing_that_is_fed() {
    let mut story = Replaying::start(Cell::busy(), size(8, 80)).await;
    let mut chance = chance(seed("replay-redis", 93), 0);
    let mut command = {
        let url = story.archive.url();
        let of_window = story.of_window(&["--yes", "--rate", size("60", "300")]);
        story.cell.spillway_starting(&story.arguments(&url, &of_window))
    };
    until("it feeds", SOON, async || !story.replayed().is_empty()).await;
    for _ in 0..size(3, 12) {
        tokio::time::sleep(Duration::from_millis(chance.random_range(50..900))).await;
        story.redis.kill9();
        story.redis.restart();
        story.redis.ready().await;
    }
    assert!(command.exit(SOON).await.success(), "{}", command.output());
    story.settled().await;
    let records = story.records().await;
    assert_eq!(records[0]["state"], "done");
    assert_eq!(records[0]["fed"], story.window.len());
    // A delivery that could not be settled may be repeated, as with any webhook.
    let mut replayed = story.replayed();
    let mut known = BTreeSet::new();
    replayed.retain(|event| known.insert(*event));
    assert_eq!(known, story.window);
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for event in replayed {
        let before = last.insert(event.resource, event.sequence);
        assert!(before < Some(event.sequence), "{event:?} came after {before:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_to_be_forgotten_and_its_redaction_are_not_replayed() {
    let story = Replaying::start(Cell::shared(), 8).await;
    let redact = Event { resource: 900, sequence: 1 };
    let body = format!("{{\"shop_domain\":\"{}\"}}", shop::domain(2));
    let webhook = shop::webhook(2, "shop/redact", redact).body(body);
    assert_eq!(post(story.receiver.address(), &webhook).await.status, 200);
    let pending = async || story.redis.command::<u64>(&["HLEN", "{spillway}:redactions"]).await;
    until("the redaction is noted", SOON, async || pending().await == 1).await;
    let is_freed = async || story.redis.stream_len("{spillway}:in").await == 0;
    until("it is archived", SOON, is_freed).await;

    let of_shop = |event: &&Event| shop::domain(1 + event.resource % SHOPS) == shop::domain(2);
    let forgotten = story.window.iter().filter(of_shop).count();
    let expected: BTreeSet<Event> =
        story.window.iter().filter(|event| !of_shop(event)).copied().collect();
    assert!(forgotten > 0, "the shop is in the window");
    let flags = ["--all", "--from", story.from.as_str(), "--yes", "-o", "json"];
    let told = story.told(&flags).await;
    story.settled().await;
    let told: Value = serde_json::from_str(told.lines().last().expect("a line")).expect("JSON");
    assert!(told["redacted"].as_u64().expect("a number") >= forgotten as u64, "{told}");
    // An object that holds nothing but such a redaction is not even read.
    assert!(told["kept_back"].as_u64() <= Some(1), "{told}");
    let replayed: BTreeSet<Event> = story.replayed().into_iter().collect();
    assert!(replayed.is_superset(&expected), "others are replayed");
    assert!(!replayed.iter().any(|event| of_shop(&event)), "somebody forgotten is replayed");
    assert!(!replayed.contains(&redact), "it asks to forget twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kafka_producer_writes_a_window_again_and_marks_each_record() {
    let story = Replaying::start(Cell::shared(), 4).await;
    let kafka = story.cell.kafka().await;
    kafka.topic(TOPIC, 2, &[]).await;
    let producer = story.cell.kafka_producer(&kafka, &[]);
    producer.ready().await;
    // The consumer is new: it has settled what was before this one.
    let live = Event { resource: 901, sequence: 1 };
    let webhook = shop::webhook(1, "products/update", live);
    assert_eq!(post(story.receiver.address(), &webhook).await.status, 200);
    let topic = Topic::records(kafka.clients(), TOPIC, 2);
    topic.reaches(1, SOON).await;
    let is_freed = async || story.redis.stream_len("{spillway}:in").await == 0;
    until("all consumers have settled it", SOON, is_freed).await;

    story.told(&story.of_window(&["--consumer", "kafka", "--yes"])).await;
    topic.reaches(1 + story.window.len(), SOON).await;
    let replays = async || story.redis.stream_len("{spillway}:kafka:replays").await == 0;
    until("all replays are settled", SOON, replays).await;
    let records = topic.all();
    assert_eq!(records.len(), 1 + story.window.len(), "some were written twice");
    let replayed = records.iter().filter(|one| one.header("spillway-replayed") == Some("true"));
    let event = |one: &Record| one.header("x-shopify-webhook-id").and_then(Event::of);
    let replayed: BTreeSet<Event> = replayed.filter_map(event).collect();
    assert_eq!(replayed, story.window);
    assert!(story.replayed().is_empty(), "the backend gets nothing");
}
