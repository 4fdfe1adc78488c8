//! A customer, or a shop, is forgotten: after the redaction was delivered, no file of the cell or its archive shows them, and
//! everything else is as it was.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use stories::archive::ArchiveDirectory;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries;
use stories::cell::{Cell, Settings};
use stories::client::post;
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::size::size;
use stories::traces::traces;
use stories::until::until;
use stories::webhook::Webhook;

pub(crate) const SOON: Duration = Duration::from_secs(90);
pub(crate) const SHOP: &str = "first.myshopify.com";
pub(crate) const OTHER_SHOP: &str = "second.myshopify.com";
/// Shop whose orders are delivered while those of the others wait.
const FLOWING_SHOP: &str = "third.myshopify.com";
/// Everything by which the customer is known.
pub(crate) const ANN: [&str; 4] =
    ["7702398465123", "ann.lee@example.com", "15556251199", "5551112223334"];
/// Webhook that shows her by her address alone.
const BY_ADDRESS: &str = "ann-2";
const KEY: &str = "first AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

/// A cell that archives, delivers everything to one backend, and orders to another one.
pub(crate) struct Remembering {
    pub(crate) archive: ArchiveDirectory,
    key_file: Option<PathBuf>,
    pub(crate) backend: Backend,
    pub(crate) billing: Backend,
    pub(crate) redis: RedisServer,
    pub(crate) receiver: Service,
    pub(crate) consumers: [Service; 3],
    pub(crate) cell: Cell,
}

pub(crate) fn webhook(shop: &str, topic: &str, id: &str, body: &Value) -> Webhook {
    Webhook::product(1, id, body.to_string().into_bytes())
        .without("X-Shopify-Product-Id")
        .with("X-Shopify-Shop-Domain", shop)
        .topic(topic)
}

/// Webhooks that show Ann, each in another way.
pub(crate) fn of_ann() -> Vec<(&'static str, Value)> {
    vec![
        (
            "customers/update",
            json!({ "id": 7_702_398_465_123_u64, "email": "Ann.Lee@example.com" }),
        ),
        (
            "orders/create",
            json!({ "id": 5_551_112_223_334_u64, "customer": { "id": 7_702_398_465_123_u64 } }),
        ),
        (
            "orders/updated",
            json!({ "id": 9, "contact_email": "ann.lee@example.com", "note": "x".repeat(300) }),
        ),
        (
            "carts/update",
            json!({
                "id": 8, "customer_id": 7_702_398_465_123_u64, "phone": "+1 (555) 625-1199",
                "email": "ann.lee@example.com",
            }),
        ),
        ("fulfillments/create", json!({ "id": 7, "order_id": 5_551_112_223_334_u64 })),
    ]
}

/// Webhooks about another customer, of the same topics.
pub(crate) fn of_bob() -> Vec<(&'static str, Value)> {
    vec![
        ("customers/update", json!({ "id": 77, "email": "bob@example.com" })),
        ("orders/create", json!({ "id": 55, "customer": { "id": 77 }, "note": "y".repeat(300) })),
        ("carts/update", json!({ "id": 88, "email": "bob.ann@example.com" })),
    ]
}

pub(crate) fn redaction() -> Value {
    json!({
        "shop_domain": SHOP, "orders_to_redact": [5_551_112_223_334_u64],
        "customer": { "id": 7_702_398_465_123_u64, "email": "ann.lee@example.com", "phone": "+15556251199" },
    })
}

