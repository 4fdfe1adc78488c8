//! Classifies webhooks: shop, lane and unit of order, class, and events that may stand for each
//! other.
//!
//! All hashes are the same in every process and after every restart, because Redis keeps them.

use std::num::NonZeroU32;
use std::sync::Arc;

use spillway_consumer::{Route, Routes};
use spillway_delivery::{Class, Classified, StateRole};
use spillway_webhook::fingerprint::fingerprint;
use spillway_webhook::pack::View;
use spillway_webhook::received::APP_HEADER;
use spillway_webhook::resource::{Resource, is_whole_state};
use spillway_webhook::shopify::{Headers, is_barrier, is_topic_match, resource_kind};
use spillway_webhook::{Family, Position, Stub, lane_hash, stable_hash};

use crate::metrics::DownstreamerMetrics;
use crate::settings::{DownstreamerSettings, OrderBy};

/// Classifier of webhooks.
#[derive(Clone)]
pub(crate) struct Classifier {
    settings: Arc<DownstreamerSettings>,
    metrics: Arc<DownstreamerMetrics>,
    routes: Arc<Routes>,
}

/// Hash of a shop's domain.
pub(crate) fn shop_hash(shop: &[u8]) -> u64 {
    lane_hash::of_domain(shop)
}

impl Classifier {
    /// Classifier with these settings.
    pub(crate) fn new(
        settings: Arc<DownstreamerSettings>,
        metrics: Arc<DownstreamerMetrics>,
        routes: Arc<Routes>,
    ) -> Self {
        Self { settings, metrics, routes }
    }

    /// Classifies a webhook. `is_news` is set when it is read for the first time, and counted.
    pub(crate) fn classify(
        &self,
        webhook: &View<'_>,
        position: Position,
        is_news: bool,
    ) -> Classified {
        let settings = &self.settings;
        let family = webhook.family();
        let shop = webhook.of_family(family, "shop-domain").unwrap_or_default();
        let topic = &*webhook.topic_of_family(family).unwrap_or_default();
        let route = self.routes.route(webhook.target, webhook);
        if is_news && route == Route::Nowhere {
            self.metrics.routes.unmatched.inc();
        }
        let is_priority =
            settings.priority_topics.iter().any(|pattern| is_topic_match(pattern, topic));
        let is_copy_keyed = settings.order_by == OrderBy::None && settings.dedup.is_on();
        let needs_fingerprint = is_copy_keyed || settings.keeps_fingerprints();
        let own = needs_fingerprint.then(|| fingerprint(webhook, webhook.target)).flatten();
        let mut classified = Classified {
            resource: 0,
            lane: 0,
            shop: shop_hash(shop),
            class: if is_priority { Class::Priority } else { Class::Rest },
            is_barrier: is_barrier(topic) && !shop.is_empty(),
            coalesces: 0,
            role: StateRole::None,
            fingerprint: own.filter(|_| settings.keeps_fingerprints()),
            expires_at_ms: Stub::of(webhook, webhook.body).and_then(|stub| stub.expires_at_ms),
            is_excluded: route != Route::Here,
        };
        match settings.order_by {
            // Copies of one webhook share a slot, so that none is delivered while another is.
            OrderBy::None => {
                classified.resource = match own {
                    Some(own) => stable_hash::of(&[b"copy", &own.to_le_bytes()]),
                    None => stable_hash::of(&[b"position", position.to_string().as_bytes()]),
                };
                classified.lane = self.lane(shop, topic);
            }
            OrderBy::Shop => {
                classified.resource = lane_hash::of_shop(shop);
                classified.lane = classified.resource;
            }
            OrderBy::Topic => {
                classified.resource = stable_hash::of(&[b"topic", shop, topic]);
                classified.lane = self.lane(shop, topic);
            }
            OrderBy::Resource => self.by_resource(webhook, (shop, topic), is_news, &mut classified),
        }
        classified
    }

