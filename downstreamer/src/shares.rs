//! Publishes which shops take much of what waits, so that receivers can refuse them beyond
//! `SHOP_MAX_QUEUED`.

use std::time::Duration;

use spillway_process::error::chain;
use spillway_queue::shares::{self, Shares, ShopShare};
use spillway_queue::{Connection, QueueError, Redis};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::names::Names;

/// Time between two publications of shares that change.
const PUBLISH_EVERY: Duration = Duration::from_secs(1);
/// Time after which unchanged shares are published again. Receivers ignore shares older than 60 s,
/// since a downstreamer that is gone publishes nothing.
const REPEAT_EVERY: Duration = Duration::from_secs(20);
const _: () =
    assert!(PUBLISH_EVERY.as_millis() < REPEAT_EVERY.as_millis(), "news go out before a repeat");
const _: () = assert!(
    2 * REPEAT_EVERY.as_millis() < shares::FRESH_FOR.as_millis(),
    "one lost repeat is no gap"
);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Publisher of one leader.
struct Publisher {
    redis: Redis,
    consumer: String,
    token: String,
    connection: Option<Connection>,
    /// Shares that Redis holds, with the time of publication. `None` before the first publication:
    /// an earlier leader may have published shares.
    published: Option<(Shares, Instant)>,
}

/// Adds the names of shops to the core's shares.
pub(crate) fn named(shares: &spillway_delivery::ShopLoads, names: &Names) -> Shares {
    let shops = shares.shops.iter().map(|share| {
        let of_lane = share.lane.and_then(|lane| names.lane(lane)).map(|name| name.shop.as_str());
        let shop = of_lane.or_else(|| names.shop(share.hash)).unwrap_or_default().to_owned();
        ShopShare { hash: share.hash, shop, waiting: share.waiting }
    });
    Shares { waiting: shares.waiting, shops: shops.collect() }
}

/// Starts publishing the shares that are sent, as the leader with this token. Ends when the sender
/// is dropped. Publishes nothing once another instance leads.
pub(crate) fn start(redis: Redis, consumer: &str, token: &str) -> watch::Sender<Shares> {
    let (sender, mut latest) = watch::channel(Shares::default());
    let mut publisher = Publisher {
        redis,
        consumer: consumer.to_owned(),
        token: token.to_owned(),
        connection: None,
        published: None,
    };
    tokio::spawn(async move {
        while latest.has_changed().is_ok() {
            // At first, it is unknown what waits.
            tokio::time::sleep(PUBLISH_EVERY).await;
            let shares = latest.borrow_and_update().clone();
            if publisher.is_due(&shares, Instant::now()) {
                match publisher.publish(shares).await {
                    Ok(()) => {}
                    // Another instance leads. The task goes on, since its end would be taken for a
                    // fault.
                    Err(QueueError::Fenced) => break,
                    Err(error) => {
                        publisher.connection = None;
                        tracing::debug!(error = chain(&error), "shares of shops not published");
                    }
                }
            }
        }
        while latest.changed().await.is_ok() {}
    });
    sender
}

impl Publisher {
    fn is_due(&self, shares: &Shares, now: Instant) -> bool {
        let Some((published, at)) = &self.published else { return true };
        if shares.shops.is_empty() {
            return !published.shops.is_empty();
        }
        published != shares || now.duration_since(*at) >= REPEAT_EVERY
    }

    async fn publish(&mut self, shares: Shares) -> Result<(), QueueError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.redis.connect(Some(ANSWER_TIMEOUT)).await?),
        };
        let at = Instant::now();
        shares::publish(&self.redis, connection, &self.consumer, &self.token, &shares).await?;
        self.published = Some((shares, at));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(waiting: u64) -> Shares {
        let shop = ShopShare { hash: 1, shop: String::new(), waiting };
        Shares { waiting, shops: vec![shop] }
    }

    #[tokio::test]
    async fn shares_are_published_when_they_change_and_again_before_they_are_too_old() {
        let redis = Redis::new("unix:///nowhere", "test:").expect("a URL");
        let now = Instant::now();
        let published = |published| Publisher {
            redis: redis.clone(),
            consumer: String::new(),
            token: String::new(),
            connection: None,
            published,
        };
        let nothing = Shares::default();
        assert!(published(None).is_due(&nothing, now), "a leader before may have left something");
        let calm = published(Some((nothing.clone(), now)));
        assert!(!calm.is_due(&nothing, now + 10 * REPEAT_EVERY));
        assert!(calm.is_due(&shares(5), now));
        let busy = published(Some((shares(5), now)));
        assert!(!busy.is_due(&shares(5), now + REPEAT_EVERY / 2));
        assert!(busy.is_due(&shares(5), now + REPEAT_EVERY));
        assert!(busy.is_due(&shares(6), now));
        assert!(busy.is_due(&nothing, now));
    }
}
