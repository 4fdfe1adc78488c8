//! Filters of consumers: each delivers the webhooks that its filter matches, and settles all others
//! without delivery.
//!
//! A filter is published in Redis as JSON, so that the other consumers can find out if a webhook is
//! matched by none. Fields that a newer version adds are ignored: the filter then seems to match more.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::received::APP_HEADER_NAME;
use crate::shopify::{Headers, is_topic_match};
use crate::target::{is_path_match, path_of};

/// Webhooks that a consumer delivers. A webhook must be taken by each of these lists. The default
/// takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerFilter {
    /// Topics, or kinds such as `orders/*`.
    #[serde(default, skip_serializing_if = "FilterLists::is_empty")]
    pub topics: FilterLists,
    /// Domains of shops.
    #[serde(default, skip_serializing_if = "FilterLists::is_empty")]
    pub shops: FilterLists,
    /// Paths without their query, or prefixes such as `/hooks/*`.
    #[serde(default, skip_serializing_if = "FilterLists::is_empty")]
    pub paths: FilterLists,
    /// Names of apps.
    #[serde(default, skip_serializing_if = "FilterLists::is_empty")]
    pub apps: FilterLists,
}

/// Values of one property that a filter takes: those in `only`, or all if that is empty, without
/// those in `except`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterLists {
    /// Values that are taken; if there is none, all are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Values that are not taken, even if they are in `only`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

/// Properties of a webhook that filters look at.
#[derive(Debug, Clone)]
pub struct RoutingFacts<'a> {
    topic: Cow<'a, [u8]>,
    shop: &'a [u8],
    path: &'a [u8],
    app: &'a [u8],
}

impl<'a> RoutingFacts<'a> {
    /// Properties of a webhook with these headers that was sent to `target`. One that is missing is
    /// empty.
    pub fn of(target: &'a [u8], headers: &'a impl Headers) -> Self {
        Self {
            topic: headers.topic().unwrap_or_default(),
            shop: headers.shop().unwrap_or_default(),
            path: path_of(target),
            app: headers.value(APP_HEADER_NAME).unwrap_or_default(),
        }
    }
}

impl FilterLists {
    /// True if everything is taken.
    pub fn is_empty(&self) -> bool {
        self.only.is_empty() && self.except.is_empty()
    }

    fn takes(&self, is_match: impl Fn(&String) -> bool) -> bool {
        (self.only.is_empty() || self.only.iter().any(&is_match))
            && !self.except.iter().any(is_match)
    }
}

impl ConsumerFilter {
    /// True if every webhook matches.
    pub fn is_empty(&self) -> bool {
        self.lists().into_iter().all(FilterLists::is_empty)
    }

    /// True if the consumer delivers a webhook with these properties.
    pub fn matches(&self, webhook: &RoutingFacts<'_>) -> bool {
        let RoutingFacts { topic, shop, path, app } = webhook;
        self.takes_topic(topic)
            && self.shops.takes(|domain| shop.eq_ignore_ascii_case(domain.as_bytes()))
            && self.paths.takes(|pattern| is_path_match(pattern, path))
            && self.apps.takes(|name| *app == name.as_bytes())
    }

    /// True if a webhook of this topic may match. Shops, paths and apps are not looked at.
    pub fn takes_topic(&self, topic: &[u8]) -> bool {
        self.topics.takes(|pattern| is_topic_match(pattern, topic))
    }

    /// JSON of the filter, as it is published.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("BUG: lists of texts are JSON")
    }

    /// Reads a published filter. `None` if it can't be read.
    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// True if these filters certainly leave no webhook out: one excludes only what others take
    /// completely.
    pub fn are_complete(filters: &[&Self]) -> bool {
        filters.iter().any(|one| {
            one.lists().into_iter().enumerate().all(|(at, lists)| {
                let is_taken =
                    |value: &String| filters.iter().any(|other| other.takes_all_of(at, value));
                lists.only.is_empty() && lists.except.iter().all(is_taken)
            })
        })
    }

    /// True if every webhook with this value of the property at `at` matches.
    fn takes_all_of(&self, at: usize, value: &str) -> bool {
        let of_property = |(index, lists): (usize, &FilterLists)| match index == at {
            true => lists.except.is_empty() && lists.only.iter().any(|one| one == value),
            false => lists.is_empty(),
        };
        self.lists().into_iter().enumerate().all(of_property)
    }

    fn lists(&self) -> [&FilterLists; 4] {
        [&self.topics, &self.shops, &self.paths, &self.apps]
    }
}

