//! An operator's orders: the whole drain paused, webhooks to skip.
//!
//! The topic has an order, so nothing less than all of it can be paused. What is to be dropped is
//! skipped when its turn comes, and counted in the settlement that goes past it.

use std::time::Duration;

use spillway_queue::orders;
use spillway_service::error::chain;

use super::{Drain, Session, Stop};
use crate::open::{Open, Place};

/// How often a paused drain looks whether it still is.
const PAUSED_LOOK: Duration = Duration::from_millis(100);

impl Drain {
    /// Takes new orders in. A Redis that does not answer leaves those in force that were.
    pub(super) fn take_orders(&mut self, session: &mut Session) {
        // Those that were read may be newer than the last bump knows: once is enough. An older one is
        // news as well: Redis may have come back with older data.
        let bumped = self.tenure.orders();
        if bumped == session.orders.version {
            session.orders_looked_at = bumped;
        }
        if bumped == session.orders_looked_at {
            return;
        }
        match self.runtime.clone().block_on(self.read_orders()) {
            Ok(orders) if orders.version == session.orders.version => {
                session.orders_looked_at = bumped;
            }
            Ok(orders) => {
                session.orders_looked_at = bumped;
                tracing::info!(version = orders.version, "an operator's orders");
                session.owed.settlement.orders.done = Some(orders.version);
                session.orders = orders;
                self.show_pauses(&session.orders);
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "orders could not be read; trying again");
                self.connection = None;
            }
        }
    }

    pub(super) fn show_pauses(&self, orders: &orders::Orders) {
        self.metrics.pauses.set(i64::try_from(orders.pauses.len()).unwrap_or(i64::MAX));
    }

    async fn read_orders(&mut self) -> Result<orders::Orders, spillway_queue::QueueError> {
        let drain = spillway_queue::drains::KAFKA;
        let redis = self.redis.clone();
        orders::read(&redis, self.connected().await?, drain).await
    }

    /// Waits a little while the drain is paused; says whether it is. What is open is ended first.
    pub(super) fn is_paused(&mut self, session: &mut Session, open: &Open) -> Result<bool, Stop> {
        let is_paused = session.orders.pauses.iter().any(|pause| pause.filter.is_empty());
        if is_paused && !open.has_begun {
            session.link.poll(Duration::ZERO);
            self.hear_settled(session)?;
            if !self.shutdown.is_cancelled() {
                self.is_mine()?;
                self.runtime.block_on(tokio::time::sleep(PAUSED_LOOK));
            }
        }
        Ok(is_paused)
    }
}

impl Session {
    /// Whether an operator ordered that the webhook there be dropped.
    pub(super) fn is_to_drop(&self, place: Place) -> bool {
        let dropping = &self.orders.dropping;
        match place {
            Place::Main(id, index) => dropping.is_named(id, index),
            Place::Replay(id) => dropping.replays.contains(&id),
        }
    }
}
