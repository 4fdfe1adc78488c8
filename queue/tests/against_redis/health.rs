//! Health checks against a real Redis.

use spillway_queue::health::{
    self, Durability, DurabilityPolicy, HealthVerdict, RedisInfo, durability, judge,
};
use spillway_queue::{AofDisk, Connection, rewrite};

use crate::server::{Server, until};

async fn read(server: &Server, connection: &mut Connection) -> RedisInfo {
    health::read(&server.redis(), connection, &mut AofDisk::default()).await.expect("Redis answers")
}

fn policy(is_required: bool) -> DurabilityPolicy {
    DurabilityPolicy { is_required, is_vouched: false }
}

#[tokio::test]
async fn the_facts_of_a_durable_redis_are_read() {
    let server = Server::start(&["--maxmemory", "1gb"]).await;
    server.append(&[[b'x'; 10_000].as_slice()]).await;
    let mut connection = server.connect().await;
    let facts = read(&server, &mut connection).await;
    assert!(facts.version.starts_with(|first: char| first.is_ascii_digit()), "{facts:?}");
    assert_eq!(facts.eviction_policy, "noeviction");
    assert_eq!(facts.fsync.as_deref(), Some("always"));
    assert!(facts.aof_enabled && !facts.is_rewriting && !facts.aof_write_failed);
    assert_eq!((facts.limit_bytes, facts.rewrite_failures), (1 << 30, 0));
    assert!(facts.used_bytes > 10_000 && facts.used_bytes < 100 << 20, "{facts:?}");
    assert!(facts.aof_bytes > 10_000, "{facts:?}");
    assert!(facts.disk_free_bytes.is_some_and(|free| free > 0));
    assert_eq!(durability(&facts, false), Durability::Always);
}

#[tokio::test]
async fn where_config_is_forbidden_durability_is_unknown() {
    let server = Server::start(&["--rename-command", "CONFIG", ""]).await;
    let mut connection = server.connect().await;
    let facts = read(&server, &mut connection).await;
    assert_eq!((&facts.fsync, facts.disk_free_bytes), (&None, None));
    assert!(facts.aof_enabled);
    assert_eq!(durability(&facts, false), Durability::None);
    assert!(matches!(judge(&facts, policy(true), false), HealthVerdict::Refused(_)));
}

#[tokio::test]
async fn a_redis_that_evicts_or_syncs_less_is_seen_through() {
    let server =
        Server::start(&["--maxmemory-policy", "allkeys-lru", "--appendfsync", "everysec"]).await;
    let mut connection = server.connect().await;
    let facts = read(&server, &mut connection).await;
    assert_eq!(durability(&facts, false), Durability::EverySecond);
    assert!(
        matches!(judge(&facts, policy(false), false), HealthVerdict::Refused(why) if why.contains("allkeys-lru"))
    );
}

#[tokio::test]
async fn a_redis_that_does_not_sync_while_it_rewrites_keeps_nothing_for_certain() {
    let server = Server::start(&["--no-appendfsync-on-rewrite", "yes"]).await;
    let mut connection = server.connect().await;
    let facts = read(&server, &mut connection).await;
    assert_eq!(durability(&facts, false), Durability::None);
    let refused = judge(&facts, policy(true), false);
    assert!(
        matches!(&refused, HealthVerdict::Refused(why) if why.contains("no-appendfsync-on-rewrite no")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_redis_without_an_aof_keeps_nothing() {
    let server = Server::start(&["--appendonly", "no"]).await;
    let mut connection = server.connect().await;
    let facts = read(&server, &mut connection).await;
    assert!(!facts.aof_enabled);
    assert_eq!((facts.aof_bytes, durability(&facts, false)), (0, Durability::None));
}

#[tokio::test]
async fn the_aof_is_rewritten_when_asked_for() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[[b'x'; 100_000].as_slice(); 10]).await;
    let mut connection = server.connect().await;
    let before = read(&server, &mut connection).await.aof_bytes;
    let _: u64 = server.command(&["XDEL", "{spillway}:in", &ids[0].to_string()]).await;
    let _: u64 = server.command(&["XTRIM", "{spillway}:in", "MAXLEN", "1"]).await;
    rewrite::start(&mut connection).await.unwrap();
    until("the AOF has shrunk", async || {
        let facts = read(&server, &mut connection).await;
        !facts.is_rewriting && facts.aof_bytes < before / 2
    })
    .await;
}
