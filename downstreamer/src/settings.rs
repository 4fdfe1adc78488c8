//! The downstreamer's settings, as set and as checked.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use spillway_consumer::{ConsumerSettings, NamedConsumerArgs};
use spillway_process::process_args::ProcessSettings;
use spillway_process::{Checker, ProcessArgs, TaskThreads};
use spillway_queue::consumers::ConsumerKind;
use spillway_queue::lane::KeyScheme;
use spillway_webhook::shopify::{is_barrier, is_compliance, topic_list};

use spillway_delivery::{Backoff, Config, ShopBounds, Tuning};
use spillway_limiter::Bounds;

use crate::access::{AccessArgs, BackendAccess};
use crate::backend::Backend;
use crate::payload::{PayloadArgs, PayloadSettings};
use crate::suppression::{SuppressionArgs, SuppressionSettings};

const MIB: u64 = 1 << 20;
/// Time that a delivery which began just before SIGTERM may still take, in addition to its
/// time-out.
const SHUTDOWN_SLACK: Duration = Duration::from_secs(5);

/// Values of `ORDER_BY`.
const ORDERS: [(&str, OrderBy); 4] = [
    ("resource", OrderBy::Resource),
    ("topic", OrderBy::Topic),
    ("shop", OrderBy::Shop),
    ("none", OrderBy::None),
];

/// Values of `DELIVERY_THREADS`.
const THREADS: [(&str, TaskThreads); 3] =
    [("auto", TaskThreads::Auto), ("cores", TaskThreads::Cores), ("one", TaskThreads::One)];

/// Delivers queued webhooks to a backend over HTTP, in order per resource, and retries until each is
/// delivered or a dead letter. Every setting is a flag and an environment variable.
#[derive(Debug, Parser)]
#[command(version = spillway_process::version(), max_term_width = 100)]
pub struct DownstreamerArgs {
    #[command(flatten)]
    common: ProcessArgs,

    #[command(flatten)]
    consumer: NamedConsumerArgs,

    /// The backend's base URL, http or https; a webhook's path and query are appended. discard:
    /// accepts, counts and drops
    #[arg(long, env = "DOWNSTREAM_APP_URL", hide_env_values = true)]
    downstream_app_url: Option<String>,

    /// Host header and TLS server name; default: the URL's
    #[arg(long, env = "DOWNSTREAM_HOST")]
    downstream_host: Option<String>,

    #[command(flatten)]
    access: AccessArgs,

    /// Address of /livez, /readyz and /metrics
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:9812")]
    admin_listen: String,

    /// Unit that is kept in order: resource, topic (of a shop), shop, or none
    #[arg(long, env = "ORDER_BY", default_value = "resource")]
    order_by: String,

    /// Time for one delivery, from connecting to the whole answer [100ms to 10m]
    #[arg(long, env = "DELIVERY_TIMEOUT", default_value = "30s")]
    delivery_timeout: String,

    /// Threads of this process: one, with which a delivery costs the least CPU and all together get one core;
    /// cores (one for each); or auto, which is one on up to 4 cores and cores on more
    #[arg(long, env = "DELIVERY_THREADS", default_value = "auto")]
    delivery_threads: String,

    /// Minimum of deliveries at once, also for a slow backend [1 to 10000]
    #[arg(long, env = "MIN_CONCURRENCY", default_value = "1")]
    min_concurrency: String,

    /// Maximum of deliveries at once; the number in use follows the backend [1 to 10000]
    #[arg(long, env = "MAX_CONCURRENCY", default_value = "64")]
    max_concurrency: String,

    /// Deliveries at once for one shop [1 to 10000]; default: no separate limit
    #[arg(long, env = "SHOP_MAX_CONCURRENCY")]
    shop_max_concurrency: Option<String>,

    /// Deliveries per second [1 to 1000000]; default: no limit
    #[arg(long, env = "MAX_RATE")]
    max_rate: Option<String>,

    /// Deliveries per second for one shop [1 to 1000000]; default: no limit
    #[arg(long, env = "SHOP_MAX_RATE")]
    shop_max_rate: Option<String>,

    /// Topics that get four of five turns, comma separated; orders/* means all of a kind
    #[arg(long, env = "PRIORITY_TOPICS", default_value = "orders/*,Order/*")]
    priority_topics: String,

