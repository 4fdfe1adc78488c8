//! Load: many connections that send the events of many resources, each resource in order. Every
//! outcome is recorded in the ledger.
//!
//! An event of a resource is sent once the previous one was answered 200. The same bytes are sent
//! again until they are answered 200. The loop is closed: there are never more open requests than
//! connections.

use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use time::OffsetDateTime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::ledger::{Event, Ledger, Outcome};
use crate::line::Line;
use crate::seed::chance;
use crate::shop;
use crate::webhook::{Webhook, rfc3339};

/// Parameters of the load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Connections, each with its own share of the resources.
    pub connections: u64,
    /// Resources.
    pub resources: u64,
    /// Number of the first resource.
    pub first_resource: u64,
    /// Events for each resource; `None` continues until stopped.
    pub events: Option<u64>,
    /// Numbers of the shops, which take turns at the resources. `None` uses the one shop of
    /// [`Webhook::product`].
    pub shops: Option<Range<u64>>,
    /// Paths, each with its share of the resources.
    pub targets: &'static [&'static str],
    /// Size of the bodies.
    pub body_bytes: RangeInclusive<usize>,
    /// Average time from the start of a connection's event to the start of its next. It is longer
    /// if an answer takes longer.
    pub pause: Duration,
    /// Seed of the random choices.
    pub seed: u64,
}

/// A load under way.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    senders: JoinSet<()>,
}

struct Sender {
    load: Load,
    line: Line,
    stop: Arc<AtomicBool>,
    chance: StdRng,
}

impl Load {
    /// 32 connections, 200 resources, small bodies, about a thousand events a second.
    pub fn steady(seed: u64) -> Self {
        Self {
            connections: 32,
            resources: 200,
            first_resource: 1,
            events: None,
            shops: None,
            targets: &["/webhooks"],
            body_bytes: 100..=2000,
            pause: Duration::from_millis(30),
            seed,
        }
    }

    /// Starts sending, from the first event of each resource.
    pub fn start(&self, address: SocketAddr, ledger: &Arc<Ledger>) -> Running {
        self.start_after(0, address, ledger)
    }

    /// Starts sending after the event with sequence number `sent`.
    pub fn start_after(&self, sent: u64, address: SocketAddr, ledger: &Arc<Ledger>) -> Running {
        let mut running = Running::new();
        for number in 0..self.connections {
            let sender = Sender {
                load: self.clone(),
                line: Line::new(address, ledger),
                stop: running.stopping(),
                chance: chance(self.seed, number),
            };
            running.spawn(sender.run(number, sent));
        }
        running
    }
}

impl Running {
    /// Creates a load without senders.
    pub(crate) fn new() -> Self {
        Self { stop: Arc::new(AtomicBool::new(false)), senders: JoinSet::new() }
    }

    /// A flag that is set once the load must end.
    pub(crate) fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Adds a sender.
    pub(crate) fn spawn(&mut self, sender: impl Future<Output = ()> + Send + 'static) {
        self.senders.spawn(sender);
    }

    /// Waits until everything is sent, however long it takes.
    pub async fn join(mut self) {
        while let Some(sender) = self.senders.join_next().await {
            sender.expect("a sender ends well");
        }
    }

    /// Ends the load. Each connection still waits for its pending answer.
    pub async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.join().await;
    }
}

impl Sender {
    async fn run(mut self, number: u64, sent: u64) {
        let Load { connections, resources, first_resource, events, pause, .. } = self.load;
        let last = events.map_or(u64::MAX, |events| sent + events);
        for sequence in sent + 1..=last {
            for resource in (number..resources).step_by(connections as usize) {
                let event = Event { resource: first_resource + resource, sequence };
                let next = Instant::now() + pause.mul_f64(self.chance.random_range(0.5..1.5));
                self.send_until_settled(event).await;
                if self.stopped() {
                    return;
                }
                if !pause.is_zero() {
                    sleep_until(next).await;
                }
            }
        }
    }

    /// Sends an event until it is promised or refused for good, or the load is stopped.
    async fn send_until_settled(&mut self, event: Event) {
        let body = self.body(event);
        let targets = self.load.targets;
        let target = targets[event.resource as usize % targets.len()];
        let mut webhook = Webhook::product(event.resource, &event.webhook_id(), body).to(target);
        if let Some(Range { start, end }) = self.load.shops {
            let domain = shop::domain(start + event.resource % (end - start));
            webhook = webhook.with("X-Shopify-Shop-Domain", domain);
        }
        loop {
            match self.line.attempt(event, &webhook).await {
                Outcome::Stored | Outcome::Refused(_) => return,
                Outcome::Later | Outcome::Unanswered | Outcome::CutInAnswer | Outcome::NotSent => {
                    if self.stopped() {
                        return;
                    }
                    sleep(Duration::from_millis(self.chance.random_range(10..60))).await;
                }
            }
        }
    }

    /// JSON with the numbers of the event, filled up with text that does not compress too well.
    fn body(&mut self, event: Event) -> Vec<u8> {
        let Event { resource, sequence } = event;
        // Shopify's timestamps have seconds too.
        let updated_at = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(sequence);
        let updated_at = rfc3339(updated_at);
        let mut body = format!(
            "{{\"id\":{resource},\"sequence\":{sequence},\"updated_at\":\"{updated_at}\",\"fill\":\""
        )
        .into_bytes();
        let size = self.chance.random_range(self.load.body_bytes.clone());
        let mut fill = vec![0; size.saturating_sub(body.len() + 2)];
        self.chance.fill_bytes(&mut fill);
        body.extend(fill.iter().map(|byte| b'0' + byte % 64).map(|byte| match byte {
            b'\\' => b'x',
            other => other,
        }));
        body.extend_from_slice(b"\"}");
        body
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
