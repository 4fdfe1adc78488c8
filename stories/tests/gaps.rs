//! Gaps: after real faults, an operator finds the shops and topics of which webhooks may be missing.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use stories::cell::{Cell, Settings};
use stories::client::post;
use stories::ledger::Event;
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use stories::webhook::{Webhook, now};

const SOON: Duration = Duration::from_secs(60);
/// Short, so that a story needs not wait for an hour. What is collected is written four times as often.
const SILENT_AFTER: (&str, &str) = ("SILENT_AFTER", "200ms");
const ORDERS: &str = "orders/create";
const PRODUCTS: &str = "products/update";

/// A cell whose receiver notes gaps.
struct Noting {
    redis: RedisServer,
    receiver: Service,
    sent: u64,
    cell: Cell,
}

impl Noting {
    async fn start(options: &[&str], settings: Settings<'_>) -> Self {
        let cell = Cell::shared();
        let redis = cell.redis(options).await;
        let receiver = cell.receiver(&[settings, &[SILENT_AFTER]].concat()).await;
        Self { redis, receiver, sent: 0, cell }
    }

    fn next(&mut self, shop: u64, topic: &str) -> Webhook {
        self.sent += 1;
        shop::webhook(shop, topic, Event { resource: self.sent, sequence: 1 })
    }

    /// Posts a webhook. Returns the status of the answer.
    async fn post(&mut self, shop: u64, topic: &str) -> u16 {
        let webhook = self.next(shop, topic);
        post(self.receiver.address(), &webhook).await.status
    }

    /// Waits until the rhythm of so many shops and topics is in Redis.
    async fn known(&self, pairs: u64) {
        let redis = &self.redis;
        until("the rhythm is written", SOON, async || {
            redis.command::<u64>(&["HLEN", "{spillway}:rhythm"]).await >= pairs
        })
        .await;
    }

    /// Output of `spillway gaps`, which must succeed.
    async fn told(&self, arguments: &[&str]) -> String {
        let silent_after = ["--silent-after", SILENT_AFTER.1];
        let output = self.cell.spillway(&[&["gaps"], &silent_after[..], arguments].concat()).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Gaps with this cause.
    async fn gaps(&self, cause: &str) -> Vec<Gap> {
        let told = self.told(&["-o", "json"]).await;
        let gaps = told.lines().map(|line| Gap::of(&serde_json::from_str(line).expect("JSON")));
        gaps.filter(|gap| gap.cause == cause).collect()
    }

    /// Waits for a gap with this cause, of a shop; an empty one is any shop.
    async fn gap(&self, cause: &str, shop: &str) -> Gap {
        let mut found = None;
        until(&format!("{cause}: {shop}"), SOON, async || {
            found = self.gaps(cause).await.into_iter().find(|gap| gap.shop == shop);
            found.is_some()
        })
        .await;
        found.expect("it was found")
    }
}

#[derive(Debug)]
struct Gap {
    shop: String,
    topic: String,
    from: String,
    to: String,
    cause: String,
}

impl Gap {
    fn of(object: &Value) -> Self {
        let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let [shop, topic, from] = ["shop", "topic", "from"].map(text);
        Self { shop, topic, from, to: text("to"), cause: text("cause") }
    }

