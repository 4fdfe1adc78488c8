//! 503: the queue cannot accept the webhook now.

use std::time::{Duration, Instant};

use stories::cell::Cell;
use stories::client::{Connection, post, send};
use stories::until::until;
use stories::webhook::Webhook;

#[tokio::test]
async fn a_queue_known_to_be_absent_is_503_before_the_body() {
    let cell = Cell::shared();
    let mut receiver = cell.receiver_starting(&[]);
    receiver.unready("").await;
    let began = Instant::now();
    let head_only = Webhook::any().head(1000);
    send(receiver.address(), &head_only).await.expect_later("queue_unavailable");
    // At once, without waiting for `ACK_TIMEOUT`.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(receiver.is_running());
}

#[tokio::test]
async fn a_queue_that_dies_is_503_and_one_that_returns_is_used() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let mut connection = Connection::to(receiver.address()).await;
    connection.post(&Webhook::any()).await.expect_stored();
    redis.kill9();
    post(receiver.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    redis.restart();
    redis.ready().await;
    until("webhooks are stored again", Duration::from_secs(20), async || {
        post(receiver.address(), &Webhook::any()).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_evicts_is_refused() {
    let cell = Cell::shared();
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = cell.redis(&evicting).await;
    let mut receiver = cell.receiver_starting(&[]);
    receiver.unready("maxmemory-policy").await;
    post(receiver.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    assert!(receiver.is_running());
    redis.command::<String>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    receiver.ready().await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
}

#[tokio::test]
async fn a_queue_that_is_not_durable_is_refused_where_durability_is_required() {
    let cell = Cell::shared();
    let _redis = cell.redis(&["--appendfsync", "everysec"]).await;
    let strict = cell.receiver_starting(&[]);
    strict.unready("appendfsync").await;
    post(strict.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    let lenient = cell.receiver(&[("REQUIRE_DURABLE", "false")]).await;
    post(lenient.address(), &Webhook::any()).await.expect_stored();
    assert_eq!(lenient.metric("spillway_durability").await, Some(1.0));
}

#[tokio::test]
async fn a_queue_whose_first_aof_is_not_written_yet_is_refused() {
    let cell = Cell::shared();
    let redis = cell.redis(&["--appendonly", "no"]).await;
    let receiver = cell.receiver_starting(&[]);
    receiver.unready("appendonly").await;
    // A kill would lose new webhooks, because Redis writes them to other files than those it reads
    // at a start.
    redis.fill(3_000).await;
    for (setting, value) in [("rdb-key-save-delay", "2000"), ("appendonly", "yes")] {
        redis.command::<String>(&["CONFIG", "SET", setting, value]).await;
    }
    let is_rewriting = async || {
        let said: String = redis.command(&["INFO", "persistence"]).await;
        said.contains("aof_enabled:1") && said.contains("aof_rewrite_in_progress:1")
    };
    let mut refused = 0;
    loop {
        let answer = post(receiver.address(), &Webhook::any()).await;
        if answer.status == 200 {
            break;
        }
        answer.expect_later("queue_unavailable");
        refused += 1;
    }
    assert!(!is_rewriting().await, "answered 200 after {refused}");
    assert!(refused > 10, "{refused}: the rewrite takes six seconds");
    receiver.ready().await;
}

#[tokio::test]
async fn durability_that_a_running_redis_loses_is_logged_while_the_receiver_stays_ready() {
    let cell = Cell::shared();
    let redis = cell.redis(&["--maxmemory", "100mb"]).await;
    let receiver = cell.receiver(&[("REQUIRE_DURABLE", "false")]).await;
    let is_logged = |words: &str| receiver.output().contains(words);
    assert!(!is_logged("appendfsync always"));
    redis.command::<String>(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
    let within = Duration::from_secs(20);
    until("it is warned of", within, async || is_logged("appendfsync always")).await;
    assert!(receiver.is_ready().await);
    redis.command::<String>(&["CONFIG", "SET", "appendfsync", "always"]).await;
    until("its end is logged", within, async || is_logged("durability is as required")).await;
}

#[tokio::test]
async fn a_refusal_keeps_the_connection_if_the_body_came_and_says_close_if_it_did_not() {
    let cell = Cell::shared();
    let receiver = cell.receiver_starting(&[]);
    receiver.unready("").await;
    let mut connection = Connection::to(receiver.address()).await;
    for _ in 0..3 {
        let answer = connection.post(&Webhook::any().body("{".repeat(20_000))).await;
        answer.expect_later("queue_unavailable");
        assert_eq!(answer.headers.text("connection"), None);
    }
    let began = Instant::now();
    let answer = send(receiver.address(), &Webhook::any().head(1000)).await;
    answer.expect_later("queue_unavailable");
    assert_eq!(answer.headers.text("connection"), Some("close"));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}
