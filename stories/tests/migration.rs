//! Tests docs/migrate.md under load with the shipped nginx files: from Shopify directly to an app,
//! through a shadow, one path and all paths, to Spillway in between, and back. Nothing is lost,
//! nothing that was answered comes twice, and the app never receives an older state after a newer
//! one.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stories::app::{App, HOST_NAME};
use stories::authority::Authority;
use stories::backend::Backend;
use stories::binaries::repository;
use stories::cell::Cell;
use stories::check::check;
use stories::client::post;
use stories::ledger::{Event, Ledger, Outcome};
use stories::line::Line;
use stories::load::{Load, Running};
use stories::nginx::Nginx;
use stories::port;
use stories::receipt::{Receipt, hash};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::tunnel::Tunnel;
use stories::until::until;
use stories::webhook::{SECRET, Webhook};

/// Time limit of one step on a busy machine.
const SOON: Duration = Duration::from_secs(60);

const CERTIFIED: &str = "hooks.example.com";
const PATHS: [&str; 2] = ["/webhooks/products", "/webhooks/orders"];
const OLD_SECRET: &str = "the-secret-before-this-one";

/// The steps of the migration, as lines of `migrate-routes`.
const STRAIGHT: &str = "default app;";
const SHADOW: &str = "default app; ~^/webhooks(/|$) shadow;";
const ONE_PATH: &str = "default app; /webhooks/products spillway;";
const CLOSED: &str = "default app; ~^/webhooks(/|$) closed;";

