//! Tests docs/backup.md: Redis' disk is lost while webhooks wait in the main stream and in lanes, and the queue is
//! restored from the archive. Everything that the archive holds and that was not delivered arrives, in order. What came
//! after the archive's end is the window: the command names its beginning.
//!
//! `make endure` wipes the disk under a load of about 1,000 webhooks a second, after 200,000 of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use stories::archive::ArchiveDirectory;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries;
use stories::cell::{Cell, Settings};
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const SOON: Duration = Duration::from_secs(120);
/// Small objects that are written soon.
const SMALL: [(&str, &str); 2] = [("ARCHIVE_OBJECT_SIZE", "64KiB"), ("ARCHIVE_MAX_DELAY", "1s")];
const KEY: &str = "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
/// The shop whose webhooks fail before the disk is lost.
const FAILING: u64 = 1;
const SHOPS: u64 = 5;
const RESOURCES: u64 = 60;
/// Difference of the clocks of a test and of Redis, on one machine.
const CLOCKS: Duration = Duration::from_millis(100);

/// A cell with an archive and two consumers: `http` gets everything, `billing` orders.
struct LossyCell {
    archive: ArchiveDirectory,
    redis: RedisServer,
    receiver: Service,
    archiver: Service,
    http: Service,
    billing: Service,
    all: Backend,
    orders: Backend,
    ledger: Arc<Ledger>,
    cell: Cell,
}

fn topic_of(event: Event) -> &'static str {
    ["orders/updated", "products/update"][event.resource as usize % 2]
}

fn shop_of(event: Event) -> u64 {
    1 + event.resource / 2 % SHOPS
}

impl LossyCell {
    async fn start(settings: Settings<'_>) -> Self {
        let cell = Cell::busy();
        let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
        let redis = cell.redis(&[]).await;
        let receiver = cell.receiver(&[]).await;
        let (all, orders) = (Backend::start().await, Backend::start().await);
        let http = cell.downstreamer(&all, &[("PARK_AFTER", "1s")]).await;
        let only = [("CONSUMER", "billing"), ("ONLY_TOPICS", "orders/*")];
        let billing = cell.downstreamer(&orders, &only).await;
        let archiver = cell.archiver(&archive.url(), &[settings, &SMALL].concat());
        for service in [&http, &billing, &archiver] {
            service.leads().await;
        }
        let ledger = Arc::new(Ledger::default());
        Self { archive, redis, receiver, archiver, http, billing, all, orders, ledger, cell }
    }

    /// Stores events of all resources, in turns.
    async fn store(&self, sequences: std::ops::RangeInclusive<u64>) {
        let events = sequences
            .flat_map(|sequence| (1..=RESOURCES).map(move |resource| Event { resource, sequence }));
        let of = |event: Event| (event, shop::webhook(shop_of(event), topic_of(event), event));
        Feed::to(self.receiver.address(), &self.ledger).store(events.map(of).collect()).await;
    }

    /// The consumers' checkpoint, if it is written.
    fn checkpoint(&self) -> Option<Value> {
        let cells = fs::read_dir(self.archive.path()).expect("an archive");
        let files = cells.filter_map(|cell| Some(cell.ok()?.path().join("consumers.json")));
        let text = files.filter_map(|file| fs::read_to_string(file).ok()).next()?;
        serde_json::from_str(text.lines().next()?).ok()
    }

    /// Waits until a checkpoint knows of a webhook of `http` in a lane.
    async fn checkpointed(&self) {
        until("a checkpoint has a lane", SOON, async || {
            let checkpoint = self.checkpoint();
            let consumers = checkpoint.as_ref().and_then(|known| known["consumers"].as_array());
            consumers.into_iter().flatten().any(|one| {
                one["name"] == "http" && one["lanes"].as_array().is_some_and(|all| !all.is_empty())
            })
        })
        .await;
    }

    /// True if nothing waits, in the main stream or in lanes.
    async fn is_settled(&self) -> bool {
        self.redis.stream_len("{spillway}:in").await == 0 && self.redis.in_lanes().await == 0
    }

    /// Events that were answered 200 and that the backend did not get.
    fn undelivered(&self) -> Vec<Event> {
        let mut stored = self.ledger.stored();
        stored.retain(|event| !self.all.has_delivered(&event.webhook_id()));
        stored
    }

