//! A connection to the receiver that is opened again when it breaks, as Shopify's are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::client::Connection;
use crate::ledger::{Attempt, Event, Ledger, Outcome};
use crate::receipt::hash;
use crate::webhook::Webhook;

/// Shopify's limit for a whole exchange.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two attempts to store the same webhook.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Connection of one sender to the receiver. Everything it sends is recorded in the ledger.
#[derive(Debug)]
pub struct Line {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    connection: Option<Connection>,
}

impl Line {
    /// Creates a line that connects when it sends something.
    pub fn new(address: SocketAddr, ledger: &Arc<Ledger>) -> Self {
        Self { address, ledger: Arc::clone(ledger), connection: None }
    }

    /// Sends once and records the outcome.
    pub async fn attempt(&mut self, event: Event, webhook: &Webhook) -> Outcome {
        let (request, body_hash) = (webhook.encode(), hash(webhook.payload()));
        let began = Instant::now();
        let outcome = self.exchange(&request).await;
        self.ledger.note(event, body_hash, Attempt { began, took: began.elapsed(), outcome });
        outcome
    }

    /// Sends the same bytes repeatedly until they are stored.
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
