//! Two downstreamers on one queue: one leads, the other is a standby and takes over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::in_flight::{COUNTED, Stock};
use stories::ledger::Ledger;
use stories::load::{Load, Running};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::until::until;
use tokio::time::sleep;

/// Promised time limit of a takeover.
const TAKEOVER: Duration = Duration::from_secs(10);

/// Time within which sent deliveries have arrived, on a busy machine.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

struct Pair {
    first: Service,
    second: Service,
    receiver: Service,
    backend: Backend,
    ledger: Arc<Ledger>,
    _redis: RedisServer,
    cell: Cell,
}

async fn pair() -> Pair {
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(rand::random_range(0..30))));
    let receiver = cell.receiver(&[]).await;
    let first = cell.downstreamer(&backend, COUNTED).await;
    until("the first owns the queue", TAKEOVER * 2, async || first.is_leader().await).await;
    let second = cell.downstreamer(&backend, COUNTED).await;
    let ledger = Arc::new(Ledger::default());
    Pair { first, second, receiver, backend, ledger, _redis: redis, cell }
}

impl Pair {
    async fn load(&self, seed: u64) -> Running {
        let running = Load::steady(seed).start(self.receiver.address(), &self.ledger);
        until("the load flows", TAKEOVER, async || self.backend.delivered() > 1000).await;
        assert!(!self.second.is_leader().await, "two leaders");
        running
    }

    /// Waits for a delivery that the first cannot have made. Returns the time until then.
    async fn taken_over(&self, story: &str, gone: Instant) -> Duration {
        // Deliveries of the first may arrive a little later; no takeover is that early.
        let after = gone + ON_ITS_WAY;
        until("the second delivers", TAKEOVER * 2, async || {
            self.backend.look(|receipts| receipts.last().is_some_and(|last| last.arrived > after))
        })
        .await;
        let took = gone.elapsed();
        say(&format!("{story}: the second delivered after {took:?}"));
        took
    }

    /// Deliveries in flight of the leader, which was just stopped while the other waits.
    async fn in_flight(&self) -> usize {
        sleep(ON_ITS_WAY).await;
        Stock::take(&self.cell, &self.backend).await.in_flight
    }

    async fn settle(&self, story: &str, running: Running, repeats_max: usize) {
        running.stop().await;
        self.ledger.delivered_to(&self.backend, Duration::from_secs(60)).await;
        let figures = check(&self.ledger, &self.backend.receipts(), &HashSet::new());
        figures.print(story);
        say(&format!("{story}: at most {repeats_max} repeats"));
        figures.expect_sound(repeats_max);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over_from_one_that_was_killed() {
    let mut pair = pair().await;
    let running = pair.load(seed("takeover after a kill", 31)).await;
    let killed = Instant::now();
    let stock = Stock::at_kill(&mut pair.first, &pair.cell, &pair.backend).await;
    let took = pair.taken_over("takeover after a kill", killed).await;
    assert!(took <= TAKEOVER, "{took:?}");
    assert!(pair.second.is_leader().await);
    pair.settle("takeover after a kill", running, stock.in_flight).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_slept_through_a_takeover_settles_nothing_and_stands_by() {
    let mut pair = pair().await;
    let running = pair.load(seed("takeover after a stop", 32)).await;
    pair.first.sigstop();
    let stopped = Instant::now();
    let in_flight_at_stop = pair.in_flight().await;
    let took = pair.taken_over("takeover after a stop", stopped).await;
    assert!(took <= TAKEOVER, "{took:?}");
    sleep(Duration::from_secs(20).saturating_sub(stopped.elapsed())).await;
    pair.first.sigcont();
    until("the first sees that it lost the queue", TAKEOVER, async || {
        pair.first.metric("spillway_leader").await == Some(0.0)
    })
    .await;
    sleep(Duration::from_secs(3)).await;
    assert!(pair.second.is_leader().await);
    assert!(pair.first.is_running(), "the one that lost goes back to standby");

    // Takeover back: the resumed process is a normal standby.
    pair.second.kill9();
    let killed = Instant::now();
    let in_flight_at_kill = pair.in_flight().await;
    let took = pair.taken_over("takeover back", killed).await;
    assert!(took <= TAKEOVER, "{took:?}");
    // When it resumes, it sends the requests that its HTTP client already held.
    let repeats_max = in_flight_at_stop + CONCURRENCY + in_flight_at_kill;
    pair.settle("takeover there and back", running, repeats_max).await;
}

/// Orders to drop this many webhooks, of which none is there any more.
async fn order_to_drop(redis: &RedisServer, webhooks: u32) {
    let script = "for ms = 1, ARGV[1] do redis.call('HSET', KEYS[1], ms .. '-0', '\\1') end";
    let count = webhooks.to_string();
    redis.command::<()>(&["EVAL", script, "1", "{spillway}:http:dropping", &count]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_to_drop_two_million_keeps_nobody_from_leading_nor_the_lease_from_being_freed() {
    let cell = Cell::alone();
    let redis = cell.redis(&["--maxmemory", "1gb"]).await;
    order_to_drop(&redis, 2_000_000).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let mut downstreamer = cell.downstreamer_starting(&backend.url(), &[]);
    until("it takes the lease", TAKEOVER, async || {
        redis.command::<bool>(&["EXISTS", "{spillway}:http:leader"]).await
    })
    .await;
    downstreamer.sigterm();
    assert!(downstreamer.exit(TAKEOVER).await.success());
    assert!(!downstreamer.output().contains("leading the consumer"), "it was too fast");
    let left: Option<String> = redis.command(&["GET", "{spillway}:http:leader"]).await;
    assert_eq!(left.unwrap_or_default(), "", "nobody else may lead for 8 s");

    downstreamer.restart();
    let ledger = Arc::new(Ledger::default());
    let running = Load::steady(seed("orders to drop", 5)).start(receiver.address(), &ledger);
    until("the load flows", TAKEOVER * 3, async || backend.delivered() > 100).await;
    running.stop().await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
}