    /// Kills everything, and starts an empty Redis.
    async fn lose_the_disk(&mut self) {
        self.redis.kill9();
        for service in [&mut self.archiver, &mut self.receiver, &mut self.http, &mut self.billing] {
            service.kill9();
        }
        fs::remove_dir_all(self.cell.directory().join("appendonlydir")).expect("lose the disk");
        self.redis.restart();
        self.redis.ready().await;
    }

    fn start_again(&mut self) {
        for service in [&mut self.receiver, &mut self.archiver, &mut self.http, &mut self.billing] {
            service.restart();
        }
    }

    /// Runs the command. Returns whether it succeeded, and both of its outputs.
    async fn restore(&self, arguments: &[&str], settings: Settings<'_>) -> (bool, String) {
        let (archive, redis) = (self.archive.url(), self.cell.redis_url());
        let own = [("ARCHIVE_URL", archive.as_str()), ("REDIS_URL", redis.as_str())];
        let arguments = [&["restore-from-archive"], arguments].concat();
        let output = self.cell.run("spillway", &arguments, &[&own[..], settings].concat()).await;
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&told).into_owned())
    }

    /// Runs the command, which must say `expected`.
    async fn refused(&self, arguments: &[&str], expected: &str) {
        let (is_good, told) = self.restore(arguments, &[]).await;
        assert!(!is_good && told.contains(expected), "{arguments:?}: {told}");
    }

    /// Checks that a command which was refused left only its record: processes may begin again.
    async fn holds_only_the_audit(&self) {
        let keys: Vec<String> = self.redis.command(&["KEYS", "*"]).await;
        assert_eq!(keys, ["{spillway}:audit"]);
    }

    /// Checks that a command whose begin can't be recorded holds no process off, not even for a moment.
    async fn holds_nobody_off_before_the_audit(&self) {
        let _: u64 = self.redis.command(&["DEL", "{spillway}:audit"]).await;
        let _: String = self.redis.command(&["SET", "{spillway}:audit", "no stream"]).await;
        let _: String = self.redis.command(&["CONFIG", "RESETSTAT"]).await;
        self.refused(&["--yes", "--force"], "WRONGTYPE").await;
        let calls: String = self.redis.command(&["INFO", "commandstats"]).await;
        assert!(!calls.contains("cmdstat_hset:"), "{calls}");
        let _: u64 = self.redis.command(&["DEL", "{spillway}:audit"]).await;
    }

    /// Runs the command while Redis has 64 KiB left.
    async fn refused_without_memory(&self) {
        let memory: String = self.redis.command(&["INFO", "memory"]).await;
        let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
        let used: u64 = used.and_then(|used| used.trim().parse().ok()).expect("a size");
        let little = (used + (64 << 10)).to_string();
        let _: String = self.redis.command(&["CONFIG", "SET", "maxmemory", &little]).await;
        self.refused(&["--yes", "--force"], "raise its maxmemory").await;
        let _: String = self.redis.command(&["CONFIG", "SET", "maxmemory", "500mb"]).await;
    }

    /// Starts the command and kills it once it has written something, or has ended.
    async fn restore_killed(&self) {
        let mut running = Command::new(binaries::ours("spillway"))
            .args(["restore-from-archive", "--yes", "--force"])
            .env("ARCHIVE_URL", self.archive.url())
            .env("REDIS_URL", self.cell.redis_url())
            .stdout(Stdio::null())
            .spawn()
            .expect("run spillway");
        let began = Instant::now();
        while running.try_wait().expect("look at a child").is_none() && began.elapsed() < SOON {
            if self.redis.stream_len("{spillway}:rebuild:in").await > 0 {
                break;
            }
        }
        running.kill().expect("kill a child");
        running.wait().expect("reap a child");
        let is_whole = self.redis.command::<u64>(&["EXISTS", "{spillway}:rebuild"]).await == 0;
        say(&format!("restore from an archive: killed, after its end: {is_whole}"));
    }

    /// Events in the archive. Each is there once.
    fn archived(&self) -> Vec<Event> {
        let webhooks = self.archive.webhooks();
        let ids: HashSet<&str> =
            webhooks.iter().filter_map(|webhook| webhook["spillway_id"].as_str()).collect();
        assert_eq!(ids.len(), webhooks.len(), "a webhook is archived twice");
        let event = |webhook: &Value| Event::of(webhook["webhook_id"].as_str().expect("an id"));
        webhooks.iter().map(|webhook| event(webhook).expect("an event of the test")).collect()
    }
}

