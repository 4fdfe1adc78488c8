//! Suppression: an update that shows what was delivered last is dropped, and no state is lost.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::{Webhook, rfc3339};
use time::OffsetDateTime;

const SOON: Duration = Duration::from_secs(120);
const NOON: i64 = 1_767_268_800;
const TOPICS: (&str, &str) = ("SUPPRESS_TOPICS", "products/update");
const DROP: (&str, &str) = ("STALE_UPDATES", "drop");
const ROUNDS: u64 = 10;

/// An update of a product that shows a state, at a second of its own.
fn update(event: Event, state: &str, second: u64) -> (Event, Webhook) {
    let Event { resource, .. } = event;
    let second = i64::try_from(second).expect("a small number");
    let moment = OffsetDateTime::from_unix_timestamp(NOON + second).expect("a time of this year");
    let at = rfc3339(moment);
    let fill = "x".repeat(300);
    let body = format!(
        r#"{{"id":{resource},"title":"{state}","fill":"{fill}","updated_at":"{at}","variants":[{{"id":1,"updated_at":"{at}"}}]}}"#
    );
    (event, shop::webhook(resource % 10, "products/update", event).body(body))
}

/// True if the product changes with this round. In the other rounds, only its time does.
fn changes(product: u64, round: u64) -> bool {
    round == 1 || (product + round) % ROUNDS < 2
}

/// State of a product after a round. Each product returns to its first state now and then.
fn state(product: u64, round: u64) -> String {
    let changed = (1..=round).filter(|one| changes(product, *one)).count();
    format!("state {}", changed % 2)
}

/// A cell that suppresses updates.
struct App {
    redis: RedisServer,
    backend: Backend,
    feed: Feed,
    downstreamer: Service,
    _receiver: Service,
    cell: Cell,
}

impl App {
    async fn start(cell: Cell, settings: Settings<'_>) -> Self {
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        let receiver = cell.receiver(&[]).await;
        let downstreamer = cell.downstreamer(&backend, settings).await;
        downstreamer.leads().await;
        let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
        Self { redis, backend, feed, downstreamer, _receiver: receiver, cell }
    }

    /// Waits until everything is settled.
    async fn empty(&self) {
        until("everything is settled", SOON, async || {
            self.redis.stream_len("{spillway}:in").await == 0
                && self.redis.stream_len("{spillway}:http:replays").await == 0
        })
        .await;
    }

    /// Stores updates of the first product, one by one: number, state and second of each.
    async fn store(&self, updates: &[(u64, &str, u64)]) {
        let updates = updates.iter().map(|(sequence, state, second)| {
            update(Event { resource: 1, sequence: *sequence }, state, *second)
        });
        self.feed.store_in_turn(updates.collect()).await;
        self.empty().await;
    }

    /// Numbers of the updates that the backend was sent.
    fn arrived(&self) -> Vec<u64> {
        self.backend.look(|all| all.iter().map(|one| one.event().sequence).collect())
    }

    async fn count(&self, metric: &str) -> u64 {
        self.downstreamer.metric(metric).await.map_or(0, |count| count as u64)
    }

