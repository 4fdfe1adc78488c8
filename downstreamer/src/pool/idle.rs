//! Idle connections to the backend. The one that was used last is taken first.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connect::IDLE_CONNECTION;
use crate::pool::wire::BackendConnection;

/// Time between two looks for connections that ended, or were idle for too long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Idle connections, in the order of their last use.
pub(crate) struct IdleList {
    state: Mutex<IdleState>,
    /// Wakes a delivery that waits for a connection.
    returned: Notify,
    /// Most idle connections.
    idle_max: usize,
}

#[derive(Default)]
struct IdleState {
    /// Each connection, and since when it is idle.
    connections: VecDeque<(Instant, BackendConnection)>,
    /// Deliveries that wait for a connection.
    waiting: usize,
    /// True while a task looks for connections to drop.
    is_swept: bool,
}

/// A delivery that waits for a connection, up to its drop.
struct WaitingDelivery<'a>(&'a IdleList);

/// Attempt on a connection that was idle, up to the head of its answer. If it ends before, by its time
/// limit too, the backend may have gone without closing its connections. Then its drop drops those that
/// were last used before the attempt: the next delivery connects again.
pub(crate) struct UnansweredAttempt<'a> {
    /// Connections of the backend.
    pub list: &'a IdleList,
    /// Begin of the attempt. `None` if the connection was new, or once there is an answer.
    pub began: Option<Instant>,
}

impl IdleList {
    /// Empty list.
    pub(crate) fn new(idle_max: usize) -> Arc<Self> {
        let state = Mutex::new(IdleState::default());
        Arc::new(Self { state, returned: Notify::new(), idle_max })
    }

    /// Takes the connection that was used last.
    pub(crate) fn take(&self, now: Instant) -> Option<BackendConnection> {
        let mut state = self.state();
        let (since, connection) = state.connections.pop_back()?;
        if now.saturating_duration_since(since) < IDLE_CONNECTION {
            return Some(connection);
        }
        // The others have been idle for longer. Sockets are closed without the lock.
        let expired = std::mem::take(&mut state.connections);
        drop(state);
        drop(expired);
        None
    }

    /// Adds a connection. One that takes no other request is dropped.
    pub(crate) fn put(self: &Arc<Self>, mut connection: BackendConnection) {
        if !connection.rest() {
            return;
        }
        let mut state = self.state();
        if state.connections.len() >= self.idle_max {
            return;
        }
        state.connections.push_back((Instant::now(), connection));
        let is_awaited = state.waiting > 0;
        let was_swept = std::mem::replace(&mut state.is_swept, true);
        drop(state);
        if is_awaited {
            self.returned.notify_one();
        }
        if !was_swept {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Waits for a connection that another delivery has done with.
    pub(crate) async fn returned(&self) -> BackendConnection {
        let _waiting = WaitingDelivery::new(self);
        loop {
            // One that is returned between the look and the wait wakes this delivery too.
            let mut returned = pin!(self.returned.notified());
            returned.as_mut().enable();
            if let Some(connection) = self.take(Instant::now()) {
                return connection;
            }
            returned.await;
        }
    }

    /// Drops connections that were last used before a time.
    fn drop_older(&self, before: Instant) {
        let mut state = self.state();
        let count = state.connections.partition_point(|(since, _)| *since < before);
        let older: Vec<_> = state.connections.drain(..count).collect();
        // Sockets are closed without the lock.
        drop(state);
        drop(older);
    }

    /// Drops connections that ended, or were idle for too long. Returns false if none is left: then
    /// the caller is to end.
    fn sweep(&self) -> bool {
        let mut state = self.state();
        let mut ended = Vec::new();
        for (since, mut connection) in std::mem::take(&mut state.connections) {
            if since.elapsed() < IDLE_CONNECTION && connection.rest() {
                state.connections.push_back((since, connection));
            } else {
                ended.push(connection);
            }
        }
        let is_any_left = !state.connections.is_empty();
        state.is_swept = is_any_left;
        drop(state);
        drop(ended);
        is_any_left
    }

    /// Number of idle connections.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.state().connections.len()
    }

    fn state(&self) -> MutexGuard<'_, IdleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> WaitingDelivery<'a> {
    fn new(list: &'a IdleList) -> Self {
        list.state().waiting += 1;
        Self(list)
    }
}

impl Drop for WaitingDelivery<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

impl Drop for UnansweredAttempt<'_> {
    fn drop(&mut self) {
        if let Some(began) = self.began {
            self.list.drop_older(began);
        }
    }
}

/// Closes connections that nothing uses, until there are none. Without it, one that the backend closed
/// would stay half open up to the next delivery.
async fn sweep(list: Weak<IdleList>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(list) = list.upgrade() else { return };
        // Each connection is polled, however many there are.
        if !tokio::task::coop::unconstrained(async { list.sweep() }).await {
            return;
        }
    }
}
