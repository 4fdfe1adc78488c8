//! Any bytes as replies of Redis, through the parser of the redis crate over a socket.
//!
//! Properties: no panic, and nothing hangs. A pack counts as stored only if MULTI was accepted and
//! EXEC returned an array whose first element is the id of the entry.

use std::cell::Cell;
use std::time::Duration;

use spillway_queue::append::Appender;
use spillway_queue::read::StreamReader;
use spillway_queue::settle::{Settlement, Settler};
use spillway_queue::{AofDisk, Connection, Redis, health, status};
use spillway_webhook::StreamId;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Timeout that ends a run which would otherwise never end. A connection closed without an answer
/// is noticed at once.
const PATIENCE: Duration = Duration::from_secs(10);

struct Bench {
    runtime: Runtime,
    listener: UnixListener,
    redis: Redis,
    _directory: TempDir,
}

thread_local! {
    static BENCH: Bench = Bench::new();
}

/// Runs the target. The first byte selects the request; the rest is the reply.
pub fn run(data: &[u8]) {
    let Some((which, reply)) = data.split_first() else { return };
    BENCH.with(|bench| bench.play(*which, reply));
}

impl Bench {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("redis.sock");
        let listener = runtime.block_on(async { UnixListener::bind(&socket) }).expect("a socket");
        let redis = Redis::new(&format!("unix://{}", socket.display()), "fuzz:").expect("a URL");
        Self { runtime, listener, redis, _directory: directory }
    }

    fn play(&self, which: u8, reply: &[u8]) {
        let is_stored = Cell::new(None);
        self.runtime.block_on(async {
            let asking = async {
                match which % 8 {
                    0 | 1 => {
                        is_stored.set(Appender::new(self.redis.clone()).append(b"p", 1).await.ok())
                    }
                    other => self.ask(other).await,
                }
            };
            tokio::select! {
                ended = timeout(PATIENCE, asking) => assert!(ended.is_ok(), "it hangs"),
                () = self.answer(reply) => {}
            }
        });
        if let Some(id) = is_stored.get() {
            assert!(says_stored(reply, id), "taken for stored as {id}: {}", reply.escape_ascii());
        }
    }

    async fn ask(&self, which: u8) {
        let Ok(mut connection) = self.redis.connect(Some(PATIENCE)).await else { return };
        let connection: &mut Connection = &mut connection;
        let reader = StreamReader::new(self.redis.clone(), "http");
        let (after, bytes) = (StreamId::default(), 1 << 20);
        match which {
            2 => {
                let mut settler = Settler::new(self.redis.clone(), "http", "token", None);
                settler.begin();
                settler.apply(connection, &Settlement::default()).await.ok();
            }
            3 => drop(reader.progress(connection).await),
            4 => {
                drop(reader.main_after(connection, after, bytes).await);
                drop(reader.main_next(connection, after, 4).await);
            }
            5 => drop(reader.replays_after(connection, after, bytes).await),
            6 => drop(reader.seen_after(connection, after).await),
            _ => {
                reader.span(connection).await.ok();
                health::read(&self.redis, connection, &mut AofDisk::default()).await.ok();
                status::read(&self.redis, connection).await.ok();
            }
        }
    }

    /// Answers connections, forever.
    async fn answer(&self, reply: &[u8]) {
        loop {
            let (stream, _) = self.listener.accept().await.expect("a connection");
            converse(stream, reply).await.ok();
        }
    }
}

/// Accepts the client's greeting, replies with these bytes to anything, and closes the connection.
/// The client must not wait for the rest of a partial reply.
async fn converse(mut stream: UnixStream, reply: &[u8]) -> std::io::Result<()> {
    let mut asked = Vec::new();
    while stream.read_buf(&mut asked).await? > 0 {
        let greetings = asked.windows(8).filter(|window| window == b"\r\nCLIENT").count();
        if greetings == 0 {
            return stream.write_all(reply).await;
        }
        stream.write_all(&b"+OK\r\n".repeat(greetings)).await?;
        asked.clear();
    }
    Ok(())
}

/// True if replies that can be read here mean stored: three lines that are no error, and an array
/// that begins with the id. All others are left to the parser.
fn says_stored(reply: &[u8], id: StreamId) -> bool {
    let mut rest = reply;
    for _ in 0..3 {
        if !matches!(rest.first(), Some(b'+' | b':')) {
            return rest.first() != Some(&b'-');
        }
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else { return false };
        rest = &rest[end + 2..];
    }
    let id = id.to_string();
    !rest.starts_with(b"*") || rest.windows(id.len()).any(|window| window == id.as_bytes())
}