    async fn explained(&self, sequence: u64) -> String {
        let id = Event { resource: 1, sequence }.webhook_id();
        let output = self.cell.spillway(&["explain", &id]).await;
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_flood_of_updates_only_changes_are_delivered() {
    let products = size(1_000, 10_000);
    let mut app = App::start(Cell::busy(), &[TOPICS, DROP]).await;
    let all = (1..=ROUNDS).flat_map(|round| (1..=products).map(move |product| (product, round)));
    let began = Instant::now();
    let flood = all.clone().map(|(product, round)| {
        let event = Event { resource: product, sequence: round };
        update(event, &state(product, round), round)
    });
    app.feed.store(flood.collect()).await;
    app.empty().await;

    let changed: BTreeSet<(u64, u64)> =
        all.filter(|(product, round)| changes(*product, *round)).collect();
    let events = app.backend.look(|all| all.iter().map(|one| one.event()).collect::<Vec<Event>>());
    let arrived: BTreeSet<(u64, u64)> =
        events.iter().map(|event| (event.resource, event.sequence)).collect();
    let sent = products * ROUNDS;
    let dropped = sent - changed.len() as u64;
    say(&format!(
        "suppress: {sent} updates, {} delivered, {dropped} dropped, {:?}",
        events.len(),
        began.elapsed()
    ));
    assert!(dropped * 10 > sent * 7, "{dropped} of {sent} show nothing new");
    assert_eq!(events.len(), arrived.len(), "nothing is repeated");
    assert!(arrived == changed, "other updates than those with a change arrived");
    assert_eq!(app.count("spillway_suppressed_total").await, dropped);
    assert_eq!(app.count("spillway_stale_total").await, 0);
    let last: HashMap<u64, u64> =
        events.iter().map(|event| (event.resource, event.sequence)).collect();
    assert_eq!(last.len() as u64, products);
    for (product, round) in last {
        assert_eq!(state(product, round), state(product, ROUNDS), "last state of {product}");
    }

    // Another leader knows no state. It delivers one more update, and drops the next.
    app.downstreamer.kill9();
    app.downstreamer.restart();
    let again = |round| {
        let event = move |product| Event { resource: product, sequence: round };
        (1..=10).map(move |product| update(event(product), &state(product, ROUNDS), round))
    };
    app.feed.store(again(ROUNDS + 1).collect()).await;
    app.empty().await;
    assert_eq!(app.backend.count(), events.len() + 10);
    app.feed.store(again(ROUNDS + 2).collect()).await;
    app.empty().await;
    assert_eq!(app.backend.count(), events.len() + 10, "the new leader knows them by now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_is_explained() {
    let app = App::start(Cell::shared(), &[TOPICS, DROP]).await;
    app.store(&[(1, "a", 10), (2, "a", 20), (3, "b", 15), (4, "b", 30), (5, "a", 25)]).await;
    assert_eq!(app.arrived(), [1, 4]);
    let told = app.explained(2).await;
    assert!(told.contains("showed the state that was delivered last"), "{told}");
    for older in [3, 5] {
        let told = app.explained(older).await;
        assert!(told.contains("was older than an update"), "{told}");
    }
    // Shopify sends the old ones again, because it received no answer.
    app.store(&[(2, "a", 20), (3, "b", 15)]).await;
    assert_eq!(app.arrived(), [1, 4]);
    let told = app.explained(3).await;
    assert!(told.contains("was dropped as a duplicate of"), "{told}");
    assert_eq!(app.count("spillway_duplicates_total").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_update_is_delivered_unless_that_is_set() {
    let app = App::start(Cell::shared(), &[TOPICS]).await;
    app.store(&[(1, "b", 20), (2, "a", 10), (3, "a", 30), (4, "a", 40)]).await;
    // The backend may have ignored the second, so the third is sent.
    assert_eq!(app.arrived(), [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_and_its_replay_leave_nothing_known() {
    let app = App::start(Cell::shared(), &[TOPICS, DROP]).await;
    app.backend.behave(|one| match one.event().sequence {
        2 => Behaviour::status(422),
        _ => Behaviour::ok(),
    });
    app.store(&[(1, "a", 10), (2, "b", 20), (3, "a", 30), (4, "a", 40)]).await;
    assert_eq!(app.arrived(), [1, 2, 3], "the backend may have acted on the second");
    app.backend.behave(|_| Behaviour::ok());
    let replay = app.cell.spillway(&["dead", "replay", "--all", "--yes"]).await;
    assert!(replay.status.success(), "{replay:?}");
    app.empty().await;
    app.store(&[(5, "a", 50), (6, "a", 60)]).await;
    assert_eq!(app.arrived(), [1, 2, 3, 2, 5], "the replay is not the last state");
}

#[tokio::test]
async fn topics_that_may_not_be_suppressed_are_refused() {
    let cell = Cell::shared();
    let check = async |settings: &[(&str, &str)]| {
        let base = [
            ("REDIS_URL", "unix:///nowhere/redis.sock"),
            ("DOWNSTREAM_APP_URL", "http://127.0.0.1:9/"),
        ];
        let output = cell.run("downstreamer", &["--check"], &[&base[..], settings].concat()).await;
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for topic in ["products/create", "products/delete", "shop/redact", "orders/paid"] {
        let (code, errors) = check(&[("SUPPRESS_TOPICS", topic)]).await;
        assert_eq!(code, Some(78), "{topic}: {errors}");
        assert!(errors.contains("SUPPRESS_TOPICS") && errors.contains(topic), "{errors}");
    }
    let (code, errors) = check(&[TOPICS, ("ORDER_BY", "shop")]).await;
    assert!(code == Some(78) && errors.contains("ORDER_BY=resource"), "{errors}");
    let (code, errors) = check(&[DROP]).await;
    assert!(code == Some(78) && errors.contains("STALE_UPDATES"), "{errors}");
    let (code, errors) = check(&[TOPICS, DROP]).await;
    assert_eq!(code, Some(0), "{errors}");
}