/// Checks what a backend got: everything that was archived and is for it, nothing that was not sent, and after the
/// restoration each resource in order, up to its newest archived event.
fn check(name: &str, backend: &Backend, archived: &[Event], from: usize, ledger: &Ledger) {
    let mut newest: HashMap<u64, u64> = HashMap::new();
    for event in archived {
        assert!(backend.has_delivered(&event.webhook_id()), "{name}: {event:?} is lost");
        let sequence = newest.entry(event.resource).or_default();
        *sequence = event.sequence.max(*sequence);
    }
    let mut after: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    backend.look(|receipts| {
        let sent = ledger.entries();
        for (number, receipt) in receipts.iter().enumerate() {
            let event = Event::of(receipt.webhook_id()).expect("an event of the test");
            let known = sent.get(&event).expect("it was sent");
            assert_eq!(known.body_hash, receipt.body_hash, "{name}: {event:?} was altered");
            if number >= from && receipt.delivered() {
                after.entry(event.resource).or_default().push(event.sequence);
            }
        }
    });
    for (resource, sequences) in &after {
        assert!(sequences.is_sorted(), "{name}: resource {resource}: {sequences:?}");
        assert!(
            sequences.last() >= newest.get(resource),
            "{name}: {resource} ends with an old state"
        );
    }
    let again: usize = after.values().map(Vec::len).sum();
    say(&format!("{name}: {} archived, {again} delivered after the restoration", archived.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_archived_and_not_delivered_arrives_after_the_disk_was_lost() {
    let mut lossy = LossyCell::start(&[]).await;
    let failing = shop::domain(FAILING);
    lossy.all.behave(move |receipt| {
        if receipt.shop() == failing { Behaviour::status(503) } else { Behaviour::ok() }
    });
    let rounds = size(20, 400);
    lossy.store(1..=rounds).await;
    let in_lanes = async || lossy.redis.in_lanes().await > 0;
    until("a shop waits in lanes", SOON, in_lanes).await;
    lossy.checkpointed().await;
    lossy.store(rounds + 1..=2 * rounds).await;
    let stored = lossy.ledger.stored_count() as f64;
    let archived = async || lossy.archiver.metric("spillway_archived_total").await >= Some(stored);
    until("all of it is archived", SOON, archived).await;
    lossy.refused(&["--yes"], "stop all consumers").await;
    // The end of it may be in no object yet.
    lossy.store(2 * rounds + 1..=2 * rounds + 3).await;
    lossy.lose_the_disk().await;

    let archived = lossy.archived();
    let stored = lossy.ledger.stored();
    let lost = stored.len() - archived.len();
    say(&format!(
        "restore from an archive: {} stored, {lost} after the archive's end",
        stored.len()
    ));
    assert!(lost <= 3 * RESOURCES as usize, "the archive lags by {lost}");
    let (is_good, told) = lossy.restore(&[], &[]).await;
    assert!(
        is_good && told.contains("dry run") && told.contains("everything accepted up to"),
        "{told}"
    );
    assert_eq!(lossy.redis.command::<u64>(&["DBSIZE"]).await, 0, "a dry run writes nothing");
    lossy.refused(&["--cell", "00000000"], "does not hold the cell").await;
    // Its objects are new: this may be a cell that is alive.
    lossy.refused(&["--yes"], "add --force").await;
    lossy.holds_only_the_audit().await;
    lossy.holds_nobody_off_before_the_audit().await;
    lossy.refused_without_memory().await;

    lossy.restore_killed().await;
    let is_done = lossy.redis.command::<u64>(&["EXISTS", "{spillway}:cell"]).await == 1;
    if !is_done {
        let (is_good, told) = lossy.restore(&["--yes", "--force"], &[]).await;
        assert!(is_good && told.contains("restored:"), "{told}");
    }
    lossy.refused(&["--yes"], "not empty").await;
    let from = [lossy.all.count(), lossy.orders.count()];
    lossy.all.behave(|_| Behaviour::ok());
    lossy.start_again();
    lossy.receiver.ready().await;
    lossy.store(2 * rounds + 4..=2 * rounds + 5).await;
    until("all is settled", SOON, async || lossy.is_settled().await).await;

    let all = lossy.archived();
    assert!(all.len() >= archived.len() + 2 * RESOURCES as usize, "new ones are archived, too");
    let orders = |events: &[Event]| -> Vec<Event> {
        events.iter().copied().filter(|event| topic_of(*event).starts_with("orders")).collect()
    };
    check("http", &lossy.all, &all, from[0], &lossy.ledger);
    check("billing", &lossy.orders, &orders(&all), from[1], &lossy.ledger);
    let foreign = lossy.orders.look(|receipts| {
        receipts.iter().filter(|receipt| !receipt.topic().starts_with("orders/")).count()
    });
    assert_eq!(foreign, 0, "the filter holds for what is restored");
    // Their ids are those of before: one cell.
    let cells: HashSet<String> = lossy.all.look(|receipts| {
        receipts.iter().map(|receipt| receipt.spillway_id()[..8].to_owned()).collect()
    });
    assert_eq!(cells.len(), 1, "{cells:?}");
}

/// Time of which the command says that everything accepted since may be lost.
fn beginning_of_window(told: &str) -> OffsetDateTime {
    let time = told.lines().find_map(|line| Some(line.split_once("what changed since ")?.1));
    let time = time.unwrap_or_else(|| panic!("no window is named: {told}"));
    OffsetDateTime::parse(time.trim(), &Rfc3339).expect("RFC 3339")
}

/// Webhooks that a wipe cost.
struct WipeLoss {
    /// Webhooks that were answered 200 and are in no object.
    window: HashSet<Event>,
    /// Those of them that were not delivered either.
    lost: Vec<Event>,
    /// Time before the wipe since which something may be lost, as the command says.
    reach: Duration,
    /// Age of the oldest one that is lost, at the wipe.
    oldest: Duration,
}

impl WipeLoss {
    /// Finds what is lost. Nothing may be that the archive held, or that was accepted before the window.
    fn find(lossy: &LossyCell, window: HashSet<Event>, wiped: Instant, reach: Duration) -> Self {
        let lost = lossy.undelivered();
        let older = lost.iter().filter(|event| !window.contains(event)).count();
        assert_eq!(older, 0, "lost, and older than the archive's lag");
        let sent = lossy.ledger.entries();
        let accepted = lost.iter().map(|event| sent[event].accepted_at().expect("it was stored"));
        let ages = accepted.map(|accepted| wiped.saturating_duration_since(accepted));
        let oldest = ages.max().unwrap_or_default();
        assert!(oldest <= reach + CLOCKS, "lost {oldest:?} before the wipe, and not in {reach:?}");
        Self { window, lost, reach, oldest }
    }

    fn tell(&self) {
        let Self { window, lost, reach, oldest } = self;
        say(&format!(
            "restore under load: window: {} webhooks in no object, {} of them not delivered either; the command names \
             the last {reach:?} before the wipe, and the oldest lost one was {oldest:?} old",
            window.len(),
            lost.len()
        ));
        let listed: Vec<String> = lost.iter().map(|event| event.webhook_id()).collect();
        say(&format!("restore under load: lost: {}", listed.join(" ")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_wiped_under_load_costs_only_the_window_that_the_command_names() {
    let load = Load {
        shops: Some(1..1 + SHOPS),
        body_bytes: 100..=600,
        ..Load::steady(seed("restore under load", 94))
    };
    let mut lossy = LossyCell::start(&[]).await;
    let failing = shop::domain(FAILING);
    lossy.all.behave(move |receipt| {
        if receipt.shop() == failing { Behaviour::status(503) } else { Behaviour::ok() }
    });
    let began = Instant::now();
    let running = load.start(lossy.receiver.address(), &lossy.ledger);
    until("a shop waits in lanes", SOON, async || lossy.redis.in_lanes().await > 0).await;
    lossy.checkpointed().await;
    let enough = size(3_000, 200_000);
    let is_enough = async || lossy.ledger.stored_count() >= enough;
    until("enough is stored", size(SOON, 10 * SOON), is_enough).await;
    // Senders go on meanwhile, and afterwards: their last answers, and refused connections.
    let wiped = Instant::now();
    let wiped_at = OffsetDateTime::now_utc();
    lossy.lose_the_disk().await;
    let stored = lossy.ledger.stored();
    let took = wiped - began;
    let archived: HashSet<Event> = lossy.archived().into_iter().collect();
    let window: HashSet<Event> =
        stored.iter().filter(|event| !archived.contains(event)).copied().collect();
    assert!(window.len() < stored.len(), "nothing was archived");

    let restoring = Instant::now();
    let (is_good, told) = lossy.restore(&["--yes", "--force"], &[]).await;
    assert!(is_good && told.contains("restored:"), "{told}");
    let restored = restoring.elapsed();
    let from = lossy.all.count();
    lossy.all.behave(|_| Behaviour::ok());
    lossy.start_again();
    lossy.receiver.ready().await;
    let before = lossy.ledger.stored_count();
    let is_back = async || lossy.ledger.stored_count() >= before + size(500, 10_000);
    until("the load goes on", SOON, is_back).await;
    running.stop().await;
    until("all is settled", size(SOON, 2 * SOON), async || lossy.is_settled().await).await;

    check("http, under load", &lossy.all, &lossy.archived(), from, &lossy.ledger);
    let reach = (wiped_at - beginning_of_window(&told)).unsigned_abs();
    let loss = WipeLoss::find(&lossy, window, wiped, reach);
    loss.tell();
    say(
        "| answered 200 before the wipe | a second | archived | in the window | lost | restored in | answered 200 in all \
         | delivered |",
    );
    let all = lossy.ledger.stored_count();
    say(&format!(
        "| {} | {:.0} | {} | {} | {} | {restored:?} | {all} | {} |",
        stored.len(),
        stored.len() as f64 / took.as_secs_f64(),
        archived.len(),
        loss.window.len(),
        loss.lost.len(),
        all - loss.lost.len()
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_archive_needs_its_key_and_one_without_checkpoint_a_time() {
    let directory = tempfile::tempdir().expect("make a directory");
    let file = directory.path().join("archive-keys");
    fs::write(&file, KEY).expect("write a key");
    let keys = [("ARCHIVE_KEY_FILE", file.to_str().expect("a path of letters"))];
    let mut lossy = LossyCell::start(&keys).await;
    lossy.all.behave(|_| Behaviour::status(503));
    lossy.store(1..=3).await;
    let archived = async || {
        lossy.archiver.metric("spillway_archived_total").await >= Some(3.0 * RESOURCES as f64)
    };
    until("all of it is archived", SOON, archived).await;
    let written = async || lossy.checkpoint().is_some();
    until("a checkpoint is written", SOON, written).await;
    lossy.lose_the_disk().await;
    lossy.refused(&["--yes"], "ARCHIVE_KEY_FILE does not hold").await;
    lossy.holds_only_the_audit().await;
    let files: Vec<_> = fs::read_dir(lossy.archive.path())
        .expect("an archive")
        .flatten()
        .map(|cell| cell.path().join("consumers.json"))
        .collect();
    for file in &files {
        fs::write(file, "damaged").expect("damage a checkpoint");
    }
    let (is_good, told) = lossy.restore(&[], &keys).await;
    assert!(!is_good && told.contains("give --ignore-checkpoint"), "{told}");
    let without = ["--from", "1h", "--consumer", "htpp", "--ignore-checkpoint"];
    let (is_good, told) = lossy.restore(&without, &keys).await;
    assert!(is_good && told.contains("htpp: is this name right?"), "{told}");
    for file in &files {
        fs::remove_file(file).expect("an archive without checkpoint");
    }
    let (is_good, told) = lossy.restore(&["--yes"], &keys).await;
    assert!(!is_good && told.contains("no checkpoint"), "{told}");
    let since = ["--from", "1h", "--consumer", "http", "--consumer", "billing", "--yes", "--force"];
    let (is_good, told) = lossy.restore(&since, &keys).await;
    assert!(is_good, "{told}");
    let noted = lossy.redis.stream_len("{spillway}:gaps").await;
    assert_eq!(noted, 1, "what is lost is noted");
    lossy.all.behave(|_| Behaviour::ok());
    let from = lossy.all.count();
    lossy.start_again();
    lossy.ledger.delivered_to(&lossy.all, SOON).await;
    let stored = lossy.ledger.stored();
    check("without a checkpoint", &lossy.all, &stored, from, &lossy.ledger);
}
