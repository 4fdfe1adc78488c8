//! One accepted byte stream, TCP or unix, that notifies its connection when bytes arrive.
//!
//! hyper's own header time-out starts when a connection begins to wait. An idle connection and a
//! slow one look the same to it. Here the first byte of a request is seen as it is read.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::yield_now;
use tokio_rustls::server::TlsStream;

use crate::phase::Phase;

/// Bytes that one connection reads before the others of its shard have their turn: some twenty
/// webhooks. A fast sender would otherwise be read for milliseconds. hyper and tokio have limits of
/// their own, which count reads and not bytes.
const TURN_BYTES: usize = 128 << 10;

/// Stream of a connection.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TLS over TCP, after its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Waits until there is something to read, or the end of the stream. Allocates no buffer until
    /// then.
    ///
    /// # Errors
    /// If the runtime has ended.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
            Self::Tls(stream) => stream.get_ref().0.readable().await,
        }
    }
}

/// An accepted connection that belongs to no runtime yet.
#[derive(Debug)]
pub enum AcceptedConnection {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// A unix socket.
    Unix(std::os::unix::net::UnixStream),
    /// TCP, with a TLS handshake to come.
    Tls(std::net::TcpStream),
}

impl AcceptedConnection {
    /// True if a TLS handshake is to come.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Makes it a stream of the current runtime.
    ///
    /// # Errors
    /// If the runtime can't watch it.
    pub fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) | Self::Tls(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

/// Stream that notes its reads in a [`Phase`].
#[derive(Debug)]
pub struct PhasedStream {
    stream: Stream,
    phase: Arc<Phase>,
    is_write_blocked: bool,
    has_written: bool,
    /// Bytes read since the others of its shard had their turn.
    turn_bytes: usize,
}

impl PhasedStream {
    /// Notes every read of `stream` in `phase`.
    pub fn new(stream: Stream, phase: Arc<Phase>) -> Self {
        Self { stream, phase, is_write_blocked: false, has_written: false, turn_bytes: 0 }
    }

    /// Returns true if anything was ever written.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    /// Returns true if the last write had to wait for the reader.
    pub fn is_write_blocked(&self) -> bool {
        self.is_write_blocked
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        self.is_write_blocked = written.is_pending();
        self.has_written |= matches!(written, Poll::Ready(Ok(_)));
    }
}

impl AsyncRead for PhasedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            // Woken once all other ready tasks have run and the sockets were polled.
            if pin!(yield_now()).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        let before = buf.filled().len();
        let read = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        match read {
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                self.turn_bytes += buf.filled().len() - before;
                self.phase.bytes_arrived();
            }
            Poll::Pending => {
                self.turn_bytes = 0;
                self.phase.waits_for_bytes();
            }
            Poll::Ready(_) => {}
        }
        read
    }
}

impl AsyncWrite for PhasedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.wrote(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            // A socket has nothing to flush.
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => {
                let flushed = Pin::new(stream).poll_flush(cx);
                self.is_write_blocked = flushed.is_pending();
                flushed
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
