//! `ops/nginx/cells.conf` as shipped, except for addresses. All webhooks of a shop go to one cell,
//! and the shops are spread over the cells.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;

use stories::backend::Backend;
use stories::binaries::repository;
use stories::cell::Cell;
use stories::client::post;
use stories::nginx::Nginx;
use stories::shop::domain;
use stories::webhook::Webhook;
use stories::{page, port};

const SHOPS: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_always_goes_to_the_same_cell() {
    let cell = Cell::shared();
    let cells = [Backend::start().await, Backend::start().await, Backend::start().await];
    let (_nginx, address) = start(&cell, &cells).await;
    for number in 0..3 * SHOPS {
        let webhook = Webhook::any().with("X-Shopify-Shop-Domain", domain(number % SHOPS));
        // Both families of headers identify the same shop.
        let is_new = number >= 2 * SHOPS;
        let webhook = if is_new { webhook.rename("X-Shopify-", "Shopify-") } else { webhook };
        post(address, &webhook).await.expect_stored();
    }
    let mut homes: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (home, backend) in cells.iter().enumerate() {
        assert!(backend.count() > 0, "a cell without shops");
        for receipt in backend.receipts() {
            let shop = |name| receipt.headers.text(name).map(str::to_owned);
            let shop = shop("X-Shopify-Shop-Domain").or_else(|| shop("Shopify-Shop-Domain"));
            homes.entry(shop.expect("a shop")).or_default().insert(home);
        }
    }
    assert_eq!(homes.len() as u64, SHOPS);
    assert!(homes.values().all(|homes| homes.len() == 1), "a shop with two homes: {homes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_names_no_shop_goes_to_one_cell() {
    let cell = Cell::shared();
    let cells = [Backend::start().await, Backend::start().await, Backend::start().await];
    let (_nginx, address) = start(&cell, &cells).await;
    for _ in 0..3 * cells.len() {
        post(address, &Webhook::any().without("X-Shopify-Shop-Domain")).await.expect_stored();
    }
    let counts = cells.each_ref().map(Backend::count);
    assert_eq!(counts.iter().filter(|count| **count > 0).count(), 1, "of each cell: {counts:?}");
}

/// The page shows the shipped file without its comments.
#[test]
fn the_page_shows_the_shipped_file() {
    let shown = page::only_block("docs/cells.md", "nginx");
    let is_said = |line: &&str| !line.is_empty() && !line.trim_start().starts_with('#');
    let shipped = shipped();
    assert_eq!(
        shown.lines().filter(is_said).collect::<Vec<_>>(),
        shipped.lines().filter(is_said).collect::<Vec<_>>()
    );
}

/// Starts nginx in front of these cells. Returns its address.
async fn start(cell: &Cell, cells: &[Backend]) -> (Nginx, SocketAddr) {
    let address = port::free();
    let site = format!(
        "{}\nserver {{ listen {address}; location / {{ proxy_pass http://spillway; \
         proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_next_upstream off; }} }}",
        upstream(cells)
    );
    (Nginx::start(cell.directory(), &site, address).await, address)
}

fn upstream(cells: &[Backend]) -> String {
    let mut text = shipped();
    for (number, backend) in (1..).zip(cells) {
        let from = format!("server 10.0.0.{number}:8080 ");
        assert_eq!(text.matches(&from).count(), 1, "{from:?} in the shipped file");
        text = text.replace(&from, &format!("server {} ", backend.address()));
    }
    text
}

fn shipped() -> String {
    fs::read_to_string(repository().join("ops/nginx/cells.conf")).expect("read the shipped file")
}
