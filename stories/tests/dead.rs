//! Dead letters: listed, shown, replayed in order and dropped from the command line.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::client::post;
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::load::Load;
use stories::receipt::hash;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use stories::webhook::Webhook;

const DEAD: &str = "{spillway}:http:dead";
/// Five events of a resource are given up one after the other, each after more than a second.
const SOON: Duration = Duration::from_secs(40);

struct Morgue {
    backend: Backend,
    ledger: Arc<Ledger>,
    redis: RedisServer,
    receiver: Service,
    downstreamer: Service,
    cell: Cell,
    /// Number of webhooks delivered while the others were given up.
    delivered: usize,
}

/// Sends two resources with five events each, all refused with `status`, and waits until all are
/// dead letters.
async fn refused(status: u16, settings: Settings<'_>) -> Morgue {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(move |receipt| match Event::of(receipt.webhook_id()) {
        Some(Event { resource: 1 | 2, .. }) => Behaviour::status(status),
        _ => Behaviour::ok(),
    });
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, settings).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { connections: 2, resources: 2, events: Some(5), ..Load::steady(81) };
    // Other webhooks succeed: the time of `RETRY_FOR` does not count while everything fails.
    let well = Arc::new(Ledger::default());
    let others = Load { resources: 20, first_resource: 100, events: None, ..load.clone() };
    let others = others.start(receiver.address(), &well);
    load.start(receiver.address(), &ledger).join().await;
    until("all are dead letters", SOON, async || redis.stream_len(DEAD).await == 10).await;
    others.stop().await;
    well.delivered_to(&backend, SOON).await;
    let delivered = backend.delivered();
    Morgue { backend, ledger, redis, receiver, downstreamer, cell, delivered }
}

impl Morgue {
    async fn dead(&self, arguments: &[&str]) -> Output {
        self.cell.spillway(&[&["dead"], arguments].concat()).await
    }

    async fn dead_ok(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.dead(arguments).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "spillway dead {arguments:?}: {errors}");
        output.stdout
    }

    async fn list(&self) -> Vec<Value> {
        let lines = String::from_utf8(self.dead_ok(&["list", "-o", "json"]).await).expect("text");
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON in each line")).collect()
    }

    /// Delivered events of one resource, in order.
    fn delivered_of(&self, resource: u64) -> Vec<u64> {
        let delivered = self.backend.receipts().into_iter().filter(|receipt| receipt.delivered());
        let events = delivered.filter_map(|receipt| Event::of(receipt.webhook_id()));
        events.filter(|event| event.resource == resource).map(|event| event.sequence).collect()
    }
}

