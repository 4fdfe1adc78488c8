//! Tests docs/upgrade.md: a queue under the earlier default prefix is not left behind. It moves
//! with the page's own commands, or stays with a setting.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::repository;
use stories::cell::{Cell, Settings};
use stories::client::post;
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::page::blocks;
use stories::redis_server::{RedisServer, socket_in};
use stories::service::Service;
use stories::shop;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
/// Default settings of an earlier version.
const OLDER: Settings<'static> = &[("REDIS_PREFIX", "spillway:")];

/// Stores one webhook of each of these resources of shop 1.
async fn feed(receiver: &Service, ledger: &Arc<Ledger>, resources: std::ops::RangeInclusive<u64>) {
    let events = resources.map(|resource| Event { resource, sequence: 1 });
    let items = events.map(|event| (event, shop::webhook(1, "orders/create", event))).collect();
    Feed::to(receiver.address(), ledger).store(items).await;
}

async fn stopped(mut service: Service) {
    service.sigterm();
    assert!(service.exit(SOON).await.success());
}

async fn dead(cell: &Cell, more: &[&str]) -> Vec<u8> {
    let listed = cell.spillway(&[&["dead", "list", "-o", "json"], more].concat()).await;
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    listed.stdout
}

/// Runs the page's commands with this cell's socket and directory. The test itself stops and starts
/// the processes.
fn move_keys(cell: &Cell) {
    let page = fs::read_to_string(repository().join("docs/upgrade.md")).expect("read the page");
    let mut blocks = blocks(&page).into_iter();
    let block = blocks.find(|block| block.text.contains("renamenx"));
    let mut commands = block.expect("the page says how to rename them").text;
    let (socket, directory) = (socket_in(cell.directory()), cell.directory().display().to_string());
    let here = [
        (
            "systemctl stop spillway-receiver.socket spillway-receiver.service spillway-downstreamer\n",
            "",
        ),
        ("systemctl stop spillway-kafka                    # if you have it\n", ""),
        ("/run/spillway/redis.sock", &socket.display().to_string()),
        ("/root/", &format!("{directory}/")),
    ];
    for (there, here) in here {
        assert!(commands.contains(there), "{there:?} on the page");
        commands = commands.replace(there, here);
    }
    let ended = Command::new("sh").args(["-euc", &commands]).output().expect("run sh");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "", "all are moved");
}

/// Makes a queue of an earlier version: ten webhooks in lanes or dead, ten that wait. All processes
/// are stopped again.
async fn filled(cell: &Cell, redis: &RedisServer, backend: &Backend) -> [Arc<Ledger>; 2] {
    backend.behave(|receipt| match Event::of(receipt.webhook_id()) {
        Some(Event { resource: ..=5, .. }) => Behaviour::status(404),
        Some(Event { resource: ..=10, .. }) => Behaviour::status(503),
        _ => Behaviour::ok(),
    });
    let receiver = cell.receiver(OLDER).await;
    let impatient = [OLDER, &[("RETRY_REFUSED_FOR", "1s"), ("PARK_AFTER", "1s")]].concat();
    let downstreamer = cell.downstreamer(backend, &impatient).await;
    let ledgers = [Arc::default(), Arc::default()];
    feed(&receiver, &ledgers[0], 1..=5).await;
    feed(&receiver, &ledgers[1], 6..=10).await;
    let others = Arc::new(Ledger::default());
    until("five are dead, and five in lanes", SOON, async || {
        feed(&receiver, &others, 100..=101).await;
        let dead: u64 = redis.command(&["XLEN", "spillway:http:dead"]).await;
        let lanes: u64 = redis.command(&["HLEN", "spillway:http:lanes"]).await;
        dead >= 5 && lanes > 0
    })
    .await;
    stopped(downstreamer).await;
    feed(&receiver, &ledgers[1], 11..=20).await;
    stopped(receiver).await;
    ledgers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_under_the_older_prefix_is_refused_then_moved() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let [_, waiting] = filled(&cell, &redis, &backend).await;
    let was_dead = dead(&cell, &["--redis-prefix", "spillway:"]).await;

    // Without the setting and without a move, both report what to do and accept nothing.
    let receiver = cell.receiver_starting(&[]);
    let downstreamer = cell.downstreamer_starting(&backend.url(), &[]);
    receiver.unready("REDIS_PREFIX=spillway:").await;
    downstreamer.unready("REDIS_PREFIX=spillway:").await;
    post(receiver.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    let keys: Vec<String> = redis.command(&["KEYS", "{spillway}:*"]).await;
    assert!(keys.is_empty(), "{keys:?}");
    stopped(receiver).await;
    stopped(downstreamer).await;

    move_keys(&cell);
    let left: Vec<String> = redis.command(&["KEYS", "spillway:*"]).await;
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(dead(&cell, &[]).await, was_dead);
    backend.behave(|_| Behaviour::ok());
    let receiver = cell.receiver(&[]).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    feed(&receiver, &waiting, 21..=30).await;
    waiting.delivered_to(&backend, SOON).await;
    until("all is settled", SOON, async || {
        redis.stream_len("{spillway}:in").await + redis.in_lanes().await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_under_the_older_prefix_goes_on_by_its_setting() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let [_, waiting] = filled(&cell, &redis, &backend).await;
    backend.behave(|_| Behaviour::ok());
    let receiver = cell.receiver(OLDER).await;
    let _downstreamer = cell.downstreamer(&backend, OLDER).await;
    feed(&receiver, &waiting, 21..=30).await;
    waiting.delivered_to(&backend, SOON).await;
    let keys: Vec<String> = redis.command(&["KEYS", "{spillway}:*"]).await;
    assert!(keys.is_empty(), "{keys:?}");
}
