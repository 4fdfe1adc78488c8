//! A cell: a directory with one Redis, and the processes that use it.
//!
//! ```text
//! let cell = Cell::alone();
//! let redis = cell.redis(&[]).await;
//! let backend = Backend::start().await;
//! let receiver = cell.receiver(&[]).await;
//! let downstreamer = cell.downstreamer(&backend, &[]).await;
//! ```

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::backend::Backend;
use crate::kafka_server::{KafkaOptions, KafkaServer};
use crate::machine::{self, Slots};
use crate::process::{Process, Recipe};
use crate::redis_server::{RedisServer, socket_in};
use crate::service::Service;
use crate::size::size;
use crate::until::until;
use crate::webhook::SECRET;
use crate::{binaries, port};

/// Settings by name, in the form of environment variables.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

/// Maximum concurrency of a downstreamer in the tests.
pub const CONCURRENCY: usize = 64;

/// A directory for processes that belong together, and slots of the machine for them.
#[derive(Debug)]
pub struct Cell {
    directory: TempDir,
    started: AtomicUsize,
    slots: Option<Slots>,
}

impl Cell {
    /// For a test that measures time: waits until no other test runs.
    pub fn alone() -> Self {
        Self::with_slots(Some(machine::alone()))
    }

    /// For a test that loads a core for a while, or whose limits of time could break beside six
    /// others.
    pub fn busy() -> Self {
        Self::with_slots(Some(machine::busy()))
    }

    /// For a test that measures time in its long version (`make endure`), and has generous limits
    /// otherwise.
    pub fn measured() -> Self {
        if size(false, true) { Self::alone() } else { Self::busy() }
    }

    /// For a test that needs little and can run beside others.
    pub fn shared() -> Self {
        Self::with_slots(Some(machine::shared()))
    }

    /// Another cell for a test that already has one.
    pub fn beside() -> Self {
        Self::with_slots(None)
    }

