//! A line to the receiver: one connection at a time, opened again when it breaks, as Shopify's are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::client::Connection;
use crate::ledger::{Attempt, Event, Ledger, Outcome};
use crate::receipt::hash;
use crate::webhook::Webhook;

/// Shopify waits 5 s for a whole exchange.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two attempts to store the same webhook.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// One sender's way to the receiver. All it sends is noted in its ledger.
#[derive(Debug)]
pub struct Line {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    connection: Option<Connection>,
}

impl Line {
    /// A line that connects when it has something to send.
    pub fn new(address: SocketAddr, ledger: &Arc<Ledger>) -> Self {
        Self { address, ledger: Arc::clone(ledger), connection: None }
    }

    /// Sends once and notes what came of it.
    pub async fn attempt(&mut self, event: Event, webhook: &Webhook) -> Outcome {
        let (request, body_hash) = (webhook.encode(), hash(webhook.payload()));
        let began = Instant::now();
        let outcome = self.exchange(&request).await;
        self.ledger.note(event, body_hash, Attempt { began, took: began.elapsed(), outcome });
        outcome
    }

    /// Sends the same bytes until they are stored.
    pub async fn store(&mut self, event: Event, webhook: &Webhook) {
        loop {
            match self.attempt(event, webhook).await {
                Outcome::Stored => return,
                Outcome::Refused(status) => panic!("{event:?} was refused: {status}"),
                Outcome::Later | Outcome::Unanswered | Outcome::CutInAnswer | Outcome::NotSent => {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> Outcome {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match Connection::open(self.address).await {
                Ok(connection) => connection,
                Err(_) => return Outcome::NotSent,
            },
        };
        match timeout(PATIENCE, connection.exchange(request)).await {
            Ok(Ok(answer)) => {
                let closing = answer.headers.text("connection") == Some("close");
                if !closing && answer.status == 200 {
                    self.connection = Some(connection);
                }
                match answer.status {
                    200 => Outcome::Stored,
                    503 => Outcome::Later,
                    status => Outcome::Refused(status),
                }
            }
            Ok(Err(_)) if connection.answer_begun() => Outcome::CutInAnswer,
            Ok(Err(_)) | Err(_) => Outcome::Unanswered,
        }
    }
}
