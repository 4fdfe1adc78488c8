//! Events, Shopify's second family of deliveries, beside classic webhooks of the same products, and
//! the stubs that stand for large ones.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::answer::Answer;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::check::check;
use stories::client::post;
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::receipt::{Receipt, hash};
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::{SECRET, Webhook, sign};
use time::OffsetDateTime;

const SOON: Duration = Duration::from_secs(60);
const WORK: Duration = Duration::from_millis(50);

/// The webhook with this number: of every three, two are Events and one is classic.
fn webhook(number: u64, products: u64) -> (Event, Webhook) {
    let event = Event { resource: number % products + 1, sequence: number / products + 1 };
    let webhook = match number % 3 {
        0 => shop::webhook(1, "products/update", event),
        _ => shop::event(1, "prices", event),
    };
    (event, webhook)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_and_classic_webhooks_of_one_shop_flow_in_parallel_and_in_order_per_product() {
    let (count, products) = size((4_000, 400), (100_000, 10_000));
    let times_serial = size(10.0, 40.0);
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::slowly(WORK));
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let webhooks = (0..count).map(|number| webhook(number, products));
    Feed::to(receiver.address(), &ledger).store(webhooks.collect()).await;
    let began = Instant::now();
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", size(SOON, 20 * SOON), is_empty).await;
    let took = began.elapsed();

    check(&ledger, &backend.receipts(), &HashSet::new()).expect_sound(0);
    let fallbacks = downstreamer.metric("spillway_key_fallback_total").await.unwrap_or(0.0);
    assert_eq!(fallbacks, 0.0, "an Event without a resource");
    let times = WORK.as_secs_f64() * count as f64 / took.as_secs_f64();
    say(&format!("events: {count} of {products} products in {took:?}, {times:.0} times serial"));
    assert!(times >= times_serial, "{times:.1} times serial");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_two_subscriptions_never_stand_for_each_other() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|one| match one.event().sequence {
        1 => Behaviour::slowly(Duration::from_secs(4)),
        _ => Behaviour::ok(),
    });
    let receiver = cell.receiver(&[]).await;
    let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
    let topics = [("COALESCE_TOPICS", "Product/update")];
    let _downstreamer = cell.downstreamer(&backend, &topics).await;
    let of = |sequence, handle| {
        let event = Event { resource: 7, sequence };
        (event, shop::event(1, handle, event))
    };
    feed.store_in_turn(Vec::from([of(1, "prices")])).await;
    until("the first is under way", SOON, async || backend.count() == 1).await;
    // The others wait meanwhile.
    let mut items: Vec<_> =
        [(2, "prices"), (3, "prices"), (4, "titles"), (5, "prices"), (6, "prices")]
            .map(|(sequence, handle)| of(sequence, handle))
            .into();
    let without = [7, 8].map(|sequence| of(sequence, "prices"));
    items.extend(without.map(|(event, webhook)| (event, webhook.without("Shopify-Handle"))));
    items.extend([9, 10].map(|sequence| of(sequence, "")));
    feed.store_in_turn(items).await;
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON, is_empty).await;
    let arrived: Vec<u64> =
        backend.look(|all| all.iter().map(|one| one.event().sequence).collect());
    assert_eq!(arrived, [1, 3, 4, 6, 7, 8, 9, 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_under_the_headers_of_another_is_refused() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let sent = async |webhook: &Webhook| -> Answer { post(receiver.address(), webhook).await };
    let at = Event { resource: 1, sequence: 1 };
    let event = shop::event(1, "prices", at);
    let classic = shop::webhook(1, "products/update", at);
    sent(&event).await.expect_stored();
    sent(&classic).await.expect_stored();
    for (name, value) in
        [("Shopify-Topic", "Order"), ("Shopify-Action", "delete"), ("Shopify-Handle", "titles")]
    {
        sent(&event.clone().with(name, value)).await.expect(400, "header_mismatch");
    }
    let as_event = classic.clone().rename("X-Shopify-", "Shopify-");
    sent(&as_event).await.expect(400, "header_mismatch");
    let as_classic = event.clone().rename("Shopify-", "X-Shopify-");
    sent(&as_classic).await.expect(400, "header_mismatch");

    // Headers that are named here would not be stored.
    let hidden = event.clone().header("Connection", "close, Shopify-Topic");
    sent(&hidden).await.expect(400, "not_a_webhook");

    // Of two signatures, the Event's counts.
    let signature = sign(SECRET, event.payload());
    let both = event.clone().header("X-Shopify-Hmac-Sha256", "bad");
    sent(&both).await.expect_stored();
    let other = event.with("Shopify-Hmac-Sha256", "bad").header("X-Shopify-Hmac-Sha256", signature);
    sent(&other).await.expect(401, "bad_signature");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_ignored_is_answered_and_not_stored() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let file = cell.directory().join("ignored-shops");
    std::fs::write(&file, format!("# test shops\n{}\n", shop::domain(2))).expect("write the file");
    let path = file.to_str().expect("a path in UTF-8");
    let settings = [("IGNORE_TOPICS", "carts/*,Product/update"), ("IGNORE_SHOPS_FILE", path)];
    let receiver = cell.receiver(&settings).await;
    let at = |sequence| Event { resource: sequence, sequence };
    let ignored = [
        shop::event(1, "prices", at(1)),
        shop::webhook(1, "carts/update", at(2)),
        shop::webhook(2, "products/update", at(3)),
    ];
    for webhook in &ignored {
        post(receiver.address(), webhook).await.expect_stored();
    }
    assert_eq!(redis.stream_len("{spillway}:in").await, 0);
    assert_eq!(receiver.metric("spillway_ignored_total").await, Some(3.0));
    let forged = ignored[0].clone().with("Shopify-Hmac-Sha256", "bad");
    post(receiver.address(), &forged).await.expect(401, "bad_signature");
    post(receiver.address(), &shop::webhook(2, "shop/redact", at(4))).await.expect_stored();
    post(receiver.address(), &shop::webhook(1, "products/update", at(5))).await.expect_stored();
    assert_eq!(redis.stream_len("{spillway}:in").await, 2);
}

/// Size of a payload, over the limit that makes Shopify send a stub.
const PAYLOAD_BYTES: usize = 1_500_000;

/// Stub with this number, whose payload lies at `path` and expires after `expires_in`. All stubs
/// of a shop have one order.
fn stub(shop: u64, number: u64, url: &str, expires_in: Duration) -> (Event, Webhook) {
    let event = Event { resource: 1_000 + shop, sequence: number };
    (event, shop::stub(shop, event, url, OffsetDateTime::now_utc() + expires_in))
}

fn payload(target: &str) -> Vec<u8> {
    format!("{{\"target\":\"{target}\",\"fill\":\"{}\"}}", "x".repeat(PAYLOAD_BYTES)).into()
}

/// Bytes of an answer 200 with the first `count` bytes of a body.
fn wire(body: &[u8], count: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), &body[..count]].concat()
}

