//! Counters by topic, with a bounded number of labels.
//!
//! Only a verified webhook makes a topic known. Before its signature is checked, a topic is a
//! stranger's claim, and a stranger may claim a new one with every request. A refused request
//! counts under its topic if that is known already, and the request was verified or refused for a
//! reason on the receiver's side. All others count under `other`. So a stranger can't make a
//! subscription look as if it failed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderMap;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Opts, Registry};
use spillway_process::clock::wall_clock_ms;
use spillway_webhook::shopify::{Family, Headers};

use crate::ignored::IgnoredBy;
use crate::metrics::{add, vec};
use crate::reply::Refusal;

/// Topics with a label, `other` included.
const TOPICS_MAX: usize = 100;
const OTHER_TOPIC: &str = "other";

/// Metrics by topic, for the whole process.
#[derive(Clone)]
pub struct TopicMetrics {
    accepted: IntCounterVec,
    last_accepted: GaugeVec,
    refused: IntCounterVec,
    ignored: IntCounterVec,
    /// Read for each request and replaced for each new topic. Reading takes no lock.
    known: Arc<ArcSwap<KnownTopics>>,
    learning: Arc<Mutex<()>>,
}

/// Topics with a label. The first is `other`.
#[derive(Clone)]
struct KnownTopics {
    indices: HashMap<Vec<u8>, TopicIndex>,
    topics: Vec<Arc<KnownTopic>>,
}

struct KnownTopic {
    label: String,
    refused: IntCounter,
    /// Not shown before a webhook of the topic is stored.
    stored: OnceLock<StoredMetrics>,
}

struct StoredMetrics {
    accepted: IntCounter,
    last_accepted: Gauge,
}

/// Index of a topic that was verified once, or of all topics without a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicIndex(u16);

/// Topic that a request claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicClaim {
    /// No topic header: not a request from Shopify.
    Missing,
    /// A topic that was verified before.
    Known(TopicIndex),
    /// Another topic.
    Other,
}

impl TopicIndex {
    const OTHER: Self = Self(0);
}

impl TopicMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        let last = Opts::new(
            "spillway_last_accepted_timestamp_seconds",
            "When a webhook of the topic was last stored, as a Unix time.",
        );
        let refused = vec(
            registry,
            "spillway_refused_total",
            "Requests with a topic that are not answered 200; other: a topic never verified, or a 4xx or secrets_unavailable before the signature was verified.",
            "topic",
        );
        let help = "Webhooks answered 200 and not stored, by topic, and by IGNORE_TOPICS (topic) or IGNORE_SHOPS_FILE (shop).";
        let ignored = Opts::new("spillway_ignored_total", help);
        let ignored = add(registry, IntCounterVec::new(ignored, &["topic", "by"]));
        // Shown before the first one is counted.
        ignored.with_label_values(&[OTHER_TOPIC, IgnoredBy::Topic.label()]);
        let other = Arc::new(KnownTopic::new(OTHER_TOPIC, &refused));
        let known = KnownTopics { indices: HashMap::new(), topics: Vec::from([other]) };
        Self {
            ignored,
            accepted: vec(registry, "spillway_accepted_total", "Webhooks stored.", "topic"),
            last_accepted: add(registry, GaugeVec::new(last, &["topic"])),
            refused,
            known: Arc::new(ArcSwap::from_pointee(known)),
            learning: Arc::default(),
        }
    }

    /// Topic that the headers of a request claim.
    pub fn claim(&self, family: Family, headers: &HeaderMap) -> TopicClaim {
        let Some(topic) = headers.topic_of_family(family) else { return TopicClaim::Missing };
        let known = self.known.load();
        known.indices.get(&*topic).map_or(TopicClaim::Other, |index| TopicClaim::Known(*index))
    }

    /// Index of the topic of a verified webhook, which claimed it. Makes it known if there is room.
    pub fn verified(&self, claim: TopicClaim, headers: &HeaderMap) -> TopicIndex {
        match claim {
            TopicClaim::Known(index) => index,
            TopicClaim::Missing | TopicClaim::Other => {
                self.learn(&headers.topic().unwrap_or_default())
            }
        }
    }

    /// Counts a request that is not answered 200.
    pub fn refused(&self, claim: TopicClaim, refusal: Refusal) {
        let index = match claim {
            TopicClaim::Missing => return,
            TopicClaim::Known(index) if refusal.counts_under_topic() => index,
            TopicClaim::Known(_) | TopicClaim::Other => TopicIndex::OTHER,
        };
        self.known.load().get(index).refused.inc();
    }

    /// Counts a verified webhook that is not stored.
    pub fn ignored(&self, index: TopicIndex, by: IgnoredBy) {
        let known = self.known.load();
        self.ignored.with_label_values(&[known.get(index).label.as_str(), by.label()]).inc();
    }

    /// Counts the stored webhooks of a batch, by their topics.
    pub fn stored(&self, indices: impl Iterator<Item = TopicIndex>) {
        let known = self.known.load();
        let mut counts = vec![0; known.topics.len()];
        indices.for_each(|index| counts[usize::from(index.0)] += 1);
        let now = Duration::from_millis(wall_clock_ms()).as_secs_f64();
        for (topic, count) in known.topics.iter().zip(counts).filter(|(_, count)| *count > 0) {
            let metrics = topic.stored.get_or_init(|| StoredMetrics {
                accepted: self.accepted.with_label_values(&[topic.label.as_str()]),
                last_accepted: self.last_accepted.with_label_values(&[topic.label.as_str()]),
            });
            metrics.accepted.inc_by(count);
            metrics.last_accepted.set(now);
        }
    }

    /// Makes a verified topic known, while there is room.
    fn learn(&self, topic: &[u8]) -> TopicIndex {
        let Ok(label) = std::str::from_utf8(topic) else { return TopicIndex::OTHER };
        let _one_at_a_time = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known.load();
        if let Some(index) = known.indices.get(topic) {
            return *index;
        }
        if label == OTHER_TOPIC || known.topics.len() >= TOPICS_MAX {
            return TopicIndex::OTHER;
        }
        let index = TopicIndex(u16::try_from(known.topics.len()).expect("BUG: they are bounded"));
        let mut more = KnownTopics::clone(&known);
        more.indices.insert(topic.to_owned(), index);
        more.topics.push(Arc::new(KnownTopic::new(label, &self.refused)));
        self.known.store(Arc::new(more));
        index
    }
}