impl Remembering {
    pub(crate) async fn start(is_encrypted: bool) -> Self {
        let cell = Cell::busy();
        let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
        // Text in place of the compact form of Redis, which a search cannot read.
        let redis = cell.redis(&["--aof-use-rdb-preamble", "no"]).await;
        let spill = cell.directory().join("spill").display().to_string();
        let receiver = cell.receiver(&[("SPILL_DIR", &spill), ("SPILL_MAX", "64MiB")]).await;
        let key_file = is_encrypted.then(|| cell.directory().join("archive-keys"));
        let keys = key_file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        if let Some(file) = &key_file {
            std::fs::write(file, KEY).expect("write a key");
        }
        let [backend, billing] = [Backend::start().await, Backend::start().await];
        backend.behave(|receipt| {
            if receipt.topic() == "carts/update" { Behaviour::status(422) } else { Behaviour::ok() }
        });
        billing.behave(|receipt| {
            if receipt.shop() == SHOP { Behaviour::status(503) } else { Behaviour::ok() }
        });
        let orders = [("CONSUMER", "billing"), ("ONLY_TOPICS", "orders/*"), ("PARK_AFTER", "1s")];
        let archiver = [("ARCHIVE_MAX_DELAY", "1s"), ("ARCHIVE_KEY_FILE", keys.as_str())];
        let consumers = [
            cell.downstreamer(&backend, &[]).await,
            cell.downstreamer(&billing, &orders).await,
            cell.archiver(&archive.url(), &archiver),
        ];
        for consumer in &consumers {
            consumer.leads().await;
        }
        Self { archive, key_file, backend, billing, redis, receiver, consumers, cell }
    }

    pub(crate) async fn post(
        &self,
        shop: &str,
        prefix: &str,
        webhooks: Vec<(&'static str, Value)>,
    ) {
        for (number, (topic, body)) in webhooks.iter().enumerate() {
            let webhook = webhook(shop, topic, &format!("{prefix}-{number}"), body);
            assert_eq!(post(self.receiver.address(), &webhook).await.status, 200);
        }
    }

    /// Posts webhooks about Ann, about others, and of another shop, and waits until they are where they are to be.
    async fn fill(&self) {
        self.post(SHOP, "ann", of_ann()).await;
        self.post(SHOP, "bob", of_bob()).await;
        self.post(OTHER_SHOP, "other", of_bob()).await;
        let dead = async || self.redis.stream_len("{spillway}:http:dead").await == 3;
        until("three are dead letters", SOON, dead).await;
        // While nothing succeeds, a backend is taken for down, and nothing moves into lanes.
        let mut number = 0;
        until("orders wait in lanes", SOON, async || {
            number += 1;
            let order = vec![("orders/create", json!({ "id": 1_000 + number }))];
            self.post(FLOWING_SHOP, &format!("flow-{number}"), order).await;
            self.in_lanes().await == 3
        })
        .await;
        until("all is archived", SOON, async || self.is_main_empty().await).await;
    }

    pub(crate) async fn in_lanes(&self) -> u64 {
        let field = ["HGET", "{spillway}:counts", "lanes:billing"];
        let waiting: Option<u64> = self.redis.command(&field).await;
        waiting.unwrap_or(0)
    }

    pub(crate) async fn is_main_empty(&self) -> bool {
        self.redis.stream_len("{spillway}:in").await == 0
    }

    pub(crate) async fn pending(&self) -> u64 {
        self.redis.command(&["HLEN", "{spillway}:redactions"]).await
    }

    /// Delivers a redaction to the backend, and waits until it is archived, too.
    async fn redact(&self, topic: &'static str, id: &str, body: &Value) {
        let webhook = webhook(SHOP, topic, id, body);
        assert_eq!(post(self.receiver.address(), &webhook).await.status, 200);
        let delivered = async || self.backend.has_delivered(id);
        until("the redaction is delivered", SOON, delivered).await;
        until("it is noted", SOON, async || self.pending().await == 1).await;
        until("it is settled", SOON, async || self.is_main_empty().await).await;
    }

    fn settings(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.display().to_string();
        let keys = self.key_file.as_ref().map(|file| path(file)).unwrap_or_default();
        let all = [
            ("REDIS_URL", self.cell.redis_url()),
            ("ARCHIVE_URL", self.archive.url()),
            ("ARCHIVE_KEY_FILE", keys),
            ("SPILL_DIR", path(&self.cell.directory().join("spill"))),
            ("REDACT_WITHIN", "2s".to_owned()),
            ("FORGET_SETTLED_AFTER", "0s".to_owned()),
            // A purge that has to wait for another consumer is left to the next one.
            ("FORGET_PATIENCE", "3s".to_owned()),
        ];
        let set = all.into_iter().filter(|(_, value)| !value.is_empty());
        set.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Runs the operators' command. Returns whether it succeeded, and its output.
    pub(crate) async fn spillway(&self, arguments: &[&str]) -> (bool, String) {
        let settings = self.settings();
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let settings: Settings<'_> = &settings;
        let output = self.cell.run("spillway", arguments, settings).await;
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&told).into_owned())
    }