/// Answers with these bytes, and then closes or not.
fn writes(begins: Vec<u8>, repeats: Vec<u8>, closes: bool) -> Behaviour {
    Behaviour::Wire { begins, repeats, every: Duration::from_millis(1), closes }
}

fn gives_payload(receipt: &Receipt) -> Behaviour {
    let body = payload(&receipt.target);
    writes(wire(&body, body.len()), Vec::new(), false)
}

/// Answer of a host of payloads, which fails `/slow`, `/flaky` and `/broken` at first.
fn answer(receipt: &Receipt, before: usize, address: SocketAddr) -> Behaviour {
    let path = receipt.target.split('?').next().unwrap_or_default();
    match (path, before) {
        ("/slow", 0) => Behaviour::Hang,
        ("/flaky", 0..2) => Behaviour::status(500),
        // A proxy's page, under 200.
        ("/page", 0) => {
            let page = b"<html>Back soon</html>";
            writes(wire(page, page.len()), Vec::new(), false)
        }
        ("/broken", 0) => writes(wire(&payload(path), PAYLOAD_BYTES / 2), Vec::new(), true),
        // Ends with the connection.
        ("/unannounced", before) => {
            let body = payload(path);
            let count = if before == 0 { PAYLOAD_BYTES / 2 } else { body.len() };
            let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
            writes([head, &body[..count]].concat(), Vec::new(), true)
        }
        ("/gone", _) => Behaviour::status(410),
        ("/moved", _) => Behaviour::status(302).header("Location", format!("http://{address}/new")),
        ("/large", _) => writes(wire(&vec![b'x'; 3 << 20], 0), Vec::new(), false),
        ("/endless", _) => writes(b"HTTP/1.1 200 OK\r\n\r\n".into(), vec![b'x'; 64 << 10], false),
        _ => gives_payload(receipt),
    }
}

