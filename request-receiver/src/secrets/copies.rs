//! A shard's own copies of secrets that the cache would give it, by shop.
//!
//! The cache is behind a lock that all shards take, and its secrets count their users: both lie in the
//! processor cache of the shard that came last. A copy serves from when it verified a webhook until its
//! shop's early lookup is due. Any answer that can be used ends it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_webhook::{Verified, Webhook};

use super::cache::{HeldSecrets, Known};

/// Most shops of which a shard has copies. Those of other shops are asked of the cache.
pub(super) const SHOPS_MAX: usize = 8192;
/// Time between sweeps, each of which visits all copies.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Copies of one shard.
#[derive(Debug, Default)]
pub struct SecretCopies(Mutex<Copies>);

#[derive(Debug, Default)]
struct Copies {
    shops: HashMap<Box<str>, Copy>,
    swept_at: Duration,
}

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
        let copies = self.lock();
        let copy = copies.shops.get(shop).filter(|copy| copy.serves(now))?;
        Some(copy.secrets.get().verify(webhook).map_err(|_| copy.asked))
    }

    /// Copies secrets that have verified a webhook.
    pub fn keep(&self, shop: &str, known: &Known) {
        let Some(serves_until) = known.serves_until else { return };
        let shops = &mut self.lock().shops;
        let copy = Copy { secrets: known.secrets.clone(), asked: known.asked, serves_until };
        if let Some(old) = shops.get_mut(shop) {
            *old = copy;
        } else if shops.len() < SHOPS_MAX {
            shops.insert(shop.into(), copy);
        }
    }

    /// Drops copies that no longer serve, from time to time. The last owner of secrets wipes them.
    pub fn sweep(&self, now: Duration) {
        let mut copies = self.lock();
        if now.saturating_sub(copies.swept_at) >= SWEEP_EVERY {
            copies.swept_at = now;
            copies.shops.retain(|_, copy| copy.serves(now));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Copies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Secrets that serve a shop at `now`.
    #[cfg(test)]
    pub(super) fn serving(&self, shop: &str, now: Duration) -> Option<Arc<HeldSecrets>> {
        let copies = self.lock();
        let copy = copies.shops.get(shop).filter(|copy| copy.serves(now))?;
        Some(copy.secrets.clone())
    }

    /// Shops of which there are copies.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().shops.len()
    }
}

impl Copy {
    fn serves(&self, now: Duration) -> bool {
        now < self.serves_until && !self.secrets.is_replaced()
    }
}
