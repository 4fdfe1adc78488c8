//! A consumer that is registered and leads, and webhooks for it to give up and to replay.

use spillway_queue::consumers::{self, StartAt};
use spillway_queue::dead::{self, Take};
use spillway_queue::leader::Candidacy;
use spillway_queue::read::{ConsumerProgress, StreamReader};
use spillway_queue::settle::{Dead, PassedEntries, Settlement, Settler};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::{StreamId, WebhookId};

use crate::server::Server;

/// The consumer of a test.
pub(crate) struct TestConsumer {
    pub name: &'static str,
    pub redis: Redis,
    pub connection: Connection,
    pub claim: Candidacy,
    pub reader: StreamReader,
    pub settler: Settler,
}

impl TestConsumer {
    /// Registers a consumer at the oldest entry, and becomes its leader.
    pub(crate) async fn start(server: &Server, name: &'static str) -> Self {
        let mut connection = server.connect().await;
        consumers::register(&server.redis(), &mut connection, Some(name), StartAt::Oldest)
            .await
            .expect("it can be registered");
        Self::own(server, name).await
    }

    /// Becomes the leader, in place of any other.
    pub(crate) async fn own(server: &Server, name: &'static str) -> Self {
        let (redis, mut connection) = (server.redis(), server.connect().await);
        let claim = Candidacy::new(redis.clone(), name);
        let seen = claim.look(&mut connection).await.expect("redis answers");
        claim.take(&mut connection, &seen).await.expect("nobody else takes it");
        let reader = StreamReader::new(redis.clone(), name);
        let mark = reader.mark(&mut connection).await.expect("redis answers");
        let settler = Settler::new(redis.clone(), name, claim.token(), mark);
        Self { name, redis, connection, claim, reader, settler }
    }

    /// Settles under the next number.
    pub(crate) async fn settle(&mut self, settlement: &Settlement) -> Result<(), QueueError> {
        self.settler.begin();
        self.settle_again(settlement).await
    }

    /// Settles under the same number as before.
    pub(crate) async fn settle_again(&mut self, settlement: &Settlement) -> Result<(), QueueError> {
        self.settler.apply(&mut self.connection, settlement).await
    }

    /// Settles one entry of one webhook by moving the cursor over it.
    pub(crate) async fn pass(&mut self, entry: StreamId) {
        self.settle(&up_to(entry, 1, 1)).await.expect("it is settled");
    }

    /// Gives webhooks up and replays all dead letters. Returns the ids of all replays.
    pub(crate) async fn replay(&mut self, ms: impl IntoIterator<Item = u64>) -> Vec<StreamId> {
        let letters = ms.into_iter().map(|ms| dead(ms, "orders/create")).collect();
        self.settle(&Settlement { dead: letters, ..Settlement::default() })
            .await
            .expect("given up");
        let (redis, connection) = (&self.redis, &mut self.connection);
        let letters = dead::list(redis, connection, self.name, StreamId::ZERO, 1_000).await;
        let ids: Vec<_> = letters.expect("redis answers").iter().map(|one| one.id).collect();
        dead::take(redis, connection, self.name, Take::Replay, &ids).await.expect("redis answers");
        let replays = self.reader.replays_after(connection, StreamId::ZERO, 1 << 20).await;
        replays.expect("redis answers").iter().map(|replay| replay.id).collect()
    }

    pub(crate) async fn progress(&mut self) -> ConsumerProgress {
        self.reader.progress(&mut self.connection).await.expect("it is registered")
    }
}

/// A settlement that moves the cursor.
pub(crate) fn up_to(cursor: StreamId, entries: u64, webhooks: u64) -> Settlement {
    let passed = Some(PassedEntries { cursor, entries, webhooks });
    Settlement { passed, ..Settlement::default() }
}

/// Id of the first webhook of an entry, in some cell.
pub(crate) fn webhook(ms: u64) -> WebhookId {
    WebhookId { cell: 7, entry: StreamId { ms, seq: 0 }, index: 0 }
}

/// A webhook to give up.
pub(crate) fn dead(ms: u64, topic: &str) -> Dead {
    let labels = ["a.myshopify.com", topic, "product/1", "b54557e4"].map(str::to_owned);
    Dead {
        pack: format!("pack of {ms}").into_bytes(),
        webhook: webhook(ms),
        labels,
        reason: "refused",
        status: 404,
        attempts: 9,
        answer: b"no such route".to_vec(),
    }
}
