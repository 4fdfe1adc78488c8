//! A Redis with a replica and a Sentinel: when the Redis dies, the replica takes over and all
//! processes find it.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::binaries;
use stories::cell::Cell;
use stories::check::check;
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::port;
use stories::process::{Process, Recipe};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::seed;
use stories::until::until;

const SOON: Duration = Duration::from_secs(30);

/// Starts one Sentinel, with a quorum of one.
fn sentinel(cell: &Cell, port: u16, master: u16) -> Process {
    let directory = cell.directory().to_path_buf();
    let conf = directory.join("sentinel.conf");
    let settings = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor cell 127.0.0.1 {master} 1\n\
         sentinel down-after-milliseconds cell 1000\nsentinel failover-timeout cell 5000\n",
        directory.display()
    );
    fs::write(&conf, settings).expect("write sentinel.conf");
    let recipe = Recipe {
        name: "sentinel".to_owned(),
        program: binaries::redis_server(),
        arguments: vec![conf.into(), "--sentinel".into()],
        environment: Vec::new(),
        directory,
        sockets: Vec::new(),
    };
    recipe.start()
}

/// `INFO replication` of a Redis; empty while a change of its role closes the connection.
async fn replication(redis: &RedisServer) -> String {
    redis.try_command(&["INFO", "replication"]).await.unwrap_or_default()
}

async fn is_in_step(replica: &RedisServer) -> bool {
    let info = replication(replica).await;
    info.contains("master_link_status:up") && info.contains("master_sync_in_progress:0")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_and_refuses_only_what_was_on_its_way() {
    let (cell, other) = (Cell::busy(), Cell::beside());
    let ports = [port::free().port(), port::free().port(), port::free().port()];
    let [port, other_port, sentinel_port] = ports.map(|port| port.to_string());
    let mut master = cell.redis(&["--port", &port, "--bind", "127.0.0.1"]).await;
    let of = format!("127.0.0.1 {port}");
    let replica =
        other.redis(&["--port", &other_port, "--bind", "127.0.0.1", "--replicaof", &of]).await;
    until("the replica is in step", SOON, async || is_in_step(&replica).await).await;
    let _sentinel = sentinel(&cell, ports[2], ports[0]);

    // Nothing listens on the first address, so the next one is used.
    let nobody = port::free();
    let url = format!("redis+sentinel://{nobody},127.0.0.1:{sentinel_port}/cell");
    let spill = cell.directory().join("spill");
    let spill = spill.to_str().expect("a path of letters");
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[("REDIS_URL", &url), ("SPILL_DIR", spill)]).await;
    let downstreamer = cell.downstreamer(&backend, &[("REDIS_URL", &url)]).await;
    until("the downstreamer owns the queue", SOON, async || downstreamer.is_leader().await).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load::steady(seed("failover", 91));
    let running = load.start(receiver.address(), &ledger);
    until("webhooks are delivered", SOON, async || backend.delivered() > 300).await;

    master.kill9();
    let killed = Instant::now();
    until("the replica is the master", SOON, async || {
        replication(&replica).await.contains("role:master")
    })
    .await;
    let elected = killed.elapsed();
    until("webhooks go to Redis directly", SOON, async || {
        receiver.metric("spillway_spilling").await == Some(0.0)
    })
    .await;
    say(&format!("failover: elected after {elected:?}, direct after {:?}", killed.elapsed()));
    let stored = ledger.stored_count();
    until("more is stored", SOON, async || ledger.stored_count() > stored + 300).await;
    running.stop().await;

    let refused = ledger.count(Outcome::Later);
    assert!(refused as u64 <= load.connections, "{refused} were refused");
    let held = || {
        let lost = check(&ledger, &backend.receipts(), &HashSet::new()).lost;
        u64::try_from(lost).unwrap_or(u64::MAX)
    };
    // Webhooks that the dead Redis confirmed but did not replicate are lost: at most one pack per
    // core.
    until("it is delivered", SOON, async || held() <= load.connections).await;
    until("all is settled", SOON, async || replica.stream_len("{spillway}:in").await == 0).await;
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("failover");
    assert_eq!((figures.invented, figures.altered), (0, 0), "{figures:?}");
    assert!(figures.lost as u64 <= load.connections, "{figures:?}");
}