    /// Gives back all slots but those of a busy test, once a test measures no more time.
    pub fn stop_measuring(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.stop_measuring();
        }
    }

    fn with_slots(slots: Option<Slots>) -> Self {
        let directory = tempfile::Builder::new().prefix("spillway-").tempdir();
        let directory = directory.expect("make a directory");
        Self { directory, started: AtomicUsize::new(0), slots }
    }

    /// Directory of the cell's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the cell's Redis and waits until it is ready.
    pub async fn redis(&self, options: &[&str]) -> RedisServer {
        let redis = self.redis_loading(options);
        redis.ready().await;
        redis
    }

    /// Starts the cell's Redis without waiting.
    pub fn redis_loading(&self, options: &[&str]) -> RedisServer {
        RedisServer::start(self.directory(), options)
    }

    /// Starts a receiver and waits until it is ready.
    pub async fn receiver(&self, settings: Settings<'_>) -> Service {
        let receiver = self.receiver_starting(settings);
        receiver.ready().await;
        receiver
    }

    /// Starts a receiver without waiting.
    pub fn receiver_starting(&self, settings: Settings<'_>) -> Service {
        let listen = port::free();
        let listen_text = listen.to_string();
        let own = [("LISTEN", listen_text.as_str()), ("SHOPIFY_CLIENT_SECRET", SECRET)];
        self.service("request-receiver", Some(listen), &own, settings)
    }

    /// Starts a receiver with limits for open files (soft limit, hard limit), without waiting.
    pub fn receiver_with_files(&self, files: [u64; 2], settings: Settings<'_>) -> Service {
        let listen = port::free();
        let listen_text = listen.to_string();
        let own = [("LISTEN", listen_text.as_str()), ("SHOPIFY_CLIENT_SECRET", SECRET)];
        self.service_with("request-receiver", Some(listen), &own, settings, |recipe| {
            let [soft, hard] = files;
            let commands = format!("ulimit -Sn {soft}; ulimit -Hn {hard}; exec \"$0\"");
            let receiver = std::mem::replace(&mut recipe.program, "/bin/sh".into());
            recipe.arguments = vec!["-c".into(), commands.into(), receiver.into()];
        })
    }

    /// Starts the bare server that `make bench` compares a receiver with, and waits until it
    /// accepts connections.
    pub async fn bare_server(&self, settings: Settings<'_>) -> Service {
        let listen = port::free();
        let listen_text = listen.to_string();
        let own = [("LISTEN", listen_text.as_str()), ("SHOPIFY_CLIENT_SECRET", SECRET)];
        let server = self.service("baseline", Some(listen), &own, settings);
        let listens = async || tokio::net::TcpStream::connect(listen).await.is_ok();
        until("the bare server listens", Duration::from_secs(20), listens).await;
        server
    }

    /// Starts a receiver on a socket that is passed to it as systemd does, without waiting.
    pub fn receiver_on(&self, socket: &TcpListener, settings: Settings<'_>) -> Service {
        self.receiver_on_sockets(socket, None, settings)
    }

    /// Same as [`receiver_on`](Self::receiver_on), with a unix socket as the second socket.
    pub fn receiver_on_both(
        &self,
        socket: &TcpListener,
        second: &UnixListener,
        settings: Settings<'_>,
    ) -> Service {
        self.receiver_on_sockets(socket, Some(second), settings)
    }

    fn receiver_on_sockets(
        &self,
        socket: &TcpListener,
        second: Option<&UnixListener>,
        settings: Settings<'_>,
    ) -> Service {
        let listen = socket.local_addr().expect("the address of a listener");
        let first = socket.try_clone().expect("a copy of a socket").into();
        let second = second.map(|second| second.try_clone().expect("a copy of a socket").into());
        let own = [("SHOPIFY_CLIENT_SECRET", SECRET)];
        self.service_with("request-receiver", Some(listen), &own, settings, |recipe| {
            recipe.sockets = std::iter::once(first).chain(second).map(Arc::new).collect();
        })
    }

    /// Starts a downstreamer and waits until it is alive: ready, or a standby if another one leads.
    pub async fn downstreamer(&self, backend: &Backend, settings: Settings<'_>) -> Service {
        let downstreamer = self.downstreamer_starting(&backend.url(), settings);
        let answers = async || downstreamer.admin("/livez").await.is_some();
        until("downstreamer lives", Duration::from_secs(20), answers).await;
        downstreamer
    }

    /// Starts a downstreamer without waiting. Its retries come early, to keep tests short.
    pub fn downstreamer_starting(&self, url: &str, settings: Settings<'_>) -> Service {
        let concurrency = CONCURRENCY.to_string();
        let own = [
            ("DOWNSTREAM_APP_URL", url),
            ("DELIVERY_TIMEOUT", "5s"),
            ("MAX_CONCURRENCY", concurrency.as_str()),
            ("RETRY_FIRST", "50ms"),
            ("RETRY_LONGEST", "500ms"),
        ];
        self.service("downstreamer", None, &own, settings)
    }

    /// Starts the cell's Kafka and waits until it is ready.
    pub async fn kafka(&self) -> KafkaServer {
        self.kafka_with(&KafkaOptions::default()).await
    }

    /// Same as [`kafka`](Self::kafka), with options.
    pub async fn kafka_with(&self, options: &KafkaOptions<'_>) -> KafkaServer {
        let kafka = KafkaServer::start(self.directory(), options);
        kafka.ready().await;
        kafka
    }

    /// Starts a Kafka producer without waiting.
    pub fn kafka_producer(&self, kafka: &KafkaServer, settings: Settings<'_>) -> Service {
        self.kafka_producer_to(&kafka.url(), settings)
    }

    /// Same as [`kafka_producer`](Self::kafka_producer), for brokers that the cell does not run.
    pub fn kafka_producer_to(&self, url: &str, settings: Settings<'_>) -> Service {
        self.service("kafka_producer", None, &[("KAFKA_URL", url)], settings)
    }

    /// Starts an archiver without waiting.
    pub fn archiver(&self, url: &str, settings: Settings<'_>) -> Service {
        self.service("archiver", None, &[("ARCHIVE_URL", url)], settings)
    }

    /// Runs the operators' command until it ends.
    pub async fn spillway(&self, arguments: &[&str]) -> Output {
        let mut recipe = self.recipe("spillway", &[("REDIS_URL", &self.redis_url())], &[]);
        recipe.arguments = arguments.iter().map(Into::into).collect();
        let run = move || recipe.command().output().expect("run spillway");
        tokio::task::spawn_blocking(run).await.expect("spillway was run")
    }

    /// Starts the operators' command without waiting, for a command that works for long.
    pub fn spillway_starting(&self, arguments: &[&str]) -> Process {
        let mut recipe = self.recipe("spillway", &[("REDIS_URL", &self.redis_url())], &[]);
        recipe.name = format!("spillway-{}", self.started.fetch_add(1, Ordering::Relaxed));
        recipe.arguments = arguments.iter().map(Into::into).collect();
        recipe.start()
    }

    /// Runs one of our binaries until it ends, with only these settings.
    pub async fn run(&self, name: &str, arguments: &[&str], settings: Settings<'_>) -> Output {
        let mut recipe = self.recipe(name, &[], settings);
        recipe.arguments = arguments.iter().map(Into::into).collect();
        let run = move || recipe.command().output().expect("run a binary");
        tokio::task::spawn_blocking(run).await.expect("a binary was run")
    }

    /// `REDIS_URL` of the cell's Redis.
    pub fn redis_url(&self) -> String {
        format!("unix://{}", socket_in(self.directory()).display())
    }

    fn service(
        &self,
        name: &str,
        listen: Option<SocketAddr>,
        own: Settings<'_>,
        settings: Settings<'_>,
    ) -> Service {
        self.service_with(name, listen, own, settings, |_| {})
    }

    fn service_with(
        &self,
        name: &str,
        listen: Option<SocketAddr>,
        own: Settings<'_>,
        settings: Settings<'_>,
        adapt: impl FnOnce(&mut Recipe),
    ) -> Service {
        let admin = port::free();
        let (redis, admin_text) = (self.redis_url(), admin.to_string());
        let mut all = vec![("REDIS_URL", redis.as_str()), ("ADMIN_LISTEN", &admin_text)];
        all.extend_from_slice(own);
        let mut recipe = self.recipe(name, &all, settings);
        recipe.name = format!("{name}-{}", self.started.fetch_add(1, Ordering::Relaxed));
        adapt(&mut recipe);
        Service::new(recipe.start(), admin, listen)
    }

    /// A setting in `settings` replaces the one in `own`; an empty value removes it.
    fn recipe(&self, name: &str, own: Settings<'_>, settings: Settings<'_>) -> Recipe {
        let replaced = |key: &str| settings.iter().any(|(other, _)| *other == key);
        let own = own.iter().filter(|(key, _)| !replaced(key));
        let given = settings.iter().filter(|(_, value)| !value.is_empty());
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Recipe {
            name: name.to_owned(),
            program: binaries::ours(name),
            arguments: Vec::new(),
            environment: own.chain(given).map(pair).collect(),
            directory: self.directory().to_path_buf(),
            sockets: Vec::new(),
        }
    }
}
