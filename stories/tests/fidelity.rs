//! The backend receives exactly what Shopify sent, byte for byte and header for header.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use stories::backend::Backend;
use stories::cell::Cell;
use stories::client::{Connection, post, send};
use stories::ledger::Event;
use stories::receipt::{BodyHash, Receipt, hash};
use stories::report::say;
use stories::seed::{chance, seed};
use stories::until::until;
use stories::webhook::{SECRET, Webhook, sign};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::task::JoinSet;

const WEBHOOKS: u64 = 10_000;
const SENDERS: u64 = 16;
const BODY_BYTES_MAX: f64 = 2.0 * 1024.0 * 1024.0;

/// Maximum number of undelivered webhooks, which bounds what Redis holds.
const BACKLOG: usize = 400;

const PATHS: &[&str] = &[
    "/",
    "//",
    "//a",
    "/a//b/",
    "/caf%C3%A9",
    "/%7Euser/%2f%2F",
    "/a;b=1,c",
    "/a:b@c!$&'()*+",
    "/...",
    "/webhooks",
];
const QUERIES: &[&str] =
    &["", "?", "?a=1&a=2&b=%20", "?x=%00%ff", "?a=b?c=/d", "?&&=", "?q=a+b&../c", "?%zz"];

const REPEATED: &[&str] = &["X-Repeated", "x-repeated", "X-REPEATED", "Cookie"];

/// Headers that Spillway sets: framing belongs to each connection, Host to the backend, and
/// `Spillway-` headers are added.
fn is_ours_to_set(name: &str) -> bool {
    name == "host" || name == "content-length" || name.starts_with("spillway-")
}

/// Content that must arrive unchanged.
#[derive(Debug, PartialEq)]
struct Content {
    target: String,
    headers: BTreeMap<String, Vec<Vec<u8>>>,
    body_hash: BodyHash,
}

