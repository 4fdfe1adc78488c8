//! A proxy between two parties, over a unix socket or TCP, with the faults of a network: replies
//! lost after the request was executed, requests cut in the middle, delays, and swallowed
//! connections. A swallowed connection is like one that a firewall forgot: both ends believe that
//! it works, but nothing comes through.
//!
//! A swallowed connection stays so: its user must detect it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::settlements::{Recorder, Watched, is_settlement};

/// Word that only a batcher's connection sends.
const APPEND: &[u8] = b"XADD";
const CHUNK_BYTES: usize = 1 << 16;
/// Pieces per second of a way that crawls: small enough that a short command is not late.
const PIECES: usize = 20;
/// Time between two checks of a way that holds something back.
const LOOK: Duration = Duration::from_millis(15);

/// Fault of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No fault.
    None,
    /// A connection breaks instead of passing its next reply. The request was executed.
    LosesReplies,
    /// A connection breaks after half of its next request.
    CutsRequests,
    /// Each reply is delayed by this time.
    Delays(Duration),
    /// Limits the requests on each connection to this many bytes per second, like a long or
    /// congested line.
    Crawls(usize),
    /// A connection is swallowed when it receives its next byte.
    Swallows,
    /// A connection is held up at its next append to the queue. Held data is passed on once the
    /// fault ends, however late.
    HoldsAppends,
    /// A connection is held up at its next settlement of a consumer.
    HoldsSettlements,
    /// A connection breaks instead of passing the reply to its next settlement, which is applied.
    LosesSettlementReplies,
}

/// A running proxy, until the value is dropped.
#[derive(Debug)]
pub struct Way {
    near: Place,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Debug)]
enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

#[derive(Debug)]
struct State {
    trouble: Mutex<Trouble>,
    replies_lost: AtomicUsize,
    recorder: Option<Arc<Recorder>>,
}

/// Both ends of one connection.
struct Passage<'a> {
    client: Box<dyn Stream>,
    server: Box<dyn Stream>,
    state: &'a State,
    watched: Option<Watched>,
    /// Set if nothing more is read from the client before the next reply.
    is_owed_reply: bool,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Way {
    /// A way to the Redis at `socket`, with a socket of this name in the same directory.
    pub fn to_redis(socket: &Path, name: &str) -> Self {
        let near = socket.with_file_name(format!("{name}.sock"));
        let listener = UnixListener::bind(&near).expect("a socket before Redis");
        let far = Place::Unix(socket.to_owned());
        Self::new(Place::Unix(near), far, Listener::Unix(listener), None)
    }

    /// Same as [`to_redis`](Self::to_redis), and records the settlements that pass.
    pub fn of_consumers(socket: &Path, name: &str, recorder: &Arc<Recorder>) -> Self {
        let near = socket.with_file_name(format!("{name}.sock"));
        let listener = UnixListener::bind(&near).expect("a socket before Redis");
        let (far, recorder) = (Place::Unix(socket.to_owned()), Some(Arc::clone(recorder)));
        Self::new(Place::Unix(near), far, Listener::Unix(listener), recorder)
    }

    /// A way to a server.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind a way");
        let near = listener.local_addr().expect("the way's address");
        Self::new(Place::Tcp(near), Place::Tcp(server), Listener::Tcp(listener), None)
    }

    fn new(near: Place, far: Place, listener: Listener, recorder: Option<Arc<Recorder>>) -> Self {
        let replies_lost = AtomicUsize::new(0);
        let state = State { trouble: Mutex::new(Trouble::None), replies_lost, recorder };
        let state = Arc::new(state);
        let accepting = tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                let mut passing = JoinSet::new();
                while let Ok(client) = listener.accept().await {
                    passing.spawn(connect(client, far.clone(), Arc::clone(&state)));
                    while passing.try_join_next().is_some() {}
                }
            }
        });
        Self { near, state, accepting }
    }

    /// The `REDIS_URL`, or the URL of the backend, through this way.
    pub fn url(&self) -> String {
        match &self.near {
            Place::Unix(socket) => format!("unix://{}", socket.display()),
            Place::Tcp(address) => format!("http://{address}"),
        }
    }

    /// Address on which it accepts connections.
    pub fn address(&self) -> SocketAddr {
        match self.near {
            Place::Tcp(address) => address,
            Place::Unix(_) => panic!("a way to Redis has a path"),
        }
    }

    /// Sets the fault from now on.
    pub fn suffers(&self, trouble: Trouble) {
        *self.state.trouble.lock().expect("no way panicked") = trouble;
    }

    /// Number of replies lost.
    pub fn replies_lost(&self) -> usize {
        self.state.replies_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}

