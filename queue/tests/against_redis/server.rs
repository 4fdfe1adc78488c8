//! A private, durable Redis that ends with its test.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};
use spillway_queue::append::Appender;
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;
use tempfile::TempDir;

/// Prefix of our keys in every test.
pub(crate) const PREFIX: &str = "{spillway}:";
/// Time limit for the tests' requests: long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The Redis of one test.
pub(crate) struct Server {
    process: Child,
    directory: TempDir,
}

impl Server {
    /// Starts Redis and waits until it answers. `extra` overrides any option.
    pub(crate) async fn start(extra: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory for redis");
        let server = Self { process: spawn(&directory, extra), directory };
        server.ready().await;
        server
    }

    /// Waits until Redis has loaded its data and answers.
    pub(crate) async fn ready(&self) {
        until("redis answers PING", async || {
            let Ok(mut connection) = self.redis().connect(Some(PATIENCE)).await else {
                return false;
            };
            redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        })
        .await;
    }

    /// Kills Redis and starts it again on the same data, without waiting.
    pub(crate) fn restart(&mut self, extra: &[&str]) {
        self.kill();
        self.process = spawn(&self.directory, extra);
    }

    /// Kills Redis, like a crash.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("redis is ours to kill");
        self.process.wait().expect("redis can be waited for");
    }

    /// A path in the directory of this test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Endpoint of this Redis.
    pub(crate) fn redis(&self) -> Redis {
        redis_at(&self.path("redis.sock"))
    }

    /// Connects to this Redis.
    pub(crate) async fn connect(&self) -> Connection {
        self.redis().connect(Some(PATIENCE)).await.expect("redis lets us in")
    }

    /// Runs one command on a new connection.
    pub(crate) async fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut connection = self.connect().await;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
    }

    /// Does the same as [`Server::try_command`], for a command that must succeed.
    pub(crate) async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let answer = self.try_command(words).await;
        answer.unwrap_or_else(|error| panic!("redis refused {words:?}: {error}"))
    }

    /// Appends packs, each counted as one webhook.
    pub(crate) async fn append(&self, packs: &[&[u8]]) -> Vec<StreamId> {
        let mut appender = Appender::new(self.redis());
        let mut ids = Vec::new();
        for pack in packs {
            ids.push(appender.append(pack, 1).await.expect("there is room"));
        }
        ids
    }

    /// Appends a pack of one webhook under the given id.
    pub(crate) async fn append_as(&self, id: &str) -> StreamId {
        let _: String = self.command(&["XADD", "{spillway}:in", id, "p", "pack"]).await;
        let _: u64 = self.command(&["HINCRBY", "{spillway}:counts", "appended", "1"]).await;
        id.parse().expect("an id")
    }

    /// Sets `maxmemory` below what is in use: Redis refuses everything that takes memory.
    pub(crate) async fn fill_to_the_brim(&self) {
        let _: String = self.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
        let refused = self.try_command::<u64>(&["HSET", "any", "field", "value"]).await;
        assert_eq!(refused.expect_err("redis is full").code(), Some("OOM"));
    }

    /// Copies a key, for [`Server::restore`].
    pub(crate) async fn dump(&self, key: &str) -> Vec<u8> {
        self.command(&["DUMP", key]).await
    }

    /// Replaces a key by an older copy.
    pub(crate) async fn restore(&self, key: &str, copy: &[u8]) {
        let mut connection = self.connect().await;
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(0).arg(copy).arg("REPLACE");
        restore.query_async::<()>(&mut connection).await.expect("a copy of this redis");
    }

    /// Ids of a stream.
    pub(crate) async fn ids(&self, key: &str) -> Vec<String> {
        let entries: Vec<(String, Vec<String>)> = self.command(&["XRANGE", key, "-", "+"]).await;
        entries.into_iter().map(|(id, _)| id).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Redis may be dead already. Then there is nothing to do.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A Redis behind a unix socket.
pub(crate) fn redis_at(socket: &std::path::Path) -> Redis {
    Redis::new(&format!("unix://{}", socket.display()), PREFIX).expect("a well-formed URL")
}

/// Waits for a condition, or fails the test with the condition's name.
pub(crate) async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !check().await {
        assert!(started.elapsed() < 2 * PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn spawn(directory: &TempDir, extra: &[&str]) -> Child {
    let path = |name: &str| directory.path().join(name).into_os_string();
    let (socket, log) = (path("redis.sock"), path("redis.log"));
    let mut arguments: Vec<&OsStr> = ["--port", "0", "--save", "", "--appendonly", "yes"]
        .into_iter()
        .chain(["--appendfsync", "always", "--maxmemory-policy", "noeviction"])
        .map(OsStr::new)
        .collect();
    arguments.extend([OsStr::new("--dir"), directory.path().as_os_str()]);
    arguments.extend([OsStr::new("--unixsocket"), &socket, OsStr::new("--logfile"), &log]);
    arguments.extend(extra.iter().map(OsStr::new));
    Command::new("redis-server")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is missing: apt-get install redis-server")
}