    /// Time for which deliveries are remembered, longer while older ones wait [0 to 30d]; 0: off
    #[arg(long, env = "DEDUP_WINDOW", default_value = "6h")]
    dedup_window: String,

    /// Memory for that, here, and about as much in Redis; at the limit the oldest is forgotten
    /// early [1MiB to 16GiB]
    #[arg(long, env = "DEDUP_MEMORY", default_value = "128MiB")]
    dedup_memory: String,

    /// Topics of which only a resource's newest waiting event is delivered, comma separated, such as
    /// products/update,inventory_levels/update; default: none
    #[arg(long, env = "COALESCE_TOPICS", default_value = "")]
    coalesce_topics: String,

    /// Maximum time by which a coalesced event may be older than the one delivered [1s to 24h]
    #[arg(long, env = "COALESCE_MAX_WAIT", default_value = "10m")]
    coalesce_max_wait: String,

    #[command(flatten)]
    suppression: SuppressionArgs,

    /// Wait before the second attempt; doubles with each further one [10ms to 1h]
    #[arg(long, env = "RETRY_FIRST", default_value = "1s")]
    retry_first: String,

    /// The longest wait between two attempts, and the longest Retry-After that is honoured [10ms
    /// to 24h]
    #[arg(long, env = "RETRY_LONGEST", default_value = "10m")]
    retry_longest: String,

    /// Time for which failing deliveries are retried, from the first attempt; stands still while
    /// the backend as a whole is down [1s to 60d]
    #[arg(long, env = "RETRY_FOR", default_value = "48h")]
    retry_for: String,

    /// The same for answers that are refusals (3xx and 4xx not listed elsewhere) [0 to 60d]
    #[arg(long, env = "RETRY_REFUSED_FOR", default_value = "1h")]
    retry_refused_for: String,

    /// Statuses that make a dead letter at once, comma separated
    #[arg(long, env = "DEAD_STATUSES", default_value = "400,410,413,414,415,422,431")]
    dead_statuses: String,

    /// Time for which dead letters are kept; compliance topics are kept for ever [1h to 3650d]
    #[arg(long, env = "DEAD_KEEP", default_value = "30d")]
    dead_keep: String,

    /// Maximum bytes of dead letters; at the limit, webhooks stay in retry [0 to 64GiB]
    #[arg(long, env = "DEAD_MAX", default_value = "1GiB")]
    dead_max: String,

    /// Time for which the oldest webhooks may be blocked before they are moved out of the main
    /// stream into lanes of their shop and kind, so that they hold nothing else back [1s to 24h]
    #[arg(long, env = "PARK_AFTER", default_value = "60s")]
    park_after: String,

    /// Memory for the index of waiting webhooks, about 150 bytes each; what does not fit waits in
    /// Redis [1MiB to 16GiB]
    #[arg(long, env = "INDEX_MEMORY", default_value = "128MiB")]
    index_memory: String,

    #[command(flatten)]
    payloads: PayloadArgs,

    /// Time to finish what is under way after SIGTERM [1s to 15m]; default: DELIVERY_TIMEOUT + 5s
    #[arg(long, env = "SHUTDOWN_TIMEOUT")]
    shutdown_timeout: Option<String>,
}

