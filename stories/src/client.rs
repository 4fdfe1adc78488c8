//! A keep-alive HTTP/1.1 client that sends exactly the bytes it is given.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::timeout;

use crate::answer::Answer;
use crate::webhook::Webhook;
use crate::wire::Incoming;

/// Longer than Shopify's limit of 5 s, to see the answer that would have come too late.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// One connection.
#[derive(Debug)]
pub struct Connection {
    incoming: Incoming,
    outgoing: OwnedWriteHalf,
}

impl Connection {
    /// Opens a connection.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (read, outgoing) = stream.into_split();
        Ok(Self { incoming: Incoming::new(read), outgoing })
    }

    /// Same as [`open`](Self::open), for a server that must accept the connection.
    pub async fn to(address: SocketAddr) -> Self {
        let opened = Self::open(address).await;
        opened.unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"))
    }

    /// Sends bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.outgoing.write_all(bytes).await
    }

    /// Waits for an answer.
    pub async fn read(&mut self) -> io::Result<Answer> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer");
        timeout(ANSWER_WITHIN, Answer::read(&mut self.incoming)).await.map_err(late)?
    }

    /// Same as [`read`](Self::read), for an answer that must come.
    pub async fn answer(&mut self) -> Answer {
        self.read().await.expect("an answer")
    }

    /// Sends a request and waits for its answer, which may come before the whole request is sent.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer> {
        let Self { incoming, outgoing } = self;
        let mut answer = std::pin::pin!(Answer::read(incoming));
        tokio::select! {
            early = &mut answer => return early,
            // A failed write is ignored: the answer may be available, or the read fails too.
            _ = outgoing.write_all(request) => {}
        }
        answer.await
    }

    /// Sends a webhook and returns its answer, which must come.
    pub async fn post(&mut self, webhook: &Webhook) -> Answer {
        let exchange = timeout(ANSWER_WITHIN, self.exchange(&webhook.encode())).await;
        exchange.expect("an answer in time").expect("an answer")
    }

    /// True if a byte of the expected answer has arrived.
    pub fn answer_begun(&self) -> bool {
        self.incoming.begun
    }

    /// Waits until the server closes the connection.
    pub async fn closed(&mut self) {
        let waited = timeout(ANSWER_WITHIN, self.incoming.rest()).await;
        assert!(waited.is_ok(), "the server keeps the connection open");
    }
}

/// Sends one webhook over a new connection.
pub async fn post(address: SocketAddr, webhook: &Webhook) -> Answer {
    Connection::to(address).await.post(webhook).await
}

/// Sends bytes over a new connection and reads the answer.
pub async fn send(address: SocketAddr, request: &[u8]) -> Answer {
    let mut connection = Connection::to(address).await;
    let exchange = timeout(ANSWER_WITHIN, connection.exchange(request)).await;
    exchange.expect("an answer in time").expect("an answer")
}

/// Gets a page, such as `/metrics`.
pub async fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    let mut connection = Connection::open(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write(request.as_bytes()).await?;
    connection.read().await
}
