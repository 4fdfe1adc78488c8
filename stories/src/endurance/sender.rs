//! Sends a crowd's webhooks to a receiver, at a rate or as fast as they are accepted.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::client::Connection;
use crate::endurance::crowd::Crowd;
use crate::endurance::record::Record;

/// Connections of a crowd. Each sends its share of the webhooks, one at a time.
pub const CONNECTIONS: u32 = 40;
/// Shopify's limit for a whole exchange.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts to store the same webhook.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Sends a crowd's webhooks and records when each was accepted.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The receiver.
    pub address: SocketAddr,
    /// The crowd to send.
    pub crowd: Arc<Crowd>,
    /// Record of accepted webhooks.
    pub record: Arc<Record>,
    /// Webhooks per second; `None` sends as fast as they are accepted.
    pub rate: Option<f64>,
}

impl Sender {
    /// Sends all webhooks of the crowd, each until it is accepted.
    pub async fn send_all(&self) {
        self.send_some(self.crowd.numbers()).await;
    }

    /// Sends these webhooks of the crowd, each until it is accepted.
    pub async fn send_some(&self, numbers: Range<u32>) {
        let began = Instant::now();
        let mut lines = JoinSet::new();
        for connection in 0..CONNECTIONS {
            lines.spawn(self.clone().send_share(numbers.clone(), connection, began));
        }
        lines.join_all().await;
    }

    async fn send_share(self, numbers: Range<u32>, connection: u32, began: Instant) {
        let mut line = None;
        for number in (numbers.start + connection..numbers.end).step_by(CONNECTIONS as usize) {
            if let Some(rate) = self.rate {
                let due = f64::from(number - numbers.start) / rate;
                sleep_until(began + Duration::from_secs_f64(due)).await;
            }
            let request = self.crowd.webhook(number).encode();
            while !self.is_taken(&mut line, &request).await {
                self.record.faults.refused.fetch_add(1, Relaxed);
                sleep(AGAIN_AFTER).await;
            }
            self.record.mark_accepted(number);
        }
    }

    async fn is_taken(&self, line: &mut Option<Connection>, request: &[u8]) -> bool {
        let mut connection = match line.take() {
            Some(connection) => connection,
            None => match Connection::open(self.address).await {
                Ok(connection) => connection,
                Err(_) => return false,
            },
        };
        match timeout(PATIENCE, connection.exchange(request)).await {
            Ok(Ok(answer)) if answer.status == 200 => {
                if answer.headers.text("connection") != Some("close") {
                    *line = Some(connection);
                }
                true
            }
            Ok(Ok(_) | Err(_)) | Err(_) => false,
        }
    }
}