    /// Adds what follows from the resource of a webhook, which is its unit of order.
    fn by_resource(
        &self,
        webhook: &View<'_>,
        (shop, topic): (&[u8], &[u8]),
        is_news: bool,
        classified: &mut Classified,
    ) {
        let suppression = &self.settings.suppression;
        let resource = Resource::of(webhook, webhook.body);
        if !resource.is_fallback {
            classified.coalesces = self.coalesces(webhook, topic);
            classified.role = suppression.role(topic);
        } else if is_news {
            self.metrics.fell_back(&String::from_utf8_lossy(topic));
        }
        if suppression.hides_states(topic, resource.is_fallback) {
            classified.role = StateRole::HidesAll;
        }
        let kind = resource.kind.as_bytes();
        let id = resource.id.as_bytes();
        let form = [u8::from(resource.is_fallback)];
        classified.resource = stable_hash::of(&[b"resource", shop, kind, id, &form]);
        classified.lane = lane_hash::of_kind(shop, kind);
    }

    fn lane(&self, shop: &[u8], topic: &[u8]) -> u64 {
        let kind = resource_kind(&String::from_utf8_lossy(topic));
        lane_hash::of_kind(shop, kind.as_bytes())
    }

    /// Number of the webhooks that may stand for each other: those of one topic, one path, one app
    /// and one subscription. 0 if the webhook can't be coalesced.
    fn coalesces(&self, webhook: &View<'_>, topic: &[u8]) -> u32 {
        if !self.settings.coalesce_topics.iter().any(|one| one.as_bytes() == topic) {
            return 0;
        }
        subscription(webhook, webhook.target, webhook.body).map_or(0, NonZeroU32::get)
    }
}

/// Number of the subscription of a webhook: its topic, path, app and name. `None` for an Event that may
/// be of several, or whose body is not the state of its resource.
pub(crate) fn subscription(
    headers: &impl Headers,
    target: &[u8],
    body: &[u8],
) -> Option<NonZeroU32> {
    let name = match headers.family() {
        Family::Classic => headers.shopify("name").unwrap_or_default(),
        // Two handles of one topic may have different queries. Without its handle, an Event may
        // be of any of them. The data of an Event about a child may be that of this child.
        Family::Event => {
            headers.shopify("handle").filter(|handle| !handle.is_empty() && is_whole_state(body))?
        }
    };
    let app = headers.value(APP_HEADER.as_str()).unwrap_or_default();
    let topic = headers.topic().unwrap_or_default();
    Some(subscription_number(&topic, target, app, name))
}

/// Number of a subscription. It is compared among webhooks of one resource.
fn subscription_number(topic: &[u8], target: &[u8], app: &[u8], name: &[u8]) -> NonZeroU32 {
    // Without an app, as before there were any: those that wait are still told by it.
    let hash = match app {
        [] => stable_hash::of(&[b"subscription", topic, target, name]),
        app => stable_hash::of(&[b"subscription of app", topic, target, app, name]),
    };
    NonZeroU32::new((hash ^ (hash >> 32)) as u32).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subscription_of_a_topic_has_its_own_number() {
        let of = |topic: &str, target: &str, app: &str, name: &str| {
            let [topic, target, app, name] = [topic, target, app, name].map(str::as_bytes);
            subscription_number(topic, target, app, name)
        };
        let number = |topic: &str, target: &str, name: &str| of(topic, target, "", name);
        let numbers = [
            of("Product/update", "/", "one", "prices"),
            of("Product/update", "/", "two", "prices"),
            number("Product/update", "/", "prices"),
            number("Product/update", "/", "titles"),
            number("Product/update", "/other", "prices"),
            number("products/update", "/", "prices"),
            number("products/update", "/", ""),
        ];
        for (at, one) in numbers.iter().enumerate() {
            assert!(!numbers[..at].contains(one), "{numbers:?}");
        }
        assert_eq!(numbers[2], number("Product/update", "/", "prices"));
    }
}
