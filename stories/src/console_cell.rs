//! A cell with a console for people of every role, some shops whose webhooks become dead letters, and one
//! whose webhooks are retried.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::backend::Backend;
use crate::behaviour::Behaviour;
use crate::cell::{Cell, Settings};
use crate::console::{Accounts, ConsoleClient, ConsoleServer};
use crate::feed::Feed;
use crate::ledger::{Event, Ledger};
use crate::redis_server::RedisServer;
use crate::service::Service;
use crate::shop;
use crate::until::until;

/// Key of the dead letters.
pub const DEAD: &str = "{spillway}:http:dead";
/// Shops whose webhooks are refused for good, so that they become dead letters at once.
pub const REFUSED: [u64; 3] = [1, 2, 3];
/// Shop whose webhooks fail and are retried.
pub const FAILING: u64 = 4;
/// Shops whose webhooks are accepted while others are refused.
const HEALTHY: Range<u64> = 900..916;
/// Topic of all webhooks.
pub const TOPIC: &str = "products/update";
/// One of each role, and one of the role support that also sees personal data.
pub const PEOPLE: [(&str, &str, bool); 5] = [
    ("vera", "viewer", false),
    ("sue", "support", false),
    ("pia", "support", true),
    ("otto", "operator", false),
    ("ada", "admin", false),
];

const SOON: Duration = Duration::from_secs(60);

/// The cell, its console, and everything around them.
#[derive(Debug)]
pub struct ConsoleCell {
    /// The console.
    pub console: ConsoleServer,
    /// Users and tokens of the console.
    pub accounts: Accounts,
    /// Backend of the cell.
    pub backend: Backend,
    /// Feed of the receiver.
    pub feed: Feed,
    /// The downstreamer.
    pub downstreamer: Service,
    /// The receiver.
    pub receiver: Service,
    /// Redis.
    pub redis: RedisServer,
    /// Directory and processes.
    pub cell: Cell,
    tokens: BTreeMap<&'static str, String>,
    next: AtomicU64,
}

impl ConsoleCell {
    /// Starts everything. `settings` are those of the console, beside users and tokens.
    pub async fn start(cell: Cell, settings: Settings<'_>) -> Self {
        Self::start_for(cell, settings, &[]).await
    }

    /// Same as [`start`](Self::start), with further people: name, role, and if they see personal data.
    pub async fn start_for(
        cell: Cell,
        settings: Settings<'_>,
        more: &[(&'static str, &str, bool)],
    ) -> Self {
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.behave(|receipt| {
            let is_of = |number: u64| receipt.shop() == shop::domain(number);
            if REFUSED.into_iter().any(is_of) {
                Behaviour::status(422)
            } else if is_of(FAILING) {
                Behaviour::status(503)
            } else {
                Behaviour::ok()
            }
        });
        let receiver = cell.receiver(&[]).await;
        let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
        let downstreamer = cell.downstreamer(&backend, &[]).await;
        downstreamer.leads().await;
        let accounts = Accounts::new(&cell);
        let mut tokens = BTreeMap::new();
        for (name, role, sees_personal_data) in PEOPLE.iter().chain(more).copied() {
            accounts.add_user(name, role, sees_personal_data).await;
            let program = format!("{name}-program");
            let token = accounts.add_token(&program, role, sees_personal_data).await;
            tokens.insert(name, token);
        }
        let all = [&accounts.settings()[..], settings].concat();
        let console = ConsoleServer::start(&cell, &all).await;
        let next = AtomicU64::new(1);
        Self { console, accounts, backend, feed, downstreamer, receiver, redis, cell, tokens, next }
    }

    /// Makes the backend accept everything from now on.
    pub fn heal(&self) {
        self.backend.behave(|_| Behaviour::ok());
    }

    /// Token of a person's program.
    pub fn token(&self, name: &str) -> &str {
        &self.tokens[name]
    }

    /// Program of a person.
    pub fn program(&self, name: &str) -> ConsoleClient {
        self.console.program(self.token(name))
    }

    /// Stores webhooks of a shop, each about a resource of its own, and returns their webhook ids.
    pub async fn store(&self, shop: u64, count: u64) -> Vec<String> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let events = (first..first + count).map(|resource| Event { resource, sequence: 1 });
        let events: Vec<Event> = events.collect();
        let items = events.iter().map(|event| (*event, shop::webhook(shop, TOPIC, *event)));
        self.feed.store(items.collect()).await;
        events.iter().map(|event| event.webhook_id()).collect()
    }

    /// Stores webhooks that become dead letters, and waits until they are. Returns their webhook ids.
    pub async fn bury(&self, shop: u64, count: u64) -> Vec<String> {
        assert!(REFUSED.contains(&shop), "webhooks of shop {shop} are accepted");
        let before = self.dead_letters().await;
        // A backend that refuses most shops, or a shop for long, would be taken for one that is broken.
        let mut healthy = Vec::new();
        for shop in HEALTHY.take(8) {
            healthy.extend(self.store(shop, 1).await);
        }
        let ids = self.store(shop, count).await;
        let mut shops = HEALTHY.cycle();
        until("they are dead letters", SOON, async || {
            healthy.extend(self.store(shops.next().expect("it goes on"), 1).await);
            self.dead_letters().await >= before + count
        })
        .await;
        self.delivered(&healthy).await;
        ids
    }

    /// Pauses a shop, and stores webhooks of it, which wait. Returns their webhook ids.
    pub async fn hold(&self, shop: u64, count: u64) -> Vec<String> {
        let domain = shop::domain(shop);
        let before = self.downstreamer.metric("spillway_pauses").await.unwrap_or(0.0);
        let paused = self.cell.spillway(&["pause", "--shop", &domain]).await;
        assert!(paused.status.success(), "{paused:?}");
        // Webhooks that come before the downstreamer has read the pause would be delivered.
        let is_read = async || self.downstreamer.metric("spillway_pauses").await > Some(before);
        until("the pause is read", SOON, is_read).await;
        self.store(shop, count).await
    }

    /// Number of dead letters.
    pub async fn dead_letters(&self) -> u64 {
        self.redis.stream_len(DEAD).await
    }

    /// State of the consumer `http`, as `spillway status` has it.
    pub async fn consumer(&self) -> Value {
        let told = self.told(&["status", "-o", "json"]).await;
        let status: Value = serde_json::from_str(&told).expect("JSON");
        status["consumers"][0].clone()
    }

    /// The pauses in force, as JSON.
    pub async fn pauses(&self) -> Vec<String> {
        let consumer = self.consumer().await;
        let pauses = consumer["pauses"].as_array().expect("pauses").iter();
        pauses.map(Value::to_string).collect()
    }

    /// Output of the operators' command, which must succeed.
    pub async fn told(&self, arguments: &[&str]) -> String {
        let output = self.cell.spillway(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Waits until the backend has acknowledged all of these webhooks.
    pub async fn delivered(&self, ids: &[String]) {
        let all = async || ids.iter().all(|id| self.backend.has_delivered(id));
        until("they are delivered", SOON, all).await;
    }
}
