//! A backend with little work per delivery: it reads only the headers it needs, compares the body,
//! and keeps only the record.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::endurance::crowd::{Crowd, body};
use crate::endurance::record::Record;
use crate::ledger::Event;
use crate::wire::{HEADERS_MAX, Incoming};

/// Reaction to a webhook of a shop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers 200 after this time.
    After(Duration),
    /// Answers with this status at once.
    Status(u16),
    /// Answers nothing until the sender hangs up.
    Hang,
}

type Plan = Arc<dyn Fn(u32) -> Reply + Send + Sync>;

/// A running backend. Once dropped, it accepts no more connections.
#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    crowds: Vec<Crowd>,
    record: Arc<Record>,
    plan: RwLock<Plan>,
    attempts: AtomicU64,
    delivered: AtomicU64,
}

/// Parts of a request that are read.
struct Request {
    event: Event,
    body_bytes: usize,
}

impl Sink {
    /// Starts a backend that answers 200 at once to these crowds' webhooks.
    pub async fn start(crowds: Vec<Crowd>, record: &Arc<Record>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind the backend");
        let address = listener.local_addr().expect("the backend's address");
        let plan: Plan = Arc::new(|_| Reply::After(Duration::ZERO));
        let shared = Arc::new(Shared {
            crowds,
            record: Arc::clone(record),
            plan: RwLock::new(plan),
            attempts: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Sets the reaction to webhooks from now on, by the number of their shop.
    pub fn behave(&self, plan: impl Fn(u32) -> Reply + Send + Sync + 'static) {
        *self.shared.plan.write().expect("no plan panicked") = Arc::new(plan);
    }

    /// Base URL of the backend.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of requests that it was sent.
    pub fn attempts(&self) -> u64 {
        self.shared.attempts.load(Relaxed)
    }

    /// Number of deliveries that it answered with 200, including repeats.
    pub fn delivered(&self) -> u64 {
        self.shared.delivered.load(Relaxed)
    }
}

impl Drop for Sink {
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
    /// Reaction to a request; `None` if the webhook belongs to no crowd.
    fn reply(&self, number: Option<u32>) -> Option<Reply> {
        let number = number?;
        let crowd = self.crowds.iter().find(|crowd| crowd.numbers().contains(&number))?;
        let plan = Arc::clone(&self.plan.read().expect("no plan panicked"));
        Some(plan(crowd.shop(number)))
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        // The other side broke the connection.
        tokio::spawn(async move { serve(stream, &shared).await.ok() });
    }
}

async fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut outgoing) = stream.into_split();
    let mut incoming = Incoming::new(read);
    while let Some(head) = incoming.head().await? {
        let request = Request::parse(&head);
        let payload = incoming.body(request.body_bytes).await?;
        shared.attempts.fetch_add(1, Relaxed);
        let number = u32::try_from(request.event.sequence).ok();
        let number = number.filter(|number| payload == body(*number));
        let reply = shared.reply(number);
        match (reply, number) {
            (Some(Reply::After(time)), Some(number)) => {
                if !time.is_zero() {
                    tokio::select! {
                        biased;
                        () = sleep(time) => {}
                        () = incoming.closed() => return Ok(()),
                    }
                }
                shared.record.mark_delivered(&shared.crowds, number);
                shared.delivered.fetch_add(1, Relaxed);
                outgoing.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
            }
            (Some(Reply::Status(status)), _) => {
                let answer = format!("HTTP/1.1 {status} So\r\nContent-Length: 0\r\n\r\n");
                outgoing.write_all(answer.as_bytes()).await?;
            }
            (Some(Reply::Hang), _) => {
                incoming.closed().await;
                return Ok(());
            }
            (Some(Reply::After(_)) | None, _) => {
                shared.record.faults.altered.fetch_add(1, Relaxed);
                outgoing.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
            }
        }
    }
    Ok(())
}

impl Request {
    fn parse(head: &[u8]) -> Self {
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut lines);
        let complete = parsed.parse(head).expect("a delivery is valid HTTP").is_complete();
        assert!(complete, "a head ends with a blank line");
        let text = |name: &str| {
            let mut own = parsed.headers.iter().filter(|one| one.name.eq_ignore_ascii_case(name));
            own.next().and_then(|one| std::str::from_utf8(one.value).ok())
        };
        let length = text("content-length").unwrap_or("0");
        let event = text("x-shopify-webhook-id").and_then(Event::of);
        // No crowd has this number, so it counts as a webhook that was not sent.
        let none = Event { resource: 0, sequence: u64::MAX };
        Self {
            event: event.unwrap_or(none),
            body_bytes: length.parse().expect("Content-Length is a number"),
        }
    }
}
