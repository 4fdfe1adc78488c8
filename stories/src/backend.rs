//! The backend: an HTTP server with scripted behaviour that records everything it is sent.
//!
//! An answer is recorded before it is sent: from the first byte of a 2xx on, the other side may
//! rely on it.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::behaviour::Behaviour;
use crate::ledger::Event;
use crate::receipt::{Receipt, RequestHead};
use crate::until::until;
use crate::wire::Incoming;

/// A running backend. Once dropped, it accepts no more connections.
#[derive(Debug)]
pub struct Backend {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

type Plan = Arc<dyn Fn(&Receipt) -> Behaviour + Send + Sync>;

struct Shared {
    plan: Mutex<Plan>,
    workers: Mutex<Arc<Semaphore>>,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    receipts: Vec<Receipt>,
    delivered: HashSet<String>,
    in_flight: usize,
    in_flight_max: usize,
    /// Connected peers.
    peers: HashSet<SocketAddr>,
}

/// Time within which closed connections are detected. Usually it takes far less, even on a busy
/// machine.
const HANGS_UP_WITHIN: Duration = Duration::from_secs(20);

impl Backend {
    /// Starts a backend that answers 200 at once.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind the backend");
        let address = listener.local_addr().expect("the backend's address");
        let plan: Plan = Arc::new(|_| Behaviour::ok());
        let workers = Mutex::new(Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)));
        let shared = Arc::new(Shared { plan: Mutex::new(plan), workers, books: Mutex::default() });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Sets the behaviour for requests from now on.
    pub fn behave(&self, plan: impl Fn(&Receipt) -> Behaviour + Send + Sync + 'static) {
        *self.shared.plan.lock().expect("no plan panicked") = Arc::new(plan);
    }

    /// Limits the requests that are worked on at once. The others wait for a worker, as in an app
    /// server.
    pub fn employ(&self, workers: usize) {
        let workers = Arc::new(Semaphore::new(workers));
        *self.shared.workers.lock().expect("nobody panicked over workers") = workers;
    }

    /// Base URL of the backend.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Address of the backend, which is the expected value of Host.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything that the backend was sent, in order of arrival.
    pub fn receipts(&self) -> Vec<Receipt> {
        self.shared.books().receipts.clone()
    }

    /// Same as [`receipts`](Self::receipts), but only the events of a load, without a test's own
    /// webhooks.
    pub fn receipts_of_load(&self) -> Vec<Receipt> {
        let of_load = |receipt: &&Receipt| Event::of(receipt.webhook_id()).is_some();
        self.look(|receipts| receipts.iter().filter(of_load).cloned().collect())
    }

    /// Calls `look` on the receipts without copying them.
    pub fn look<T>(&self, look: impl FnOnce(&[Receipt]) -> T) -> T {
        look(&self.shared.books().receipts)
    }

    /// Number of requests that the backend was sent.
    pub fn count(&self) -> usize {
        self.look(<[Receipt]>::len)
    }

    /// Number of webhooks that it acknowledged, each counted once.
    pub fn delivered(&self) -> usize {
        self.shared.books().delivered.len()
    }

    /// True if the backend acknowledged this webhook.
    pub fn has_delivered(&self, webhook_id: &str) -> bool {
        self.shared.books().delivered.contains(webhook_id)
    }

    /// Waits until every connection made so far has closed and everything sent on it is recorded. A
    /// sender that was killed may have requests under way.
    pub async fn hung_up(&self) {
        let last = TcpStream::connect(self.address).await.expect("connect to the backend");
        let last = (last.local_addr().expect("an address"), last);
        until("all others have hung up", HANGS_UP_WITHIN, async || {
            // Connections are accepted in order: once this one is here, all earlier ones were
            // accepted too.
            let books = self.shared.books();
            books.peers.len() == 1 && books.peers.contains(&last.0)
        })
        .await;
    }

    /// Largest number of requests that were open at once. Hanging requests are not counted: the
    /// backend notices late that their sender gave up.
    pub fn in_flight_max(&self) -> usize {
        self.shared.books().in_flight_max
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no book-keeper panicked")
    }

    fn workers(&self) -> Arc<Semaphore> {
        Arc::clone(&self.workers.lock().expect("nobody panicked over workers"))
    }

    fn record(&self, mut receipt: Receipt) -> (usize, Behaviour) {
        let plan = Arc::clone(&self.plan.lock().expect("no plan panicked"));
        let behaviour = plan(&receipt);
        receipt.status = behaviour.status_given();
        let mut books = self.books();
        if receipt.delivered()
            && let Some(id) = receipt.headers.text("X-Shopify-Webhook-Id")
        {
            books.delivered.insert(id.to_owned());
        }
        if behaviour.ends_here() {
            books.in_flight += 1;
            books.in_flight_max = books.in_flight_max.max(books.in_flight);
        }
        books.receipts.push(receipt);
        (books.receipts.len() - 1, behaviour)
    }

    /// Called before the first byte of an answer, after which the sender may send the next request.
    fn begin_answer(&self, number: usize, behaviour: &Behaviour) {
        let mut books = self.books();
        books.in_flight -= usize::from(behaviour.ends_here());
        if behaviour.status_given().is_some() {
            books.receipts[number].answered = Some(Instant::now());
        }
    }

    fn abandon(&self, number: usize) {
        let receipt = &mut self.books().receipts[number];
        (receipt.answered, receipt.abandoned) = (None, true);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, peer)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        shared.books().peers.insert(peer);
        tokio::spawn(async move {
            // The other side broke the connection; the receipts show it.
            serve(stream, &shared).await.ok();
            shared.books().peers.remove(&peer);
        });
    }
}

async fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut outgoing) = stream.into_split();
    let mut incoming = Incoming::new(read);
    while let Some(head) = incoming.head().await? {
        let head = RequestHead::parse(&head);
        let body = incoming.body(head.body_bytes()).await?;
        let (number, behaviour) = shared.record(Receipt::new(&head, body));
        let is_awaited = think(&behaviour, &shared.workers(), &mut incoming).await;
        shared.begin_answer(number, &behaviour);
        if !is_awaited {
            shared.abandon(number);
            return Ok(());
        }
        let goes_on = answer(behaviour, &mut outgoing).await;
        if goes_on.is_err() {
            shared.abandon(number);
        }
        if !goes_on? {
            // Without this, dropping the half would close the connection before the reset.
            outgoing.forget();
            return Ok(());
        }
    }
    Ok(())
}

/// Waits for a worker and then for the working time. Returns false if the sender is gone by then.
async fn think(behaviour: &Behaviour, workers: &Semaphore, incoming: &mut Incoming) -> bool {
    match behaviour {
        Behaviour::Answer { after, .. } => tokio::select! {
            biased;
            () = work(*after, workers) => true,
            () = incoming.closed() => false,
        },
        Behaviour::Reset | Behaviour::CutShort | Behaviour::Wire { .. } => true,
        Behaviour::Hang => {
            incoming.closed().await;
            false
        }
    }
}

async fn work(time: Duration, workers: &Semaphore) {
    let _worker = workers.acquire().await.expect("never closed");
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Sends the answer. Returns false if the connection must break.
async fn answer(behaviour: Behaviour, outgoing: &mut OwnedWriteHalf) -> io::Result<bool> {
    match behaviour {
        Behaviour::Answer { status, headers, body, .. } => {
            let length = body.len();
            let mut answer = format!("HTTP/1.1 {status} Told So\r\nContent-Length: {length}\r\n");
            for (name, value) in headers {
                answer.push_str(&format!("{name}: {value}\r\n"));
            }
            answer.push_str("\r\n");
            answer.push_str(&body);
            outgoing.write_all(answer.as_bytes()).await?;
            Ok(true)
        }
        Behaviour::Reset => {
            outgoing.as_ref().set_zero_linger()?;
            Ok(false)
        }
        Behaviour::Hang => Ok(false),
        Behaviour::CutShort => {
            outgoing.write_all(b"HTTP/1.1 200 To").await?;
            Ok(false)
        }
        Behaviour::Wire { begins, repeats, every, closes } => {
            outgoing.write_all(&begins).await?;
            while !repeats.is_empty() {
                outgoing.write_all(&repeats).await?;
                tokio::time::sleep(every).await;
            }
            if closes {
                outgoing.shutdown().await?;
            }
            Ok(true)
        }
    }
}
