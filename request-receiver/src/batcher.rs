//! Group commit: whatever arrives while one batch is stored becomes the next.

use std::sync::Arc;

use spillway_webhook::pack::RAW_BYTES_TARGET;

use crate::batch::Batches;
use crate::store::ShardStore;

/// How often a shard lets its other tasks run before it closes a batch, as long as each time brings
/// more. Past this it would only wait for itself.
const GATHER_ROUNDS_MAX: usize = 12;

/// Hands the batches of one shard to its store.
pub struct Batcher {
    batches: Arc<Batches>,
    store: ShardStore,
}

impl Batcher {
    /// A batcher for one shard.
    pub fn new(batches: Arc<Batches>, store: ShardStore) -> Self {
        Self { batches, store }
    }

    /// Runs until the batches are closed, and stored.
    pub async fn run(mut self) {
        while self.arrived().await {
            self.gather().await;
            if let Some(batch) = self.batches.take() {
                self.store.store(batch).await;
            }
        }
    }

    /// Waits for something to store; `false` once there will be nothing more.
    async fn arrived(&mut self) -> bool {
        tokio::select! {
            biased;
            never = self.store.idle() => match never {},
            is_more = self.batches.arrived() => is_more,
        }
    }

    /// What lies in the sockets by now comes along: a fuller pack is a sync saved.
    async fn gather(&self) {
        let mut bytes = self.batches.bytes();
        for _ in 0..GATHER_ROUNDS_MAX {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut bytes, self.batches.bytes());
            if bytes == before || bytes >= RAW_BYTES_TARGET {
                return;
            }
        }
    }
}
