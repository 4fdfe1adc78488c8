//! HTTP/1.1 connections to the backend. A delivery takes one, drives it, and puts it back: hyper-util's
//! client has a task for each connection, and a delivery would wake it, and be woken by it.
//!
//! A request is sent again only if not a byte of it was sent: an idle connection had ended before it
//! took the request over. Any other failure is an outcome of the attempt.

mod idle;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::uri::{Authority, Scheme};
use http::{Request, Uri};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::answer::AnswerBytes;
use crate::body::LeasedBody;
use crate::connect::{BackendConnector, BoxError, ClientOptions, LeaseCheck, LeaseLost};
use crate::pool::idle::IdleList;
use crate::pool::wire::{BackendConnection, BackendStream, SendFailure};

/// Connections that are finished or flushed beside the deliveries, at most. Above that they are closed.
const BESIDE_MAX: usize = 64;

/// Time for the rest of a request that was answered already.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// A request got no whole answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// There was no connection for it, so nothing was sent.
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
    /// Connections without a delivery that are not idle.
    beside: Arc<Semaphore>,
}

/// A connection for one request.
struct TakenConnection {
    connection: BackendConnection,
    /// True if it was idle before: it may have ended meanwhile.
    was_idle: bool,
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
        Self { connector: options.connector(lease.clone()), base, idle, lease, beside }
    }

    /// Sends a request, and reads its answer up to the bound. The request has a `Host`, and a URL that
    /// is a path.
    pub(crate) async fn exchange(
        &self,
        mut request: Request<LeasedBody>,
    ) -> Result<(Parts, AnswerBytes), ExchangeError> {
        loop {
            let TakenConnection { mut connection, was_idle } = self.connection().await?;
            // Waiting may have taken long, and a body that is empty checks nothing.
            if !(self.lease)() {
                return Err(ExchangeError::Unconnected(LeaseLost.into()));
            }
            let response = match connection.send(request).await {
                Ok(response) => response,
                // Each time one idle connection less: this ends with a new one.
                Err(SendFailure { unsent: Some(unsent), .. }) if was_idle => {
                    request = *unsent;
                    continue;
                }
                Err(failure) => return Err(ExchangeError::Broken(failure.error.into())),
            };
            let (head, body) = response.into_parts();
            let read = connection.read(body).await;
            let answer = read.map_err(|error| ExchangeError::Broken(error.into()))?;
            // With more of the answer on it, the connection would take no other request.
            if !answer.is_full() {
                self.give_back(connection);
            }
            return Ok((head, answer));
        }
    }

    /// Gives a connection to the deliveries to come. Its request may not be sent completely yet: a backend may
    /// answer before it reads all. Then the rest is sent first, without holding the delivery up.
    fn give_back(&self, mut connection: BackendConnection) {
        if connection.rest() {
            self.idle.add(connection);
        } else if connection.is_open()
            && let Ok(permit) = self.beside.clone().try_acquire_owned()
        {
            let idle = self.idle.clone();
            tokio::spawn(async move {
                let _permit = permit;
                let sent = tokio::time::timeout(FLUSH_MAX, connection.until_ready()).await;
                if sent.is_ok() {
                    idle.put(connection);
                }
            });
        }
    }

    /// Takes an idle connection. If there is none, makes one, and takes one that another delivery has done
    /// with before.
    async fn connection(&self) -> Result<TakenConnection, ExchangeError> {
        if let Some(connection) = self.idle.take() {
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
                let connection = connection.map_err(|error| ExchangeError::Broken(error.into()))?;
                Ok(TakenConnection { connection, was_idle: false })
            }
        }
    }
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