/// All parts of the migration.
struct Rehearsal {
    load: Running,
    ledger: Arc<Ledger>,
    _tunnel: Tunnel,
    nginx: Nginx,
    address: SocketAddr,
    receiver: Service,
    app: App,
    _redis: RedisServer,
    cell: Cell,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_is_moved_behind_spillway_and_back_under_load() {
    let story = Rehearsal::begin().await;
    let hung = story.shadow().await;
    let mut downstreamer = story.deliver_to_app().await;
    story.switch_one_path().await;
    story.switch_all().await;
    story.roll_back().await;
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());
    story.settle(hung).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_rolled_back_while_webhooks_wait_is_overtaken_by_newer_ones() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let app = app(&cell).await;
    let receiver = cell.receiver(&[]).await;
    let settings = [("DOWNSTREAM_HOST", HOST_NAME)];
    let downstreamer = cell.downstreamer_starting(&app.url(), &settings);
    downstreamer.ready().await;
    downstreamer.sigstop();
    let ledger = Arc::new(Ledger::default());
    let event = |sequence| Event { resource: 1, sequence };
    Line::new(receiver.address(), &ledger).store(event(1), &state(event(1))).await;
    Line::new(app.address(), &ledger).store(event(2), &state(event(2))).await;
    downstreamer.sigcont();
    until("both came", SOON, async || taken(&app).len() == 2).await;
    // Only the app's own comparison prevents the older state.
    assert_eq!(taken(&app), [(2, "applied".to_owned()), (1, "stale".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_dropped_in_the_shadow_is_no_duplicate_of_what_shopify_sends_again() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let mut shadow = cell.downstreamer_starting("discard:", &[]);
    let ledger = Arc::new(Ledger::default());
    let webhook = Webhook::any();
    let mut line = Line::new(receiver.address(), &ledger);
    line.store(Event { resource: 1, sequence: 1 }, &webhook).await;
    until("the copy is dropped", SOON, async || {
        shadow.metric("spillway_delivered_total").await == Some(1.0)
    })
    .await;
    until("it is settled", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
    shadow.sigterm();
    assert!(shadow.exit(SOON).await.success());

    // The app failed with the original, so Shopify sends it again after the switch.
    let backend = Backend::start().await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    line.store(Event { resource: 1, sequence: 1 }, &webhook).await;
    until("it is delivered", SOON, async || backend.delivered() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_app_and_the_shadow_get_every_path_as_it_came() {
    let cell = Cell::shared();
    let (app, shadow) = (Backend::start().await, Backend::start().await);
    let authority = Authority::new(cell.directory(), "authority");
    authority.certify(CERTIFIED);
    let address = port::free();
    let site = way(address, app.address(), shadow.address(), "default shadow;");
    let _nginx = Nginx::start(cell.directory(), &site, address).await;
    let tunnel = Tunnel::to(address, CERTIFIED, &authority).await;
    let targets = ["/", "/webhooks//products", "/a%2Fb/%C3%A9/%2e", "/a?", "/a?b=%20c&d=//e"];
    for (sent, target) in (1..).zip(targets) {
        let webhook = Webhook::any().header("X_Under_Score", "kept").to(target);
        post(tunnel.address(), &webhook).await.expect_stored();
        until("the copy came, too", SOON, async || shadow.count() == sent).await;
        for backend in [&app, &shadow] {
            let receipt = backend.look(|receipts| receipts.last().expect("a receipt").clone());
            assert_eq!((receipt.method.as_str(), receipt.target.as_str()), ("POST", target));
            assert_eq!(receipt.body_hash, hash(webhook.payload()));
            assert_eq!(receipt.header("Host"), HOST_NAME);
            assert_eq!(receipt.header("X-Forwarded-Proto"), "https");
            for (name, value) in webhook.headers() {
                assert_eq!(receipt.headers.all(name), [value], "{name} of {target}");
            }
        }
    }
}

/// Both files have the same TLS settings, limits and headers, so the last step changes nothing for
/// the app.
#[test]
fn the_file_for_the_way_says_what_the_file_for_the_end_says() {
    let directives = |file: &str| -> HashSet<String> {
        let lines = shipped(file);
        let lines = lines.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        lines.filter(|line| line.ends_with(';')).map(str::to_owned).collect()
    };
    // The target of a webhook, and the time that an app may take.
    let own = ["proxy_pass http://spillway;", "proxy_read_timeout 4s;"];
    let way = directives("migrate.conf");
    let missing: Vec<String> = directives("spillway.conf")
        .into_iter()
        .filter(|directive| !way.contains(directive) && !own.contains(&directive.as_str()))
        .collect();
    assert_eq!(missing, [""; 0]);
}

impl Rehearsal {
    /// Starts today's app behind nginx, with load, and a cell that is not used yet.
    async fn begin() -> Self {
        let cell = Cell::busy();
        let _redis = cell.redis(&[]).await;
        let app = app(&cell).await;
        let secrets = format!("{SECRET},{OLD_SECRET}");
        let receiver = cell.receiver(&[("SHOPIFY_CLIENT_SECRET", &secrets)]).await;
        let authority = Authority::new(cell.directory(), "authority");
        authority.certify(CERTIFIED);
        let address = port::free();
        let way = way(address, app.address(), receiver.address(), STRAIGHT);
        let nginx = Nginx::start_reloadable(cell.directory(), &way, address).await;
        let tunnel = Tunnel::to(address, CERTIFIED, &authority).await;
        let ledger = Arc::new(Ledger::default());
        let load = Load { targets: &PATHS, ..Load::steady(seed("migration", 61)) };
        let load = load.start(tunnel.address(), &ledger);
        until("the app takes webhooks", SOON, async || app.taken(false) > 300).await;
        Self { load, ledger, _tunnel: tunnel, nginx, address, receiver, app, _redis, cell }
    }

    /// Copies go to Spillway, which drops them, until none is left. Returns how many were not
    /// stored because Spillway hung.
    async fn shadow(&self) -> usize {
        let mut shadow = self.cell.downstreamer_starting("discard:", &[]);
        shadow.ready().await;
        self.route(SHADOW).await;
        let dropped = async || shadow.metric("spillway_delivered_total").await;
        until("copies are dropped", SOON, async || dropped().await > Some(300.0)).await;
        assert_eq!(self.not_stored().await, 0, "what Shopify would not have been told 200 for");
        self.probe().await;
        self.hang().await;
        self.route(STRAIGHT).await;
        self.empty().await;
        say(&format!("migration: {:?} copies were dropped in the shadow", dropped().await));
        assert_eq!(self.app.taken(true), 0);
        shadow.sigterm();
        assert!(shadow.exit(SOON).await.success());
        self.not_stored().await
    }

    /// The doctor's probe succeeds with each secret that the app knows, and with no other.
    async fn probe(&self) {
        for (secret, status) in [(SECRET, 200), (OLD_SECRET, 200), ("another", 401)] {
            let (url, path) = (self.app.url(), PATHS[0]);
            let to_app = ["--downstream-app-url", &url, "--downstream-host", HOST_NAME];
            let probe = ["doctor", "--secret", secret, "--probe", path];
            let ended = self.cell.spillway(&[probe.as_slice(), &to_app].concat()).await;
            let told = String::from_utf8_lossy(&ended.stdout);
            assert!(told.contains(&format!("answered the probe {status}")), "{told}");
            assert_eq!(ended.status.success(), status == 200, "{told}");
        }
    }

    /// A Spillway that hangs slows the senders down, but fails none of them.
    async fn hang(&self) {
        self.receiver.sigstop();
        let before = self.app.taken(false);
        until("the app is served", SOON, async || self.app.taken(false) > before + 100).await;
        self.receiver.sigcont();
    }

    async fn deliver_to_app(&self) -> Service {
        let settings = [("DOWNSTREAM_HOST", HOST_NAME)];
        let downstreamer = self.cell.downstreamer_starting(&self.app.url(), &settings);
        downstreamer.ready().await;
        downstreamer
    }

    async fn switch_one_path(&self) {
        self.route(ONE_PATH).await;
        let straight = |path| self.count(path, false);
        let before = PATHS.map(straight);
        until("one path comes by Spillway", SOON, async || self.app.taken(true) > 300).await;
        until("the other comes straight", SOON, async || straight(PATHS[1]) > before[1] + 300)
            .await;
        assert_eq!(straight(PATHS[0]), before[0], "one path went two ways");
        assert_eq!(self.count(PATHS[1], true), 0, "the other went two ways");
    }

    /// Replaces the configuration of the migration by the final one.
    async fn switch_all(&self) {
        self.nginx.reload(&end(self.address, &self.receiver)).await;
        let straight = self.app.taken(false);
        let before = self.count(PATHS[1], true);
        until("all come by Spillway", SOON, async || self.count(PATHS[1], true) > before + 300)
            .await;
        assert_eq!(self.app.taken(false), straight, "some still come straight");
        // A backlog, so that the way back is harder.
        self.app.be_busy(true);
        until("some hundreds wait", SOON, async || self.waiting().await > 500).await;
        self.app.be_busy(false);
    }

    /// Rolls back: nothing new is accepted, the queue empties, then webhooks go directly to the app
    /// again.
    async fn roll_back(&self) {
        self.route(CLOSED).await;
        say(&format!("migration: {} wait when the gate is closed", self.waiting().await));
        self.empty().await;
        let by_spillway = self.app.taken(true);
        self.route(STRAIGHT).await;
        let before = self.app.taken(false);
        until("all come straight", SOON, async || self.app.taken(false) > before + 300).await;
        assert_eq!(self.app.taken(true), by_spillway, "some still come by Spillway");
    }

    async fn settle(mut self, hung: usize) {
        let not_stored = self.not_stored().await;
        self.load.stop().await;
        assert!(self.app.is_running());
        let journal = self.app.journal();
        let receipts: Vec<Receipt> =
            journal.iter().enumerate().map(|(place, line)| line.receipt(place)).collect();
        // The probes are not events of the load.
        let receipts: Vec<Receipt> = receipts
            .into_iter()
            .filter(|receipt| Event::of(receipt.webhook_id()).is_some())
            .collect();
        let figures = check(&self.ledger, &receipts, &HashSet::new());
        figures.print("migration");
        let again =
            receipts.iter().filter(|receipt| receipt.delivered()).count() - figures.delivered;
        let stale = journal.iter().filter(|line| line.outcome == "stale").count();
        let unanswered =
            self.ledger.count(Outcome::Unanswered) + self.ledger.count(Outcome::CutInAnswer);
        // Requests that the receiver answered with other statuses than 200 may have been stored
        // too.
        let in_doubt = unanswered + not_stored - hung;
        say(&format!(
            "migration: {} straight, {} by Spillway, {again} twice ({in_doubt} in doubt), {stale} \
             stale",
            self.app.taken(false),
            self.app.taken(true),
        ));
        figures.expect_sound(0);
        assert!(again <= in_doubt, "{again} came twice, {in_doubt} were in doubt");
        assert_eq!(stale, 0, "older states came after newer ones");
    }

    async fn route(&self, routes: &str) {
        let (app, receiver) = (self.app.address(), self.receiver.address());
        self.nginx.reload(&way(self.address, app, receiver, routes)).await;
    }

    /// Waits until no webhook waits in Spillway.
    async fn empty(&self) {
        until("the queue is empty", SOON, async || self.waiting().await == 0).await;
    }

    async fn waiting(&self) -> u64 {
        let ended = self.cell.spillway(&["status", "-o", "json"]).await;
        let status: Value = serde_json::from_slice(&ended.stdout).expect("status is JSON");
        status["consumers"][0]["waiting"].as_u64().expect("a consumer is registered")
    }

    /// Number of requests that the receiver answered with another status than 200.
    async fn not_stored(&self) -> usize {
        let page = self.receiver.admin("/metrics").await.expect("metrics").text();
        let answered = page.lines().filter(|line| line.starts_with("spillway_received_total{"));
        let others = answered.filter(|line| !line.contains("outcome=\"accepted\""));
        let count = |line: &str| line.rsplit(' ').next().and_then(|count| count.parse().ok());
        others.map(|line| count(line).unwrap_or(0_usize)).sum()
    }

    fn count(&self, path: &str, by_spillway: bool) -> usize {
        let journal = self.app.journal();
        let taken = journal.iter().filter(|line| line.status == 200 && line.path == path);
        taken.filter(|line| line.spillway.is_some() == by_spillway).count()
    }
}

async fn app(cell: &Cell) -> App {
    let secrets = format!("{SECRET},{OLD_SECRET}");
    App::start(cell.directory(), &secrets, 16, Duration::from_millis(5)).await
}

/// State number `sequence` of a product, as nginx would pass it on.
fn state(event: Event) -> Webhook {
    let Event { resource, sequence } = event;
    let body = format!("{{\"id\":{resource},\"updated_at\":\"2026-01-01T00:00:0{sequence}Z\"}}");
    Webhook::product(resource, &event.webhook_id(), body.into_bytes())
        .header("X-Forwarded-Proto", "https")
}

/// States that the app accepted, with its result for each.
fn taken(app: &App) -> Vec<(u64, String)> {
    let journal = app.journal().into_iter().filter(|line| line.status == 200);
    let event = |webhook: &str| Event::of(webhook).expect("an event of ours").sequence;
    journal.map(|line| (event(&line.webhook), line.outcome)).collect()
}

/// `migrate.conf` with these addresses and routes.
fn way(address: SocketAddr, app: SocketAddr, spillway: SocketAddr, routes: &str) -> String {
    let site = [
        ("include /etc/nginx/spillway/migrate-routes;", routes.to_owned()),
        ("server 127.0.0.1:3000 ", format!("server {app} ")),
        ("server 127.0.0.1:8080 ", format!("server {spillway} ")),
    ];
    certified(replace_each(shipped("migrate.conf"), &site), address)
}

/// `spillway.conf` with these addresses.
fn end(address: SocketAddr, receiver: &Service) -> String {
    let server = format!("server {} ", receiver.address());
    let site = replace_each(shipped("spillway.conf"), &[("server 127.0.0.1:8080 ", server)]);
    certified(site, address)
}

fn certified(site: String, address: SocketAddr) -> String {
    let certificate = "/etc/ssl/certs/hooks.example.com.pem";
    let key = "/etc/ssl/private/hooks.example.com.key";
    replace_each(
        site,
        &[
            ("listen 443 ssl;", format!("listen {address} ssl;")),
            ("listen [::]:443 ssl;", String::new()),
            (certificate, "hooks.example.com.pem".to_owned()),
            (key, "hooks.example.com.key".to_owned()),
        ],
    )
}

fn shipped(file: &str) -> String {
    fs::read_to_string(repository().join("ops/nginx").join(file)).expect("read the shipped file")
}

/// Each text must occur exactly once, so that the shipped file and this test stay consistent.
fn replace_each(mut text: String, replacements: &[(&str, String)]) -> String {
    for (from, to) in replacements {
        assert_eq!(text.matches(from).count(), 1, "{from:?} in the shipped file");
        text = text.replace(from, to);
    }
    text
}