/// The downstreamer's settings, checked.
#[derive(Debug, Clone)]
pub struct DownstreamerSettings {
    /// Settings that every process has.
    pub common: ProcessSettings,
    /// Name and filter of the consumer.
    pub consumer: ConsumerSettings,
    /// Backend that webhooks are delivered to.
    pub backend: Backend,
    /// Access to the backend.
    pub access: BackendAccess,
    /// Address of the admin endpoint.
    pub admin_listen: SocketAddr,
    /// Unit that is kept in order.
    pub order_by: OrderBy,
    /// Time for one delivery.
    pub delivery_timeout: Duration,
    /// Threads of the process.
    pub threads: TaskThreads,
    /// Limits on deliveries at once and per second.
    pub bounds: Bounds,
    /// The same limits for one shop.
    pub shop_bounds: ShopBounds,
    /// Topics, or kinds such as `orders/*`, that go first.
    pub priority_topics: Vec<String>,
    /// Deduplication window.
    pub dedup: Dedup,
    /// Topics whose events may stand for older ones.
    pub coalesce_topics: Vec<String>,
    /// Longest time by which an event may be older than the one that stands for it.
    pub coalesce_wait_max: Duration,
    /// Dropping of updates that show nothing new.
    pub suppression: SuppressionSettings,
    /// Pauses between attempts.
    pub backoff: Backoff,
    /// Time for which failing deliveries are retried.
    pub retry_for: Duration,
    /// Time for which refused deliveries are retried.
    pub retry_refused_for: Duration,
    /// Statuses that make a dead letter at once.
    pub dead_statuses: Vec<u16>,
    /// Time for which dead letters are kept.
    pub dead_keep: Duration,
    /// Most bytes of dead letters.
    pub dead_bytes_max: u64,
    /// Time for which the front of the main stream may be blocked.
    pub park_after: Duration,
    /// Memory for the index.
    pub index_bytes: usize,
    /// Fetching of payloads, if it is on.
    pub payloads: Option<PayloadSettings>,
    /// Time to finish what is under way.
    pub shutdown_timeout: Duration,
}

/// Deduplication window: its time and its memory.
#[derive(Debug, Clone, Copy)]
pub struct Dedup {
    /// Time for which delivered webhooks are remembered. Zero: off.
    pub window: Duration,
    /// Memory for them, in bytes.
    pub bytes: usize,
}

/// Unit that is kept in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderBy {
    /// The events of one resource of one shop.
    Resource,
    /// The events of one topic of one shop.
    Topic,
    /// The events of one shop.
    Shop,
    /// Nothing.
    None,
}

impl spillway_process::ServerArgs for DownstreamerArgs {
    type Checked = DownstreamerSettings;

    fn common(&self) -> &ProcessArgs {
        &self.common
    }

    fn threads(settings: &DownstreamerSettings) -> TaskThreads {
        settings.threads
    }

    fn check(&self, checker: &mut Checker) -> DownstreamerSettings {
        let ms = Duration::from_millis;
        let s = Duration::from_secs;
        let hour = s(3600);
        let day = s(24 * 3600);
        let delivery_timeout =
            checker.duration("DELIVERY_TIMEOUT", &self.delivery_timeout, ms(100)..=s(600));
        let backoff = Backoff {
            first: checker.duration("RETRY_FIRST", &self.retry_first, ms(10)..=hour),
            longest: checker.duration("RETRY_LONGEST", &self.retry_longest, ms(10)..=day),
        };
        if backoff.longest < backoff.first {
            checker.mistake("RETRY_LONGEST", "must not be shorter than RETRY_FIRST");
        }
        let url = self.downstream_app_url.as_deref();
        let backend = Backend::check(url, self.downstream_host.as_deref(), checker);
        let dedup = self.dedup(checker, &backend);
        DownstreamerSettings {
            common: self.common.check(checker),
            consumer: self.consumer.check(checker, ConsumerKind::Downstreamer),
            backend,
            access: self.access.check(checker),
            admin_listen: checker.address("ADMIN_LISTEN", &self.admin_listen, "127.0.0.1:9812"),
            order_by: checker.choice("ORDER_BY", &self.order_by, &ORDERS),
            delivery_timeout,
            threads: checker.choice("DELIVERY_THREADS", &self.delivery_threads, &THREADS),
            bounds: self.bounds(checker),
            shop_bounds: self.shop_bounds(checker),
            priority_topics: topic_list(&self.priority_topics),
            dedup,
            coalesce_topics: self.coalesce_topics(checker),
            coalesce_wait_max: checker.duration(
                "COALESCE_MAX_WAIT",
                &self.coalesce_max_wait,
                s(1)..=day,
            ),
            suppression: self.suppression.check(checker, &self.order_by),
            backoff,
            retry_for: checker.duration("RETRY_FOR", &self.retry_for, s(1)..=60 * day),
            retry_refused_for: checker.duration(
                "RETRY_REFUSED_FOR",
                &self.retry_refused_for,
                Duration::ZERO..=60 * day,
            ),
            dead_statuses: dead_statuses(checker, &self.dead_statuses),
            dead_keep: checker.duration("DEAD_KEEP", &self.dead_keep, hour..=3650 * day),
            dead_bytes_max: checker.size("DEAD_MAX", &self.dead_max, 0..=64 * 1024 * MIB),
            park_after: checker.duration("PARK_AFTER", &self.park_after, s(1)..=day),
            index_bytes: memory(checker, "INDEX_MEMORY", &self.index_memory),
            payloads: self.payloads.check(checker),
            shutdown_timeout: match &self.shutdown_timeout {
                Some(text) => checker.duration("SHUTDOWN_TIMEOUT", text, s(1)..=s(900)),
                None => delivery_timeout + SHUTDOWN_SLACK,
            },
        }
    }
}

