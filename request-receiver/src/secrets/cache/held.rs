//! Secrets of a shop, shared by the cache, the copies of the shards, and requests.

use std::sync::atomic::{AtomicBool, Ordering};

use spillway_webhook::Secrets;

/// Secrets of a shop, and whether they are in use. A request that only names the shop is no use:
/// anyone can send it.
#[derive(Debug)]
pub struct HeldSecrets {
    secrets: Secrets,
    /// They have verified a webhook.
    is_used: AtomicBool,
    /// The source has given another answer about their shop that can be used.
    is_replaced: AtomicBool,
}

impl HeldSecrets {
    pub(super) fn new(secrets: Secrets) -> Self {
        Self { secrets, is_used: AtomicBool::new(false), is_replaced: AtomicBool::new(false) }
    }

    /// The secrets.
    pub fn get(&self) -> &Secrets {
        &self.secrets
    }

    /// Notes that they have verified a webhook.
    pub fn note_use(&self) {
        // Shards share it: a store would take it out of the others' processor caches.
        if !self.is_used() {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    pub(super) fn note_replaced(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    /// True once the source has given another answer about their shop that can be used.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }
}
