//! Many customers of many shops are forgotten at once, among others who stay: nothing of the former is in any file, and
//! every webhook of the latter is delivered, or archived, as it was.
//!
//! `make endure` uses 120,000 webhooks of 5,000 customers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use stories::behaviour::Behaviour;
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::report::say;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;

use crate::forget::{Remembering, SOON, webhook};

const SHOPS: u64 = 20;
/// Of so many rows of one customer of each shop, one is forgotten.
const FORGOTTEN_OF: u64 = 50;
const FORGOTTEN_ROW: u64 = 7;
/// Shops up to this one have orders that wait in lanes.
const WAITING_MAX: u64 = 5;
/// The shop whose carts become dead letters.
const REFUSED: u64 = 6;
/// Sequence number of the first `carts/update` of a customer.
const FIRST_CART: u64 = 2;
/// First order of a customer whose orders are delivered while those of others wait.
const FLOWING: Event = Event { resource: SHOPS - 1, sequence: 2_000_001 };
/// Sequence number of a redaction, after those of all other webhooks.
const REDACTION: u64 = 1_000_000;
/// Each shows one who is forgotten, and nobody else: beginnings of their ids, addresses and orders.
const TRACES: [&str; 3] = ["77023984", "forgotten-", "55511122"];
const TOPICS: [&str; 5] = [
    "customers/update",
    "orders/create",
    "carts/update",
    "fulfillments/create",
    "checkouts/update",
];

/// Customers by number, and webhooks of each.
fn amounts() -> (u64, u64) {
    size((200, 5), (5_000, 24))
}

fn row_of(customer: u64) -> u64 {
    customer / SHOPS % FORGOTTEN_OF
}

fn is_forgotten(customer: u64) -> bool {
    row_of(customer) == FORGOTTEN_ROW
}

fn shop_of(customer: u64) -> u64 {
    1 + customer % SHOPS
}

fn topic_of(event: Event) -> &'static str {
    TOPICS[event.sequence as usize % TOPICS.len()]
}

/// Number of 13 digits that begins with `of_forgotten`, or with `of_other`.
fn number(customer: u64, of_forgotten: u64, of_other: u64) -> u64 {
    (if is_forgotten(customer) { of_forgotten } else { of_other }) * 100_000 + customer
}

fn id_of(customer: u64) -> u64 {
    number(customer, 77_023_984, 66_012_873)
}

fn order_of(customer: u64) -> u64 {
    number(customer, 55_511_122, 44_400_011)
}

fn email_of(customer: u64) -> String {
    let name = if is_forgotten(customer) { "forgotten" } else { "kept" };
    format!("{name}-{customer}@example.com")
}

/// Webhook that shows the customer: by an id, by an order, or by the address alone.
fn of_customer(event: Event) -> Webhook {
    let Event { resource: customer, sequence } = event;
    let id = id_of(customer);
    // Of a cart, a checkout or a fulfillment: each is another one.
    let own = sequence * 100_000 + customer;
    let note = "n".repeat(100 + (customer % 7) as usize * 30);
    let body = match topic_of(event) {
        "customers/update" => {
            json!({ "id": id, "email": email_of(customer), "sequence": sequence })
        }
        "orders/create" => {
            json!({ "id": order_of(customer), "customer": { "id": id }, "note": note, "sequence": sequence })
        }
        "carts/update" => json!({ "id": own, "customer_id": id, "note": note }),
        "fulfillments/create" => json!({ "id": own, "order_id": order_of(customer) }),
        _ => json!({ "id": own, "email": email_of(customer), "note": note }),
    };
    webhook(&shop::domain(shop_of(customer)), topic_of(event), &event.webhook_id(), &body)
}

fn redaction_of(customer: u64) -> (Event, Webhook) {
    let event = Event { resource: customer, sequence: REDACTION };
    let shop = shop::domain(shop_of(customer));
    let body = json!({
        "shop_domain": shop, "orders_to_redact": [order_of(customer)],
        "customer": { "id": id_of(customer), "email": email_of(customer), "phone": null },
    });
    (event, webhook(&shop, "customers/redact", &event.webhook_id(), &body))
}

fn event_of(webhook: &Value) -> Event {
    Event::of(webhook["webhook_id"].as_str().expect("an id")).expect("an event of the test")
}

fn waits(event: &Event) -> bool {
    topic_of(*event).starts_with("orders/") && shop_of(event.resource) <= WAITING_MAX
}

/// True for the first cart of some customers, of whom half are forgotten. A lane with many of them would be stopped.
fn is_dead(event: &Event) -> bool {
    let is_of_row = [FORGOTTEN_ROW, FORGOTTEN_ROW + 1].contains(&row_of(event.resource));
    is_of_row && shop_of(event.resource) == REFUSED && event.sequence == FIRST_CART
}

