//! Applies settlements one after the other, and again after a lost reply, until each is known to
//! be applied or the drain to be lost.

use std::time::Duration;

use spillway_queue::settle::{Settlement, Settler};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::error::chain;
use tokio::sync::mpsc;

/// Time for Redis' answer: longer than a slow fsync, shorter than a standby's patience.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before Redis is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Result of a settlement.
pub type Settled = Result<(), QueueError>;

/// Starts applying what comes in, after the settlement whose mark is `previous`; a result comes out
/// for each. Ends when either side is dropped.
pub fn start(
    redis: Redis,
    drain: &str,
    token: &str,
    previous: Option<String>,
) -> (mpsc::Sender<Settlement>, mpsc::Receiver<Settled>) {
    let (orders, ordered) = mpsc::channel(1);
    let (results, settled) = mpsc::channel(1);
    let settler = Settler::new(redis.clone(), drain, token, previous);
    tokio::spawn(run(redis, settler, ordered, results));
    (orders, settled)
}

async fn run(
    redis: Redis,
    mut settler: Settler,
    mut orders: mpsc::Receiver<Settlement>,
    results: mpsc::Sender<Settled>,
) {
    let mut connection = None;
    while let Some(settlement) = orders.recv().await {
        settler.begin();
        let mut is_failing = false;
        let settled = loop {
            match apply(&redis, &mut settler, &mut connection, &settlement).await {
                Ok(()) => break Ok(()),
                Err(error @ (QueueError::Fenced | QueueError::Unregistered)) => break Err(error),
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(
                            error = chain(&error),
                            "settling failed; trying until redis answers"
                        );
                    }
                    connection = None;
                    tokio::time::sleep(PAUSE).await;
                    if results.is_closed() {
                        return;
                    }
                }
            }
        };
        if results.send(settled).await.is_err() {
            return;
        }
    }
}

async fn apply(
    redis: &Redis,
    settler: &mut Settler,
    connection: &mut Option<Connection>,
    settlement: &Settlement,
) -> Settled {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(redis.connect(Some(ANSWER_TIMEOUT)).await?),
    };
    settler.apply(connection, settlement).await
}