impl State {
    /// Waits until the fault ends.
    async fn healed(&self) {
        while self.trouble() != Trouble::None {
            sleep(LOOK).await;
        }
    }

    fn trouble(&self) -> Trouble {
        *self.trouble.lock().expect("no way panicked")
    }
}

async fn connect(client: Box<dyn Stream>, far: Place, state: Arc<State>) {
    let server: io::Result<Box<dyn Stream>> = match far {
        Place::Unix(socket) => UnixStream::connect(socket).await.map(|s| Box::new(s) as _),
        Place::Tcp(address) => TcpStream::connect(address).await.map(|stream| {
            stream.set_nodelay(true).ok();
            Box::new(stream) as _
        }),
    };
    if let Ok(server) = server {
        let watched = state.recorder.as_ref().map(Watched::new);
        let passage = Passage { client, server, state: &state, watched, is_owed_reply: false };
        // The two sides see how it ended.
        passage.run().await.ok();
    }
}

impl Passage<'_> {
    async fn run(mut self) -> io::Result<()> {
        let (mut requests, mut replies) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        let mut flow = ControlFlow::Continue(());
        while flow.is_continue() {
            let piece_bytes = match self.state.trouble() {
                Trouble::Crawls(bytes_per_second) => bytes_per_second / PIECES,
                _ => CHUNK_BYTES,
            };
            flow = tokio::select! {
                // The reply to a held request is seen even if its client is gone.
                biased;
                read = self.server.read(&mut replies) => self.on_reply(&replies[..read?]).await?,
                read = self.client.read(&mut requests[..piece_bytes]), if !self.is_owed_reply => {
                    self.on_request(&requests[..read?]).await?
                }
            };
        }
        Ok(())
    }

    async fn on_request(&mut self, request: &[u8]) -> io::Result<ControlFlow<()>> {
        if let Some(watched) = &mut self.watched {
            watched.on_request(request);
        }
        match self.state.trouble() {
            Trouble::Swallows => return std::future::pending().await,
            Trouble::HoldsAppends if is_append(request) => self.state.healed().await,
            Trouble::HoldsSettlements if is_settlement(request) => {
                self.state.healed().await;
                self.is_owed_reply = self.watched.as_ref().is_some_and(Watched::has_asked);
            }
            Trouble::CutsRequests => {
                self.server.write_all(&request[..request.len() / 2]).await?;
                return Ok(ControlFlow::Break(()));
            }
            _ if request.is_empty() => return Ok(ControlFlow::Break(())),
            Trouble::Crawls(_) => {
                self.server.write_all(request).await?;
                sleep(Duration::from_secs(1) / PIECES as u32).await;
                return Ok(ControlFlow::Continue(()));
            }
            _ => {}
        }
        self.server.write_all(request).await?;
        Ok(ControlFlow::Continue(()))
    }

    async fn on_reply(&mut self, reply: &[u8]) -> io::Result<ControlFlow<()>> {
        self.is_owed_reply = false;
        let answers_settlement =
            self.watched.as_mut().is_some_and(|watched| watched.on_reply(reply));
        match self.state.trouble() {
            Trouble::Swallows => return std::future::pending().await,
            _ if reply.is_empty() => return Ok(ControlFlow::Break(())),
            Trouble::LosesReplies => return Ok(self.lose()),
            Trouble::LosesSettlementReplies if answers_settlement => return Ok(self.lose()),
            Trouble::Delays(time) => sleep(time).await,
            Trouble::None
            | Trouble::CutsRequests
            | Trouble::HoldsAppends
            | Trouble::HoldsSettlements
            | Trouble::LosesSettlementReplies
            | Trouble::Crawls(_) => {}
        }
        self.client.write_all(reply).await?;
        Ok(ControlFlow::Continue(()))
    }

    fn lose(&self) -> ControlFlow<()> {
        self.state.replies_lost.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Break(())
    }
}

fn is_append(request: &[u8]) -> bool {
    request.windows(APPEND.len()).any(|word| word == APPEND)
}
