//! Connections that wait for a request. When nearly all room is taken, the one that waits longest makes room: a stranger
//! who opens connections and asks nothing keeps nobody out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// All connections that wait for a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdleConnections(Arc<Mutex<IdleTable>>);

/// Connections in the order in which they became idle.
#[derive(Debug, Default)]
struct IdleTable {
    last: u64,
    idle: BTreeMap<u64, CancellationToken>,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    all: IdleConnections,
    /// Place among those that are idle.
    place: AtomicU64,
    close: CancellationToken,
}

/// A request of a connection, from its head to the end of its answer.
#[derive(Debug)]
pub(crate) struct BusyConnection(Arc<OpenConnection>);

impl IdleConnections {
    /// Adds a connection, which is idle at first.
    pub(crate) fn open(&self) -> Arc<OpenConnection> {
        let connection = OpenConnection {
            all: self.clone(),
            place: AtomicU64::new(0),
            close: CancellationToken::new(),
        };
        connection.rest();
        Arc::new(connection)
    }

    /// Closes the connection that has been idle for longest. False if none is idle.
    pub(crate) fn close_oldest(&self) -> bool {
        let oldest = self.lock().idle.pop_first();
        oldest.map(|(_, close)| close.cancel()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, IdleTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnection {
    /// Waits until the connection is to make room.
    pub(crate) async fn closed(&self) {
        self.close.cancelled().await;
    }

    /// Notes a request. The connection is idle again when the answer is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> BusyConnection {
        self.all.lock().idle.remove(&self.place.load(Ordering::Relaxed));
        BusyConnection(self.clone())
    }

    fn rest(&self) {
        let mut table = self.all.lock();
        table.last += 1;
        let place = table.last;
        self.place.store(place, Ordering::Relaxed);
        table.idle.insert(place, self.close.clone());
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.all.lock().idle.remove(&self.place.load(Ordering::Relaxed));
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.0.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_waits_longest_makes_room_and_one_with_a_request_stays() {
        let all = IdleConnections::default();
        let (first, second, third) = (all.open(), all.open(), all.open());
        let is_closed = |connection: &OpenConnection| connection.close.is_cancelled();
        let request = first.begin();
        assert!(all.close_oldest());
        assert!(is_closed(&second) && !is_closed(&first) && !is_closed(&third));
        drop(request);
        assert!(all.close_oldest());
        assert!(is_closed(&third) && !is_closed(&first), "it was idle since before");
        assert!(all.close_oldest() && is_closed(&first));
        drop(all.open());
        assert!(!all.close_oldest(), "nobody is left");
    }
}
