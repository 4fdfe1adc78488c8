//! Applies settlements one after the other. After a lost reply, it applies one again, until the
//! settlement is known to be applied or the lease to be lost.

use std::time::Duration;

use spillway_process::error::chain;
use spillway_queue::settle::{Settlement, Settler};
use spillway_queue::{Connection, QueueError, Redis};
use tokio::sync::mpsc;

/// Time for Redis' answer: longer than a slow fsync, shorter than the time after which a standby
/// takes over.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before Redis is asked again after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// Result of a settlement.
pub type Settled = Result<(), QueueError>;

/// Starts applying settlements, after the one whose mark is `previous`. Each gives one result. Ends
/// when either side is dropped.
pub fn start(
    redis: Redis,
    consumer: &str,
    token: &str,
    previous: Option<String>,
) -> (mpsc::Sender<Settlement>, mpsc::Receiver<Settled>) {
    let (settlements, received) = mpsc::channel(1);
    let (results, settled) = mpsc::channel(1);
    let settler = Settler::new(redis.clone(), consumer, token, previous);
    tokio::spawn(run(redis, settler, received, results));
    (settlements, settled)
}

async fn run(
    redis: Redis,
    mut settler: Settler,
    mut settlements: mpsc::Receiver<Settlement>,
    results: mpsc::Sender<Settled>,
) {
    let mut connection = None;
    while let Some(settlement) = settlements.recv().await {
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