    pub(crate) async fn told(&self, arguments: &[&str]) -> String {
        let (is_good, told) = self.spillway(arguments).await;
        assert!(is_good, "{arguments:?}: {told}");
        told
    }

    /// Pending redactions and records of purges.
    pub(crate) async fn records(&self) -> Vec<Value> {
        let listed = self.told(&["forget", "--list", "-o", "json"]).await;
        listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Runs the purge until nothing is noted.
    pub(crate) async fn purge(&self) {
        until("everything is purged", SOON, async || {
            self.spillway(&["forget", "--due"]).await;
            self.pending().await == 0
        })
        .await;
    }

    /// Body of a webhook as the archive shows it; `None` if it does not.
    pub(crate) async fn archived(&self, id: &str) -> Option<String> {
        let (is_there, told) =
            self.spillway(&["archive", "show", "--webhook-id", id, "--body"]).await;
        is_there.then_some(told)
    }

    /// Checks that no file shows these texts, and that the archive is whole.
    pub(crate) async fn expect_forgotten(&self, texts: &[&str]) {
        // Redis deletes the files of before the rewrite in the background.
        let is_gone = async || {
            let left = traces(self.cell.directory(), texts);
            if !left.is_empty() {
                println!("{left:#?}");
            }
            left.is_empty()
        };
        until("no file shows them", SOON, is_gone).await;
        assert!(self.told(&["archive", "verify"]).await.contains("0 problems"));
    }

    pub(crate) async fn expect_others(&self) {
        for (prefix, webhooks) in [("bob", of_bob()), ("other", of_bob())] {
            for (number, (_, body)) in webhooks.iter().enumerate() {
                let id = format!("{prefix}-{number}");
                assert_eq!(self.archived(&id).await, Some(body.to_string()), "{id}");
            }
        }
    }
}

async fn a_customer_is_forgotten(is_encrypted: bool) {
    let cell = Remembering::start(is_encrypted).await;
    cell.fill().await;
    let all = if is_encrypted { Vec::new() } else { cell.archive.webhooks() };
    assert!(!traces(cell.cell.directory(), &ANN[..1]).is_empty(), "the search finds what is there");
    cell.redact("customers/redact", "redact", &redaction()).await;
    until("its dead letter is dropped", SOON, async || {
        // Another webhook that waits in the same chunk may hold the purge up.
        cell.spillway(&["forget", "--due"]).await;
        cell.redis.stream_len("{spillway}:http:dead").await == 2
    })
    .await;
    assert_eq!(cell.redis.stream_len("{spillway}:http:dead").await, 2, "dead letters of others");
    cell.billing.behave(|_| Behaviour::ok());
    until("the lanes are empty", SOON, async || cell.in_lanes().await == 0).await;
    cell.purge().await;
    cell.expect_forgotten(&ANN).await;
    cell.expect_others().await;
    assert_eq!(cell.redis.stream_len("{spillway}:http:dead").await, 2, "dead letters of others");
    // What shows her by her address alone was delivered before it was purged.
    let receipts = cell.billing.receipts();
    let of_her =
        receipts.iter().filter(|one| one.delivered() && one.webhook_id().starts_with("ann"));
    let delivered: Vec<String> = of_her.map(|one| one.webhook_id().to_owned()).collect();
    assert!(delivered.iter().all(|id| id == BY_ADDRESS) && !delivered.is_empty(), "{delivered:?}");
    if !is_encrypted {
        let left: Vec<Value> = all
            .into_iter()
            .filter(|one| !one["webhook_id"].as_str().is_some_and(|id| id.starts_with("ann")))
            .collect();
        assert_eq!(cell.archive.webhooks(), left, "the others are as they were");
    }
    let records = cell.records().await;
    let told = format!("{records:?}");
    assert!(ANN.iter().all(|text| !told.contains(text)), "{told}");
    assert_eq!(records[0]["complete"], true);
    assert_eq!(records[0]["redactions"][0]["kind"], "customer");
    let purged = |store: &str| -> u64 {
        records.iter().filter_map(|record| record["purged"][store].as_u64()).sum()
    };
    let expected = of_ann().len() as u64;
    assert_eq!((purged("dead_letters"), purged("archived")), (1, expected + 1));
    assert!(purged("waiting") >= 1);
    let shown = cell.spillway(&["archive", "show", "--webhook-id", "ann-0"]).await;
    assert!(!shown.0, "{shown:?}");
    // The customer comes back: what is sent from now on stays.
    cell.post(SHOP, "again", of_ann()[..1].to_vec()).await;
    until("it is archived", SOON, async || cell.archived("again-0").await.is_some()).await;
    assert!(cell.told(&["forget", "--due"]).await.contains("nothing is due"));
    assert!(cell.archived("again-0").await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customer_whose_redaction_was_delivered_is_in_no_file() {
    a_customer_is_forgotten(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customer_is_forgotten_by_an_encrypted_archive() {
    a_customer_is_forgotten(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_that_is_killed_at_any_moment_is_finished_by_the_next_one() {
    let cell = Remembering::start(false).await;
    cell.billing.behave(|_| Behaviour::ok());
    cell.post(SHOP, "ann", of_ann()).await;
    cell.post(SHOP, "bob", of_bob()).await;
    cell.post(OTHER_SHOP, "other", of_bob()).await;
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    let all = cell.archive.webhooks();
    cell.redact("customers/redact", "redact", &redaction()).await;
    until("it is due", SOON, async || {
        !cell.told(&["forget", "--due", "--dry-run"]).await.contains("nothing is due")
    })
    .await;
    for _ in 0..size(8, 100) {
        let mut command = Command::new(binaries::ours("spillway"));
        command.args(["forget", "--due"]).env_clear().envs(cell.settings());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut purge = command.spawn().expect("run spillway");
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..150))).await;
        purge.kill().expect("kill it");
        purge.wait().expect("it ended");
        // The lease of a purge that was killed ends after a minute.
        let _: u64 = cell.redis.command(&["DEL", "{spillway}:purge"]).await;
    }
    cell.purge().await;
    cell.expect_forgotten(&ANN).await;
    let left: Vec<Value> = all
        .into_iter()
        .filter(|one| !one["webhook_id"].as_str().is_some_and(|id| id.starts_with("ann")))
        .collect();
    assert_eq!(cell.archive.webhooks(), left, "the others are as they were");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_timer_a_purge_repeats_until_it_is_stopped() {
    let cell = Remembering::start(false).await;
    cell.billing.behave(|_| Behaviour::ok());
    let url = cell.archive.url();
    let flags = ["--archive-url", url.as_str(), "--redact-within", "6s", "--forget-settled-after"];
    let repeated = [&["forget", "--due", "--every", "1s"], &flags[..], &["0s"]].concat();
    let mut purge = cell.cell.spillway_starting(&repeated);
    cell.post(SHOP, "ann", of_ann()).await;
    cell.post(OTHER_SHOP, "other", of_bob()).await;
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    cell.redact("customers/redact", "redact", &redaction()).await;
    until("everything is purged", SOON, async || cell.pending().await == 0).await;
    cell.expect_forgotten(&ANN).await;
    assert!(purge.is_running(), "{}", purge.output());
    purge.sigterm();
    assert_eq!(purge.exit(SOON).await.code(), Some(0), "{}", purge.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_is_forgotten_and_another_one_is_not() {
    let cell = Remembering::start(false).await;
    cell.billing.behave(|_| Behaviour::ok());
    cell.post(SHOP, "ann", of_ann()).await;
    cell.post(OTHER_SHOP, "other", of_bob()).await;
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    cell.redact("shop/redact", "redact", &json!({ "shop_domain": SHOP })).await;
    cell.purge().await;
    cell.expect_forgotten(&ANN).await;
    let left = cell.archive.webhooks();
    assert_eq!(left.len(), of_bob().len());
    assert!(left.iter().all(|one| one["shop"] == OTHER_SHOP), "{left:?}");
    assert_eq!(cell.redis.stream_len("{spillway}:http:dead").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redaction_whose_headers_its_body_does_not_confirm_purges_nothing() {
    let cell = Remembering::start(false).await;
    cell.billing.behave(|_| Behaviour::ok());
    cell.post(OTHER_SHOP, "other", of_bob()).await;
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    let before = cell.archive.webhooks().len();
    let of_shop = json!({ "shop_domain": SHOP });
    let replayed = [
        webhook(OTHER_SHOP, "shop/redact", "stolen", &of_shop),
        webhook(SHOP, "shop/redact", "changed", &redaction()),
    ];
    for (webhook, id) in replayed.iter().zip(["stolen", "changed"]) {
        assert_eq!(post(cell.receiver.address(), webhook).await.status, 200);
        until("it is delivered", SOON, async || cell.backend.has_delivered(id)).await;
    }
    until("all is settled", SOON, async || cell.is_main_empty().await).await;
    assert_eq!(cell.pending().await, 0);
    assert!(cell.told(&["forget", "--due"]).await.contains("nothing is due"));
    assert_eq!(cell.archive.webhooks().len(), before + replayed.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_beside_another_one_waits_for_it() {
    let cell = Remembering::start(false).await;
    cell.billing.behave(|_| Behaviour::ok());
    cell.post(SHOP, "ann", of_ann()).await;
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    let lease = ["SET", "{spillway}:purge", "another"];
    let _: String = cell.redis.command(&lease).await;
    let by_hand = ["forget", "--shop", SHOP, "--all", "--yes"];
    let (is_good, told) = cell.spillway(&by_hand).await;
    assert!(!is_good && told.contains("another purge is at work"), "{told}");
    assert!(cell.told(&["forget", "--due"]).await.contains("another purge is at work"));
    assert_eq!(cell.pending().await, 1, "the order is noted");
    let _: u64 = cell.redis.command(&["DEL", "{spillway}:purge"]).await;
    cell.purge().await;
    cell.expect_forgotten(&ANN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_hand_nothing_is_changed_without_consent() {
    let cell = Remembering::start(false).await;
    cell.fill().await;
    let before = cell.archive.webhooks();
    let by_hand = ["forget", "--shop", SHOP, "--customer", ANN[0], "--email", ANN[1]];
    for flags in [&[][..], &["--dry-run"]] {
        let told = cell.told(&[&by_hand[..], flags].concat()).await;
        assert!(told.contains("dry run") && told.contains("would be purged"), "{told}");
    }
    assert_eq!(cell.archive.webhooks(), before);
    assert_eq!(cell.redis.stream_len("{spillway}:http:dead").await, 3);
    assert_eq!(cell.in_lanes().await, 3);
    cell.billing.behave(|_| Behaviour::ok());
    until("the lanes are empty", SOON, async || cell.in_lanes().await == 0).await;
    let phone_and_order = ["--phone", ANN[2], "--order", ANN[3], "--yes"];
    let by_hand = [&by_hand[..], &phone_and_order].concat();
    until("it is purged by hand", SOON, async || cell.spillway(&by_hand).await.0).await;
    cell.expect_forgotten(&ANN).await;
    cell.expect_others().await;
    let listed = cell.told(&["forget", "--list"]).await;
    assert!(listed.contains("true") && !listed.contains(ANN[1]), "{listed}");
}
