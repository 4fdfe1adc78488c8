//! One receiver for all tests that leave it unchanged. It runs while at least one of them runs.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use stories::answer::Answer;
use stories::cell::Cell;
use stories::client;
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::webhook::Webhook;
use tokio::sync::Mutex;

/// Limits are short enough to be reached quickly, and long enough for valid requests.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

static CURRENT: Mutex<Weak<Running>> = Mutex::const_new(Weak::new());

pub(crate) struct Running {
    receiver: Service,
    redis: RedisServer,
    _cell: Cell,
}

/// A reference that keeps the shared receiver running.
pub(crate) struct Shared(Arc<Running>);

pub(crate) async fn receiver() -> Shared {
    let mut current = CURRENT.lock().await;
    if let Some(running) = current.upgrade() {
        return Shared(running);
    }
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let limits = [("MAX_BODY", "1MiB"), ("HEADER_TIMEOUT", "1s"), ("BODY_TIMEOUT", "1500ms")];
    let receiver = cell.receiver(&limits).await;
    let running = Arc::new(Running { receiver, redis, _cell: cell });
    *current = Arc::downgrade(&running);
    Shared(running)
}

impl Shared {
    pub(crate) async fn post(&self, webhook: &Webhook) -> Answer {
        client::post(self.0.receiver.address(), webhook).await
    }

    pub(crate) async fn stored_packs(&self) -> u64 {
        self.0.redis.stream_len("{spillway}:in").await
    }
}

impl Deref for Shared {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0.receiver
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.receiver.show_log();
        }
    }
}