impl DownstreamerSettings {
    /// Returns true if the fingerprints of all waiting webhooks are needed. An event that stands
    /// for others is remembered for all of them, so a late copy of one is not taken for the newest.
    pub fn keeps_fingerprints(&self) -> bool {
        !self.coalesce_topics.is_empty()
    }

    /// Key scheme of lanes. A lane contains whole units of order.
    pub fn key_scheme(&self) -> KeyScheme {
        match self.order_by {
            OrderBy::Shop => KeyScheme::Shop,
            OrderBy::Resource | OrderBy::Topic | OrderBy::None => KeyScheme::Kind,
        }
    }

    /// Settings of the delivery core. All its randomness comes from `seed`.
    pub fn core(&self, seed: u64) -> Config {
        Config {
            bounds: self.bounds,
            shop_bounds: self.shop_bounds,
            backoff: self.backoff,
            retry_for: self.retry_for,
            retry_refused_for: self.retry_refused_for,
            coalesce_wait_max: self.coalesce_wait_max,
            park_after: self.park_after,
            index_bytes: self.index_bytes,
            keeps_fingerprints: self.keeps_fingerprints(),
            suppression: self.suppression.core,
            seed,
            tuning: Tuning::default(),
        }
    }
}

impl Dedup {
    /// Returns true if duplicates are dropped.
    pub fn is_on(&self) -> bool {
        !self.window.is_zero()
    }
}

impl DownstreamerArgs {
    fn bounds(&self, checker: &mut Checker) -> Bounds {
        let bounds = Bounds {
            concurrency_min: checker.number("MIN_CONCURRENCY", &self.min_concurrency, 1..=10_000),
            concurrency_max: checker.number("MAX_CONCURRENCY", &self.max_concurrency, 1..=10_000),
            rate_max: self.max_rate.as_ref().map(|rate| self::rate(checker, "MAX_RATE", rate)),
        };
        if bounds.concurrency_min > bounds.concurrency_max {
            checker.mistake("MIN_CONCURRENCY", "must not be more than MAX_CONCURRENCY");
        }
        bounds
    }

    fn shop_bounds(&self, checker: &mut Checker) -> ShopBounds {
        let concurrency = self.shop_max_concurrency.as_ref();
        let rate = self.shop_max_rate.as_ref();
        ShopBounds {
            concurrency_max: concurrency
                .map_or(u32::MAX, |text| checker.number("SHOP_MAX_CONCURRENCY", text, 1..=10_000)),
            spacing: rate.map_or(Duration::ZERO, |text| {
                Duration::from_secs_f64(1.0 / self::rate(checker, "SHOP_MAX_RATE", text))
            }),
        }
    }

    fn coalesce_topics(&self, checker: &mut Checker) -> Vec<String> {
        const KEY: &str = "COALESCE_TOPICS";
        let topics = topic_list(&self.coalesce_topics);
        for topic in &topics {
            let (kind, event) = topic.split_once('/').unwrap_or((topic, ""));
            let problem = if is_compliance(topic.as_bytes()) || is_barrier(topic.as_bytes()) {
                "must be delivered for legal reasons, each of its events"
            } else if matches!(kind, "orders" | "Order") {
                "is about orders: each of their events is delivered"
            } else if matches!(event, "create" | "delete") {
                "occurs once for each resource, so it cannot be coalesced"
            } else if kind.is_empty() || event.is_empty() || topic.contains('*') {
                "is not a topic, such as products/update or Product/update"
            } else {
                continue;
            };
            checker.mistake(KEY, format_args!("{topic} {problem}"));
        }
        if topics.len() > usize::from(u8::MAX) {
            checker.mistake(KEY, "holds more than 255 topics");
        }
        if !topics.is_empty() && self.order_by.trim() != "resource" {
            checker.mistake(KEY, "needs ORDER_BY=resource: events of one resource are coalesced");
        }
        topics
    }

