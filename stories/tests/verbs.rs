//! The operators' commands: waiting webhooks are counted, dropped, paused and explained.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::feed::Feed;
use stories::latest::check_latest;
use stories::ledger::{Event, Ledger};
use stories::measure::{delivered_in, rate};
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::time::sleep_until;

const SOON: Duration = Duration::from_secs(60);
const SHOPS: u64 = 10;

/// A cell with webhooks of ten shops that wait for a backend of 16 workers.
struct App {
    backend: Backend,
    ledger: Arc<Ledger>,
    feed: Feed,
    downstreamer: Service,
    redis: RedisServer,
    _receiver: Service,
    cell: Cell,
}

impl App {
    async fn start(settings: Settings<'_>) -> Self {
        Self::start_in(Cell::busy(), settings).await
    }

    async fn start_in(cell: Cell, settings: Settings<'_>) -> Self {
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.employ(16);
        backend.behave(|_| work());
        let receiver = cell.receiver(&[]).await;
        let ledger = Arc::new(Ledger::default());
        let feed = Feed::to(receiver.address(), &ledger);
        let downstreamer = cell.downstreamer(&backend, settings).await;
        downstreamer.ready().await;
        Self { backend, ledger, feed, downstreamer, redis, _receiver: receiver, cell }
    }

    /// Stores webhooks of all shops: `resources` resources of each shop, with `events` events each.
    async fn fill(&self, resources: u64, events: u64) {
        let mut items = Vec::new();
        for sequence in 1..=events {
            for number in 0..resources * SHOPS {
                let event = Event { resource: 1 + number, sequence };
                items.push((event, shop::webhook(number % SHOPS, "products/update", event)));
            }
        }
        self.feed.store(items).await;
    }

