//! Feeds: chosen webhooks, each stored once; and many shops that go on at a steady pace.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::ledger::{Event, Ledger};
use crate::line::Line;
use crate::load::Running;
use crate::shop;
use crate::webhook::Webhook;

/// Where webhooks are fed in, and who keeps book.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The receiver.
    pub address: SocketAddr,
    /// What was sent.
    pub ledger: Arc<Ledger>,
    /// Over so many connections at once.
    pub connections: u64,
}

/// Shops that send one webhook of each topic in every period, each about a resource of its own.
#[derive(Clone, Debug)]
pub struct Trickle {
    /// Numbers of the shops.
    pub shops: Range<u64>,
    /// What each sends.
    pub topics: &'static [&'static str],
    /// How often. The shops take turns within it.
    pub every: Duration,
    /// Number of the first resource; the others follow.
    pub first_resource: u64,
}

impl Feed {
    /// Feeds over 32 connections: several packs' worth, and little beside a flood.
    pub fn to(address: SocketAddr, ledger: &Arc<Ledger>) -> Self {
        Self { address, ledger: Arc::clone(ledger), connections: 32 }
    }

    /// Stores all of them, those of one resource in their order.
    pub async fn store(&self, items: Vec<(Event, Webhook)>) {
        let mut shares: Vec<Vec<(Event, Webhook)>> = Vec::new();
        shares.resize_with(self.connections as usize, Vec::new);
        for item in items {
            shares[(item.0.resource % self.connections) as usize].push(item);
        }
        let mut senders = JoinSet::new();
        for share in shares {
            let mut line = self.line();
            senders.spawn(async move {
                for (event, webhook) in share {
                    line.store(event, &webhook).await;
                }
            });
        }
        senders.join_all().await;
    }

    /// Stores them one after the other, each accepted before the next is sent.
    pub async fn store_in_turn(&self, items: Vec<(Event, Webhook)>) {
        let mut line = self.line();
        for (event, webhook) in items {
            line.store(event, &webhook).await;
        }
    }

    /// Starts a trickle, which goes on until it is stopped.
    pub fn trickle(&self, trickle: &Trickle) -> Running {
        let mut running = Running::new();
        let next = Arc::new(AtomicU64::new(trickle.first_resource));
        let began = Instant::now();
        let turn = trickle.every / (trickle.shops.end - trickle.shops.start) as u32;
        for (place, shop) in (0..).zip(trickle.shops.clone()) {
            let (line, next) = (self.line(), Arc::clone(&next));
            let (trickle, stop) = (trickle.clone(), running.stopping());
            running.spawn(trickle.one_shop(shop, began + turn * place, next, line, stop));
        }
        running
    }

    fn line(&self) -> Line {
        Line::new(self.address, &self.ledger)
    }
}

impl Trickle {
    async fn one_shop(
        self,
        shop: u64,
        mut due: Instant,
        next: Arc<AtomicU64>,
        mut line: Line,
        stop: Arc<AtomicBool>,
    ) {
        let apart = self.every / self.topics.len() as u32;
        loop {
            for topic in self.topics {
                sleep_until(due).await;
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let resource = next.fetch_add(1, Ordering::Relaxed);
                let event = Event { resource, sequence: 1 };
                line.store(event, &shop::webhook(shop, topic, event)).await;
                due += apart;
            }
        }
    }
}