    /// True if a time, as RFC 3339 in UTC, lies in the gap.
    fn has(&self, time: &str) -> bool {
        // Fractions of a second are written only where there are some: compare whole seconds.
        let second = |time: &str| time.get(..19).unwrap_or_default().to_owned();
        second(&self.from) <= second(time) && second(time) <= second(&self.to)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_while_redis_was_full_is_listed_by_shop_and_topic() {
    let mut noting = Noting::start(&[], &[]).await;
    for (shop, topic) in [(1, ORDERS), (1, PRODUCTS), (2, ORDERS)] {
        assert_eq!(noting.post(shop, topic).await, 200);
    }
    noting.known(3).await;
    noting.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
    // The first ones find out that Redis is full.
    let mut refused = 0;
    while refused < 10 {
        refused += u64::from(noting.post(1, ORDERS).await == 503);
    }
    let refused_at = now();
    assert_eq!(noting.post(1, ORDERS).await, 503);
    // Nobody has verified that this shop exists.
    assert_eq!(noting.post(77, ORDERS).await, 503);
    // The first of them is noted at once, and the others once they ended.
    until("the last refusal is listed", SOON, async || {
        let gap = noting.gap("refused", &shop::domain(1)).await;
        assert_eq!(gap.topic, ORDERS);
        gap.has(&refused_at)
    })
    .await;
    assert_eq!(noting.gap("refused", "").await.topic, "", "any shop, any topic");
    let all = noting.gaps("refused").await;
    assert_eq!(all.len(), 2, "what was stored is no gap: {all:?}");
    let csv = noting.told(&["--csv", "--shop", &shop::domain(1)]).await;
    assert!(csv.starts_with("shop,topic,from,to,cause\r\n"), "{csv}");
    let line = format!("{},{ORDERS},", shop::domain(1));
    assert!(csv.lines().any(|one| one.starts_with(&line) && one.ends_with(",refused")), "{csv}");
    assert!(!csv.contains(&shop::domain(2)), "{csv}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_noted_although_the_times_of_acceptance_can_not_be_written() {
    let mut noting = Noting::start(&[], &[]).await;
    assert_eq!(noting.post(1, ORDERS).await, 200);
    noting.known(1).await;
    // Another type: neither these times nor the rhythm can be written.
    noting.redis.command::<u64>(&["LPUSH", "{spillway}:other", "x"]).await;
    noting.redis.command::<()>(&["RENAME", "{spillway}:other", "{spillway}:gaps:accepting"]).await;
    noting.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
    while noting.post(1, ORDERS).await != 503 {}
    until("the refusal is noted", SOON, async || {
        let notes: Vec<(String, Vec<String>)> =
            noting.redis.command(&["XRANGE", "{spillway}:gaps", "-", "+"]).await;
        notes.iter().any(|(_, fields)| fields[1].contains("refused"))
    })
    .await;
    let warnings = || {
        let logged = noting.receiver.output();
        logged.matches("the times in which webhooks are accepted can't be written").count()
    };
    until("the failure is logged", SOON, async || warnings() > 0).await;
    assert_eq!(warnings(), 1, "once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_lost_its_last_second_leaves_a_gap() {
    let mut noting = Noting::start(&[], &[("REQUIRE_DURABLE", "false")]).await;
    assert_eq!(noting.post(1, ORDERS).await, 200);
    noting.known(1).await;
    let log = append_only_file(noting.cell.directory());
    let synced = fs::metadata(&log).expect("the AOF").len();
    noting.redis.command::<()>(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
    let lost_at = now();
    assert_eq!(noting.post(1, ORDERS).await, 200);
    noting.redis.kill9();
    // What had not reached the disk is gone, as after a power failure.
    let file = OpenOptions::new().write(true).open(&log).expect("the AOF");
    file.set_len(synced).expect("cut the AOF");
    noting.redis.restart();
    noting.redis.ready().await;
    assert_eq!(noting.redis.stream_len("{spillway}:in").await, 1, "one of two is lost");
    let gap = noting.gap("lost", "").await;
    assert!(gap.has(&lost_at), "{lost_at}: {gap:?}");
    noting.receiver.ready().await;
    assert_eq!(noting.post(1, ORDERS).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_a_redis_that_syncs_each_write_is_no_gap() {
    let mut noting = Noting::start(&[], &[]).await;
    assert_eq!(noting.post(1, ORDERS).await, 200);
    noting.known(1).await;
    let run = async |noting: &Noting| {
        noting.redis.command::<Option<String>>(&["GET", "{spillway}:gaps:run"]).await
    };
    let before = run(&noting).await;
    assert!(before.is_some());
    noting.redis.kill9();
    noting.redis.restart();
    noting.redis.ready().await;
    until("the new run is noted", SOON, async || run(&noting).await != before).await;
    noting.receiver.ready().await;
    assert_eq!(noting.post(1, PRODUCTS).await, 200);
    noting.known(2).await;
    assert!(noting.gaps("lost").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_falls_silent_is_listed_until_after_it_comes_again() {
    let mut noting = Noting::start(&[], &[]).await;
    let silent = shop::domain(1);
    // A rhythm is known once it has lasted for 24 times the least silence.
    let known = Instant::now() + 30 * Duration::from_millis(200);
    while Instant::now() < known {
        for shop in [1, 2] {
            assert_eq!(noting.post(shop, ORDERS).await, 200);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The receiver restarts in the middle of the silence.
    noting.receiver.kill9();
    noting.receiver.restart();
    noting.receiver.ready().await;
    let began = Instant::now();
    let mut gap = None;
    while gap.is_none() {
        assert!(began.elapsed() < SOON, "no silence is found");
        assert_eq!(noting.post(2, ORDERS).await, 200);
        gap = noting.gaps("silent").await.into_iter().find(|gap| gap.shop == silent);
    }
    let lasting = gap.expect("it was found");
    assert_eq!(lasting.topic, ORDERS);
    assert_eq!(noting.post(1, ORDERS).await, 200);
    until("the end of the silence is noted", SOON, async || {
        let notes: Vec<(String, Vec<String>)> =
            noting.redis.command(&["XRANGE", "{spillway}:gaps", "-", "+"]).await;
        notes.iter().any(|(_, fields)| fields[1].contains(&silent))
    })
    .await;
    let ended = noting.gap("silent", &silent).await;
    assert_eq!(ended.from, lasting.from, "a restart does not cut it");
    assert!(ended.to >= lasting.to || ended.has(&lasting.to), "{lasting:?} {ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_that_end_with_their_receiver_are_logged_and_covered_by_the_time_without_one() {
    let mut noting = Noting::start(&[], &[]).await;
    assert_eq!(noting.post(1, ORDERS).await, 200);
    noting.known(1).await;
    noting.redis.kill9();
    let mut refused_at = now();
    while noting.post(1, ORDERS).await != 503 {
        refused_at = now();
    }
    noting.receiver.sigterm();
    noting.receiver.exit(SOON).await;
    let logged = noting.receiver.output();
    assert!(logged.contains("will not list the shops and topics of these refusals"), "{logged}");
    noting.redis.restart();
    noting.redis.ready().await;
    noting.receiver.restart();
    noting.receiver.ready().await;
    let gap = noting.gap("down", "").await;
    assert!(gap.topic.is_empty() && gap.has(&refused_at), "{refused_at}: {gap:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_lost_what_came_by_the_overflow_leaves_a_gap() {
    let spill = tempfile::tempdir().expect("make a directory");
    let directory = spill.path().to_str().expect("a path of letters");
    let mut noting = Noting::start(&[], &[("SPILL_DIR", directory)]).await;
    assert_eq!(noting.post(1, ORDERS).await, 200);
    noting.known(1).await;
    until("it is stored", SOON, async || noting.redis.stream_len("{spillway}:in").await == 1).await;
    let log = append_only_file(noting.cell.directory());
    let older = fs::metadata(&log).expect("the AOF").len();
    let ends = |noting: &Noting| noting.receiver.output().matches("overflow is restored").count();
    let before = ends(&noting);
    noting.redis.kill9();
    let mut spilled_at = now();
    while noting.post(1, ORDERS).await != 200 {
        spilled_at = now();
    }
    noting.redis.restart();
    noting.redis.ready().await;
    until("the overflow is restored", SOON, async || ends(&noting) > before).await;
    assert_eq!(noting.redis.stream_len("{spillway}:in").await, 2);
    // An older copy is loaded. Redis syncs each write, and has a socket: a restart alone is no gap.
    noting.redis.kill9();
    let file = OpenOptions::new().write(true).open(&log).expect("the AOF");
    file.set_len(older).expect("cut the AOF");
    noting.redis.restart();
    noting.redis.ready().await;
    let gap = noting.gap("lost", "").await;
    assert!(gap.has(&spilled_at), "{spilled_at}: {gap:?}");
}

/// The file that Redis appends to.
fn append_only_file(directory: &Path) -> PathBuf {
    let files = fs::read_dir(directory.join("appendonlydir")).expect("the AOF's directory");
    let paths = files.map(|file| file.expect("a file").path());
    let mut incremental: Vec<PathBuf> =
        paths.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).collect();
    incremental.sort();
    incremental.pop().expect("an incremental AOF")
}