impl KnownTopics {
    fn get(&self, index: TopicIndex) -> &KnownTopic {
        &self.topics[usize::from(index.0)]
    }
}

impl KnownTopic {
    fn new(label: &str, refused: &IntCounterVec) -> Self {
        Self {
            label: label.to_owned(),
            refused: refused.with_label_values(&[label]),
            stored: OnceLock::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(topic: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-topic", topic.parse().expect("a header value"));
        headers
    }

    #[test]
    fn a_stranger_makes_no_topic_known() {
        let metrics = TopicMetrics::new(&Registry::new());
        let claim = |headers: &HeaderMap| metrics.claim(Family::Classic, headers);
        assert_eq!(claim(&HeaderMap::new()), TopicClaim::Missing);
        let product = headers("products/update");
        assert_eq!(claim(&product), TopicClaim::Other);
        let index = metrics.verified(TopicClaim::Other, &product);
        assert_eq!(claim(&product), TopicClaim::Known(index));
        assert_eq!(metrics.verified(TopicClaim::Known(index), &HeaderMap::new()), index);
        metrics.refused(claim(&product), Refusal::Overloaded);
        metrics.refused(claim(&headers("orders/create")), Refusal::Overloaded);
        metrics.refused(TopicClaim::Missing, Refusal::Overloaded);
        let count = |topic: &str| metrics.refused.with_label_values(&[topic]).get();
        assert_eq!((count("products/update"), count("other")), (1, 1));
    }

    #[test]
    fn past_a_hundred_labels_topics_are_counted_together() {
        let registry = Registry::new();
        let metrics = TopicMetrics::new(&registry);
        let learn = |topic: &str| metrics.learn(topic.as_bytes());
        let indices: Vec<_> = (0..150).map(|number| learn(&format!("a/{number}"))).collect();
        metrics.ignored(indices[0], IgnoredBy::Shop);
        metrics.stored(indices[1..].iter().copied());
        let accepted = |topic: &str| metrics.accepted.with_label_values(&[topic]).get();
        assert_eq!((accepted("a/1"), accepted("a/98"), accepted("other")), (1, 1, 51));
        assert_eq!(learn("a/1"), indices[1]);
        assert_eq!(learn("other"), TopicIndex::OTHER);
        let page = spillway_process::metrics::encode(&registry);
        let shown = page.lines().filter(|line| line.starts_with("spillway_last_accepted_"));
        assert_eq!(shown.count(), TOPICS_MAX - 1, "not of the topic that is ignored");
    }
}
