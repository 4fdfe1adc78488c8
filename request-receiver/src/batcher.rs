//! Group commit: the webhooks that arrive while one batch is stored form the next batch.

use std::sync::Arc;

use spillway_webhook::pack::RAW_BYTES_TARGET;

use crate::batch::Batches;
use crate::store::ShardStore;

/// Times that a shard lets its other tasks run before it seals a batch, while each time adds more
/// webhooks. After that the shard would only wait for itself.
const GATHER_ROUNDS_MAX: usize = 12;

/// Hands the batches of one shard to its store.
pub struct Batcher {
    batches: Arc<Batches>,
    store: ShardStore,
}

impl Batcher {
    /// Batcher for one shard.
    pub fn new(batches: Arc<Batches>, store: ShardStore) -> Self {
        Self { batches, store }
    }

    /// Runs until the batches are closed and all of them are stored.
    pub async fn run(mut self) {
        while self.arrived().await {
            self.gather().await;
            if let Some(batch) = self.batches.seal() {
                self.store.store(batch).await;
            }
        }
    }

    /// Waits for something to store. Returns `false` once nothing more will come.
    async fn arrived(&mut self) -> bool {
        tokio::select! {
            biased;
            never = self.store.idle() => match never {},
            is_more = self.batches.arrived() => is_more,
        }
    }

    /// Lets the webhooks that lie in the sockets by now join the batch. A fuller pack saves a sync.
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