    /// With `discard:`, nothing is remembered. What is dropped was not delivered. To remember it
    /// would make later webhooks, for a real backend, duplicates of nothing.
    fn dedup(&self, checker: &mut Checker, backend: &Backend) -> Dedup {
        let longest = Duration::from_secs(30 * 24 * 3600);
        let window = checker.duration("DEDUP_WINDOW", &self.dedup_window, Duration::ZERO..=longest);
        let is_wanted = !matches!(backend, Backend::Discard);
        Dedup {
            window: if is_wanted { window } else { Duration::ZERO },
            bytes: memory(checker, "DEDUP_MEMORY", &self.dedup_memory),
        }
    }
}

fn rate(checker: &mut Checker, key: &str, text: &str) -> f64 {
    f64::from(checker.number::<u32>(key, text, 1..=1_000_000))
}

fn memory(checker: &mut Checker, key: &str, text: &str) -> usize {
    let bytes = checker.size(key, text, MIB..=16 * 1024 * MIB);
    usize::try_from(bytes).expect("BUG: the range ends below 2^63")
}

fn dead_statuses(checker: &mut Checker, text: &str) -> Vec<u16> {
    text.split(',')
        .map(str::trim)
        .filter(|status| !status.is_empty())
        .map(|status| checker.number("DEAD_STATUSES", status, 300..=599u16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(arguments: &[&str]) -> String {
        let base = ["downstreamer", "--downstream-app-url", "discard:"];
        let written = DownstreamerArgs::parse_from(base.iter().chain(arguments));
        let mut checker = Checker::default();
        let settings = spillway_process::ServerArgs::check(&written, &mut checker);
        checker.finish(settings).map_or_else(|mistakes| mistakes.to_string(), |_| String::new())
    }

    #[test]
    fn only_what_replaces_itself_may_be_coalesced() {
        assert_eq!(
            mistakes(&[
                "--coalesce-topics",
                "products/update, Product/update, inventory_levels/update"
            ]),
            ""
        );
        let once = ["products/create", "products/delete", "Product/create", "shop/redact"];
        for topic in once.into_iter().chain(["orders/updated", "Order/update"]) {
            assert!(mistakes(&["--coalesce-topics", topic]).contains(topic), "{topic}");
        }
        for topic in ["products/*", "products", "Product", "/update", "app/uninstalled"] {
            assert!(!mistakes(&["--coalesce-topics", topic]).is_empty(), "{topic}");
        }
        let by_shop = ["--coalesce-topics", "products/update", "--order-by", "shop"];
        assert!(mistakes(&by_shop).contains("ORDER_BY=resource"));
    }

    #[test]
    fn payloads_are_fetched_only_from_hosts_that_are_named() {
        assert_eq!(mistakes(&["--fetch-payloads", "on", "--payload-hosts", "a.b, *.c.d,"]), "");
        for hosts in [&[][..], &["--payload-hosts", " , "]] {
            let told = mistakes(&[&["--fetch-payloads", "on"][..], hosts].concat());
            assert!(told.starts_with("PAYLOAD_HOSTS: is required"), "{told}");
        }
        let bad =
            ["--fetch-payloads", "maybe", "--payload-hosts", "*,a.b,c/d", "--payload-max", "1"];
        let told = mistakes(&bad);
        let keys: Vec<&str> = told.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(keys, ["FETCH_PAYLOADS", "PAYLOAD_HOSTS", "PAYLOAD_HOSTS", "PAYLOAD_MAX"]);
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused() {
        let bounds = ["--min-concurrency", "8", "--max-concurrency", "4"];
        assert!(mistakes(&bounds).contains("MIN_CONCURRENCY"));
        assert_eq!(mistakes(&["--shop-max-rate", "5", "--max-rate", "50"]), "");
        assert!(mistakes(&["--max-rate", "0"]).contains("MAX_RATE"));
        assert!(mistakes(&["--delivery-threads", "2"]).contains("DELIVERY_THREADS"));
    }
}
