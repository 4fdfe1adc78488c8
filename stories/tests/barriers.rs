//! Barriers: `customers/redact`, `shop/redact` and `app/uninstalled` are delivered after everything
//! that their shop sent before, and before everything that it sent after. This holds whatever fails
//! or is killed meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use stories::webhook::Webhook;

/// The shop with the barriers, and a shop without.
const SHOP: u64 = 1;
const OTHER: u64 = 2;
const ORDERS: u64 = 1000;
const SOON: Duration = Duration::from_secs(40);

/// The sequence number of the shop's webhooks is their section. A barrier is alone in its section;
/// the orders before and after it are in the neighbouring sections.
struct Sections {
    backend: Backend,
    ledger: Arc<Ledger>,
    feed: Feed,
    _receiver: Service,
    redis: RedisServer,
    cell: Cell,
    sections: u64,
    resources: u64,
}

impl Sections {
    async fn start() -> Self {
        let cell = Cell::busy();
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.employ(16);
        backend.behave(|_| Behaviour::slowly(Duration::from_millis(20)));
        let receiver = cell.receiver(&[]).await;
        let ledger = Arc::new(Ledger::default());
        let feed = Feed::to(receiver.address(), &ledger);
        Self { backend, ledger, feed, _receiver: receiver, redis, cell, sections: 1, resources: 0 }
    }

    /// Stores some orders, each about a different resource.
    async fn orders(&mut self, count: u64) {
        let sequence = self.sections;
        let resources = self.resources + 1..=self.resources + count;
        self.resources += count;
        let events = resources.map(|resource| Event { resource, sequence });
        self.feed.store(of(SHOP, "orders/create", events)).await;
    }

    /// Stores a barrier. Like Shopify's, it has no resource id.
    async fn barrier(&mut self, topic: &str) -> Event {
        self.sections += 1;
        self.resources += 1;
        let event = Event { resource: self.resources, sequence: self.sections };
        let body = format!("{{\"shop_id\":{SHOP},\"customer\":{{\"id\":{}}}}}", event.sequence);
        let webhook = shop::webhook(SHOP, topic, event).body(body);
        self.feed.store_in_turn(vec![(event, webhook)]).await;
        // Later webhooks are in another section.
        self.sections += 1;
        event
    }

    /// Stores orders of the other shop, whose numbers are above those of the first shop.
    async fn others(&self, count: u64) {
        let events = (1..=count).map(|number| Event { resource: 1_000_000 + number, sequence: 1 });
        self.feed.store(of(OTHER, "orders/create", events)).await;
    }

    async fn all_delivered(&self) {
        self.ledger.delivered_to(&self.backend, SOON).await;
    }

    /// Time at which a barrier first arrived, and the number of the other shop's deliveries before
    /// it.
    fn passed(&self, barrier: Event) -> (Instant, usize) {
        self.backend.look(|receipts| {
            let id = barrier.webhook_id();
            let barrier = receipts.iter().find(|receipt| receipt.webhook_id() == id);
            let at = barrier.expect("the barrier arrived").arrived;
            let before = receipts.iter().filter(|receipt| receipt.answered.is_some_and(|t| t < at));
            (at, before.filter(|receipt| receipt.shop() == shop::domain(OTHER)).count())
        })
    }

    /// Fails unless every section was completely acknowledged before anything of the next one
    /// arrived. Nothing of an earlier section is repeated either, because a barrier waits until it
    /// is settled.
    #[track_caller]
    fn expect_apart(&self) {
        let receipts = self.backend.receipts();
        let own = receipts.iter().filter(|receipt| receipt.shop() == shop::domain(SHOP));
        let own: Vec<(u64, &Receipt)> =
            own.map(|receipt| (receipt.event().sequence, receipt)).collect();
        for section in 2..=self.sections {
            let earlier = own.iter().filter(|(other, _)| *other < section);
            let last = earlier.filter_map(|(_, receipt)| receipt.answered).max();
            let later = own.iter().filter(|(other, _)| *other >= section);
            let first = later.map(|(_, receipt)| receipt.arrived).min();
            let (last, first) = (last.expect("earlier ones"), first.expect("later ones"));
            let early = last.saturating_duration_since(first);
            assert!(early.is_zero(), "section {section} began {early:?} too early");
        }
    }
}

