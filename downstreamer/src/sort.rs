//! What a webhook is to the schedule: its shop, what it stays in order with, its class, and which
//! events it may stand for. Decided once, when it is read.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::{Fingerprint, fingerprint};
use spillway_webhook::pack::Record;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::{Headers, is_barrier, is_topic_match};

use crate::index::ResourceKey;
use crate::metrics::Metrics;
use crate::schedule::Class;
use crate::settings::{OrderBy, Settings};

/// Sorts webhooks.
pub struct Sorter {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    hasher: RandomState,
}

/// What one webhook is to the schedule.
#[derive(Debug, Clone, Copy)]
pub struct Sorted {
    /// What it stays in order with.
    pub resource: ResourceKey,
    /// A hash of its shop.
    pub shop: u64,
    /// Which round it takes part in.
    pub class: Class,
    /// Whether everything else of its shop stays in order with it.
    pub is_barrier: bool,
    /// Events of one resource with the same number may stand for each other; 0: for none.
    pub coalesces: u8,
    /// What tells duplicates, where the index is to keep it.
    pub fingerprint: Option<Fingerprint>,
}

/// What a shop is known by.
pub fn shop_hash(hasher: &RandomState, shop: &[u8]) -> u64 {
    hasher.hash_one(shop)
}

impl Sorter {
    /// Sorts as `settings` say; shops and resources are hashed by `hasher`.
    pub fn new(settings: Arc<Settings>, metrics: Arc<Metrics>, hasher: RandomState) -> Self {
        Self { settings, metrics, hasher }
    }

    /// Sorts the webhook that was accepted at `index` of `entry`. A replayed one stands for itself.
    pub fn sort(&self, record: &Record, entry: StreamId, index: u32, is_replayed: bool) -> Sorted {
        let settings = &self.settings;
        let shop = record.shop().unwrap_or_default();
        let topic = record.topic().unwrap_or_default();
        let is_priority =
            settings.priority_topics.iter().any(|pattern| is_topic_match(pattern, topic));
        let is_slot = settings.order_by == OrderBy::None && settings.dedup.is_on();
        let own = (is_slot || settings.keeps_fingerprints()).then(|| fingerprint(record)).flatten();
        let mut sorted = Sorted {
            resource: 0,
            shop: shop_hash(&self.hasher, shop),
            class: if is_priority { Class::Priority } else { Class::Rest },
            is_barrier: is_barrier(topic) && !shop.is_empty(),
            coalesces: 0,
            fingerprint: own.filter(|_| settings.keeps_fingerprints()),
        };
        sorted.resource = match settings.order_by {
            // Copies of one webhook share a slot, so that none is delivered while another is.
            OrderBy::None => match own {
                Some(own) => self.hasher.hash_one(own),
                None => self.hasher.hash_one((entry, index)),
            },
            OrderBy::Shop => sorted.shop,
            OrderBy::Topic => self.hasher.hash_one((shop, topic)),
            OrderBy::Resource => {
                let resource = Resource::of(record, &record.body);
                if resource.is_fallback {
                    self.metrics.fell_back(&String::from_utf8_lossy(topic));
                } else if !is_replayed {
                    sorted.coalesces = self.coalesces(topic);
                }
                self.hasher.hash_one((shop, resource))
            }
        };
        sorted
    }

    /// The number of a topic that may be coalesced, from 1.
    fn coalesces(&self, topic: &[u8]) -> u8 {
        let topics = &self.settings.coalesce_topics;
        let at = topics.iter().position(|coalesced| coalesced.as_bytes() == topic);
        at.map_or(0, |at| u8::try_from(at + 1).expect("BUG: the settings bound them"))
    }
}
