//! Delivery over TLS to a backend behind nginx: by HTTP/2 if it is offered, by HTTP/1.1 under
//! another name than the URL's, and not at all to a server without a trusted certificate. The same
//! certificates count for payloads. With `BACKEND_*`: authorities of the backend's own, a certificate
//! that it is shown, and headers.

use std::collections::HashSet;
use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stories::authority::Authority;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::nginx::Nginx;
use stories::port;
use stories::receipt::{Receipt, hash};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use stories::webhook::Webhook;
use time::OffsetDateTime;

const WEBHOOKS: u64 = 200;
const SOON: Duration = Duration::from_secs(30);

/// Names in the backend's certificates. A client without a name gets the first.
const NAMES: [&str; 2] = ["localhost", "hooks.example.com"];
const TARGETS: [&str; 5] =
    ["/webhooks", "/", "//products", "/a%2Fb/%C3%A9?c=%20d&e=//f", "/webhooks?"];

/// nginx configuration that reports how it was reached and passes everything else on unchanged.
const PASSES_ON: &str = "
proxy_set_header Host $http_host;
proxy_set_header Reached-By $server_protocol;
proxy_set_header Reached-Over $connection;
proxy_set_header Shown $ssl_client_s_dn;
";

/// A backend behind TLS, and a feed of webhooks.
struct Story {
    backend: Backend,
    address: SocketAddr,
    authority: Authority,
    _nginx: Nginx,
    redis: RedisServer,
    _receiver: Service,
    feed: Feed,
    cell: Cell,
}

impl Story {
    /// Starts everything. `listen` is added to the address in nginx's `listen` directive.
    async fn begin(listen: &str) -> Self {
        Self::begin_with(listen, "").await
    }

    /// Same as [`begin`](Self::begin), with more directives for nginx.
    async fn begin_with(listen: &str, more: &str) -> Self {
        let cell = Cell::shared();
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        let receiver = cell.receiver(&[]).await;
        let authority = Authority::new(cell.directory(), "authority");
        NAMES.iter().for_each(|name| authority.certify(name));
        let address = port::free();
        let site = site(&format!("{address} {listen}"), backend.address()) + more;
        let _nginx = Nginx::start(cell.directory(), &site, address).await;
        let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
        Self { backend, address, authority, _nginx, redis, _receiver: receiver, feed, cell }
    }

    /// Stores that many webhooks.
    async fn store(&self, webhooks: u64) {
        let items = (1..=webhooks).map(|resource| (event(resource), webhook(resource)));
        self.feed.store(items.collect()).await;
    }

    /// Starts a downstreamer that trusts only this authority.
    async fn downstreamer(
        &self,
        url: &str,
        authority: &Authority,
        settings: Settings<'_>,
    ) -> Service {
        let trusted = authority.certificate();
        let settings = [&[("SSL_CERT_FILE", trusted.as_str())], settings].concat();
        let downstreamer = self.cell.downstreamer_starting(url, &settings);
        downstreamer.ready().await;
        downstreamer
    }

