//! A shard's own copies of secrets that the cache would give it, by shop.
//!
//! The cache is behind a lock that all shards take for each webhook, and its secrets count their users:
//! both lie in the processor cache of the shard that came last. A copy serves from when it verified a
//! webhook until its shop is looked up again. What the source names in its place ends it at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_webhook::{Verified, Webhook};

use super::cache::{HeldSecrets, Known};

/// Most shops of which a shard has copies. With more, it begins anew.
pub(super) const SHOPS_MAX: usize = 8192;

/// Copies of one shard.
#[derive(Debug, Default)]
pub struct SecretCopies(Mutex<HashMap<Box<str>, Copy>>);

#[derive(Debug)]
struct Copy {
    secrets: Arc<HeldSecrets>,
    /// Time at which the source was asked for them.
    asked: Duration,
    serves_until: Duration,
}

impl SecretCopies {
    /// Checks a webhook with the copy for its shop. `None` if there is none that serves at `now`.
    ///
    /// # Errors
    /// Time at which the source was asked for the secrets, if it was not signed with them.
    pub fn verify<'a>(
        &self,
        shop: &str,
        webhook: &'a Webhook,
        now: Duration,
    ) -> Option<Result<Verified<'a>, Duration>> {
        self.with(shop, now, |copy| copy.secrets.get().verify(webhook).map_err(|_| copy.asked))
    }

    /// Copies secrets that have verified a webhook.
    pub fn keep(&self, shop: &str, known: &Known) {
        let Some(serves_until) = known.serves_until else { return };
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = Copy { secrets: known.secrets.clone(), asked: known.asked, serves_until };
        match copies.get_mut(shop) {
            Some(old) => *old = copy,
            None => {
                if copies.len() >= SHOPS_MAX {
                    copies.clear();
                }
                copies.insert(shop.into(), copy);
            }
        }
    }

    fn with<T>(&self, shop: &str, now: Duration, f: impl FnOnce(&Copy) -> T) -> Option<T> {
        let copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = copies.get(shop)?;
        (now < copy.serves_until && !copy.secrets.is_replaced()).then(|| f(copy))
    }

    /// Secrets that serve a shop at `now`.
    #[cfg(test)]
    pub(super) fn serving(&self, shop: &str, now: Duration) -> Option<Arc<HeldSecrets>> {
        self.with(shop, now, |copy| copy.secrets.clone())
    }

    /// Shops of which there are copies.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
