//! Writes that have to make progress: a client that reads nothing does not keep its connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Time within which a client has to take some bytes of what is written to it.
const PROGRESS_WITHIN: Duration = Duration::from_secs(30);

/// A connection on which a write fails that makes no progress.
#[derive(Debug)]
pub(crate) struct BoundedWrites<I> {
    io: I,
    /// End of the time for the write that waits.
    late: Pin<Box<Sleep>>,
    /// True while a write waits.
    is_waiting: bool,
}

impl<I> BoundedWrites<I> {
    /// Bounds the writes on this connection.
    pub(crate) fn new(io: I) -> Self {
        Self { io, late: Box::pin(sleep(PROGRESS_WITHIN)), is_waiting: false }
    }

    fn bound<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.late.as_mut().reset(Instant::now() + PROGRESS_WITHIN);
        }
        self.late.as_mut().poll(context).map(|()| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no more of an answer"))
        })
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for BoundedWrites<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for BoundedWrites<I> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(context, bytes);
        this.bound(context, written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(context);
        this.bound(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.io).poll_shutdown(context);
        this.bound(context, shut)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(context, parts);
        this.bound(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_waits_for_a_slow_client_and_not_for_one_that_reads_nothing() {
        let (near, mut far) = duplex(8);
        let mut writes = BoundedWrites::new(near);
        let slow = tokio::spawn(async move {
            let mut taken = [0; 8];
            for _ in 0..4 {
                sleep(PROGRESS_WITHIN / 2).await;
                far.read_exact(&mut taken).await.unwrap();
            }
            far
        });
        writes.write_all(&[1; 32]).await.expect("each part is taken in time");
        let _far = slow.await.unwrap();
        let told = writes.write_all(&[1; 32]).await.unwrap_err();
        assert_eq!(told.kind(), io::ErrorKind::TimedOut);
    }
}