/// A cell in which some webhooks wait, some are dead letters, and the others are delivered; all are archived.
async fn filled(ledger: &Arc<Ledger>, events: &[Event]) -> Remembering {
    let cell = Remembering::start(false).await;
    cell.backend.behave(|receipt| {
        if is_dead(&receipt.event()) { Behaviour::status(422) } else { Behaviour::ok() }
    });
    let failing: Vec<String> = (1..=WAITING_MAX).map(shop::domain).collect();
    cell.billing.behave(move |receipt| {
        let fails = failing.iter().any(|shop| shop == receipt.shop());
        if fails { Behaviour::status(503) } else { Behaviour::ok() }
    });
    let feed = Feed::to(cell.receiver.address(), ledger);
    let items = events.iter().map(|event| (*event, of_customer(*event))).collect();
    feed.store(items).await;
    let waiting = events.iter().filter(|event| waits(event)).count() as u64;
    let mut flowing = FLOWING;
    until("orders wait in lanes", 4 * SOON, async || {
        // While nothing succeeds, a backend is taken for down, and nothing moves into lanes.
        feed.store(vec![(flowing, of_customer(flowing))]).await;
        flowing.sequence += TOPICS.len() as u64;
        cell.in_lanes().await == waiting
    })
    .await;
    until("all is archived", 4 * SOON, async || cell.is_main_empty().await).await;
    cell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_customers_those_who_are_forgotten_leave_no_trace_and_all_others_are_as_they_were()
{
    let (customers, each) = amounts();
    let events: Vec<Event> = (1..=each)
        .flat_map(|sequence| (0..customers).map(move |resource| Event { resource, sequence }))
        .collect();
    let ledger = Arc::new(Ledger::default());
    let cell = filled(&ledger, &events).await;
    let forgotten: Vec<u64> = (0..customers).filter(|customer| is_forgotten(*customer)).collect();
    let mut kept = cell.archive.webhooks();
    assert!(kept.len() >= events.len(), "all of them, and some that flowed");
    kept.retain(|one| !is_forgotten(event_of(one).resource));

    let redactions = forgotten.iter().map(|customer| redaction_of(*customer)).collect();
    Feed::to(cell.receiver.address(), &ledger).store(redactions).await;
    let count = forgotten.len() as u64;
    until("all redactions are noted", SOON, async || cell.pending().await == count).await;
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    let began = Instant::now();
    let letters = events.iter().filter(|event| is_dead(event) && !is_forgotten(event.resource));
    let letters = letters.count() as u64;
    until("their dead letters are dropped", 4 * SOON, async || {
        // Chunks in which others wait hold the purge up.
        cell.spillway(&["forget", "--due"]).await;
        cell.redis.stream_len("{spillway}:http:dead").await == letters
    })
    .await;
    let first = began.elapsed();
    cell.billing.behave(|_| Behaviour::ok());
    until("the lanes are empty", 4 * SOON, async || cell.in_lanes().await == 0).await;
    let began = Instant::now();
    cell.purge().await;
    let last = began.elapsed();

    cell.expect_forgotten(&TRACES).await;
    assert!(cell.archive.webhooks() == kept, "the others are not as they were");
    expect_delivered(&cell, &events);
    let records = cell.records().await;
    let purged = |store: &str| -> u64 {
        records.iter().filter_map(|record| record["purged"][store].as_u64()).sum()
    };
    let stores: BTreeMap<_, _> = ["waiting", "dead_letters", "archived", "objects"]
        .map(|store| (store, purged(store)))
        .into_iter()
        .collect();
    let all = count * (each + 1);
    assert_eq!(stores["archived"], all, "with each redaction: {stores:?}");
    say(
        "| webhooks | customers | shops | redactions | purged | first purge | last purge | others |",
    );
    say(&format!(
        "| {} | {customers} | {SHOPS} | {count} | {stores:?} | {first:?} | {last:?} | {} as they were, {letters} of them \
         dead letters |",
        events.len(),
        kept.len()
    ));
}

/// Checks that others got all of theirs, with those that waited, and that what waited of the forgotten was dropped.
fn expect_delivered(cell: &Remembering, events: &[Event]) {
    let mut dropped = 0;
    for event in events {
        let id = event.webhook_id();
        let is_order = topic_of(*event).starts_with("orders/");
        if !is_dead(event) {
            assert!(cell.backend.has_delivered(&id), "{event:?} is not delivered");
        }
        if is_order && waits(event) && is_forgotten(event.resource) {
            assert!(!cell.billing.has_delivered(&id), "{event:?} is delivered after the purge");
            dropped += 1;
        } else if is_order {
            assert!(cell.billing.has_delivered(&id), "{event:?} is not delivered for orders");
        }
    }
    assert!(dropped > 0, "nothing of the forgotten waited");
}