fn of(shop: u64, topic: &str, events: impl Iterator<Item = Event>) -> Vec<(Event, Webhook)> {
    events.map(|event| (event, shop::webhook(shop, topic, event))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_waits_for_all_that_its_shop_sent_before() {
    let mut queue = Sections::start().await;
    queue.orders(ORDERS).await;
    let redact = queue.barrier("customers/redact").await;
    queue.orders(200).await;
    queue.barrier("app/uninstalled").await;
    queue.barrier("shop/redact").await;
    queue.orders(200).await;
    queue.others(1000).await;
    let began = Instant::now();
    let _downstreamer = queue.cell.downstreamer(&queue.backend, &[]).await;
    queue.all_delivered().await;
    let (at, others) = queue.passed(redact);
    say(&format!(
        "barriers: the redact came {:?} after the start, when {others} of 1,000 of \
                  another shop were delivered",
        at - began
    ));
    queue.expect_apart();
    assert_eq!(queue.backend.count(), queue.ledger.stored_count(), "each once");
    // Orders go first; other webhooks get every fifth turn: 250 products for 1,000 orders.
    assert!(others >= 200, "only {others} of the other shop flowed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_behind_a_paused_barrier_waits_with_it() {
    let mut queue = Sections::start().await;
    let told = async |arguments: &[&str]| {
        let output = queue.cell.spillway(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    let downstreamer = queue.cell.downstreamer(&queue.backend, &[]).await;
    downstreamer.ready().await;
    told(&["pause", "--topic", "customers/redact"]).await;
    let is_paused = async || downstreamer.metric("spillway_pauses").await == Some(1.0);
    until("it is paused", SOON, is_paused).await;
    queue.orders(100).await;
    queue.barrier("customers/redact").await;
    queue.orders(100).await;
    queue.others(100).await;
    until("the rest is delivered", SOON, async || queue.backend.delivered() == 200).await;
    let of_later =
        |receipt: &Receipt| receipt.shop() == shop::domain(SHOP) && receipt.event().sequence > 1;
    assert!(!queue.backend.look(|all| all.iter().any(of_later)), "the barrier was passed");
    let output = queue.cell.spillway(&["resume", "--all"]).await;
    assert!(output.status.success(), "{output:?}");
    queue.all_delivered().await;
    queue.expect_apart();
    assert_eq!(queue.backend.count(), queue.ledger.stored_count(), "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_waits_for_an_order_that_is_retried() {
    let mut queue = Sections::start().await;
    let failing = Event { resource: 500, sequence: 1 };
    queue.backend.behave(move |receipt| {
        let fails = receipt.webhook_id() == failing.webhook_id();
        if fails { Behaviour::status(500) } else { Behaviour::slowly(Duration::from_millis(20)) }
    });
    queue.orders(ORDERS).await;
    let redact = queue.barrier("customers/redact").await;
    queue.orders(200).await;
    queue.others(500).await;
    let _downstreamer = queue.cell.downstreamer(&queue.backend, &[]).await;
    let of_other = |one: &&Receipt| one.delivered() && one.shop() == shop::domain(OTHER);
    let passed = async || queue.backend.look(|all| all.iter().filter(of_other).count()) == 500;
    until("the other shop passes while an order is retried", SOON, passed).await;
    queue.backend.behave(|_| Behaviour::ok());
    queue.all_delivered().await;
    let (_, others) = queue.passed(redact);
    queue.expect_apart();
    assert_eq!(others, 500, "of another shop before the barrier");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_stands_while_an_order_before_it_is_set_aside_and_across_a_crash() {
    let mut queue = Sections::start().await;
    let failing = Event { resource: 50, sequence: 1 }.webhook_id();
    let is_failing = move |receipt: &Receipt| receipt.webhook_id() == failing;
    let still_failing = is_failing.clone();
    queue
        .backend
        .behave(move |receipt| Behaviour::status(if still_failing(receipt) { 500 } else { 200 }));
    queue.orders(100).await;
    queue.barrier("customers/redact").await;
    queue.orders(100).await;
    queue.others(100).await;
    let parking = [("PARK_AFTER", "2s")];
    let mut downstreamer = queue.cell.downstreamer(&queue.backend, &parking).await;
    until("all that waits is set aside", SOON, async || {
        let parked = queue.redis.in_lanes().await;
        parked >= 102 && queue.redis.stream_len("{spillway}:in").await == 0
    })
    .await;
    downstreamer.kill9();
    downstreamer.restart();
    let tried = queue.backend.count();
    let again = async || queue.backend.count() >= tried + 2;
    until("the order is tried again", SOON, again).await;
    queue.orders(10).await;
    queue.backend.behave(|_| Behaviour::ok());
    queue.all_delivered().await;
    let attempts = queue.backend.look(|all| all.iter().filter(|one| is_failing(one)).count());
    say(&format!("barriers: {attempts} attempts of an order set aside; 111 waited for it"));
    queue.expect_apart();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_stands_when_the_downstreamer_is_killed_before_it_and_at_it() {
    let mut queue = Sections::start().await;
    queue.orders(ORDERS).await;
    let redact = queue.barrier("customers/redact").await;
    queue.orders(200).await;
    queue.others(500).await;
    let id = redact.webhook_id();
    let slow_id = id.clone();
    queue.backend.behave(move |receipt| {
        let is_barrier = receipt.webhook_id() == slow_id;
        Behaviour::slowly(Duration::from_millis(if is_barrier { 1500 } else { 20 }))
    });
    let mut downstreamer = queue.cell.downstreamer(&queue.backend, &[]).await;
    let half = async || queue.backend.delivered() >= 600;
    until("it is amid the orders", SOON, half).await;
    downstreamer.kill9();
    queue.backend.hung_up().await;
    let sent = queue.backend.count();
    downstreamer.restart();
    until("the barrier is under way", SOON, async || {
        queue.backend.look(|receipts| receipts.iter().any(|one| one.webhook_id() == id))
    })
    .await;
    downstreamer.kill9();
    downstreamer.restart();
    queue.all_delivered().await;
    queue.expect_apart();
    let attempts =
        queue.backend.look(|receipts| receipts.iter().filter(|one| one.webhook_id() == id).count());
    let repeats = queue.backend.count() - queue.ledger.stored_count();
    say(&format!(
        "barriers: killed after {sent} requests and at the barrier, which came {attempts} times; \
         {repeats} repeats in all"
    ));
    assert!(attempts >= 2, "the kill missed the barrier");
}
