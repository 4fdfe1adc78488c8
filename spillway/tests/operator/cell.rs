//! A private Redis with `ops/redis.conf`, filled as by a receiver and a downstreamer.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use spillway_queue::append::Appender;
use spillway_queue::consumers::{HTTP, StartAt, register};
use spillway_queue::leader::Candidacy;
use spillway_queue::read::StreamReader;
use spillway_queue::settle::{Dead, PassedEntries, Settlement, Settler};
use spillway_queue::{Connection, Redis};
use spillway_webhook::pack::{Packer, Records};
use spillway_webhook::{StreamId, Webhook, WebhookId};

const PATIENCE: Duration = Duration::from_secs(10);

/// The Redis process ends when this value is dropped.
pub(crate) struct Cell {
    directory: tempfile::TempDir,
    redis: Child,
}

/// A webhook that becomes a dead letter.
#[derive(Clone, Copy)]
pub(crate) struct Letter {
    /// Product id.
    pub product: u32,
    /// Topic.
    pub topic: &'static str,
    /// Body.
    pub body: &'static [u8],
}

impl Cell {
    /// Starts Redis and waits until it answers.
    pub(crate) async fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("spillway-").tempdir().unwrap();
        let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/redis.conf");
        let redis = Command::new("redis-server")
            .arg(conf)
            .arg("--dir")
            .arg(directory.path())
            .arg("--unixsocket")
            .arg(directory.path().join("redis.sock"))
            .args(["--maxmemory", "256mb"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is missing; install it with: apt-get install redis-server");
        let cell = Self { directory, redis };
        let started = Instant::now();
        while cell.handle().connect(Some(PATIENCE)).await.is_err() {
            assert!(started.elapsed() < PATIENCE, "redis does not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        cell
    }

    /// Path of a file of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The `REDIS_URL` of the cell.
    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.path("redis.sock").display())
    }

    fn handle(&self) -> Redis {
        Redis::new(&self.url(), "{spillway}:").unwrap()
    }

    /// Returns the Redis handle and a connection.
    pub(crate) async fn connect(&self) -> (Redis, Connection) {
        let redis = self.handle();
        let connection = redis.connect(Some(PATIENCE)).await.unwrap();
        (redis, connection)
    }

    /// Registers the consumer `http` and stores each webhook in its own pack.
    pub(crate) async fn store(&self, letters: &[Letter]) -> Vec<StreamId> {
        self.append(letters, Some(HTTP)).await
    }

    /// Stores each webhook in its own pack, as a receiver does before any consumer was started.
    pub(crate) async fn store_alone(&self, letters: &[Letter]) -> Vec<StreamId> {
        self.append(letters, None).await
    }

    async fn append(&self, letters: &[Letter], consumer: Option<&str>) -> Vec<StreamId> {
        let (redis, mut connection) = self.connect().await;
        register(&redis, &mut connection, consumer, StartAt::Oldest).await.unwrap();
        let mut appender = Appender::new(redis);
        let mut ids = Vec::new();
        for letter in letters {
            ids.push(appender.append(&pack(letter), 1).await.unwrap());
        }
        ids
    }

    /// Stores webhooks and gives them up in the order of `died`, which holds their indexes.
    pub(crate) async fn give_up(&self, letters: &[Letter], died: &[usize]) -> Vec<WebhookId> {
        self.give_up_for("refused", letters, died).await
    }

    /// Does the same for another reason.
    pub(crate) async fn give_up_for(
        &self,
        reason: &'static str,
        letters: &[Letter],
        died: &[usize],
    ) -> Vec<WebhookId> {
        let entries = self.store(letters).await;
        let (redis, mut connection) = self.connect().await;
        let registered = register(&redis, &mut connection, None, StartAt::Oldest).await.unwrap();
        let id = |entry| WebhookId { cell: registered.cell, entry, index: 0 };
        let claim = Candidacy::new(redis.clone(), HTTP);
        claim.take(&mut connection, "").await.unwrap();
        let mark = StreamReader::new(redis.clone(), HTTP).mark(&mut connection).await.unwrap();
        let mut settler = Settler::new(redis, HTTP, claim.token(), mark);
        settler.begin();
        let dead = |index: &usize| dead(&letters[*index], id(entries[*index]), reason);
        let dead = died.iter().map(dead).collect();
        let count = entries.len() as u64;
        let passed = entries.last().map(|last| PassedEntries {
            cursor: *last,
            entries: count,
            webhooks: count,
        });
        let settlement = Settlement { passed, dead, ..Settlement::default() };
        settler.apply(&mut connection, &settlement).await.unwrap();
        claim.release(&mut connection).await.unwrap();
        entries.into_iter().map(id).collect()
    }

    /// Runs the command with only these arguments and `REDIS_URL`.
    pub(crate) fn spillway(&self, arguments: &[&str]) -> Output {
        self.spillway_with(arguments, &[])
    }

    /// Runs the command with these arguments and settings.
    pub(crate) fn spillway_with(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
        self.command(arguments).envs(settings.iter().copied()).output().unwrap()
    }

    /// Starts the command without waiting for its end.
    pub(crate) fn starting(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
        command.args(arguments).env_clear().env("REDIS_URL", self.url());
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    /// Returns the output of a command that must succeed.
    pub(crate) fn told(&self, arguments: &[&str]) -> String {
        let output = self.spillway(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns exit code and standard error of a command that must fail.
    pub(crate) fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.spillway(arguments);
        let code = output.status.code().unwrap();
        assert_ne!(code, 0, "{arguments:?}: {output:?}");
        (code, String::from_utf8(output.stderr).unwrap())
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.redis.kill().unwrap();
        self.redis.wait().unwrap();
    }
}

/// An update of a product.
pub(crate) fn product(product: u32) -> Letter {
    Letter { product, topic: "products/update", body: b"{\"title\":\"\xff\x1b[2J\"}" }
}

fn pack(letter: &Letter) -> Vec<u8> {
    let mut headers = HeaderMap::new();
    headers.insert("x-shopify-topic", letter.topic.parse().unwrap());
    headers.insert("x-shopify-webhook-id", webhook_id(letter).parse().unwrap());
    headers.insert("x-shopify-shop-domain", shop(letter).parse().unwrap());
    let target = PathAndQuery::from_static("/hooks?x=1");
    let body = Bytes::from_static(letter.body);
    let mut records = Records::default();
    records.push(&Webhook { received_at_ms: 1_767_268_800_000, target, headers, body });
    Packer::new().pack(&records).to_vec()
}

fn dead(letter: &Letter, webhook: WebhookId, reason: &'static str) -> Dead {
    let resource = format!("product/{}", letter.product);
    Dead {
        pack: pack(letter),
        webhook,
        labels: [shop(letter), letter.topic.to_owned(), resource, webhook_id(letter)],
        reason,
        status: 422,
        attempts: 3,
        answer: b"no such \x1b[31mproduct".to_vec(),
    }
}

fn shop(letter: &Letter) -> String {
    format!("shop-{}.myshopify.com", letter.product % 2)
}

/// Shopify's webhook id of a dead letter.
pub(crate) fn webhook_id(letter: &Letter) -> String {
    format!("delivery-{}", letter.product)
}
