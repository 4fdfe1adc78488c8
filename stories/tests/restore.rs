//! Tests docs/backup.md. The shipped script copies Redis under load. The page's own commands
//! restore the copy after more webhooks were accepted and delivered. The test checks what is
//! repeated, what is lost, and what is logged.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::repository;
use stories::cell::Cell;
use stories::exactly_once;
use stories::feed::Feed;
use stories::kafka_topic::Topic;
use stories::ledger::{Event, Ledger};
use stories::load::Load;
use stories::page::blocks;
use stories::redis_server::{RedisServer, socket_in};
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::shop;
use stories::until::until;

const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "shopify-webhooks";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_put_back_delivers_again_what_was_delivered_since_and_takes_more() {
    let cell = Cell::busy();
    let mut redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let mut downstreamer = cell.downstreamer(&backend, &[]).await;
    let before = Arc::new(Ledger::default());
    let load = Load::steady(seed("restore", 71));
    let running = load.start(receiver.address(), &before);
    until("the load flows", SOON, async || backend.delivered() > 500).await;

    // Deliveries fail, so that some webhooks wait while the copy is made.
    backend.behave(|_| Behaviour::status(503));
    until("some wait", SOON, async || before.stored_count() > backend.delivered() + 300).await;
    let stored = before.stored();
    let copy = back_up(&cell).await;
    let waits = |event: &&Event| !backend.has_delivered(&event.webhook_id());
    let waited = stored.iter().filter(waits).count();
    backend.behave(|_| Behaviour::ok());
    let settled = backend.delivered();
    until("more is delivered", SOON, async || backend.delivered() > settled + 500).await;
    running.stop().await;
    before.delivered_to(&backend, SOON).await;
    until("all is settled", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
    let first: HashSet<String> = ids(&backend).into_iter().collect();

    // Webhooks accepted and not delivered when the disk dies are lost with it.
    backend.behave(|_| Behaviour::status(503));
    let lost = Arc::new(Ledger::default());
    feed(&receiver, &lost, 1_000_001..=1_000_050).await;
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());
    put_back(&cell, &mut redis, &copy).await;
    receiver.ready().await;
    backend.behave(|_| Behaviour::ok());

    let known = ids(&backend).len();
    downstreamer.restart();
    let after = Arc::new(Ledger::default());
    feed(&receiver, &after, 2_000_001..=2_000_050).await;
    after.delivered_to(&backend, SOON).await;
    until("all is settled", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
    let again: Vec<String> = ids(&backend).split_off(known);
    let repeated = again.iter().filter(|id| first.contains(*id)).count();
    let delivered = first.len();
    say(&format!(
        "restore: {delivered} were delivered, {repeated} again, {waited} waited for sure"
    ));
    // They have the same ids, so that an app can recognise all of them.
    assert_eq!(repeated + 50, again.len(), "delivered under new ids");
    assert!(waited > 0 && repeated >= waited, "{waited} waited, {repeated} came again");
    for event in lost.stored() {
        assert!(!backend.has_delivered(&event.webhook_id()), "{event:?} was on no disk");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kafka_producer_that_starts_when_new_webhooks_have_come_repeats_nothing() {
    let cell = Cell::shared();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, 2, &[]).await;
    let mut redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let mut producer = cell.kafka_producer(&kafka, &[]);
    producer.ready().await;
    let topic = Topic::arrivals(kafka.clients(), TOPIC, 2);
    let ledger = Arc::new(Ledger::default());
    let empty = async |redis: &RedisServer| {
        until("all is settled", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
    };
    // State at the time of the copy: 100 webhooks after the cursor.
    producer.sigstop();
    feed(&receiver, &ledger, 1..=100).await;
    let copy = back_up(&cell).await;
    producer.sigcont();
    feed(&receiver, &ledger, 101..=200).await;
    topic.reaches(200, SOON).await;
    empty(&redis).await;
    producer.sigterm();
    assert!(producer.exit(SOON).await.success());
    put_back(&cell, &mut redis, &copy).await;
    receiver.ready().await;

    feed(&receiver, &ledger, 201..=250).await;
    producer.restart();
    topic.reaches(250, SOON).await;
    empty(&redis).await;
    assert_eq!(producer.metric("spillway_cursor_gaps_total").await, Some(0.0));
    let found = exactly_once::check(&ledger, topic.all(), &HashSet::new());
    found.print("restore, kafka");
    found.expect_exact();
}

/// Replacement of cp: an AOF rewrite finishes between the copy of the manifest and of the other
/// files. It is one that was under way or, the first time, one that starts there.
const INTERRUPTED_CP: &str = r#"#!/bin/sh
[ "$1" = -al ] || exec /bin/cp "$@"
mkdir "$3"
/bin/cp -al "$2"/*.manifest "$3"
if mkdir "$0.called" 2>/dev/null; then redis-cli -s "$SOCKET" bgrewriteaof; fi
while redis-cli -s "$SOCKET" info persistence | grep -q aof_rewrite_in_progress:1; do sleep 0.02; done
find "$2" -type f ! -name '*.manifest' -exec /bin/cp -al {} "$3" ';'
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_rewrites_get_in_the_way_of_is_whole() {
    const KEYS: u64 = 300;
    let cell = Cell::shared();
    // Delay per key in microseconds: a rewrite takes about a second.
    let mut redis = cell.redis(&["--rdb-key-save-delay", "3000"]).await;
    redis.fill(KEYS).await;
    let programs = cell.directory().join("bin");
    fs::create_dir(&programs).expect("make a directory");
    fs::write(programs.join("cp"), INTERRUPTED_CP).expect("write a program");
    fs::set_permissions(programs.join("cp"), Permissions::from_mode(0o755)).expect("set a mode");

    let _: String = redis.command(&["BGREWRITEAOF"]).await;
    let copy = back_up_with(&cell, &programs).await;
    put_back(&cell, &mut redis, &copy).await;
    assert_eq!(redis.command::<u64>(&["DBSIZE"]).await, KEYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_redis_that_is_away_is_refused() {
    let cell = Cell::shared();
    let ended = script(&cell, Path::new("/bin")).await;
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(!copy_of(&cell).exists());
}

/// Makes a copy with the shipped script.
async fn back_up(cell: &Cell) -> PathBuf {
    back_up_with(cell, Path::new("/bin")).await
}

/// Same as [`back_up`], with programs that replace the usual ones.
async fn back_up_with(cell: &Cell, programs: &Path) -> PathBuf {
    let ended = script(cell, programs).await;
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let left = fs::read_dir(cell.directory()).expect("read the directory");
    let left = left.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert!(!left.into_iter().any(|name| name.starts_with("backup.")), "links are left");
    copy_of(cell)
}

/// Runs the shipped script.
async fn script(cell: &Cell, programs: &Path) -> Output {
    let socket = socket_in(cell.directory());
    let path = std::env::var("PATH").expect("a path");
    let mut script = Command::new(repository().join("ops/backup.sh"));
    script.arg(&socket).arg(copy_of(cell)).env("SOCKET", &socket);
    script.env("PATH", format!("{}:{path}", programs.display()));
    let run = move || script.output().expect("run ops/backup.sh");
    tokio::task::spawn_blocking(run).await.expect("it was run")
}

fn copy_of(cell: &Cell) -> PathBuf {
    cell.directory().join("copy")
}

/// Kills Redis and replaces its data by the copy.
async fn put_back(cell: &Cell, redis: &mut RedisServer, copy: &Path) {
    redis.kill9();
    let commands = commands_of_the_page(cell, copy);
    let ended = Command::new("sh").args(["-euc", &commands]).output().expect("run sh");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    redis.restart();
    redis.ready().await;
}

/// The commands of docs/backup.md, with the paths and the user of this cell. The test itself stops
/// and starts Redis.
fn commands_of_the_page(cell: &Cell, copy: &Path) -> String {
    let page = fs::read_to_string(repository().join("docs/backup.md")).expect("read the page");
    let mut blocks = blocks(&page).into_iter();
    let block = blocks.find(|block| block.text.contains("systemctl start spillway-redis"));
    let mut commands = block.expect("the page says how to put it back").text;
    let (copy, data) = (copy.display().to_string(), cell.directory().display().to_string());
    let here = [
        ("systemctl stop spillway-redis\n", ""),
        ("systemctl start spillway-redis\n", ""),
        ("/backup/spillway-2026-11-21", &copy),
        ("/var/lib/spillway", &data),
        ("chown -R spillway: ", "chown -R $(id -un): "),
    ];
    for (there, here) in here {
        assert!(commands.contains(there), "{there:?} on the page");
        commands = commands.replace(there, here);
    }
    commands
}

/// Stores one webhook of each of these resources.
async fn feed(receiver: &Service, ledger: &Arc<Ledger>, resources: std::ops::RangeInclusive<u64>) {
    let events = resources.map(|resource| Event { resource, sequence: 1 });
    let items = events.map(|event| (event, shop::webhook(1, "orders/create", event))).collect();
    Feed::to(receiver.address(), ledger).store(items).await;
}

fn ids(backend: &Backend) -> Vec<String> {
    backend.look(|receipts| {
        let taken = receipts.iter().filter(|receipt| receipt.delivered());
        taken.map(|receipt| receipt.spillway_id().to_owned()).collect()
    })
}
