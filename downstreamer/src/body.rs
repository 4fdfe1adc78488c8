//! Body of a delivery, which is not sent once the lease is lost.
//!
//! On an HTTP/2 connection a request may wait for a stream, longer than the lease lasts. Meanwhile
//! a standby may have delivered this webhook and newer ones. The body is polled only once there is
//! a stream, so the lease is checked then. Without its body the backend gets no whole request.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};

use crate::connect::{LeaseCheck, LeaseLost};

/// Bytes that are sent while the lease holds.
pub(crate) struct LeasedBody {
    bytes: Full<Bytes>,
    lease: LeaseCheck,
}

impl LeasedBody {
    /// Body that is sent only if `lease` holds then.
    pub(crate) fn new(bytes: Bytes, lease: LeaseCheck) -> Self {
        Self { bytes: Full::new(bytes), lease }
    }
}

impl Body for LeasedBody {
    type Data = Bytes;
    type Error = LeaseLost;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, LeaseLost>>> {
        if !self.bytes.is_end_stream() && !(self.lease)() {
            return Poll::Ready(Some(Err(LeaseLost)));
        }
        let frame = Pin::new(&mut self.bytes).poll_frame(context);
        frame.map_err(|never| match never {})
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use hyper::body::Incoming;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::client::legacy::Client;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::TcpListener;
    use tokio::sync::{Notify, mpsc};
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// Backend of one stream at a time, which answers on notification. Returns the bodies that it
    /// received whole.
    async fn backend(answer: Arc<Notify>) -> (http::Uri, mpsc::Receiver<Bytes>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let (bodies, received) = mpsc::channel(8);
        tokio::spawn(async move {
            let (connection, _) = listener.accept().await.unwrap();
            let service = service_fn(move |request: Request<Incoming>| {
                let bodies = bodies.clone();
                let answer = answer.clone();
                async move {
                    if let Ok(body) = request.into_body().collect().await {
                        bodies.send(body.to_bytes()).await.ok();
                        answer.notified().await;
                    }
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                }
            });
            let mut server = http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(1);
            server.serve_connection(TokioIo::new(connection), service).await.ok();
        });
        (uri, received)
    }

    #[tokio::test]
    async fn a_request_that_waited_for_a_stream_is_not_sent_once_the_lease_is_lost() {
        let answer = Arc::new(Notify::new());
        let is_held = Arc::new(AtomicBool::new(true));
        let (uri, mut received) = backend(answer.clone()).await;
        let lease: LeaseCheck = {
            let is_held = is_held.clone();
            Arc::new(move || is_held.load(Ordering::Relaxed))
        };
        let client: Client<HttpConnector, LeasedBody> =
            Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        let send = |text: &'static str| {
            let body = LeasedBody::new(Bytes::from_static(text.as_bytes()), lease.clone());
            let request = Request::post(uri.clone()).body(body).unwrap();
            tokio::spawn(client.request(request))
        };
        let first = send("first");
        assert_eq!(timeout(PATIENCE, received.recv()).await.unwrap().unwrap(), "first");
        let second = send("second");
        // Time in which the request would come if it did not wait for the stream.
        assert!(timeout(Duration::from_millis(200), received.recv()).await.is_err());
        is_held.store(false, Ordering::Relaxed);
        answer.notify_one();
        assert!(first.await.unwrap().is_ok());
        assert!(timeout(PATIENCE, second).await.unwrap().unwrap().is_err());
        assert!(received.try_recv().is_err());
        is_held.store(true, Ordering::Relaxed);
        let third = send("third");
        assert_eq!(timeout(PATIENCE, received.recv()).await.unwrap().unwrap(), "third");
        answer.notify_one();
        assert!(third.await.unwrap().is_ok());
    }
}