    /// Returns the output of a command that must succeed.
    async fn told(&self, arguments: &[&str]) -> String {
        let output = self.cell.spillway(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let told = self.told(&[arguments, &["-o", "json"]].concat()).await;
        serde_json::from_str(&told).expect("JSON")
    }

    async fn empty(&self) {
        let is_empty = async || {
            let consumer = &self.json(&["status"]).await["consumers"][0];
            consumer["waiting"] == 0
        };
        until("nothing waits", size(SOON, 30 * SOON), is_empty).await;
        let left = self.redis.stream_len("{spillway}:in").await;
        assert_eq!(left, 0, "everything is freed");
    }

    async fn pauses(&self, count: f64) {
        let is_taken_in = async || self.downstreamer.metric("spillway_pauses").await == Some(count);
        until("the pauses are taken in", SOON, is_taken_in).await;
    }

    /// Number of a shop's webhooks that the backend acknowledged, each counted once.
    fn delivered_of(&self, shop: u64) -> usize {
        let domain = shop::domain(shop);
        let mut copies: HashMap<Event, usize> = HashMap::new();
        self.backend.look(|all| {
            let own = all.iter().filter(|one| one.delivered() && one.shop() == domain);
            own.for_each(|one| *copies.entry(one.event()).or_default() += 1);
        });
        copies.len()
    }
}

fn work() -> Behaviour {
    Behaviour::slowly(Duration::from_millis(20))
}

fn of_shop(shop: u64) -> impl Fn(&Receipt) -> bool + Clone {
    let domain = shop::domain(shop);
    move |receipt| receipt.shop() == domain
}

fn rows(top: &Value) -> HashMap<String, u64> {
    let row = |row: &Value| Some((row["name"].as_str()?.to_owned(), row["waiting"].as_u64()?));
    top["rows"].as_array().expect("rows").iter().filter_map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_is_dropped_whole_and_nothing_else_also_over_a_crash() {
    let each = size(60, 6_000);
    let mut app = App::start(&[]).await;
    app.told(&["pause", "--all"]).await;
    app.pauses(1.0).await;
    app.fill(each, 3).await;
    let top = app.json(&["top", "--exact"]).await;
    assert_eq!(top["waiting"], 3 * each * SHOPS);
    let counted = rows(&top);
    assert_eq!(counted.len() as u64, SHOPS);
    assert!(counted.values().all(|waiting| *waiting == 3 * each), "{counted:?}");

    // With a running consumer.
    let first = shop::domain(1);
    let unchanged = app.json(&["queue", "drop", "--shop", &first]).await;
    assert_eq!((&unchanged["dry_run"], &unchanged["dropped"]), (&true.into(), &0.into()));
    assert_eq!(unchanged["matched"], 3 * each, "without --yes");
    let dropped = app.json(&["queue", "drop", "--shop", &first, "--yes"]).await;
    say(&format!("verbs: {dropped}"));
    assert_eq!(dropped["matched"], 3 * each);
    assert_eq!(dropped["dropped"], 3 * each, "nothing was under way");
    // The order is followed by a kill at once: the next leader carries it out.
    let second = shop::domain(2);
    app.downstreamer.kill9();
    app.told(&["queue", "drop", "--shop", &second, "--yes", "--no-wait"]).await;
    app.downstreamer.restart();
    app.pauses(1.0).await;
    app.told(&["resume"]).await;
    app.empty().await;
    assert_eq!((app.delivered_of(1), app.delivered_of(2)), (0, 0));
    for shop in (0..SHOPS).filter(|shop| ![1, 2].contains(shop)) {
        assert_eq!(app.delivered_of(shop) as u64, 3 * each, "shop {shop}");
    }
    assert_eq!(app.backend.count() as u64, 3 * each * (SHOPS - 2), "requests");
    let status = app.json(&["status"]).await;
    assert_eq!(status["consumers"][0]["dropped"], 6 * each);
    let left = async || app.redis.command::<u64>(&["EXISTS", "{spillway}:http:dropping"]).await;
    until("orders are cleared away", SOON, async || left().await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_is_delivered_or_dropped_and_never_both() {
    let app = App::start(&[("PARK_AFTER", "1s")]).await;
    // Every fifth product of shop 3 always fails: its webhooks move into a lane.
    let of_three = of_shop(3);
    let fails = move |one: &Receipt| of_three(one) && one.event().resource / SHOPS % 5 == 4;
    app.backend.behave(move |one| if fails(one) { Behaviour::status(500) } else { work() });
    app.fill(150, 4).await;
    let are_aside = async || app.redis.in_lanes().await > 5;
    until("some are set aside", SOON, are_aside).await;
    let domain = shop::domain(3);
    let dropped = app.json(&["queue", "drop", "--shop", &domain, "--yes"]).await;
    app.empty().await;
    let all = app.json(&["status"]).await["consumers"][0]["dropped"].as_u64().expect("a count");
    let delivered = app.delivered_of(3);
    say(&format!("verbs: {dropped}, {all} dropped in the end, {delivered} delivered"));
    assert_eq!(all + delivered as u64, 4 * 150, "each was delivered or dropped");
    assert!(all <= dropped["matched"].as_u64().expect("a count"));
    assert_eq!(app.redis.in_lanes().await, 0);
    for shop in (0..SHOPS).filter(|shop| *shop != 3) {
        assert_eq!(app.delivered_of(shop), 4 * 150, "shop {shop}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_shop_waits_alone_over_a_restart_and_goes_on_in_order() {
    const WINDOW: Duration = Duration::from_secs(3);
    let mut app = App::start_in(Cell::alone(), &[]).await;
    app.fill(250, 3).await;
    let is_at_work = async || app.backend.delivered() > 500;
    until("it is at work", SOON, is_at_work).await;
    let window = |began: Instant| began..began + WINDOW;
    let others = |window: &std::ops::Range<Instant>| {
        let of_paused = of_shop(5);
        app.backend.look(|all| delivered_in(all, window).filter(|one| !of_paused(one)).count())
    };
    let free = window(Instant::now());
    sleep_until(free.end.into()).await;
    let free = rate(others(&free), &free);

    let domain = shop::domain(5);
    let told = app.told(&["pause", "--shop", &domain]).await;
    assert!(told.contains(&domain), "{told}");
    app.pauses(1.0).await;
    sleep_until((Instant::now() + Duration::from_millis(300)).into()).await;
    let before = app.delivered_of(5);
    let paused = window(Instant::now());
    sleep_until(paused.end.into()).await;
    let rate_paused = rate(others(&paused), &paused);
    say(&format!("verbs: the others {free:.0}/s, with a shop paused {rate_paused:.0}/s"));
    assert_eq!(app.delivered_of(5), before, "of the paused shop");
    assert!(rate_paused >= 0.9 * free, "{rate_paused:.0}/s instead of {free:.0}/s");
    app.cell.stop_measuring();

    app.downstreamer.kill9();
    app.downstreamer.restart();
    app.pauses(1.0).await;
    let is_rest_done = async || (0..SHOPS).all(|shop| shop == 5 || app.delivered_of(shop) == 750);
    until("the others are delivered", SOON, is_rest_done).await;
    assert_eq!(app.delivered_of(5), before, "of the paused shop, after a restart");
    let status = app.told(&["status"]).await;
    assert!(status.contains("paused") && status.contains(&domain), "{status}");
    assert!(app.told(&["top"]).await.contains("paused"));
    app.told(&["resume", "--shop", &domain]).await;
    app.ledger.delivered_to(&app.backend, SOON).await;
    app.empty().await;
    let figures = stories::check::check(&app.ledger, &app.backend.receipts(), &Default::default());
    assert_eq!((figures.lost, figures.disordered, figures.late_repeats), (0, 0, 0), "{figures:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_shop_that_fills_the_index_leaves_room_for_the_others() {
    // Index memory for about 9,000 resources.
    let app = App::start(&[("INDEX_MEMORY", "1MiB")]).await;
    app.backend.behave(|_| Behaviour::ok());
    let item = |shop, resource, sequence| {
        let event = Event { resource, sequence };
        (event, shop::webhook(shop, "products/update", event))
    };
    let (many, few) = (size(12_000, 120_000), 200);
    let of_paused = |sequence| (1..=many).map(move |resource| item(5, resource, sequence));
    let others = |sequence| (1..=few).map(move |resource| item(6, many + resource, sequence));
    // The index is full of webhooks from before the pause, and must also hold later ones.
    app.told(&["pause", "--all"]).await;
    app.pauses(1.0).await;
    app.feed.store(of_paused(1).chain(others(1)).collect()).await;
    let domain = shop::domain(5);
    app.told(&["pause", "--shop", &domain]).await;
    app.told(&["resume"]).await;
    let delivered = async |count: u64| {
        let are_there = async || app.delivered_of(6) as u64 == count;
        until("the others are delivered", SOON, are_there).await;
    };
    delivered(few).await;
    app.feed.store(of_paused(2).chain(others(2)).collect()).await;
    delivered(2 * few).await;
    assert_eq!(app.delivered_of(5), 0, "of the paused shop");
    app.told(&["resume", "--shop", &domain]).await;
    app.ledger.delivered_to(&app.backend, size(SOON, 10 * SOON)).await;
    app.empty().await;
    let figures = stories::check::check(&app.ledger, &app.backend.receipts(), &Default::default());
    assert_eq!((figures.lost, figures.disordered, figures.repeats), (0, 0, 0), "{figures:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_amid_coalescing_leaves_the_newest_of_each_resource() {
    const EACH: u64 = 40;
    let app = App::start(&[("COALESCE_TOPICS", "products/update")]).await;
    let mut items = Vec::new();
    for sequence in 1..=4 {
        for resource in 0..EACH * SHOPS {
            let event = Event { resource: 1 + resource, sequence };
            let topic = if sequence % 2 == 1 { "products/create" } else { "products/update" };
            items.push((event, shop::webhook(resource % SHOPS, topic, event)));
        }
    }
    app.told(&["pause", "--all"]).await;
    app.pauses(1.0).await;
    app.feed.store(items).await;
    app.told(&["resume"]).await;
    for drops in 1..=4 {
        let is_at_work = async || app.backend.delivered() > drops * 40;
        until("it is at work", SOON, is_at_work).await;
        let of = shop::domain(drops as u64);
        app.told(&["queue", "drop", "--topic", "products/create", "--shop", &of, "--yes"]).await;
    }
    app.told(&["queue", "drop", "--topic", "products/create", "--yes"]).await;
    app.empty().await;
    let found = check_latest(&app.ledger, &app.backend.receipts(), |_| true);
    assert_eq!((found.lost, found.altered, found.disordered), (0, 0, 0), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_to_be_dropped_is_not_delivered_by_the_next_leader() {
    let mut app = App::start(&[]).await;
    app.backend.behave(|_| Behaviour::status(422));
    app.fill(3, 1).await;
    app.empty().await;
    let refused = app.backend.count();
    app.backend.behave(|_| Behaviour::ok());
    app.downstreamer.kill9();
    app.told(&["dead", "replay", "--all", "--yes"]).await;
    let first = shop::domain(1);
    let dropped =
        app.told(&["queue", "drop", "--shop", &first, "--yes", "--no-wait", "-o", "json"]).await;
    assert!(dropped.contains(r#""matched":3"#), "{dropped}");
    app.downstreamer.restart();
    app.empty().await;
    assert_eq!(app.delivered_of(1), 0);
    assert_eq!(app.backend.count() - refused, 3 * (SHOPS as usize - 1));
    let left = async || app.redis.command::<u64>(&["EXISTS", "{spillway}:http:dropping"]).await;
    until("orders are cleared away", SOON, async || left().await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_or_a_resource_is_paused_as_well() {
    let app = App::start(&[]).await;
    app.told(&["pause", "--topic", "orders/*", "--shop", &shop::domain(1)]).await;
    app.told(&["pause", "--resource", "product/7"]).await;
    app.pauses(2.0).await;
    let event = |resource| Event { resource, sequence: 1 };
    let item =
        |shop, topic, resource| (event(resource), shop::webhook(shop, topic, event(resource)));
    let later = Event { resource: 7, sequence: 2 };
    let held = [
        item(1, "orders/create", 100),
        item(2, "products/update", 7),
        (later, shop::webhook(2, "products/update", later)),
    ];
    let free = [item(2, "orders/create", 101), item(1, "products/update", 102)];
    app.feed.store_in_turn(held.iter().chain(&free).cloned().collect()).await;
    until("the others are delivered", SOON, async || app.backend.delivered() == 2).await;
    let waiting = async || app.json(&["status"]).await["consumers"][0]["waiting"].clone();
    until("these are settled, and the rest waits", SOON, async || waiting().await == 3).await;
    app.told(&["resume", "--resource", "product/7"]).await;
    until("the resource is delivered", SOON, async || app.backend.delivered() == 4).await;
    app.told(&["resume", "--all"]).await;
    app.ledger.delivered_to(&app.backend, SOON).await;
    app.empty().await;
    let order = app.backend.look(|all| {
        let of_seven = all.iter().filter(|one| one.event().resource == 7);
        of_seven.map(|one| one.event().sequence).collect::<Vec<_>>()
    });
    assert_eq!(order, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_shows_where_the_leader_runs_and_what_its_readyz_says() {
    let app = App::start(&[]).await;
    let leader = async || app.json(&["status"]).await["consumers"][0]["leader"].clone();
    assert_eq!(leader().await["pid"], app.downstreamer.id());
    until("it is ready", SOON, async || leader().await["state"] == "ready").await;
    app.backend.behave(|_| Behaviour::status(404));
    app.fill(100, 1).await;
    app.downstreamer.unready("backend_refuses").await;
    let refuses = async || {
        let state = leader().await["state"].as_str().unwrap_or_default().to_owned();
        state.contains("backend_refuses")
    };
    until("the status says so", SOON, refuses).await;
    let told = app.told(&["status"]).await;
    assert!(told.contains(&format!(":{}", app.downstreamer.id())), "{told}");
    assert!(told.contains("backend_refuses"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_of_a_process_is_its_exit_code() {
    let mut app = App::start(&[]).await;
    let address = app.downstreamer.admin_address().to_string();
    let health = async |cell: &Cell| {
        let output = cell.spillway(&["health", "--admin-listen", &address]).await;
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, told) = health(&app.cell).await;
    assert!(code == Some(0) && told.contains("alive"), "{told}");
    app.downstreamer.sigstop();
    let (code, told) = health(&app.cell).await;
    assert!(code == Some(1) && told.contains("no answer"), "{told}");
    app.downstreamer.sigcont();
    app.downstreamer.kill9();
    let (code, told) = health(&app.cell).await;
    assert!(code == Some(1) && told.contains("nothing listens"), "{told}");
    let wrong = app.cell.spillway(&["health", "--admin-listen", "nowhere"]).await;
    assert_eq!(wrong.status.code(), Some(78));
}

/// Known states of an event: `consumers[0].facts[..].state`.
async fn states(app: &App, event: Event) -> Vec<String> {
    let explained = app.json(&["explain", &event.webhook_id()]).await;
    let facts = explained["consumers"][0]["facts"].as_array().expect("facts").clone();
    facts.iter().map(|fact| fact["state"].as_str().expect("a state").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_webhook_is_explained_whatever_became_of_it() {
    let app = App::start(&[("COALESCE_TOPICS", "products/update")]).await;
    let item = |resource, sequence, topic| {
        let event = Event { resource, sequence };
        (event, shop::webhook(1, topic, event))
    };
    app.backend.behave(|one| match one.event().resource {
        900 => Behaviour::status(422),
        _ => Behaviour::ok(),
    });
    let store = async |items: Vec<(Event, Webhook)>| app.feed.store_in_turn(items).await;
    let (delivered, dead) = (item(1, 1, "orders/create"), item(900, 1, "orders/create"));
    // The second webhook is an identical copy, stored again.
    store(vec![delivered.clone(), dead.clone(), delivered.clone()]).await;
    app.empty().await;
    app.told(&["pause", "--all"]).await;
    app.pauses(1.0).await;
    let (older, newer) = (item(2, 1, "products/update"), item(2, 2, "products/update"));
    let dropped = item(3, 1, "orders/create");
    store(vec![older.clone(), newer.clone(), dropped.clone()]).await;
    assert_eq!(states(&app, newer.0).await, ["waiting"]);
    app.told(&["queue", "drop", "--webhook-id", &dropped.0.webhook_id(), "--yes"]).await;
    app.told(&["resume"]).await;
    app.empty().await;

    assert_eq!(states(&app, delivered.0).await, ["delivered", "duplicate"]);
    assert_eq!(states(&app, dead.0).await, ["given_up", "dead"]);
    assert_eq!(states(&app, older.0).await, ["coalesced"]);
    assert_eq!(states(&app, newer.0).await, ["delivered"]);
    assert_eq!(states(&app, dropped.0).await, ["drop_ordered"]);
    let explained = app.json(&["explain", &older.0.webhook_id()]).await;
    let into = &explained["consumers"][0]["facts"][0]["other_spillway_id"];
    let of_newer = app.backend.look(|all| {
        let newer = all.iter().find(|one| one.event() == newer.0).expect("delivered");
        newer.spillway_id().to_owned()
    });
    assert_eq!(into, &Value::from(of_newer.clone()));
    let by_id = app.told(&["explain", &of_newer]).await;
    assert!(by_id.contains("was delivered, 1 attempt"), "{by_id}");
    let explained = app.json(&["explain", &delivered.0.webhook_id()]).await;
    let facts = &explained["consumers"][0]["facts"];
    let (first, copy) =
        (&facts[0]["spillway_id"], facts[1]["spillway_id"].as_str().expect("an id"));
    let of_copy = app.json(&["explain", copy]).await;
    assert_eq!(&of_copy["consumers"][0]["facts"][0]["other_spillway_id"], first);
    let unknown = app.cell.spillway(&["explain", "no-such-webhook"]).await;
    let told = String::from_utf8_lossy(&unknown.stdout).into_owned();
    assert_eq!(unknown.status.code(), Some(1), "{told}");
    assert!(told.contains("not known") && told.contains("not received"), "{told}");
}
