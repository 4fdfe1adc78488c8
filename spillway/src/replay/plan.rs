//! Objects that may hold what is replayed. Their indexes say so; no object is read whole.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use spillway_archive::bloom::{resource_hash, webhook_id_hash};
use spillway_archive::chain::{ChainCheck, MissingEntries};
use spillway_archive::index::{LabelCounts, ObjectIndex};
use spillway_archive::keys::KeyRing;
use spillway_archive::{ArchiveStore, ListedObject, StoreError};
use spillway_queue::controls::Filter;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::shopify::is_topic_match;
use spillway_webhook::{StreamId, WebhookId};

use super::spec::ReplaySpec;
use crate::out::{count, size};

/// Indexes that are read at once.
const AT_ONCE: usize = 8;
/// Listings after which an object that is gone each time is an error.
const LISTINGS_MAX: u32 = 4;
/// Time between two of them.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Ids in whose memory an object fits.
const OBJECT_IDS: usize = 2;

/// Objects that may hold what is replayed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReplayPlan {
    /// The objects, sorted.
    pub objects: Vec<ListedObject>,
    /// Their bytes.
    pub bytes: u64,
    /// Webhooks that match, at most.
    pub webhooks: u64,
    /// True if there are exactly so many, as far as the consumer delivers all of them.
    pub is_exact: bool,
    /// Entries of the range that are in no object, although later ones are.
    pub gaps: Vec<MissingEntries>,
}

/// Webhooks of an object that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ObjectMatches {
    webhooks: u64,
    is_exact: bool,
}

impl ReplayPlan {
    /// Finds the objects of a replay.
    ///
    /// # Errors
    /// [`StoreError`], also for an object whose index cannot be read.
    pub(super) async fn new(
        store: &ArchiveStore,
        keys: &KeyRing,
        spec: &ReplaySpec,
    ) -> Result<Self, StoreError> {
        for _ in 1..LISTINGS_MAX {
            match Self::listed(store, keys, spec).await {
                // An object was deleted since it was listed: it was replaced, or is as old as that.
                Err(StoreError::Missing(_)) => tokio::time::sleep(LIST_AGAIN_AFTER).await,
                answer => return answer,
            }
        }
        Self::listed(store, keys, spec).await
    }

    async fn listed(
        store: &ArchiveStore,
        keys: &KeyRing,
        spec: &ReplaySpec,
    ) -> Result<Self, StoreError> {
        let mut listed = store.objects_from(spec.cell, spec.after.next()).await?;
        listed.retain(|object| object.name.first <= spec.through);
        let looks = stream::iter(listed).map(|object: ListedObject| async move {
            let tail = store.tail(&object, keys).await?;
            let name = &object.name;
            let is_whole = name.first > spec.after && name.last <= spec.through;
            Ok::<_, StoreError>((object, tail.header.after, matches(&tail.index, spec, is_whole)))
        });
        let looked: Vec<_> = looks.buffered(AT_ONCE).try_collect().await?;
        let mut plan = Self { is_exact: true, ..Self::default() };
        let mut last: Option<StreamId> = None;
        let mut chain = ChainCheck::default();
        // The first object has to begin with the range.
        chain.add(spec.after, spec.after);
        for (object, after, matches) in looked {
            plan.gaps.extend(chain.add(after, object.name.last));
            if matches.webhooks == 0 {
                continue;
            }
            // What is in two objects is replayed once.
            let is_apart = last.is_none_or(|last| last < object.name.first);
            last = last.max(Some(object.name.last));
            plan.is_exact &= matches.is_exact && is_apart;
            plan.webhooks += matches.webhooks;
            plan.bytes += object.bytes;
            plan.objects.push(object);
        }
        Ok(plan)
    }

    /// Ids of some 50 bytes that as much memory would hold as this plan takes.
    pub(super) fn held(&self) -> u64 {
        let ids = self.objects.len() * OBJECT_IDS + self.gaps.len();
        u64::try_from(ids).unwrap_or(u64::MAX)
    }

    /// The plan in a line.
    pub(super) fn told(&self) -> String {
        format!(
            "{}{} in {} of {}",
            if self.is_exact { "" } else { "at most " },
            count(self.webhooks, "webhook"),
            count(self.objects.len() as u64, "object"),
            size(self.bytes)
        )
    }

