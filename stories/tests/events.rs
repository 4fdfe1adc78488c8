//! Events, Shopify's second family of deliveries, beside classic webhooks of the same products.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::answer::Answer;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::check::check;
use stories::client::post;
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::report::say;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::{SECRET, Webhook, sign};

const SOON: Duration = Duration::from_secs(60);
const WORK: Duration = Duration::from_millis(50);

/// The webhook with this number: of every three, two are Events and one is classic.
fn webhook(number: u64, products: u64) -> (Event, Webhook) {
    let event = Event { resource: number % products + 1, sequence: number / products + 1 };
    let webhook = match number % 3 {
        0 => shop::webhook(1, "products/update", event),
        _ => shop::event(1, "prices", event),
    };
    (event, webhook)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_and_classic_webhooks_of_one_shop_flow_in_parallel_and_in_order_per_product() {
    let (count, products) = size((4_000, 400), (100_000, 10_000));
    let times_serial = size(10.0, 40.0);
    let cell = Cell::half();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::slowly(WORK));
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let webhooks = (0..count).map(|number| webhook(number, products));
    Feed::to(receiver.address(), &ledger).store(webhooks.collect()).await;
    let began = Instant::now();
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", size(SOON, 20 * SOON), is_empty).await;
    let took = began.elapsed();

    check(&ledger, &backend.receipts(), &HashSet::new()).expect_sound(0);
    let fallbacks = downstreamer.metric("spillway_key_fallback_total").await.unwrap_or(0.0);
    assert_eq!(fallbacks, 0.0, "an Event without a resource");
    let times = WORK.as_secs_f64() * count as f64 / took.as_secs_f64();
    say(&format!("events: {count} of {products} products in {took:?}, {times:.0} times serial"));
    assert!(times >= times_serial, "{times:.1} times serial");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_two_subscriptions_never_stand_for_each_other() {
    let cell = Cell::half();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::slowly(Duration::from_secs(1)));
    let receiver = cell.receiver(&[]).await;
    let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
    let topics = [("COALESCE_TOPICS", "Product/update")];
    let _downstreamer = cell.downstreamer(&backend, &topics).await;
    let of = |sequence, handle| {
        let event = Event { resource: 7, sequence };
        (event, shop::event(1, handle, event))
    };
    feed.store_in_turn(Vec::from([of(1, "prices")])).await;
    until("the first is under way", SOON, async || backend.count() == 1).await;
    // The others wait meanwhile.
    let mut items: Vec<_> =
        [(2, "prices"), (3, "prices"), (4, "titles"), (5, "prices"), (6, "prices")]
            .map(|(sequence, handle)| of(sequence, handle))
            .into();
    let without = [7, 8].map(|sequence| of(sequence, "prices"));
    items.extend(without.map(|(event, webhook)| (event, webhook.without("Shopify-Handle"))));
    feed.store_in_turn(items).await;
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON, is_empty).await;
    let arrived: Vec<u64> =
        backend.look(|all| all.iter().map(|one| one.event().sequence).collect());
    assert_eq!(arrived, [1, 3, 4, 6, 7, 8]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_under_the_headers_of_another_is_refused() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let sent = async |webhook: &Webhook| -> Answer { post(receiver.address(), webhook).await };
    let at = Event { resource: 1, sequence: 1 };
    let event = shop::event(1, "prices", at);
    let classic = shop::webhook(1, "products/update", at);
    sent(&event).await.expect_stored();
    sent(&classic).await.expect_stored();
    for (name, value) in
        [("Shopify-Topic", "Order"), ("Shopify-Action", "delete"), ("Shopify-Handle", "titles")]
    {
        sent(&event.clone().with(name, value)).await.expect(400, "header_mismatch");
    }
    let as_event = classic.clone().rename("X-Shopify-", "Shopify-");
    sent(&as_event).await.expect(400, "header_mismatch");
    let as_classic = event.clone().rename("Shopify-", "X-Shopify-");
    sent(&as_classic).await.expect(400, "header_mismatch");

    // Headers that are named here would not be stored.
    let hidden = event.clone().header("Connection", "close, Shopify-Topic");
    sent(&hidden).await.expect(400, "not_a_webhook");

    // Of two signatures, the Event's counts.
    let signature = sign(SECRET, event.payload());
    let both = event.clone().header("X-Shopify-Hmac-Sha256", "bad");
    sent(&both).await.expect_stored();
    let other = event.with("Shopify-Hmac-Sha256", "bad").header("X-Shopify-Hmac-Sha256", signature);
    sent(&other).await.expect(401, "bad_signature");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_ignored_is_answered_and_not_stored() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let file = cell.directory().join("ignored-shops");
    std::fs::write(&file, format!("# test shops\n{}\n", shop::domain(2))).expect("write the file");
    let path = file.to_str().expect("a path in UTF-8");
    let settings = [("IGNORE_TOPICS", "carts/*,Product/update"), ("IGNORE_SHOPS_FILE", path)];
    let receiver = cell.receiver(&settings).await;
    let at = |sequence| Event { resource: sequence, sequence };
    let ignored = [
        shop::event(1, "prices", at(1)),
        shop::webhook(1, "carts/update", at(2)),
        shop::webhook(2, "products/update", at(3)),
    ];
    for webhook in &ignored {
        post(receiver.address(), webhook).await.expect_stored();
    }
    assert_eq!(redis.stream_len("{spillway}:in").await, 0);
    assert_eq!(receiver.metric("spillway_ignored_total").await, Some(3.0));
    let forged = ignored[0].clone().with("Shopify-Hmac-Sha256", "bad");
    post(receiver.address(), &forged).await.expect(401, "bad_signature");
    post(receiver.address(), &shop::webhook(2, "shop/redact", at(4))).await.expect_stored();
    post(receiver.address(), &shop::webhook(1, "products/update", at(5))).await.expect_stored();
    assert_eq!(redis.stream_len("{spillway}:in").await, 2);
}
