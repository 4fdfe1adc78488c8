//! A unix socket in front of Redis' own. It injects one fault when asked to, and can repeat a
//! request.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use spillway_queue::Redis;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::server::{Server, redis_at};

const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Fault to inject into the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Redis receives the request, and the connection breaks before the reply is passed on.
    CutBeforeReply,
    /// The connection breaks before Redis receives the request.
    CutBeforeRequest,
    /// Redis becomes full after it has queued the commands of a transaction, before its EXEC.
    FullBeforeExec,
}

/// Proxy of one server.
pub(crate) struct Proxy {
    socket: PathBuf,
    upstream: PathBuf,
    armed: Arc<Mutex<Option<Fault>>>,
    last: Arc<Mutex<Vec<u8>>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens beside the server's own socket.
    pub(crate) fn before(server: &Server) -> Self {
        let socket = server.path("proxy.sock");
        let upstream = server.path("redis.sock");
        let listener = UnixListener::bind(&socket).expect("a socket for the proxy");
        let (armed, last) = (Arc::new(Mutex::new(None)), Arc::default());
        let accepting = tokio::spawn({
            let (armed, last, upstream) = (Arc::clone(&armed), Arc::clone(&last), upstream.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let (armed, last) = (Arc::clone(&armed), Arc::clone(&last));
                    tokio::spawn(relay(client, upstream.clone(), armed, last));
                }
            }
        });
        Self { socket, upstream, armed, last, accepting }
    }

    /// Endpoint of Redis through the proxy.
    pub(crate) fn redis(&self) -> Redis {
        redis_at(&self.socket)
    }

    /// Injects the fault into the next request, and into no other.
    pub(crate) fn harm_next_request(&self, fault: Fault) {
        *self.armed.lock().expect("nobody panics with it") = Some(fault);
    }

    /// Returns the last request that was passed on, byte for byte.
    pub(crate) fn last_request(&self) -> Vec<u8> {
        self.last.lock().expect("nobody panics with it").clone()
    }

    /// Sends a request to Redis, like a copy that was delayed for long. Returns the reply's first
    /// line.
    pub(crate) async fn deliver(&self, request: &[u8]) -> String {
        let redis = UnixStream::connect(&self.upstream).await.expect("redis listens");
        let mut redis = BufReader::new(redis);
        redis.write_all(request).await.expect("redis takes it");
        let mut line = String::new();
        redis.read_line(&mut line).await.expect("redis answers");
        line
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Passes bytes both ways until either side is gone. The tests' requests are small enough to come
/// in one piece.
async fn relay(
    client: UnixStream,
    socket: PathBuf,
    armed: Arc<Mutex<Option<Fault>>>,
    last: Arc<Mutex<Vec<u8>>>,
) {
    let mut redis = UnixStream::connect(&socket).await.expect("redis listens");
    let (mut requests, mut replies) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut client = client;
    loop {
        tokio::select! {
            Ok(bytes @ 1..) = client.read(&mut requests) => {
                let request = &requests[..bytes];
                let fault = armed.lock().expect("nobody panics with it").take();
                match fault {
                    None => {
                        *last.lock().expect("nobody panics with it") = request.to_vec();
                        redis.write_all(request).await.expect("redis takes it");
                    }
                    Some(Fault::CutBeforeRequest) => return,
                    Some(Fault::CutBeforeReply) => {
                        redis.write_all(request).await.expect("redis takes it");
                        redis.read_exact(&mut [0]).await.expect("redis answers");
                        return;
                    }
                    Some(Fault::FullBeforeExec) => {
                        let commands = request.strip_suffix(EXEC).expect("a transaction");
                        redis.write_all(commands).await.expect("redis takes it");
                        pass_lines(3, &mut redis, &mut client).await;
                        fill(&socket).await;
                        redis.write_all(EXEC).await.expect("redis takes it");
                    }
                }
            }
            Ok(bytes @ 1..) = redis.read(&mut replies) => {
                if client.write_all(&replies[..bytes]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}

/// Passes on `count` lines of the reply, and waits for them.
async fn pass_lines(count: usize, redis: &mut UnixStream, client: &mut UnixStream) {
    let mut lines = 0;
    while lines < count {
        let byte = redis.read_u8().await.expect("redis answers");
        client.write_u8(byte).await.expect("the client listens");
        lines += usize::from(byte == b'\n');
    }
}

async fn fill(socket: &Path) {
    let mut redis = UnixStream::connect(socket).await.expect("redis listens");
    redis.write_all(b"CONFIG SET maxmemory 1\r\n").await.expect("redis takes it");
    let mut reply = [0; 5];
    redis.read_exact(&mut reply).await.expect("redis answers");
    assert_eq!(&reply, b"+OK\r\n");
}
