//! One accepted byte stream, TCP or unix, that notifies its connection when bytes arrive.
//!
//! hyper's own header time-out starts when a connection begins to wait. An idle connection and a
//! slow one look the same to it. Here the first byte of a request is seen as it is read.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
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
    /// TCP, with a TLS handshake to come.
    BeforeTls(TcpStream),
    /// TLS over TCP, after its handshake.
    Tls(Box<TlsStream<MeteredTcp>>),
}

impl Stream {
    /// Waits until there is something to read, or the end of the stream. Allocates no buffer until
    /// then.
    ///
    /// # Errors
    /// If the runtime has ended.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) | Self::BeforeTls(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
            Self::Tls(stream) => stream.get_ref().0.stream.readable().await,
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
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Self::Tls(stream) => TcpStream::from_std(stream).map(Stream::BeforeTls),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

/// Bytes read since the others of a shard had their turn.
#[derive(Debug, Default)]
struct ReadTurn {
    bytes: usize,
}

impl ReadTurn {
    /// Pending once the turn is over, until the others have had theirs.
    fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.bytes < TURN_BYTES {
            return Poll::Ready(());
        }
        self.bytes = 0;
        // Woken once all other ready tasks have run and the sockets were polled.
        pin!(yield_now()).poll(cx)
    }

    /// Notes the outcome of a read, which may have brought bytes.
    fn on_read(&mut self, outcome: &Poll<io::Result<()>>, bytes: usize) {
        self.bytes = if outcome.is_pending() { 0 } else { self.bytes + bytes };
    }
}

/// Bytes that are read below TLS at once: a record and its head. rustls asks for 4 KiB, and most
/// webhooks are longer: the second read costs more than this copy.
const READ_AHEAD_BYTES: usize = 16 << 10;

thread_local! {
    /// Space into which all connections of a thread read, one after the other.
    static READ_AHEAD: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_AHEAD_BYTES].into());
}

/// TCP below TLS. It counts what comes by the wire: records may hold nothing, and to decrypt them costs
/// as much.
#[derive(Debug)]
pub struct MeteredTcp {
    stream: TcpStream,
    turn: ReadTurn,
    /// Bytes that were read and not asked for yet. Allocated only while there are some.
    ahead: Bytes,
}

impl MeteredTcp {
    /// Counts what is read from `stream`.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, turn: ReadTurn::default(), ahead: Bytes::new() }
    }
}

impl AsyncRead for MeteredTcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let bytes = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(bytes));
            return Poll::Ready(Ok(()));
        }
        ready!(self.turn.poll_begin(cx));
        READ_AHEAD.with_borrow_mut(|space| {
            let mut space = ReadBuf::new(space);
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut space);
            self.turn.on_read(&read, space.filled().len());
            let (asked_for, ahead) =
                space.filled().split_at(space.filled().len().min(buf.remaining()));
            buf.put_slice(asked_for);
            self.ahead =
                if ahead.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(ahead) };
            read
        })
    }
}

impl AsyncWrite for MeteredTcp {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            // An answer is one record: `write` costs the kernel less than `writev`.
            [one] => Pin::new(&mut self.stream).poll_write(cx, one),
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Stream that notes its reads in a [`Phase`].
#[derive(Debug)]
pub struct PhasedStream {
    stream: Stream,
    phase: Arc<Phase>,
    is_write_blocked: bool,
    has_written: bool,
    turn: ReadTurn,
}

impl PhasedStream {
    /// Notes every read of `stream` in `phase`.
    pub fn new(stream: Stream, phase: Arc<Phase>) -> Self {
        Self {
            stream,
            phase,
            is_write_blocked: false,
            has_written: false,
            turn: ReadTurn::default(),
        }
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
        ready!(self.turn.poll_begin(cx));
        let before = buf.filled().len();
        let read = match &mut self.stream {
            Stream::Tcp(stream) | Stream::BeforeTls(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        let bytes = buf.filled().len() - before;
        self.turn.on_read(&read, bytes);
        match read {
            Poll::Ready(Ok(())) if bytes > 0 => self.phase.bytes_arrived(),
            Poll::Pending => self.phase.waits_for_bytes(),
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
            Stream::Tcp(stream) | Stream::BeforeTls(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.wrote(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            // A socket has nothing to flush.
            Stream::Tcp(_) | Stream::Unix(_) | Stream::BeforeTls(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => {
                let flushed = Pin::new(stream).poll_flush(cx);
                self.is_write_blocked = flushed.is_pending();
                flushed
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) | Stream::BeforeTls(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_read_ahead_is_given_out_in_order_and_nothing_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut sender = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut read = MeteredTcp::new(stream);
        let sent: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
        let sending = tokio::spawn({
            let sent = sent.clone();
            async move { sender.write_all(&sent).await }
        });
        let mut received = vec![0; sent.len()];
        let mut at = 0;
        while at < sent.len() {
            // Pieces of several lengths, as rustls asks for them.
            let end = sent.len().min(at + 1 + at % 4096);
            at += read.read(&mut received[at..end]).await.expect("it is open");
        }
        sending.await.expect("it does not panic").expect("it is open");
        assert!(received == sent && read.ahead.is_empty());
        assert_eq!(read.read(&mut [0; 8]).await.expect("its end"), 0);
    }
}
