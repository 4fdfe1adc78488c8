//! Routes of webhooks to the consumers of a cell, as far as one consumer has to know them: it delivers
//! what its own filter matches, and looks for a webhook that no consumer's filter matches. An archive takes
//! every webhook and delivers none, so it is left out.

use std::sync::{Arc, PoisonError, RwLock};

use spillway_queue::consumers::ConsumerName;
use spillway_queue::status::ConsumerStatus;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{ConsumerFilter, RoutingFacts};

use crate::consumer_settings::ConsumerSettings;

/// Way of a webhook, as one consumer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// This consumer delivers it.
    Here,
    /// This consumer settles it without delivery: its filter excludes it, or the webhook was erased.
    Elsewhere,
    /// The same, and none of the registered consumers delivers it. Only one of them, the first by
    /// name of those that deliver, sees this, so that such a webhook is counted once.
    Nowhere,
}

/// Filter of one consumer, and what is known of the others.
#[derive(Debug)]
pub struct Routes {
    own: ConsumerSettings,
    others: RwLock<Arc<Others>>,
}

/// Registered consumers that deliver, except this one, as Redis last listed them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Others {
    /// True if this consumer has the first name of all. False before they are known.
    is_first: bool,
    /// Filters of the others; `None` if one of them delivers everything.
    filters: Option<Vec<ConsumerFilter>>,
}

impl Routes {
    /// Routes of this consumer, which knows no other one yet.
    pub fn new(own: ConsumerSettings) -> Self {
        Self { own, others: RwLock::default() }
    }

    /// Name, kind and filter of this consumer.
    pub fn own(&self) -> &ConsumerSettings {
        &self.own
    }

    /// Name of this consumer.
    pub fn name(&self) -> &ConsumerName {
        &self.own.name
    }

    /// Route of a webhook with these headers that was sent to `target`.
    pub fn route(&self, target: &[u8], headers: &impl Headers) -> Route {
        // Erased: only its place in the pack is left, in a queue that was restored from an archive.
        if target.is_empty() {
            return Route::Elsewhere;
        }
        if self.own.filter.is_empty() {
            return Route::Here;
        }
        let webhook = RoutingFacts::of(target, headers);
        if self.own.filter.matches(&webhook) {
            return Route::Here;
        }
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        let is_unmatched =
            |filters: &Vec<ConsumerFilter>| !filters.iter().any(|one| one.matches(&webhook));
        if others.is_first && others.filters.as_ref().is_some_and(is_unmatched) {
            Route::Nowhere
        } else {
            Route::Elsewhere
        }
    }

    /// Notes the registered consumers.
    pub fn learn(&self, consumers: &[ConsumerStatus]) {
        let own = &**self.name();
        let is_other = move |one: &&ConsumerStatus| one.name != own && one.delivers();
        let others = || consumers.iter().filter(is_other);
        let news = Others {
            is_first: others().all(|consumer| own < consumer.name.as_str()),
            filters: others().map(|consumer| consumer.notes.filter.clone()).collect(),
        };
        let mut known = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if **known != news {
            *known = Arc::new(news);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use spillway_queue::consumers::ConsumerKind;
    use spillway_queue::status::LeaderNotes;
    use spillway_webhook::filter::FilterLists;

    use super::*;

    struct Topic(HashMap<String, Vec<u8>>);

    impl Headers for Topic {
        fn value(&self, name: &str) -> Option<&[u8]> {
            self.0.get(name).map(Vec::as_slice)
        }
    }

    fn filter(topic: &str) -> ConsumerFilter {
        let only = vec![topic.to_owned()];
        let topics = FilterLists { only, ..FilterLists::default() };
        ConsumerFilter { topics, ..ConsumerFilter::default() }
    }

    fn status(name: &str, filter: Option<ConsumerFilter>) -> ConsumerStatus {
        let notes = LeaderNotes { filter, ..LeaderNotes::default() };
        ConsumerStatus { name: name.to_owned(), notes, ..ConsumerStatus::default() }
    }

    fn routes(name: &str, filter: ConsumerFilter) -> Routes {
        let name = name.parse().expect("a name");
        Routes::new(ConsumerSettings { kind: ConsumerKind::Downstreamer, name, filter })
    }

    fn route(routes: &Routes, topic: &str) -> Route {
        let headers = Topic(HashMap::from([("x-shopify-topic".to_owned(), topic.into())]));
        routes.route(b"/", &headers)
    }

    #[test]
    fn an_erased_webhook_is_delivered_by_nobody_and_counts_as_unmatched_nowhere() {
        let everything = routes("http", ConsumerFilter::default());
        let headers = Topic(HashMap::new());
        assert_eq!(everything.route(b"", &headers), Route::Elsewhere);
        assert_eq!(everything.route(b"/", &headers), Route::Here);
    }

    #[test]
    fn what_no_consumer_matches_is_seen_by_the_first_of_them() {
        let [first, second] = ["billing", "http"].map(|name| routes(name, filter("orders/*")));
        let own = || [status("http", Some(filter("orders/*"))), status("billing", None)];
        for routes in [&first, &second] {
            assert_eq!(route(routes, "orders/create"), Route::Here);
            assert_eq!(route(routes, "carts/update"), Route::Elsewhere, "no other is known yet");
        }
        let all = [
            status("http", Some(filter("orders/*"))),
            status("billing", Some(filter("orders/*"))),
            status("kafka", Some(filter("products/*"))),
        ];
        [&first, &second].iter().for_each(|routes| routes.learn(&all));
        assert_eq!(route(&first, "carts/update"), Route::Nowhere);
        assert_eq!(route(&second, "carts/update"), Route::Elsewhere, "it is not the first");
        assert_eq!(route(&first, "products/update"), Route::Elsewhere);
        second.learn(&own());
        assert_eq!(
            route(&second, "carts/update"),
            Route::Elsewhere,
            "one never published a filter"
        );
    }

    #[test]
    fn an_archive_is_no_consumer_that_delivers() {
        let orders = || Some(filter("orders/*"));
        let one = routes("http", filter("orders/*"));
        // By the kind that its leader published, and by its name before it first ran.
        let mut archive = status("archive", Some(ConsumerFilter::default()));
        archive.notes.kind = Some(ConsumerKind::Archiver);
        for archive in [archive, status("archive", None)] {
            one.learn(&[archive.clone(), status("http", orders())]);
            assert_eq!(route(&one, "carts/update"), Route::Nowhere);
            one.learn(&[archive, status("http", orders()), status("kafka", None)]);
            assert_eq!(route(&one, "carts/update"), Route::Elsewhere, "kafka may deliver it");
        }
    }

    #[test]
    fn the_only_consumer_sees_all_that_it_excludes() {
        let alone = routes("http", filter("orders/*"));
        alone.learn(&[status("http", Some(filter("orders/*")))]);
        assert_eq!(route(&alone, "carts/update"), Route::Nowhere);
        alone.learn(&[status("http", None), status("kafka", Some(ConsumerFilter::default()))]);
        assert_eq!(route(&alone, "carts/update"), Route::Elsewhere);
        let all = routes("http", ConsumerFilter::default());
        all.learn(&[status("http", None)]);
        assert_eq!(route(&all, "carts/update"), Route::Here);
    }
}