impl Content {
    fn new(target: &str, headers: &[(String, Vec<u8>)], body_hash: BodyHash) -> Self {
        let mut by_name: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            if !is_ours_to_set(&name) {
                by_name.entry(name).or_default().push(value.clone());
            }
        }
        Self { target: target.to_owned(), headers: by_name, body_hash }
    }

    fn sent(webhook: &Webhook) -> Self {
        Self::new(webhook.target(), webhook.headers(), hash(webhook.payload()))
    }

    fn received(receipt: &Receipt) -> Self {
        Self::new(&receipt.target, &receipt.headers.0, receipt.body_hash)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_odd_webhooks_arrive_as_they_were_sent() {
    let seed = seed("fidelity", 71);
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Arc::new(Backend::start().await);
    let receiver = cell.receiver(&[]).await;
    let _downstreamer = cell.downstreamer(&backend, &[("DELIVERY_TIMEOUT", "30s")]).await;
    let expected = Arc::new(Mutex::new(HashMap::new()));
    let mut senders = JoinSet::new();
    for number in 0..SENDERS {
        let (backend, expected) = (Arc::clone(&backend), Arc::clone(&expected));
        senders.spawn(send_share(number, seed, receiver.address(), backend, expected));
    }
    while let Some(sender) = senders.join_next().await {
        sender.unwrap();
    }
    until("all are delivered", Duration::from_secs(120), async || {
        backend.delivered() == WEBHOOKS as usize
    })
    .await;
    let expected = expected.lock().unwrap();
    for receipt in backend.receipts() {
        let sent = &expected[receipt.webhook_id()];
        assert_eq!(sent, &Content::received(&receipt), "SEED={seed}");
        expect_added(&receipt, &backend);
    }
    assert_eq!(backend.count(), WEBHOOKS as usize, "each arrives once");
    say(&format!("fidelity: {WEBHOOKS} webhooks arrived as they were sent"));
}

#[tokio::test]
async fn the_odd_webhooks_are_legal_and_arrive_where_nothing_lies_between() {
    let backend = Backend::start().await;
    let mut connection = Connection::to(backend.address()).await;
    let mut chance = chance(seed("fidelity, straight", 72), 0);
    for resource in 0..200 {
        let id = Event { resource, sequence: 1 }.webhook_id();
        let webhook = odd(resource, &id, &mut chance);
        assert_eq!(connection.post(&webhook).await.status, 200);
        let receipt = backend.look(|receipts| receipts.last().cloned());
        assert_eq!(Content::received(&receipt.expect("a receipt")), Content::sent(&webhook));
    }
}

/// Sends one sender's share, never far ahead of the deliveries.
async fn send_share(
    number: u64,
    seed: u64,
    address: SocketAddr,
    backend: Arc<Backend>,
    expected: Arc<Mutex<HashMap<String, Content>>>,
) {
    let mut chance = chance(seed, number);
    let mut connection = Connection::to(address).await;
    for resource in (number..WEBHOOKS).step_by(SENDERS as usize) {
        let id = Event { resource, sequence: 1 }.webhook_id();
        let webhook = odd(resource, &id, &mut chance);
        let sent = {
            let mut expected = expected.lock().expect("no sender panicked");
            expected.insert(id, Content::sent(&webhook));
            expected.len()
        };
        connection.post(&webhook).await.expect_stored();
        drop(webhook);
        let began = Instant::now();
        while backend.delivered() + BACKLOG <= sent {
            assert!(began.elapsed() < Duration::from_secs(30), "the backlog does not shrink");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A webhook with unusual but legal content.
fn odd(resource: u64, id: &str, chance: &mut StdRng) -> Webhook {
    let size = BODY_BYTES_MAX.powf(chance.random_range(0.0..=1.0)).max(2.0) as usize;
    let mut body = vec![0; size];
    chance.fill_bytes(&mut body);
    body[0] = b'{';
    let path = PATHS.choose(chance).expect("there are paths");
    let query = QUERIES.choose(chance).expect("there are queries");
    let mut webhook = Webhook::product(resource, id, body).to(&format!("{path}{query}"));
    for number in 0..chance.random_range(0..6) {
        let name = *REPEATED.choose(chance).expect("there are names");
        webhook = webhook.header(name, format!("{number}; a=\"b,c\", d"));
    }
    if chance.random_bool(0.5) {
        webhook = webhook
            .header("X-Empty", "")
            .header("X-Latin", b"caf\xe9 \x80\xff")
            .header("X-Utf8", "caf\u{e9} \u{1f30a}")
            .header("X-Spaces", "a  b\tc")
            .header("X-Long", "l".repeat(chance.random_range(1..4000)));
    }
    if chance.random_bool(0.5) {
        webhook = webhook
            .header("X-Forwarded-For", "192.0.2.1, 198.51.100.7")
            .header("X-Forwarded-Proto", "https")
            .header("X-Forwarded-Host", "hooks.example")
            .header("Authorization", "Basic dTpw")
            .header("Accept", "text/html")
            .header("Content-Encoding", "identity")
            .header("!#$%&'*+-.^_`|~", "a legal name");
    }
    webhook
}

fn expect_added(receipt: &Receipt, backend: &Backend) {
    assert_eq!(receipt.method, "POST");
    assert_eq!(receipt.headers.all("host"), [backend.address().to_string().as_bytes()]);
    assert!(!receipt.spillway_id().is_empty());
    assert_eq!(receipt.attempt(), 1);
    let received_at = receipt.header("Spillway-Received-At");
    let received_at = OffsetDateTime::parse(received_at, &Rfc3339).expect("RFC 3339");
    let age = (OffsetDateTime::now_utc() - received_at).whole_seconds();
    assert!((-1..600).contains(&age), "received {age} s ago");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunked_or_compressed_body_arrives_as_it_was() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[("BODY_KINDS", "any")]).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let chunked = Webhook::any().body(format!("{{\"fill\":\"{}\"}}", "x".repeat(9_000)));
    send(receiver.address(), &chunked.encode_chunked(1000)).await.expect_stored();
    let gzipped = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0C\xbf\xa6\xa3\x02\0\0\0".to_vec();
    let gzipped = Webhook::any().header("Content-Encoding", "gzip").body(gzipped);
    post(receiver.address(), &gzipped).await.expect_stored();
    until("both are delivered", Duration::from_secs(20), async || backend.delivered() == 2).await;
    let receipts = backend.receipts();
    for sent in [&chunked, &gzipped] {
        let content = Content::sent(sent);
        assert!(receipts.iter().any(|receipt| Content::received(receipt) == content), "{sent:?}");
    }
    // The backend verifies Shopify's signature.
    for receipt in receipts.iter().filter(|receipt| receipt.body.is_some()) {
        let body = receipt.body.as_deref().unwrap();
        assert_eq!(receipt.header("X-Shopify-Hmac-Sha256"), sign(SECRET, body));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hop_by_hop_and_foreign_spillway_headers_stay_behind() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let webhook = Webhook::any()
        .header("Connection", "keep-alive")
        .header("Keep-Alive", "timeout=5")
        .header("TE", "trailers")
        .header("Spillway-Attempt", "99")
        .header("Spillway-Replayed", "true");
    post(receiver.address(), &webhook).await.expect_stored();
    until("it is delivered", Duration::from_secs(20), async || backend.delivered() == 1).await;
    let receipt = &backend.receipts()[0];
    for name in ["keep-alive", "te", "transfer-encoding", "spillway-replayed"] {
        assert_eq!(receipt.headers.get(name), None, "{name}");
    }
    assert_eq!(receipt.headers.all("spillway-attempt"), [b"1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_and_query_are_appended_to_the_base_url() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let url = format!("{}/base", backend.url());
    let host = [("DOWNSTREAM_HOST", "app.example")];
    let _downstreamer = cell.downstreamer_starting(&url, &host);
    post(receiver.address(), &Webhook::any().to("//a?b=c")).await.expect_stored();
    until("it is delivered", Duration::from_secs(20), async || backend.delivered() == 1).await;
    let receipt = &backend.receipts()[0];
    assert_eq!(receipt.target, "/base//a?b=c");
    assert_eq!(receipt.header("Host"), "app.example");
}
