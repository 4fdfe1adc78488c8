//! Names of shops and lanes, which the core knows only by their hashes.

use std::collections::HashMap;

use spillway_queue::lane::{KeyScheme, LaneRow};
use spillway_webhook::pack::Record;
use spillway_webhook::shopify::{Headers, resource_kind};

use crate::classify::shop_hash;

/// Most names of lanes without a row. At this limit all of them are dropped, and learned again.
const RECENT_MAX: usize = 10_000;

/// Shop and kind of a lane.
#[derive(Debug, Clone)]
pub(crate) struct LaneName {
    /// Shop domain.
    pub shop: String,
    /// Kind of resource. Empty for a lane of a whole shop.
    pub kind: String,
    /// Key scheme of the lane.
    pub scheme: KeyScheme,
}

/// Names by hash.
#[derive(Debug)]
pub(crate) struct Names {
    scheme: KeyScheme,
    /// Lanes that have a row.
    rows: HashMap<u64, LaneName>,
    /// Lanes of which a webhook was sent lately.
    recent: HashMap<u64, LaneName>,
    /// Shops with such lanes, and shops that an operator paused.
    shops: HashMap<u64, String>,
}

impl Names {
    /// Names of the lanes that have a row. `scheme` is for further lanes.
    pub(crate) fn new(scheme: KeyScheme, rows: &[LaneRow]) -> Self {
        let name = |row: &LaneRow| LaneName {
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
    pub(crate) fn lane(&self, lane: u64) -> Option<&LaneName> {
        self.rows.get(&lane).or_else(|| self.recent.get(&lane))
    }

    /// Domain of a shop, if it is known.
    pub(crate) fn shop(&self, shop: u64) -> Option<&str> {
        self.shops.get(&shop).map(String::as_str)
    }

    /// Learns the names of the lane and the shop of a webhook that is sent.
    pub(crate) fn learn(&mut self, lane: u64, shop: u64, record: &Record) {
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

    /// Learns the name of a shop from an operator's pause.
    pub(crate) fn learn_shop(&mut self, domain: &str) {
        self.shops.insert(shop_hash(domain.as_bytes()), domain.to_owned());
    }

    /// Learns the name of a lane that gets a row, from one of its webhooks.
    pub(crate) fn add_row(&mut self, lane: u64, record: &Record) {
        if !self.rows.contains_key(&lane) {
            let name = self.of(record);
            self.shops.insert(shop_hash(name.shop.as_bytes()), name.shop.clone());
            self.rows.insert(lane, name);
        }
    }

    /// Drops the name of a lane whose row is deleted.
    pub(crate) fn remove_row(&mut self, lane: u64) {
        self.rows.remove(&lane);
    }

    fn of(&self, record: &Record) -> LaneName {
        let text =
            |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        let kind = match self.scheme {
            KeyScheme::Kind => resource_kind(&text(record.topic().as_deref())),
            KeyScheme::Shop => String::new(),
        };
        LaneName { shop: text(record.shop()), kind, scheme: self.scheme }
    }
}
