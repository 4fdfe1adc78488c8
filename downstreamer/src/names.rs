//! Names of shops and lanes, which the core knows by their hashes alone.

use std::collections::HashMap;

use spillway_queue::lane::{KeyScheme, LaneRow};
use spillway_webhook::pack::Record;
use spillway_webhook::shopify::{Headers, resource_kind};

use crate::sort::shop_hash;

/// Lanes without a row whose names are kept; past it all of these are forgotten, and learnt again.
const RECENT_MAX: usize = 10_000;

/// Shop and kind of a lane.
#[derive(Debug, Clone)]
pub struct Name {
    /// Shop domain.
    pub shop: String,
    /// Kind of resource; empty for a lane of a whole shop.
    pub kind: String,
    /// Key scheme under which it was made.
    pub scheme: KeyScheme,
}

/// Names by hash.
#[derive(Debug)]
pub struct Names {
    scheme: KeyScheme,
    /// Of lanes that have a row.
    rows: HashMap<u64, Name>,
    /// Of lanes of which something was sent lately.
    recent: HashMap<u64, Name>,
    /// Of shops with such lanes, and of those that an operator paused.
    shops: HashMap<u64, String>,
}

impl Names {
    /// Of lanes of this scheme, and of those that have a row.
    pub fn new(scheme: KeyScheme, rows: &[LaneRow]) -> Self {
        let name = |row: &LaneRow| Name {
            shop: row.shop.clone(),
            kind: row.kind.clone(),
            scheme: row.scheme,
        };
        let shops = rows.iter().map(|row| (shop_hash(row.shop.as_bytes()), row.shop.clone()));
        Self {
            scheme,
            rows: rows.iter().map(|row| (row.lane, name(row))).collect(),
            recent: HashMap::new(),
            shops: shops.collect(),
        }
    }

    /// Name of a lane, if it is known.
    pub fn lane(&self, lane: u64) -> Option<&Name> {
        self.rows.get(&lane).or_else(|| self.recent.get(&lane))
    }

    /// Domain of a shop, if it is known.
    pub fn shop(&self, shop: u64) -> Option<&str> {
        self.shops.get(&shop).map(String::as_str)
    }

    /// A webhook of a lane and shop is sent.
    pub fn learn(&mut self, lane: u64, shop: u64, record: &Record) {
        if self.rows.contains_key(&lane) || self.recent.contains_key(&lane) {
            return;
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.clear();
            self.shops.clear();
        }
        let name = self.of(record);
        self.shops.insert(shop, name.shop.clone());
        self.recent.insert(lane, name);
    }

    /// An operator named a shop.
    pub fn learn_shop(&mut self, domain: &str) {
        self.shops.insert(shop_hash(domain.as_bytes()), domain.to_owned());
    }

    /// A lane gets a row, because of a webhook.
    pub fn add_row(&mut self, lane: u64, record: &Record) {
        if !self.rows.contains_key(&lane) {
            let name = self.of(record);
            self.shops.insert(shop_hash(name.shop.as_bytes()), name.shop.clone());
            self.rows.insert(lane, name);
        }
    }

    /// The row of a lane is deleted.
    pub fn remove_row(&mut self, lane: u64) {
        self.rows.remove(&lane);
    }

    fn of(&self, record: &Record) -> Name {
        let text =
            |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        let kind = match self.scheme {
            KeyScheme::Kind => resource_kind(&text(record.topic())),
            KeyScheme::Shop => String::new(),
        };
        Name { shop: text(record.shop()), kind, scheme: self.scheme }
    }
}