fn text<'a>(letter: &'a Value, key: &str) -> &'a str {
    letter[key].as_str().unwrap_or_else(|| panic!("no text {key:?} in {letter}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_listed_and_shown_as_they_were_received() {
    let morgue = refused(400, &[]).await;
    let log = morgue.downstreamer.output();
    let warned: Vec<_> =
        log.lines().filter(|line| line.contains("the backend did not accept attempts")).collect();
    assert!(!warned.is_empty() && warned[0].contains("status 400"), "{log}");
    assert!(warned.len() < 5, "one in 30 s: {warned:?}");
    let letters = morgue.list().await;
    assert_eq!(letters.len(), 10);
    let receipts = morgue.backend.receipts();
    for letter in &letters {
        assert_eq!(text(letter, "shop"), "story.myshopify.com");
        assert_eq!(text(letter, "topic"), "products/update");
        assert_eq!(letter["status"], 400);
        assert_eq!(letter["attempts"], 1);
        assert!(!text(letter, "resource").is_empty() && !text(letter, "reason").is_empty());
        assert!(!letter["dead_at"].is_null());
        let id = text(letter, "spillway_id");
        let sent = receipts.iter().find(|receipt| receipt.headers.text("Spillway-Id") == Some(id));
        let sent = sent.unwrap_or_else(|| panic!("{id} is no Spillway-Id that was tried"));
        let shown = String::from_utf8(morgue.dead_ok(&["show", id]).await).unwrap();
        assert!(shown.contains(sent.webhook_id()), "{shown}");
        let body = morgue.dead_ok(&["show", id, "--body"]).await;
        assert_eq!(hash(&body), sent.body_hash, "{id}");
    }
    let table = String::from_utf8(morgue.dead_ok(&["list"]).await).unwrap();
    assert!(
        table.contains("products/update") && table.contains(text(&letters[0], "spillway_id")),
        "{table}"
    );
    assert!(!morgue.dead(&["show", "no-such-id"]).await.status.success());

    let status = morgue.cell.spillway(&["status", "-o", "json"]).await;
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let consumer = &status["consumers"][0];
    assert_eq!(
        (&consumer["name"], &consumer["dead_letters"]),
        (&"http".into(), &10.into()),
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_shown_header_by_header() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::status(400));
    let receiver = cell.receiver(&[]).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let webhook =
        Webhook::product(7, "the-webhook-id", br#"{"id":7,"title":"caf\u00e9"}"#.to_vec())
            .to("/hooks//caf%C3%A9?a=1&a=2")
            .header("X-Repeated", "first")
            .header("Cookie", "a=b; c=\"d\"")
            .header("x-repeated", "second: with a colon, and a comma")
            .header("X-Empty", "")
            .header("X-Utf-8", "h\u{e9}l\u{e9}na")
            // Hop-by-hop headers, or headers that a sender may not set: the backend never receives
            // them.
            .header("Keep-Alive", "timeout=5")
            .header("Spillway-Attempt", "9");
    post(receiver.address(), &webhook).await.expect_stored();
    until("it is a dead letter", SOON, async || redis.stream_len(DEAD).await == 1).await;
    let id = backend.receipts()[0].spillway_id().to_owned();
    let output = cell.spillway(&["dead", "show", &id]).await;
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();

    let (_, request) = shown.split_once("\nPOST ").expect("the request");
    let (head, body) = request.split_once("\n\n").expect("a head, a blank line, a body");
    assert_eq!(body.trim_end().as_bytes(), webhook.payload());
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some(webhook.target()));
    let mut shown_headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("no header: {line:?}"));
        shown_headers.entry(name.to_owned()).or_default().push(value.to_owned());
    }
    let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
    sent.insert("host".to_owned(), vec!["hooks.example".to_owned()]);
    for (name, value) in webhook.headers() {
        let name = name.to_ascii_lowercase();
        if name != "keep-alive" && name != "spillway-attempt" {
            let value = String::from_utf8(value.clone()).unwrap();
            sent.entry(name).or_default().push(value);
        }
    }
    assert_eq!(shown_headers, sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_replayed_in_order_per_resource() {
    let morgue = refused(422, &[]).await;
    let tried = morgue.backend.count();
    morgue.dead_ok(&["replay", "--all"]).await;
    assert!(!morgue.dead(&["replay"]).await.status.success(), "no filter and no --all");
    assert_eq!((morgue.list().await.len(), morgue.backend.count()), (10, tried));

    morgue.backend.behave(|_| Behaviour::ok());
    // Replays one by its webhook id, then the rest.
    let one = Event { resource: 1, sequence: 1 }.webhook_id();
    morgue.dead_ok(&["replay", "--webhook-id", &one, "--yes"]).await;
    until("the one is delivered", SOON, async || morgue.backend.has_delivered(&one)).await;
    until("it is no dead letter any more", SOON, async || morgue.list().await.len() == 9).await;
    morgue.dead_ok(&["replay", "--all", "--yes"]).await;
    until("the rest is delivered", SOON, async || {
        morgue.backend.delivered() == morgue.delivered + 10
    })
    .await;
    until("none is left", SOON, async || morgue.redis.stream_len(DEAD).await == 0).await;
    for resource in [1, 2] {
        assert_eq!(morgue.delivered_of(resource), [1, 2, 3, 4, 5]);
    }
    let receipts = morgue.backend.receipts();
    let (before, after) = receipts.split_at(tried);
    let entries = morgue.ledger.entries();
    for replayed in after {
        replayed.header("Spillway-Replayed");
        let id = replayed.spillway_id();
        assert!(before.iter().any(|first| first.spillway_id() == id), "another Spillway-Id");
        let sent = &entries[&Event::of(replayed.webhook_id()).unwrap()];
        assert_eq!(replayed.body_hash, sent.body_hash);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_takes_what_its_filters_say_and_keeps_to_its_rate() {
    let morgue = refused(422, &[]).await;
    morgue.backend.behave(|_| Behaviour::ok());
    let tried = morgue.backend.count();
    let dry = async |filter: &[&str]| {
        let output = morgue.dead_ok(&[&["replay"], filter].concat()).await;
        String::from_utf8(output).expect("text")
    };
    for (filter, count) in [
        (["--shop", "story.myshopify.com"], Some(10)),
        (["--shop", "another.myshopify.com"], None),
        (["--topic", "products/*"], Some(10)),
        (["--topic", "orders/create"], None),
        (["--resource", "product/2"], Some(5)),
        (["--since", "1h"], Some(10)),
        (["--until", "1h"], None),
    ] {
        let said = dry(&filter).await;
        let expected = count.map_or("no dead letter".to_owned(), |count| format!("{count} dead"));
        assert!(said.contains(&expected), "{filter:?}: {said}");
    }
    assert_eq!((morgue.list().await.len(), morgue.backend.count()), (10, tried), "a dry run");

    let began = Instant::now();
    morgue.dead_ok(&["replay", "--resource", "product/2", "--rate", "2", "--yes"]).await;
    let took = began.elapsed();
    let done = async || morgue.delivered_of(2) == [1, 2, 3, 4, 5];
    until("those of the resource are delivered in order", SOON, done).await;
    say(&format!("dead: five replayed at two a second took {took:?}"));
    assert!(took >= Duration::from_secs(2), "faster than its rate: {took:?}");
    assert_eq!(morgue.delivered_of(1), [0; 0], "not asked for");
    assert_eq!(morgue.list().await.len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_refused_again_is_a_dead_letter_again() {
    let morgue = refused(400, &[]).await;
    let tried = morgue.backend.count();
    morgue.dead_ok(&["replay", "--all", "--yes"]).await;
    until("each was tried again", SOON, async || morgue.backend.count() == tried + 10).await;
    until("all are dead again", SOON, async || morgue.list().await.len() == 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_goes_before_one_of_its_resource_that_was_read_and_waits_for_its_turn() {
    const SMALL: [u64; 6] = [1, 2, 3, 4, 5, 6];
    const EACH: Duration = Duration::from_secs(1);
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::status(400));
    let receiver = cell.receiver(&[]).await;
    // One delivery at a time, each slow. Webhooks that were read on demand wait meanwhile.
    let _downstreamer = cell.downstreamer(&backend, &[("MAX_CONCURRENCY", "1")]).await;
    let ledger = Arc::new(Ledger::default());
    let feed = Feed::to(receiver.address(), &ledger);
    // Each shop has one product, with a first and a second event.
    let small = |sequence| {
        let events = SMALL.map(|resource| Event { resource, sequence });
        events.map(|event| (event, shop::webhook(event.resource, "products/update", event)))
    };
    feed.store_in_turn(small(1).to_vec()).await;
    until("all are dead letters", SOON, async || redis.stream_len(DEAD).await == 6).await;

    // The second events follow a flood, beyond what is kept in memory.
    backend.behave(|_| Behaviour::slowly(EACH));
    let flood = (1000..17_000).map(|resource| Event { resource, sequence: 1 });
    feed.store(flood.map(|event| (event, shop::webhook(100, "products/update", event))).collect())
        .await;
    feed.store_in_turn(small(2).to_vec()).await;
    let arrived = backend.count();
    until("it is the flood's turn again", SOON, async || backend.count() > arrived).await;
    let replay = cell.spillway(&["dead", "replay", "--all", "--yes"]).await;
    assert!(replay.status.success(), "{replay:?}");
    until("the first of each is replayed", SOON, async || {
        SMALL
            .iter()
            .all(|&resource| backend.has_delivered(&Event { resource, sequence: 1 }.webhook_id()))
    })
    .await;
    backend.behave(|_| Behaviour::ok());
    // 16,000, one at a time.
    ledger.delivered_to(&backend, 3 * SOON).await;

    let delivered = backend.receipts().into_iter().filter(|receipt| receipt.delivered());
    let delivered: Vec<_> =
        delivered.filter(|receipt| SMALL.contains(&receipt.event().resource)).collect();
    assert_eq!(delivered.len(), 12, "each once");
    let entries = ledger.entries();
    for receipt in &delivered {
        let sent = &entries[&receipt.event()];
        assert_eq!(receipt.body_hash, sent.body_hash, "another's body: {:?}", receipt.event());
    }
    let place = |resource, sequence| {
        let event = Event { resource, sequence };
        delivered.iter().position(|receipt| receipt.event() == event)
    };
    let before = SMALL.iter().filter(|&&resource| place(resource, 1) < place(resource, 2)).count();
    say(&format!("dead: {before} of 6 replays went before the event that waited"));
    assert!(before >= 2, "{before} of 6 replays came in time to go first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_dropped_only_with_a_yes() {
    let morgue = refused(400, &[]).await;
    let unchanged = String::from_utf8(morgue.dead_ok(&["drop", "--all"]).await).expect("text");
    assert!(unchanged.contains("dry run: nothing was changed"), "{unchanged}");
    assert_eq!(morgue.list().await.len(), 10);
    let one = Event { resource: 2, sequence: 3 }.webhook_id();
    morgue.dead_ok(&["drop", "--webhook-id", &one, "--yes"]).await;
    assert_eq!(morgue.list().await.len(), 9);
    morgue.dead_ok(&["drop", "--all", "--yes"]).await;
    assert_eq!(morgue.list().await, Vec::<Value>::new());
    assert_eq!(morgue.redis.stream_len(DEAD).await, 0);
    morgue.backend.behave(|_| Behaviour::ok());
    post(morgue.receiver.address(), &Webhook::any()).await.expect_stored();
    until("the path still works", SOON, async || {
        morgue.backend.delivered() == morgue.delivered + 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_end_as_dead_letters() {
    // The events of a resource wait for each other, and each has its own retry time.
    let morgue = refused(500, &[("RETRY_FOR", "1s")]).await;
    for letter in morgue.list().await {
        assert!(letter["attempts"].as_u64().unwrap() > 1, "{letter}");
        assert_eq!(letter["status"], 500);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_end_as_dead_letters() {
    let morgue = refused(404, &[("RETRY_REFUSED_FOR", "1s")]).await;
    for letter in morgue.list().await {
        assert!(letter["attempts"].as_u64().unwrap() > 1, "{letter}");
        assert_eq!(letter["status"], 404);
    }
}
