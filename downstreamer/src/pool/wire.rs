//! One HTTP/1.1 connection to the backend. The delivery that holds it drives it: there is no task
//! for a connection, so a delivery wakes no other thread.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::answer::AnswerBytes;
use crate::body::LeasedBody;

/// Socket of a connection, with or without TLS.
pub(crate) type BackendStream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Connection that takes one request at a time.
pub(crate) struct BackendConnection {
    sender: SendRequest<LeasedBody>,
    /// The other half, which reads and writes. `None` once it has ended.
    driver: Option<Connection<WatchedStream, LeasedBody>>,
    progress: Arc<SendProgress>,
}

/// Progress of a request, which hyper does not report: for hyper it is sent once it is in the buffer.
#[derive(Default)]
struct SendProgress {
    /// True while the socket has not taken all of the request.
    is_sending: AtomicBool,
    /// True once an answer has begun before its request was sent completely.
    is_early: AtomicBool,
}

/// Socket that records the progress of requests.
struct WatchedStream {
    stream: BackendStream,
    progress: Arc<SendProgress>,
}

/// A request got no answer on a connection.
pub(crate) struct SendFailure {
    /// The cause.
    pub error: hyper::Error,
    /// The request, if the connection had not taken it over. Not a byte of it was sent then.
    pub unsent: Option<Box<Request<LeasedBody>>>,
}

impl BackendConnection {
    /// Connection on a socket that is connected.
    pub(crate) async fn new(stream: BackendStream) -> hyper::Result<Self> {
        let progress = Arc::<SendProgress>::default();
        let stream = WatchedStream { stream, progress: progress.clone() };
        let (sender, driver) = Builder::new().handshake(stream).await?;
        Ok(Self { sender, driver: Some(driver), progress })
    }

    /// Sends a request, and returns the head of its answer. hyper looks for the end of the connection
    /// and for stray bytes before it takes the request over, so one that ended while it was idle gives the
    /// request back.
    pub(crate) async fn send(
        &mut self,
        request: Request<LeasedBody>,
    ) -> Result<Response<Incoming>, SendFailure> {
        let Self { sender, driver, .. } = self;
        let mut answering = pin!(sender.try_send_request(request));
        let answer = poll_fn(|context| {
            drive(driver, context);
            answering.as_mut().poll(context)
        });
        answer.await.map_err(|mut error| {
            let unsent = error.take_message().map(Box::new);
            SendFailure { error: error.into_error(), unsent }
        })
    }

    /// Reads the body of an answer, up to its bound. Once a body with more is dropped, hyper sends no more
    /// of the request.
    pub(crate) async fn read(&mut self, body: &mut Incoming) -> hyper::Result<AnswerBytes> {
        let mut answer = AnswerBytes::default();
        while let Some(frame) = poll_fn(|context| self.poll_frame(body, context)).await {
            answer.add(frame?);
            if answer.is_full() {
                break;
            }
        }
        Ok(answer)
    }

    /// A small answer has arrived together with its head: the connection is not polled for it.
    fn poll_frame(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = Pin::new(&mut *body).poll_frame(context);
        if frame.is_ready() {
            return frame;
        }
        drive(&mut self.driver, context);
        Pin::new(body).poll_frame(context)
    }

    /// True if the backend began to answer before the request was sent completely.
    pub(crate) fn is_answered_early(&self) -> bool {
        self.progress.is_early.load(Ordering::Relaxed)
    }

    /// Drives the connection until the socket has taken all of the request, or the connection has ended.
    pub(crate) async fn flush(&mut self) {
        poll_fn(|context| {
            drive(&mut self.driver, context);
            if self.driver.is_some() && self.progress.is_sending.load(Ordering::Relaxed) {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    /// Polls the connection once, for nobody. Returns true if it takes another request: its last one
    /// was sent and answered completely, and it has not ended, as far as the runtime knows.
    ///
    /// No task is woken by a connection that was polled so. Otherwise a connection would keep the
    /// memory of its last delivery's task, and the next request would wake that task.
    pub(crate) fn rest(&mut self) -> bool {
        drive(&mut self.driver, &mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

impl WatchedStream {
    fn poll_sending(
        self: Pin<&mut Self>,
        send: impl FnOnce(Pin<&mut BackendStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Self { stream, progress } = self.get_mut();
        progress.is_sending.store(true, Ordering::Relaxed);
        send(Pin::new(stream))
    }
}

impl Read for WatchedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, progress } = self.get_mut();
        let read = Pin::new(stream).poll_read(context, buffer);
        if read.is_ready() && progress.is_sending.load(Ordering::Relaxed) {
            progress.is_early.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl Write for WatchedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_sending(|stream| stream.poll_write(context, bytes))
    }

    /// hyper flushes the socket once its own buffer is empty.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, progress } = self.get_mut();
        let flushed = Pin::new(stream).poll_flush(context);
        if flushed.is_ready() {
            progress.is_sending.store(false, Ordering::Relaxed);
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_sending(|stream| stream.poll_write_vectored(context, bytes))
    }
}

/// Polls a connection. One that has ended is dropped: the request that waits on it fails then, or is
/// given back.
fn drive(driver: &mut Option<Connection<WatchedStream, LeasedBody>>, context: &mut Context<'_>) {
    if let Some(connection) = driver
        && let Poll::Ready(ended) = Pin::new(connection).poll(context)
    {
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection to the backend broke");
        }
        *driver = None;
    }
}
