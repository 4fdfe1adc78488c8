//! Shares of shops, as a consumer's leader publishes them.

use spillway_queue::consumers::forget;
use spillway_queue::shares::{Shares, ShopShare, large_shops, publish};
use spillway_queue::status::{self, CellStatus};
use spillway_queue::{Connection, QueueError, Redis};

use crate::consumer::TestConsumer;
use crate::server::Server;

fn shares(waiting: u64) -> Shares {
    let shop = ShopShare { hash: u64::MAX, shop: "a.myshopify.com".to_owned(), waiting };
    Shares { waiting, shops: vec![shop] }
}

async fn status(redis: &Redis, connection: &mut Connection) -> CellStatus {
    status::read(redis, connection).await.expect("redis answers")
}

#[tokio::test]
async fn shares_are_published_on_a_full_redis_and_read_with_the_status() {
    let server = Server::start(&[]).await;
    server.append(&[b"one", b"two"]).await;
    server.fill_to_the_brim().await;
    let TestConsumer { redis, mut connection, claim, .. } =
        TestConsumer::start(&server, "http").await;
    let connection = &mut connection;
    publish(&redis, connection, "http", claim.token(), &shares(2)).await.unwrap();
    let mut found = status(&redis, connection).await;
    let [large] = &large_shops(&found, &found.consumers[0]).unwrap()[..] else {
        panic!("{found:?}")
    };
    assert_eq!(large.share, shares(2).shops[0]);
    // All webhooks that wait are the shop's; two webhooks take at most 2 MiB.
    assert_eq!(large.bytes, found.queue.bytes.min(2 << 20));
    found.now_ms += 50_000;
    assert_eq!(large_shops(&found, &found.consumers[0]).unwrap().len(), 1);
    found.now_ms += 10_001;
    assert!(large_shops(&found, &found.consumers[0]).unwrap().is_empty(), "they are old");

    publish(&redis, connection, "http", claim.token(), &Shares::default()).await.unwrap();
    assert_eq!(status(&redis, connection).await.consumers[0].notes.shares, "");
    assert_eq!(server.command::<u64>(&["EXISTS", "{spillway}:shares"]).await, 0);
}

#[tokio::test]
async fn only_the_leader_publishes() {
    let server = Server::start(&[]).await;
    let TestConsumer { redis, mut connection, claim, .. } =
        TestConsumer::start(&server, "http").await;
    let connection = &mut connection;
    publish(&redis, connection, "http", claim.token(), &shares(1)).await.unwrap();
    let stranger = publish(&redis, connection, "http", "another", &shares(2)).await;
    assert!(matches!(stranger, Err(QueueError::Fenced)), "{stranger:?}");
    let published = status(&redis, connection).await.consumers[0].notes.shares.clone();
    assert!(published.contains(r#""waiting":1"#), "{published}");
    assert!(forget(&redis, connection, "http").await.unwrap());
    let late = publish(&redis, connection, "http", claim.token(), &shares(3)).await;
    assert!(matches!(late, Err(QueueError::Fenced)), "{late:?}");
    assert_eq!(server.command::<u64>(&["EXISTS", "{spillway}:shares"]).await, 0);
}