    /// The plan as JSON.
    pub(super) fn json(&self) -> Value {
        let gap = |gap: &MissingEntries| json!({ "after": gap.after.to_string(), "through": gap.through.to_string() });
        let gaps: Vec<Value> = self.gaps.iter().map(gap).collect();
        json!({
            "objects": self.objects.len(),
            "bytes": self.bytes,
            "webhooks_at_most": self.webhooks,
            "is_exact": self.is_exact,
            "gaps": gaps,
        })
    }

    /// Says which entries are missing, as far as `before` did not know it, and they are after a position.
    pub(super) fn tell_gaps(&self, before: &Self, after: StreamId) {
        for gap in &self.gaps {
            if gap.through > after && !before.gaps.contains(gap) {
                eprintln!(
                    "spillway: the archive has a gap: what was stored after {} ({}) and up to {} ({}) is in no \
                     object, and is not replayed",
                    rfc3339(gap.after.ms),
                    gap.after,
                    rfc3339(gap.through.ms),
                    gap.through
                );
            }
        }
    }
}

fn matches(index: &ObjectIndex, spec: &ReplaySpec, is_whole: bool) -> ObjectMatches {
    let Filter { shop, topic, app, resource, webhook_id } = &spec.filter;
    let in_range =
        index.packs.iter().filter(|row| row.entry > spec.after && row.entry <= spec.through);
    let mut most: u64 = in_range.map(|row| u64::from(row.webhooks)).sum();
    if let Some(shop) = shop {
        most = most.min(counted(&index.shops, |label| label == shop.as_bytes()));
    }
    if let Some(topic) = topic {
        most = most.min(counted(&index.topics, |label| is_topic_match(topic, label)));
    }
    if let Some(id) = webhook_id {
        let is_there = match id.parse::<WebhookId>() {
            Ok(id) => id.cell == spec.cell && index.packs.iter().any(|row| row.entry == id.entry),
            Err(_) => index.webhook_ids.may_hold(webhook_id_hash(id.as_bytes())),
        };
        most = most.min(if is_there { u64::MAX } else { 0 });
    }
    if let Some(resource) = resource {
        let may_hold =
            |shop: &[u8]| index.resources.may_hold(resource_hash(shop, resource.as_bytes()));
        let is_there = match shop {
            Some(shop) => may_hold(shop.as_bytes()),
            None => index.shops.may_hold(may_hold),
        };
        most = most.min(if is_there { u64::MAX } else { 0 });
    }
    let is_counted = app.is_none() && resource.is_none() && webhook_id.is_none();
    let is_one_label = shop.is_none() || topic.is_none();
    let is_complete = !index.shops.is_incomplete() && !index.topics.is_incomplete();
    let has_labels = shop.is_some() || topic.is_some();
    let is_exact = match has_labels {
        true => is_counted && is_whole && is_one_label && is_complete,
        false => is_counted,
    };
    // Topics that are left out: their number is known if nothing else limits the count.
    let kept_back = counted(&index.topics, |label| {
        spec.keeps_back(label) && topic.as_ref().is_none_or(|topic| is_topic_match(topic, label))
    });
    let is_known = is_counted && is_whole && shop.is_none() && kept_back < u64::MAX;
    if is_known {
        most = most.saturating_sub(kept_back);
    }
    let is_exact = is_exact && (is_known || kept_back == 0);
    ObjectMatches { webhooks: most, is_exact }
}

/// Webhooks with labels that are meant, at most.
fn counted(labels: &LabelCounts, is_meant: impl Fn(&[u8]) -> bool) -> u64 {
    if labels.is_incomplete() {
        return u64::MAX;
    }
    labels.iter().filter(|(label, _)| is_meant(label)).map(|(_, webhooks)| webhooks).sum()
}

#[cfg(test)]
mod tests {
    use spillway_archive::ObjectName;

    use super::*;

    #[test]
    fn a_plan_holds_as_much_as_its_objects_take() {
        let name = ObjectName {
            cell: 1,
            first: StreamId::ZERO,
            last: StreamId::ZERO,
            webhooks: 1,
            tag: 0,
            generation: 0,
        };
        let object = ListedObject { name, bytes: 1, written_ms: 1 };
        let plan = ReplayPlan { objects: vec![object; 1_000], ..ReplayPlan::default() };
        assert_eq!(plan.held(), 2_000);
        assert!(size_of::<ListedObject>() <= 50 * OBJECT_IDS);
    }
}