impl fmt::Display for ConsumerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("everything");
        }
        let mut parts = Vec::new();
        for (name, lists) in ["topics", "shops", "paths", "apps"].iter().zip(self.lists()) {
            for (word, values) in [("only", &lists.only), ("except", &lists.except)] {
                if !values.is_empty() {
                    parts.push(format!("{word} {name} {}", values.join(", ")));
                }
            }
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn lists(only: &[&str], except: &[&str]) -> FilterLists {
        let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        FilterLists { only: owned(only), except: owned(except) }
    }

    fn topics(only: &[&str], except: &[&str]) -> ConsumerFilter {
        ConsumerFilter { topics: lists(only, except), ..ConsumerFilter::default() }
    }

    /// True if a filter matches a webhook with this topic, shop and app that was sent to this target.
    fn is_match(filter: &ConsumerFilter, [topic, shop, target, app]: [&str; 4]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("x-shopify-topic", topic), ("x-shopify-shop-domain", shop), (APP_HEADER_NAME, app)]
        {
            if !value.is_empty() {
                headers.insert(name, value.parse().expect("a header value"));
            }
        }
        filter.matches(&RoutingFacts::of(target.as_bytes(), &headers))
    }

    const ORDER: [&str; 4] = ["orders/create", "a.myshopify.com", "/hooks/a?x=/b", "one"];

    #[test]
    fn without_lists_everything_matches() {
        assert!(is_match(&ConsumerFilter::default(), ORDER));
        assert!(is_match(&ConsumerFilter::default(), ["", "", "", ""]));
        assert!(ConsumerFilter::default().is_empty());
    }

    #[test]
    fn except_wins_over_only() {
        for (only, except, expected) in [
            (&["orders/*"][..], &[][..], true),
            (&["orders/create"][..], &["orders/paid"][..], true),
            (&["products/*", "orders/*"][..], &["orders/create"][..], false),
            (&[][..], &["orders/*"][..], false),
            (&["products/*"][..], &[][..], false),
        ] {
            assert_eq!(is_match(&topics(only, except), ORDER), expected, "{only:?} {except:?}");
        }
    }

    #[test]
    fn a_topic_may_match_whatever_the_other_lists_are() {
        let some_shops = ConsumerFilter {
            shops: lists(&["a.example"], &[]),
            ..topics(&["orders/*", "shop/redact"], &["orders/paid"])
        };
        assert!(some_shops.takes_topic(b"shop/redact") && some_shops.takes_topic(b"orders/create"));
        assert!(
            !some_shops.takes_topic(b"orders/paid") && !some_shops.takes_topic(b"app/uninstalled")
        );
        assert!(ConsumerFilter::default().takes_topic(b"shop/redact"));
    }

    #[test]
    fn each_property_has_its_lists_and_all_must_take_a_webhook() {
        let all = ConsumerFilter {
            topics: lists(&["orders/*"], &[]),
            shops: lists(&["A.myshopify.com"], &[]),
            paths: lists(&["/hooks/*"], &["/hooks/b"]),
            apps: lists(&["one"], &[]),
        };
        assert!(is_match(&all, ORDER));
        for (at, other) in [(0, "products/update"), (1, "b.myshopify.com"), (2, "/x"), (3, "two")] {
            let mut webhook = ORDER;
            webhook[at] = other;
            assert!(!is_match(&all, webhook), "{webhook:?}");
            webhook[at] = "";
            assert!(!is_match(&all, webhook), "{webhook:?}");
        }
        let mut excepted = ORDER;
        excepted[2] = "/hooks/b?x=1";
        assert!(!is_match(&all, excepted));
    }

    #[test]
    fn it_is_read_back_and_what_is_new_in_it_is_ignored() {
        let filter = topics(&["orders/*"], &["orders/paid"]);
        let json = r#"{"topics":{"only":["orders/*"],"except":["orders/paid"]}}"#;
        assert_eq!(filter.to_json(), json);
        assert_eq!(ConsumerFilter::from_json(json), Some(filter));
        assert_eq!(ConsumerFilter::default().to_json(), "{}");
        let newer = r#"{"kinds":{"only":["order"]}}"#;
        assert_eq!(ConsumerFilter::from_json(newer), Some(ConsumerFilter::default()));
        for text in ["", "{", r#"{"topics":["orders/*"]}"#] {
            assert_eq!(ConsumerFilter::from_json(text), None, "{text}");
        }
    }

    #[test]
    fn it_is_described_for_people() {
        assert_eq!(ConsumerFilter::default().to_string(), "everything");
        let filter = ConsumerFilter {
            shops: lists(&[], &["a.example"]),
            ..topics(&["orders/*", "products/*"], &[])
        };
        assert_eq!(filter.to_string(), "only topics orders/*, products/*; except shops a.example");
    }

    #[test]
    fn filters_are_complete_if_one_excludes_only_what_others_take() {
        let rest = topics(&[], &["orders/*"]);
        let orders = topics(&["orders/*", "products/*"], &[]);
        let everything = ConsumerFilter::default();
        let part = topics(&["orders/*"], &["orders/paid"]);
        let some = ConsumerFilter { shops: lists(&["a.example"], &[]), ..orders.clone() };
        for (filters, expected) in [
            (&[&everything][..], true),
            (&[&orders, &everything][..], true),
            (&[&rest, &orders][..], true),
            (&[&rest][..], false),
            (&[&orders][..], false),
            (&[&rest, &some][..], false),
            (&[&rest, &part][..], false),
            (&[][..], false),
        ] {
            assert_eq!(ConsumerFilter::are_complete(filters), expected, "{filters:?}");
        }
    }
}
