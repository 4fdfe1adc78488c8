//! HTTP/1.1 connections to the backend. A delivery takes one, drives it, and puts it back: hyper-util's
//! client has a task for each connection, and a delivery would wake it, and be woken by it.
//!
//! A request is sent again only if not a byte of it was sent: an idle connection had ended before it
//! took the request over. Any other failure is an outcome of the attempt.

mod idle;
mod wire;

use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::answer::AnswerBytes;
use crate::body::LeasedBody;
use crate::connect::{BackendConnector, BoxError, ClientOptions, LeaseCheck, LeaseLost};
use crate::pool::idle::{IdleList, UnansweredAttempt};
use crate::pool::wire::{BackendConnection, BackendStream, SendFailure};

/// Connections that are finished beside the deliveries, at most. Above that they are given up.
const BESIDE_MAX: usize = 64;

/// Time for the rest of a request that was answered already. A backend that still reads takes megabytes
/// in less.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Time that is left to a delivery after that, at most: up to a tenth of its limit.
const FLUSH_MARGIN: Duration = Duration::from_millis(500);

/// A request got no whole answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// There was no connection for it, or a new one ended before it took the request: nothing was sent.
    #[error("no connection to the backend")]
    Unconnected(#[source] BoxError),
    /// The connection broke before the whole answer. The backend may have the request.
    #[error("the connection to the backend broke")]
    Broken(#[source] BoxError),
}

/// Connections to one backend.
pub(crate) struct BackendPool {
    connector: BackendConnector,
    /// URL to connect to.
    base: Uri,
    idle: Arc<IdleList>,
    lease: LeaseCheck,
    /// Age of a delivery at which an answer counts although its request is not sent completely.
    flush_until: Duration,
    /// Connections without a delivery that are not idle.
    beside: Arc<Semaphore>,
}

/// A connection for one request.
struct TakenConnection {
    connection: BackendConnection,
    /// True if it was idle before: it may have ended meanwhile.
    was_idle: bool,
}

impl From<SendFailure> for ExchangeError {
    fn from(failure: SendFailure) -> Self {
        match failure.unsent {
            Some(_) => Self::Unconnected(failure.error.into()),
            None => Self::Broken(failure.error.into()),
        }
    }
}

impl BackendPool {
    /// Pool without a connection.
    pub(crate) fn new(
        options: ClientOptions,
        scheme: &Scheme,
        authority: &Authority,
        lease: LeaseCheck,
    ) -> Self {
        let mut base = http::uri::Parts::default();
        base.scheme = Some(scheme.clone());
        base.authority = Some(authority.clone());
        base.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let base = Uri::from_parts(base).expect("BUG: a scheme, an authority and a path are a URL");
        let idle = IdleList::new(options.idle_max);
        let beside = Arc::new(Semaphore::new(BESIDE_MAX));
        // At its whole time limit the delivery is cut off, and its answer is lost.
        let flush_until = options.timeout - (options.timeout / 10).min(FLUSH_MARGIN);
        let connector = options.connector(lease.clone());
        Self { connector, base, idle, lease, flush_until, beside }
    }

    /// Sends a request, and reads its answer up to the bound. The request has a `Host`, and a URL that
    /// is a path. A request that is answered early is sent to its end: the next webhook of its resource
    /// may be sent at once, on another connection, and must not overtake it.
    pub(crate) async fn exchange(
        &self,
        mut request: Request<LeasedBody>,
    ) -> Result<(Parts, AnswerBytes), ExchangeError> {
        let began = Instant::now();
        loop {
            let mut taken = self.connection(began).await?;
            // Waiting may have taken long, and a body that is empty checks nothing.
            if !(self.lease)() {
                return Err(ExchangeError::Unconnected(LeaseLost.into()));
            }
            let sent = self.send(&mut taken, request, began).await;
            let TakenConnection { mut connection, was_idle } = taken;
            let response = match sent {
                Ok(response) => response,
                // Each time one idle connection less: this ends with a new one.
                Err(SendFailure { unsent: Some(unsent), .. }) if was_idle => {
                    request = *unsent;
                    continue;
                }
                Err(failure) => return Err(failure.into()),
            };
            let (head, mut body) = response.into_parts();
            let read = connection.read(&mut body).await;
            let answer = read.map_err(|error| ExchangeError::Broken(error.into()))?;
            if connection.is_answered_early() {
                // Any other answer is judged at once: a backend that sheds load is not to be awaited.
                if head.status.is_success() {
                    self.flush(&mut connection, began).await;
                }
            } else if !answer.is_full() {
                // With more of the answer on it, the connection would take no other request.
                self.idle.put(connection);
            }
            return Ok((head, answer));
        }
    }

    /// Sends a request on a connection, and returns the head of its answer.
    async fn send(
        &self,
        taken: &mut TakenConnection,
        request: Request<LeasedBody>,
        began: Instant,
    ) -> Result<Response<Incoming>, SendFailure> {
        let mut unanswered =
            UnansweredAttempt { list: &self.idle, began: taken.was_idle.then_some(began) };
        let sent = taken.connection.send(request).await;
        // A connection that was closed or reset says itself that the backend is there.
        if !sent.as_ref().is_err_and(|failure| is_gone(&failure.error)) {
            unanswered.began = None;
        }
        sent
    }

    /// Sends the rest of a request that was answered already, within its time. The connection takes no other
    /// request: a backend that answers without reading may take the rest for one, and answer that too.
    async fn flush(&self, connection: &mut BackendConnection, began: Instant) {
        let until = (Instant::now() + FLUSH_MAX).min(began + self.flush_until);
        if tokio::time::timeout_at(until, connection.flush()).await.is_err() {
            tracing::debug!("the backend answered a request that it does not read");
        }
    }

    /// Takes an idle connection. If there is none, makes one, and takes one that another delivery has done
    /// with before.
    async fn connection(&self, now: Instant) -> Result<TakenConnection, ExchangeError> {
        if let Some(connection) = self.idle.take(now) {
            return Ok(TakenConnection { connection, was_idle: true });
        }
        let mut connecting = Box::pin(self.connector.clone().oneshot(self.base.clone()));
        tokio::select! {
            biased;
            connection = self.idle.returned() => {
                if let Ok(permit) = self.beside.clone().try_acquire_owned() {
                    let idle = self.idle.clone();
                    tokio::spawn(async move {
                        let _permit = permit;
                        finish(connecting, idle).await;
                    });
                }
                Ok(TakenConnection { connection, was_idle: true })
            }
            connected = &mut connecting => {
                let stream = connected.map_err(ExchangeError::Unconnected)?;
                let connection = BackendConnection::new(stream).await;
                let connection =
                    connection.map_err(|error| ExchangeError::Unconnected(error.into()))?;
                Ok(TakenConnection { connection, was_idle: false })
            }
        }
    }
}

/// True if nothing came back from a backend, not even the end of the connection.
fn is_gone(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if let Some(
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable,
        ) = kind
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Finishes a connection for the deliveries to come. If it were given up each time another one is free
/// earlier, there would be too few for ever.
async fn finish(
    connecting: impl Future<Output = Result<BackendStream, BoxError>>,
    idle: Arc<IdleList>,
) {
    let Ok(stream) = connecting.await else { return };
    if let Ok(connection) = BackendConnection::new(stream).await {
        idle.put(connection);
    }
}

#[cfg(test)]
mod tests;
