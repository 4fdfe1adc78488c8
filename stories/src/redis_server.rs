//! A private, durable Redis on a unix socket, configured by the repository's `ops/redis.conf` and
//! started by its `ops/redis-start`.

use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue};

use crate::binaries;
use crate::process::{Process, Recipe};
use crate::until::until;

/// The Redis of one test. Signals and restarts are those of [`Process`].
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    socket: PathBuf,
}

/// Options of `ops/redis.conf`, for a checkout without that file.
const WITHOUT_FILE: &[&str] = &[
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--maxmemory-policy",
    "noeviction",
    "--save",
    "",
];

impl RedisServer {
    /// Starts Redis in `directory`, without waiting. `extra` overrides any option.
    pub fn start(directory: &Path, extra: &[&str]) -> Self {
        Self::start_in(directory, extra, Vec::new())
    }

    /// Same as [`start`](Self::start), with environment variables.
    pub fn start_in(directory: &Path, extra: &[&str], environment: Vec<(String, String)>) -> Self {
        let socket = socket_in(directory);
        let file = binaries::repository().join("ops/redis.conf");
        let mut arguments: Vec<OsString> = Vec::new();
        let mut program = binaries::redis_server();
        if file.is_file() {
            // A copy, because a Sentinel makes its Redis rewrite the file.
            let copy = directory.join("redis.conf");
            std::fs::copy(&file, &copy).expect("copy redis.conf");
            program = binaries::repository().join("ops/redis-start");
            arguments.extend([copy.into(), directory.into()]);
        } else {
            arguments.extend(WITHOUT_FILE.iter().map(OsString::from));
            arguments.extend(["--dir".into(), directory.into()]);
        }
        arguments.extend(["--unixsocket".into(), socket.clone().into()]);
        arguments.extend(["--port", "0", "--daemonize", "no", "--logfile", ""].map(OsString::from));
        arguments.extend(extra.iter().map(OsString::from));
        let recipe = Recipe {
            name: "redis-server".to_owned(),
            program,
            arguments,
            environment,
            directory: directory.to_path_buf(),
            sockets: Vec::new(),
        };
        Self { process: recipe.start(), socket }
    }

    /// Waits until Redis has loaded its data and answers.
    pub async fn ready(&self) {
        until("redis answers PING", Duration::from_secs(30), async || {
            self.try_command::<String>(&["PING"]).await.is_ok()
        })
        .await;
    }

    /// Opens a connection to inspect the data.
    pub async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect(&self.socket).await
    }

    /// Runs one command on a new connection.
    pub async fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut connection = self.connection().await?;
        let (name, arguments) = words.split_first().expect("a command has a name");
        redis::cmd(name).arg(arguments).query_async(&mut connection).await
    }

    /// Same as [`try_command`](Self::try_command), for a command that must succeed.
    pub async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let answer = self.try_command(words).await;
        answer.unwrap_or_else(|error| panic!("redis refused {words:?}: {error}"))
    }

    /// Sets some keys, so that a restart has data to load.
    pub async fn fill(&self, keys: u64) {
        let mut pipe = redis::pipe();
        for key in 0..keys {
            pipe.cmd("SET").arg(format!("ballast:{key}")).arg("x".repeat(100)).ignore();
        }
        let mut connection = self.connection().await.expect("redis is there");
        pipe.query_async::<()>(&mut connection).await.expect("redis takes the ballast");
    }

    /// Restarts a killed Redis with a delay of about 0.1 ms per command that it loads, and waits
    /// until it reports that it is loading. While loading, it serves its clients once in 1,024
    /// commands. A longer delay would make it unresponsive instead of slow.
    pub async fn restart_slowly(&mut self) {
        let slow = ["--key-load-delay", "50", "--loading-process-events-interval-bytes", "1024"];
        self.process.add_arguments(&slow);
        self.process.restart();
        self.process.drop_arguments(slow.len());
        until("redis says it is loading", Duration::from_secs(20), async || {
            let answer = self.try_command::<String>(&["GET", "a"]).await;
            answer.is_err_and(|error| error.code() == Some("LOADING"))
        })
        .await;
    }

    /// Number of entries of a stream; 0 if it does not exist.
    pub async fn stream_len(&self, key: &str) -> u64 {
        self.command(&["XLEN", key]).await
    }

    /// Number of webhooks in the lanes of the downstreamer, outside the main stream.
    pub async fn in_lanes(&self) -> u64 {
        let waiting: Option<u64> = self.command(&["HGET", "{spillway}:counts", "lanes:http"]).await;
        waiting.unwrap_or(0)
    }
}

/// Connects to the Redis at a socket.
pub async fn connect(socket: &Path) -> redis::RedisResult<MultiplexedConnection> {
    let client = Client::open(format!("unix://{}", socket.display()))?;
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(30)));
    client.get_multiplexed_async_connection_with_config(&patient).await
}

/// Path of the socket of the Redis in a directory.
pub fn socket_in(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

impl Deref for RedisServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for RedisServer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
