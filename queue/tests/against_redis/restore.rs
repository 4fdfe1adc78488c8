//! Restoring an overflow log.

use spillway_queue::restore::{Claimed, SpillClaim};
use spillway_queue::{Connection, QueueError};

use crate::server::Server;

const LOG: u64 = 7;

async fn claimed(server: &Server, token: u64, connection: &mut Connection) -> (SpillClaim, u64) {
    let claim = SpillClaim::new(server.redis(), LOG, token);
    let held = claim.confirm(connection, "").await.expect("redis answers");
    let Claimed::Ours { restored, .. } = held else { panic!("{held:?}") };
    (claim, restored)
}

#[tokio::test]
async fn a_note_that_comes_late_sets_nothing_back() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let (claim, restored) = claimed(&server, 1, &mut connection).await;
    assert_eq!(restored, 0);
    claim.restore(&mut connection, 0, &[(1, 1, &b"one"[..]), (2, 1, &b"two"[..])]).await.unwrap();
    // Redis came back with older data: it has what was restored up to 2.
    claim.note(&mut connection, 2, 2).await.unwrap();
    let entry = claim.restore(&mut connection, 2, &[(3, 1, &b"three"[..])]).await.unwrap();
    assert_eq!(server.ids("{spillway}:in").await.last(), Some(&entry.to_string()));

    let late = claim.note(&mut connection, 2, 2).await;
    assert!(matches!(late, Err(QueueError::OutOfStep)), "{late:?}");
    let again = claim.restore(&mut connection, 2, &[(3, 1, &b"three"[..])]).await;
    assert!(matches!(again, Err(QueueError::OutOfStep)), "{again:?}");
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, 3);
}

#[tokio::test]
async fn a_note_of_a_process_that_is_not_the_holder_any_more_is_fenced() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let (before, _) = claimed(&server, 1, &mut connection).await;
    let (claim, _) = claimed(&server, 2, &mut connection).await;
    let late = before.note(&mut connection, 0, 5).await;
    assert!(matches!(late, Err(QueueError::Fenced)), "{late:?}");
    // What was lost of the log is passed over.
    claim.note(&mut connection, 0, 5).await.unwrap();
    let (_, restored) = claimed(&server, 2, &mut connection).await;
    assert_eq!(restored, 5);
}
