//! Share of each shop in the unsettled webhooks.
//!
//! A webhook counts from its arrival until it is in a settlement, indexed or not. A webhook that
//! lies in a lane counts from the start, by the number in its lane's row. Shares count webhooks and
//! not bytes, because a lane's row holds only their number. Replays do not count, because an
//! operator requested them.

use crate::classified::Content;
use crate::state::Core;
use crate::state::shop::Shop;

/// A shop is listed if its share is larger than 1/`LISTED_PART`.
const LISTED_PART: u64 = 20;

/// Smallest number of webhooks of a listed shop. Fewer do not fill Redis, and with little load any
/// shop with a waiting webhook has a large share.
const LISTED_LEAST: u64 = 16;

/// Most shops that are listed.
const LISTED_MAX: usize = 16;

/// Shops with a large share of the unsettled webhooks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShopLoads {
    /// Number of unsettled webhooks of all shops.
    pub waiting: u64,
    /// Shops with more than 5 % of them and at least 16 webhooks, the largest first, at most 16
    /// shops. Empty in a cell with a single shop.
    pub shops: Vec<ShopLoad>,
}

/// Share of one shop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShopLoad {
    /// Hash of the shop.
    pub hash: u64,
    /// Number of unsettled webhooks of the shop.
    pub waiting: u64,
    /// Hash of one of the shop's lanes with chunks. The row of that lane holds the shop's name.
    pub lane: Option<u64>,
}

impl<C: Content> Core<C> {
    /// Returns the shops with a large share. Scans every shop. The only shop of a backend that
    /// never served another one is not listed, because it takes room from no other shop.
    pub fn shares(&self) -> ShopLoads {
        let waiting = self.queue.shops.waiting();
        let is_single = self.queue.shops.len() == 1;
        let large = self.queue.shops.iter().filter(|shop| {
            let own = shop.waiting();
            let is_large = u128::from(own) * u128::from(LISTED_PART) > u128::from(waiting);
            let is_only = is_single && !self.backend.has_served_other(shop.hash);
            own >= LISTED_LEAST && is_large && !is_only
        });
        let mut shops: Vec<ShopLoad> = large.map(|shop| self.share(shop)).collect();
        shops.sort_unstable_by_key(|shop| (std::cmp::Reverse(shop.waiting), shop.hash));
        shops.truncate(LISTED_MAX);
        ShopLoads { waiting, shops }
    }

    /// Number of unsettled webhooks of a shop that were read.
    pub fn waiting_of(&self, shop: u64) -> u64 {
        let key = self.queue.shops.by_hash(shop);
        key.and_then(|key| self.queue.shops.get(key)).map_or(0, Shop::waiting)
    }

    fn share(&self, shop: &Shop) -> ShopLoad {
        let lanes = shop.lanes.iter().filter_map(|lane| self.queue.lanes.get(*lane));
        let mut stored = lanes.filter(|lane| lane.stored.is_some());
        ShopLoad {
            hash: shop.hash,
            waiting: shop.waiting(),
            lane: stored.next().map(|lane| lane.hash),
        }
    }
}
