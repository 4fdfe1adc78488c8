//! Shares of the shops in what waits: unsettled webhooks, counted by shop.
//!
//! A webhook is counted from its arrival until it is in a settlement, whether it is indexed or not:
//! one that lies in a lane is counted as its lane's row says, from the start. Webhooks are counted
//! and not their bytes, since a row of a lane knows only how many it holds. Replays are not
//! counted: an operator asked for those.

use crate::core::Core;
use crate::shop::Shop;
use crate::sorted::Content;

/// A shop is listed with more than this part of all that waits.
const LISTED_PART: u64 = 20;
/// And with so many webhooks at least: fewer fill no Redis, and in calm whoever waits at a moment has
/// a large share.
const LISTED_LEAST: u64 = 16;
/// Shops that are listed.
const LISTED_MAX: usize = 16;

/// Shops that take much of what waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    /// Unsettled webhooks of all shops.
    pub waiting: u64,
    /// Shops with more than 5 % of them and 16 webhooks or more, at most 16 shops, the largest
    /// first; none in a cell of a single shop.
    pub shops: Vec<ShopShare>,
}

/// Part of one shop in what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShopShare {
    /// Hash of the shop.
    pub hash: u64,
    /// Its unsettled webhooks.
    pub waiting: u64,
    /// Hash of one of its lanes with chunks, whose row holds the shop's name.
    pub lane: Option<u64>,
}

impl<C: Content> Core<C> {
    /// Shops that take much of what waits. Looks at every shop. The only shop of a backend that
    /// never served another one is not listed: it takes room from nobody.
    pub fn shares(&self) -> Shares {
        let waiting = self.queue.shops.waiting();
        let is_single = self.queue.shops.len() == 1;
        let large = self.queue.shops.iter().filter(|shop| {
            let own = shop.waiting();
            let is_large = u128::from(own) * u128::from(LISTED_PART) > u128::from(waiting);
            let is_only = is_single && !self.backend.has_served_other(shop.hash);
            own >= LISTED_LEAST && is_large && !is_only
        });
        let mut shops: Vec<ShopShare> = large.map(|shop| self.share(shop)).collect();
        shops.sort_unstable_by_key(|shop| (std::cmp::Reverse(shop.waiting), shop.hash));
        shops.truncate(LISTED_MAX);
        Shares { waiting, shops }
    }

    /// Unsettled webhooks of a shop that were read.
    pub fn waiting_of(&self, shop: u64) -> u64 {
        let key = self.queue.shops.by_hash(shop);
        key.and_then(|key| self.queue.shops.get(key)).map_or(0, Shop::waiting)
    }

    fn share(&self, shop: &Shop) -> ShopShare {
        let lanes = shop.lanes.iter().filter_map(|lane| self.queue.lanes.get(*lane));
        let mut stored = lanes.filter(|lane| lane.stored.is_some());
        ShopShare {
            hash: shop.hash,
            waiting: shop.waiting(),
            lane: stored.next().map(|lane| lane.hash),
        }
    }
}
