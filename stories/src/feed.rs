//! Feeds: chosen webhooks, each stored once, and many shops that send at a steady rate.

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

/// A receiver to feed with webhooks, and the ledger that records them.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The receiver.
    pub address: SocketAddr,
    /// Ledger of what was sent.
    pub ledger: Arc<Ledger>,
    /// Number of connections used at once.
    pub connections: u64,
}

/// Shops that send one webhook of each topic in every period, each about a new resource.
#[derive(Clone, Debug)]
pub struct Trickle {
    /// Numbers of the shops.
    pub shops: Range<u64>,
    /// Topics that each shop sends.
    pub topics: &'static [&'static str],
    /// Length of the period. The shops take turns within it.
    pub every: Duration,
    /// Number of the first resource; later webhooks use the following numbers.
    pub first_resource: u64,
}

impl Feed {
    /// A feed over 32 connections: enough for several packs, and little compared to a flood.
    pub fn to(address: SocketAddr, ledger: &Arc<Ledger>) -> Self {
        Self { address, ledger: Arc::clone(ledger), connections: 32 }
    }

    /// Stores all webhooks; those of one resource are stored in order.
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

    /// Stores the webhooks one by one: each is accepted before the next is sent.
    pub async fn store_in_turn(&self, items: Vec<(Event, Webhook)>) {
        let mut line = self.line();
        for (event, webhook) in items {
            line.store(event, &webhook).await;
        }
    }

    /// Starts a trickle, which runs until it is stopped.
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