    /// Waits until everything stored is delivered. Fails unless each arrived once and unchanged.
    async fn expect_delivered(&self, base: &str) -> Vec<Receipt> {
        self.feed.ledger.delivered_to(&self.backend, SOON).await;
        let receipts = self.backend.receipts();
        assert_eq!(receipts.len(), self.feed.ledger.stored_count(), "each arrives once");
        receipts.iter().for_each(|receipt| expect_unchanged(receipt, base));
        receipts
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_offers_http_2_gets_all_over_one_connection() {
    let story = Story::begin("ssl http2").await;
    story.backend.behave(|_| Behaviour::slowly(Duration::from_millis(5)));
    story.store(WEBHOOKS).await;
    let host = format!("localhost:{}", story.address.port());
    let url = format!("https://{host}/base");
    let _downstreamer = story.downstreamer(&url, &story.authority, &[]).await;
    let receipts = story.expect_delivered("/base").await;
    let connections = connections(&receipts, "HTTP/2.0", &host);
    // Two connections, if the first deliveries begin before the protocol is known.
    assert!(connections <= 2, "{connections} connections");
    let at_once = story.backend.in_flight_max();
    assert!(at_once > 1, "one after the other");
    say(&format!("tls: {WEBHOOKS} over HTTP/2.0, {connections} connections, {at_once} at once"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_of_another_name_gets_all_over_http_1_1_connections_that_are_reused() {
    const CONCURRENCY: usize = 8;
    let story = Story::begin("ssl http2").await;
    story.backend.behave(|_| Behaviour::slowly(Duration::from_millis(5)));
    story.store(WEBHOOKS).await;
    let url = format!("https://{}", story.address);
    let concurrency = CONCURRENCY.to_string();
    let settings = [("DOWNSTREAM_HOST", NAMES[1]), ("MAX_CONCURRENCY", concurrency.as_str())];
    let _downstreamer = story.downstreamer(&url, &story.authority, &settings).await;
    let receipts = story.expect_delivered("").await;
    let connections = connections(&receipts, "HTTP/1.1", NAMES[1]);
    // A connection that is still being opened when another becomes idle is kept too.
    assert!(connections <= 2 * CONCURRENCY, "{connections} connections");
    let at_once = story.backend.in_flight_max();
    say(&format!("tls: {WEBHOOKS} over HTTP/1.1, {connections} connections, {at_once} at once"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_offers_http_1_1_alone_is_told_the_host_of_the_url() {
    let story = Story::begin("ssl").await;
    story.store(10).await;
    let host = format!("localhost:{}", story.address.port());
    let url = format!("https://{host}");
    let _downstreamer = story.downstreamer(&url, &story.authority, &[]).await;
    let receipts = story.expect_delivered("").await;
    connections(&receipts, "HTTP/1.1", &host);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_for_a_backend_that_is_not_trusted_waits_until_it_is() {
    let story = Story::begin("ssl http2").await;
    story.store(1).await;
    let url = format!("https://localhost:{}", story.address.port());
    let stranger = Authority::new(story.cell.directory(), "stranger");
    let mut downstreamer = story.downstreamer(&url, &stranger, &[]).await;
    until("it is tried many times", SOON, async || {
        downstreamer.metric("spillway_delivery_attempts_total").await >= Some(10.0)
    })
    .await;
    assert_eq!(story.backend.count(), 0);
    assert_eq!(story.redis.stream_len("{spillway}:http:dead").await, 0);
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());
    assert_eq!(story.redis.stream_len("{spillway}:http:dead").await, 0);

    let _downstreamer = story.downstreamer(&url, &story.authority, &[]).await;
    story.expect_delivered("").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_is_shown_a_certificate_and_headers_which_may_change() {
    // A connection that is kept would be one of the old certificate.
    let story = Story::begin_with("ssl", "keepalive_requests 1;").await;
    let directory = story.cell.directory();
    let path = |name: &str| directory.join(name).display().to_string();
    for name in ["one", "two"] {
        story.authority.certify(name);
    }
    story.authority.install("one", "shown");
    let headers = path("headers");
    std::fs::write(&headers, "Authorization: Bearer first\n").expect("write");
    let files = ["authority.pem", "shown.pem", "shown.key"].map(path);
    let settings = [
        ("BACKEND_CA_FILE", files[0].as_str()),
        ("BACKEND_CERT_FILE", &files[1]),
        ("BACKEND_KEY_FILE", &files[2]),
        ("BACKEND_HEADERS_FILE", &headers),
    ];
    let url = format!("https://localhost:{}", story.address.port());
    let stranger = Authority::new(directory, "stranger");
    // The authorities of the machine do not count.
    let downstreamer = story.downstreamer(&url, &stranger, &settings).await;
    let deliver = async |resource: u64| {
        let count = story.backend.count();
        let theirs = webhook(resource).header("Authorization", "of the webhook");
        story.feed.store(vec![(event(resource), theirs)]).await;
        until("it is delivered", SOON, async || story.backend.count() > count).await;
        story.backend.receipts().pop().expect("a receipt")
    };
    let receipt = deliver(1).await;
    assert_eq!(receipt.headers.all("Authorization"), [b"Bearer first"]);
    assert_eq!(receipt.header("Shown"), "CN=one");

    std::fs::write(&headers, "Authorization: Bearer second\n").expect("write");
    story.authority.install("two", "shown");
    downstreamer.sighup();
    until("both are read again", SOON, async || {
        let log = downstreamer.output();
        log.contains("BACKEND_HEADERS_FILE read again")
            && log.contains("BACKEND_CERT_FILE read again")
    })
    .await;
    let receipt = deliver(2).await;
    assert_eq!(receipt.headers.all("Authorization"), [b"Bearer second"]);
    assert_eq!(receipt.header("Shown"), "CN=two");

    std::fs::write(&headers, "Host: elsewhere\n").expect("write");
    downstreamer.sighup();
    until("the mistake is reported", SOON, async || {
        downstreamer.metric("spillway_reload_failed").await == Some(1.0)
    })
    .await;
    assert!(!downstreamer.output().contains("Bearer"), "a secret is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_fetched_over_tls_from_a_host_that_is_trusted() {
    const BODY: &str = "{\"fetched\":true}";
    let story = Story::begin("ssl http2").await;
    story.backend.behave(|_| Behaviour::Wire {
        begins: format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len()).into(),
        repeats: Vec::new(),
        every: Duration::ZERO,
        closes: false,
    });
    let app = Backend::start().await;
    let host = format!("localhost:{}", story.address.port());
    let expires_at = OffsetDateTime::now_utc() + Duration::from_secs(3600);
    let stub = shop::stub(1, event(1), &format!("https://{host}/payload?a=b"), expires_at);
    story.feed.store(vec![(event(1), stub)]).await;
    let settings = [("FETCH_PAYLOADS", "on"), ("PAYLOAD_HOSTS", host.as_str())];
    let stranger = Authority::new(story.cell.directory(), "stranger");
    let mut downstreamer = story.downstreamer(&app.url(), &stranger, &settings).await;
    until("it is tried many times", SOON, async || {
        downstreamer.metric("spillway_payload_stubs_total").await >= Some(5.0)
    })
    .await;
    assert_eq!((app.count(), story.backend.count()), (0, 0));
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());

    let _downstreamer = story.downstreamer(&app.url(), &story.authority, &settings).await;
    until("it is delivered", SOON, async || app.count() > 0).await;
    let receipts = app.receipts();
    assert_eq!(receipts.len(), 1);
    assert_eq!(receipts[0].header("Spillway-Payload"), "fetched");
    assert_eq!(receipts[0].body.as_deref(), Some(BODY.as_bytes()));
    let asked = story.backend.receipts();
    assert_eq!((asked[0].target.as_str(), asked[0].header("Host")), ("/payload?a=b", &*host));
}

fn site(listen: &str, backend: SocketAddr) -> String {
    let mut site = PASSES_ON.to_owned();
    for name in NAMES {
        let server = format!(
            "
server {{
    listen {listen};
    server_name {name};
    ssl_certificate {name}.pem;
    ssl_certificate_key {name}.key;
    ssl_client_certificate authority.pem;
    ssl_verify_client optional;
    location / {{ proxy_pass http://{backend}; }}
}}
"
        );
        site.push_str(&server);
    }
    site
}

fn event(resource: u64) -> Event {
    Event { resource, sequence: 1 }
}

/// A webhook. Every tenth is longer than the initial window of HTTP/2.
fn webhook(resource: u64) -> Webhook {
    let bytes = if resource.is_multiple_of(10) { 200_000 } else { 100 * resource };
    let odd = (0..bytes).map(|at| (at * 7 + resource) as u8);
    let body = iter::once(b'{').chain(odd).collect();
    let target = TARGETS[resource as usize % TARGETS.len()];
    Webhook::product(resource, &event(resource).webhook_id(), body).to(target)
}

fn expect_unchanged(receipt: &Receipt, base: &str) {
    let sent = webhook(receipt.event().resource);
    assert_eq!(receipt.method, "POST");
    assert_eq!(receipt.target, format!("{base}{}", sent.target()));
    assert_eq!(receipt.body_hash, hash(sent.payload()), "{}", receipt.target);
    // The time of sending is the only header that differs when a webhook is built again.
    for (name, value) in sent.without("X-Shopify-Triggered-At").headers() {
        assert_eq!(receipt.headers.all(name), [value], "{name}");
    }
}

/// Number of connections used. All must use this protocol and this name.
fn connections(receipts: &[Receipt], protocol: &str, host: &str) -> usize {
    for receipt in receipts {
        assert_eq!(receipt.header("Reached-By"), protocol);
        assert_eq!(receipt.header("Host"), host);
    }
    let connections = receipts.iter().map(|receipt| receipt.header("Reached-Over"));
    connections.collect::<HashSet<_>>().len()
}
