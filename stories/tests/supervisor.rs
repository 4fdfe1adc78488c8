//! Messages to a supervisor such as systemd: READY, WATCHDOG and STOPPING, each at the right time.

use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::{Connection, post};
use stories::preload::{LIBRARY, Number, library};
use stories::redis_server::socket_in;
use stories::service::Service;
use stories::supervisor::Supervisor;
use stories::until::{until, until_some};
use stories::way::{Trouble, Way};
use stories::webhook::Webhook;

const WITHIN: Duration = Duration::from_secs(40);
/// WatchdogSec= as passed to the process, in microseconds. It pings four times as often.
const WATCHDOG: (&str, &str) = ("WATCHDOG_USEC", "4000000");
/// Time of four pings, after which the supervisor would act.
const SILENCE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_receiver_tells_when_it_is_ready_alive_and_stopping() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let mut supervisor = Supervisor::listen(cell.directory());
    let address = supervisor.address().to_owned();
    let settings = [("NOTIFY_SOCKET", address.as_str()), WATCHDOG];
    let mut receiver = cell.receiver_starting(&settings);
    supervisor.hears("READY=1").await;
    // Ready means that it answers, not only that it listens.
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    supervisor.hears_pings(3).await;

    // A Redis that hangs is no reason to restart the receiver, with or without an append under way.
    redis.sigstop();
    let mut waiting = Connection::to(receiver.address()).await;
    waiting.write(&Webhook::any().encode()).await.unwrap();
    supervisor.hears_pings(6).await;
    waiting.answer().await.expect_later("queue_unavailable");
    redis.sigcont();
    supervisor.hears_pings(2).await;

    receiver.sigterm();
    supervisor.hears("STOPPING=1").await;
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
}

#[tokio::test]
async fn an_append_that_is_held_up_is_given_up_and_can_arrive_no_more() {
    held_up(Cell::shared(), "").await;
}

#[tokio::test]
async fn it_arrives_no_more_where_webhooks_are_spilled_either() {
    let cell = Cell::shared();
    let spill = cell.directory().join("spill").display().to_string();
    held_up(cell, &spill).await;
}

/// An append is held up for longer than any sender waits, and then passed on.
async fn held_up(cell: Cell, spill: &str) {
    let redis = cell.redis(&[]).await;
    let way = Way::to_redis(&socket_in(cell.directory()), "way");
    let mut supervisor = Supervisor::listen(cell.directory());
    let url = way.url();
    let address = supervisor.address().to_owned();
    let settings =
        [("NOTIFY_SOCKET", address.as_str()), WATCHDOG, ("REDIS_URL", &url), ("SPILL_DIR", spill)];
    let receiver = cell.receiver(&settings).await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    way.suffers(Trouble::HoldsAppends);
    let held = post(receiver.address(), &Webhook::any()).await;
    assert_eq!(held.status, 503, "nobody knows whether it was stored");
    // Redis answers all others for ten checks.
    until("it is given up", WITHIN, async || receiver.output().contains("was given up")).await;
    supervisor.hears_pings(3).await;
    let before = redis.stream_len("{spillway}:in").await;
    way.suffers(Trouble::None);
    let mut stored = 0;
    while stored < 20 {
        let answer = post(receiver.address(), &Webhook::any()).await;
        stored += u64::from(answer.status == 200);
    }
    // The held append was passed on first, to a connection that Redis had ended.
    until("all that was stored is there", WITHIN, async || {
        redis.stream_len("{spillway}:in").await >= before + stored
    })
    .await;
    until("nothing waits on the disk", WITHIN, async || {
        receiver.metric("spillway_spill_webhooks").await.unwrap_or(0.0) == 0.0
    })
    .await;
    assert_eq!(redis.stream_len("{spillway}:in").await, before + stored);
}

#[tokio::test]
async fn a_downstreamer_is_vouched_for_while_all_around_it_hangs() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::Hang);
    let receiver = cell.receiver(&[]).await;
    let mut supervisor = Supervisor::listen(cell.directory());
    let address = supervisor.address().to_owned();
    let settings = [("NOTIFY_SOCKET", address.as_str()), WATCHDOG];
    let mut downstreamer = cell.downstreamer_starting(&backend.url(), &settings);
    supervisor.hears("READY=1").await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    until("the delivery hangs", WITHIN, async || backend.count() == 1).await;
    supervisor.hears_pings(3).await;
    redis.sigstop();
    supervisor.hears_pings(3).await;
    redis.sigcont();
    // A stopped process sends no pings, so the supervisor restarts it.
    downstreamer.sigstop();
    assert!(supervisor.hears_nothing(SILENCE).await, "it pings on");
    downstreamer.sigcont();
    supervisor.hears_pings(2).await;
    downstreamer.sigterm();
    supervisor.hears("STOPPING=1").await;
    assert_eq!(downstreamer.exit(WITHIN).await.code(), Some(0));
}

#[tokio::test]
async fn a_shard_that_hangs_fails_the_liveness_probe_until_it_runs_again() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let library = library(cell.directory());
    let hung = Number::new(cell.directory().join("hung"));
    let path = hung.path();
    let settings = [(LIBRARY, library.as_str()), ("HUNG_FILE", &path), ("HUNG_THREAD", "shard 0")];
    let mut receiver = cell.receiver(&settings).await;
    let livez = async |receiver: &Service| {
        let answer = receiver.admin("/livez").await.expect("it lives");
        (answer.status, answer.text())
    };
    // A process that was suspended is not stuck, however long that was.
    receiver.sigstop();
    tokio::time::sleep(Duration::from_secs(12)).await;
    receiver.sigcont();
    assert_eq!(livez(&receiver).await, (200, "alive\n".to_owned()));
    hung.set(1);
    let stuck = until_some("the probe fails", WITHIN, async || {
        let (status, text) = livez(&receiver).await;
        (status == 503).then_some(text)
    })
    .await;
    assert!(stuck.starts_with("stuck: shard 0 has not answered for 10 s"), "{stuck}");
    hung.set(0);
    until("the probe passes", WITHIN, async || livez(&receiver).await.0 == 200).await;
    for _ in 0..10 {
        post(receiver.address(), &Webhook::any()).await.expect_stored();
    }
    receiver.sigterm();
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
}