/// Starts a host of payloads.
async fn payload_host() -> Backend {
    let host = Backend::start().await;
    let asked: std::sync::Mutex<BTreeMap<String, usize>> = std::sync::Mutex::default();
    let address = host.address();
    host.behave(move |receipt| {
        let mut asked = asked.lock().expect("no plan panicked");
        let before = asked.entry(receipt.target.clone()).or_default();
        *before += 1;
        answer(receipt, *before - 1, address)
    });
    host
}

/// Stubs by result, without results that did not occur.
async fn results(downstreamer: &Service) -> BTreeMap<String, u64> {
    let page = downstreamer.admin("/metrics").await.expect("the metrics").text();
    let lines =
        page.lines().filter_map(|line| line.strip_prefix("spillway_payload_stubs_total{result=\""));
    let counts = lines.filter_map(|line| {
        let (result, count) = line.split_once("\"} ")?;
        Some((result.to_owned(), count.parse().ok()?))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

fn expected<const N: usize>(results: [(&str, u64); N]) -> BTreeMap<String, u64> {
    results.map(|(result, count)| (result.to_owned(), count)).into()
}

/// Fails unless every request was a bare GET of a URL that a stub may be fetched from.
fn expect_asked_for_payloads_alone(host: &Backend) {
    host.look(|asked| {
        let is_wrong = |one: &&Receipt| one.method != "GET" || one.headers.0.len() > 3;
        assert!(!asked.iter().any(|one| is_wrong(&one)), "{asked:?}");
        let targets: Vec<&str> = asked.iter().map(|one| one.target.as_str()).collect();
        let is_other = |target: &&str| target.starts_with("/new") || target.starts_with("/expired");
        assert!(!targets.iter().any(is_other), "{targets:?}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stub_arrives_with_its_payload_or_as_it_is_and_in_order() {
    // Path at the host, and failed fetches before the payload; `None` if the stub itself arrives.
    let cases: [(&str, Option<u64>); 12] = [
        ("/right?signed=1&b=%2F", Some(0)),
        ("/slow", Some(1)),
        ("/flaky", Some(2)),
        ("/broken", Some(1)),
        ("/unannounced", Some(1)),
        ("/page", Some(1)),
        ("/expired?signed=1", None),
        ("/gone?signed=1", None),
        ("/moved", None),
        ("/large", None),
        ("/endless", None),
        ("/last", Some(0)),
    ];
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let host = payload_host().await;
    let other = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let mut stubs: Vec<(Event, Webhook)> = Vec::new();
    for (number, (path, _)) in (1..).zip(cases) {
        let expires_in = Duration::from_secs(if path.starts_with("/expired") { 0 } else { 7_200 });
        stubs.push(stub(1, number, &format!("{}{path}", host.url()), expires_in));
    }
    stubs.push(stub(1, 13, &format!("{}/right?signed=1", other.url()), SOON * 100));
    Feed::to(receiver.address(), &ledger).store_in_turn(stubs.clone()).await;
    let settings = [
        ("FETCH_PAYLOADS", "on"),
        ("PAYLOAD_HOSTS", &host.url()),
        ("PAYLOAD_MAX", "2MiB"),
        ("DELIVERY_TIMEOUT", "1s"),
        ("RUST_LOG", "debug"),
    ];
    let downstreamer = cell.downstreamer(&backend, &settings).await;
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON, is_empty).await;

    let receipts = backend.receipts();
    let arrived: Vec<u64> = receipts.iter().map(|one| one.event().sequence).collect();
    assert_eq!(arrived, (1..=13).collect::<Vec<_>>());
    let cases = cases.into_iter().chain([("other host", None)]);
    for ((receipt, (path, failed)), (_, sent)) in receipts.iter().zip(cases).zip(&stubs) {
        let body = failed.map_or_else(|| sent.payload().to_vec(), |_| payload(path));
        assert!(receipt.body_hash == hash(&body), "{path}: {receipt:?}");
        assert_eq!(receipt.header("Content-Length"), body.len().to_string(), "{path}");
        let is_fetched = receipt.headers.text("Spillway-Payload") == Some("fetched");
        assert_eq!(is_fetched, failed.is_some(), "{path}: {receipt:?}");
        assert_eq!(receipt.attempt(), 1 + failed.unwrap_or(0), "{path}");
        for (name, value) in sent.headers() {
            assert_eq!(receipt.headers.all(name), [value], "{path}");
        }
    }
    let counts = [
        ("expired", 1),
        ("failed", 6),
        ("fetched", 7),
        ("other_host", 1),
        ("refused", 2),
        ("too_large", 2),
    ];
    assert_eq!(results(&downstreamer).await, expected(counts));
    assert_eq!(downstreamer.metric("spillway_delivery_attempts_total").await, Some(13.0));
    assert_eq!(other.count(), 0, "another host was asked");
    expect_asked_for_payloads_alone(&host);
    let log = downstreamer.output();
    assert!(log.contains("delivered without its payload") && !log.contains("signed=1"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_payloads_that_fails_holds_back_its_stubs_alone() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let host = Backend::start().await;
    host.behave(|_| Behaviour::status(503).header("Retry-After", "3600"));
    let receiver = cell.receiver(&[]).await;
    let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
    let url = format!("{}/1", host.url());
    let settings = [
        ("FETCH_PAYLOADS", "on"),
        ("PAYLOAD_HOSTS", &host.url()),
        ("PAYLOAD_MAX", "2MiB"),
        ("MIN_CONCURRENCY", "20"),
        ("RETRY_LONGEST", "100ms"),
    ];
    let downstreamer = cell.downstreamer(&backend, &settings).await;
    // A product of shop 1, whose other webhooks are all stubs.
    let product = |sequence| {
        let event = Event { resource: 7, sequence };
        (event, shop::event(1, "prices", event))
    };
    feed.store_in_turn(Vec::from([product(1)])).await;
    let stubs = (1..=20).map(|shop| stub(shop, 1, &url, SOON * 100));
    feed.store(stubs.collect()).await;
    until("all were tried often", SOON, async || host.count() >= 400).await;
    feed.store_in_turn(Vec::from([product(2)])).await;
    until("the product is delivered", SOON, async || backend.count() == 2).await;
    assert_eq!(downstreamer.metric("spillway_paused").await, Some(0.0));
    assert_eq!(downstreamer.metric("spillway_lanes_blocked").await, Some(0.0));
    // Counted after the answer.
    let attempts = async || downstreamer.metric("spillway_delivery_attempts_total").await;
    until("two attempts are counted", SOON, async || attempts().await == Some(2.0)).await;
    let log = downstreamer.output();
    assert!(!log.contains("is down") && !log.contains("circuit breaker"), "{log}");
    assert!(log.contains("the payload of a stub was not fetched"), "{log}");

    // Memory for four of the largest has room for five of these.
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(300)));
    host.behave(gives_payload);
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON, is_empty).await;
    assert_eq!(backend.count(), 22);
    let fetched = results(&downstreamer).await;
    assert_eq!(fetched["fetched"], 20, "{fetched:?}");
    let at_once = backend.in_flight_max();
    assert!((2..=5).contains(&at_once), "{at_once} payloads at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_payloads_that_hangs_leaves_slots_to_other_webhooks() {
    leaves_slots_to_others(Behaviour::Hang).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_gives_up_after_seconds_leaves_slots_to_other_webhooks() {
    let after = Duration::from_secs(4);
    let (headers, body) = (Vec::new(), String::new());
    leaves_slots_to_others(Behaviour::Answer { status: 504, after, headers, body }).await;
}

async fn leaves_slots_to_others(behaviour: Behaviour) {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let host = Backend::start().await;
    host.behave(move |_| behaviour.clone());
    let receiver = cell.receiver(&[]).await;
    let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
    let url = format!("{}/1", host.url());
    let settings = [
        ("FETCH_PAYLOADS", "on"),
        ("PAYLOAD_HOSTS", &host.url()),
        ("MIN_CONCURRENCY", "8"),
        ("MAX_CONCURRENCY", "8"),
        ("DELIVERY_TIMEOUT", "5s"),
        ("RETRY_LONGEST", "1s"),
    ];
    let downstreamer = cell.downstreamer(&backend, &settings).await;
    let stubs = (1..=40).map(|shop| stub(shop, 1, &url, SOON * 100));
    feed.store(stubs.collect()).await;
    let is_known = async || results(&downstreamer).await.contains_key("busy");
    until("the host is known to hang", SOON, is_known).await;
    let (before, began) = (host.count(), Instant::now());
    let mut stored = Vec::new();
    for sequence in 1..=100 {
        let event = Event { resource: 7, sequence };
        stored.push(Instant::now());
        feed.store_in_turn(Vec::from([(event, shop::event(50, "prices", event))])).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until("the others are delivered", SOON, async || backend.count() == stored.len()).await;
    let receipts = backend.receipts();
    let waits: Vec<_> = receipts.iter().zip(&stored).map(|(one, at)| one.arrived - *at).collect();
    // Behind a fetch that hangs, they would wait for 4 s.
    let late: Vec<_> = waits.iter().filter(|wait| **wait > Duration::from_secs(3)).collect();
    assert!(late.is_empty(), "{late:?}");
    let asked = (host.count() - before) as f64;
    let took = began.elapsed().as_secs_f64();
    assert!(asked <= 1.6 * took, "asked {asked} times in {took} s");

    host.behave(gives_payload);
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON * 2, is_empty).await;
    assert_eq!(results(&downstreamer).await["fetched"], 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stub_that_waits_is_seen_before_its_payload_expires() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
    let mut downstreamer = cell.downstreamer(&backend, &[("PARK_AFTER", "1s")]).await;
    downstreamer.leads().await;
    let paused = cell.spillway(&["pause", "--shop", &shop::domain(1)]).await;
    assert!(paused.status.success(), "{paused:?}");
    let is = async |downstreamer: &Service, metric: &str, value: f64| {
        until(metric, SOON, async || downstreamer.metric(metric).await == Some(value)).await;
    };
    is(&downstreamer, "spillway_pauses", 1.0).await;
    let url = "https://payloads.example/1";
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let stubs = [(1, 1, 0), (1, 2, 30), (1, 3, 120), (2, 4, 0), (2, 5, 30)];
    let stubs = stubs.map(|(shop, number, after)| stub(shop, number, url, minutes(after)));
    feed.store_in_turn(stubs.into()).await;
    until("shop 2 is served", SOON, async || backend.count() == 2).await;
    is(&downstreamer, "spillway_payload_stubs_expiring", 2.0).await;
    // The next leader knows them too, from the chunks of their lane.
    is(&downstreamer, "spillway_lane_webhooks", 3.0).await;
    assert_eq!(downstreamer.metric("spillway_payload_stubs_expiring").await, Some(2.0));
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());
    downstreamer.restart();
    is(&downstreamer, "spillway_payload_stubs_expiring", 2.0).await;
    assert_eq!(backend.count(), 2);
    let resumed = cell.spillway(&["resume", "--shop", &shop::domain(1)]).await;
    assert!(resumed.status.success(), "{resumed:?}");
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON, is_empty).await;
    is(&downstreamer, "spillway_payload_stubs_expiring", 0.0).await;
    assert_eq!(results(&downstreamer).await, expected([("expired", 1), ("off", 2)]));
    backend.look(|all| {
        assert!(all.iter().all(|one| one.headers.get("Spillway-Payload").is_none()), "{all:?}");
    });
}
