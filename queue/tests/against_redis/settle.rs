//! Settling: completely or not at all, once, by the leader only.

use spillway_queue::QueueError;
use spillway_queue::dead::list;
use spillway_queue::history::{self, OutcomeRecord, RecordedOutcome};
use spillway_queue::settle::{CorruptEntries, Remembered, Settlement, Settler};
use spillway_webhook::StreamId;

use crate::consumer::{TestConsumer, dead, up_to};
use crate::proxy::{Fault, Proxy};
use crate::server::Server;

#[tokio::test]
async fn the_bits_of_a_pack_are_kept_until_it_is_whole() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let bits = vec![(ids[0], vec![0b101]), (ids[1], vec![0, 255])];
    http.settle(&Settlement { bits, settled_after_cursor: 10, ..Settlement::default() })
        .await
        .unwrap();
    let bits = vec![(ids[1], vec![1, 255])];
    http.settle(&Settlement { bits, settled_after_cursor: 11, ..Settlement::default() })
        .await
        .unwrap();
    let progress = http.progress().await;
    assert_eq!((progress.cursor, progress.through), (StreamId::ZERO, 0));
    assert_eq!(progress.done[&ids[0]], [0b101]);
    assert_eq!(progress.done[&ids[1]], [1, 255]);

    let whole = vec![ids[0]];
    http.settle(&Settlement { whole, settled_after_cursor: 9, ..up_to(ids[0], 1, 3) })
        .await
        .unwrap();
    let progress = http.progress().await;
    assert_eq!((progress.cursor, progress.through), (ids[0], 3));
    assert_eq!(progress.done.keys().collect::<Vec<_>>(), [&ids[1]]);
}

#[tokio::test]
async fn the_cursor_only_moves_forward_and_ids_compare_as_numbers() {
    let server = Server::start(&[]).await;
    let nine = server.append_as("5-9").await;
    let ten = server.append_as("5-10").await;
    let later = server.append_as("10-0").await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.settle(&up_to(nine, 1, 1)).await.unwrap();
    assert_eq!(http.progress().await.cursor, nine);
    assert_eq!(server.ids("{spillway}:in").await, ["5-10", "10-0"]);
    http.settle(&up_to(ten, 1, 1)).await.unwrap();
    assert_eq!(http.progress().await.cursor, ten);
    http.settle(&up_to(nine, 1, 1)).await.unwrap();
    let progress = http.progress().await;
    assert_eq!((progress.cursor, progress.through), (ten, 2));
    assert_eq!(server.ids("{spillway}:in").await, ["10-0"]);
    http.settle(&up_to(later, 1, 1)).await.unwrap();
    assert_eq!(http.progress().await.cursor, later);
    assert!(server.ids("{spillway}:in").await.is_empty());
}

#[tokio::test]
async fn a_settlement_that_is_sent_again_changes_nothing() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let settlement = Settlement {
        dead: vec![dead(3, "orders/create"), dead(4, "orders/create")],
        ..up_to(ids[0], 1, 1)
    };
    http.settle(&settlement).await.unwrap();
    let dead = server.ids("{spillway}:http:dead").await;
    assert_eq!(dead.len(), 2);
    let bytes: u64 = server.command(&["GET", "{spillway}:http:dead:bytes"]).await;
    http.settle_again(&settlement).await.unwrap();
    assert_eq!(server.ids("{spillway}:http:dead").await, dead);
    assert_eq!(server.command::<u64>(&["GET", "{spillway}:http:dead:bytes"]).await, bytes);
    // Under the next number, equal content is another settlement.
    http.settle(&settlement).await.unwrap();
    assert_eq!(server.ids("{spillway}:http:dead").await.len(), 4);
}

#[tokio::test]
async fn a_settler_made_anew_under_the_same_token_does_not_seem_to_repeat_the_first() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let settlement = Settlement { dead: vec![dead(1, "orders/create")], ..Settlement::default() };
    http.settle(&settlement).await.unwrap();
    let mark = http.progress().await.mark;
    http.settler = Settler::new(http.redis.clone(), "http", http.claim.token(), mark);
    http.settle(&settlement).await.unwrap();
    assert_eq!(server.ids("{spillway}:http:dead").await.len(), 2);
}

#[tokio::test]
async fn a_settlement_whose_reply_is_lost_is_sent_again_on_another_connection() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one"]).await;
    let proxy = Proxy::before(&server);
    let mut http = TestConsumer::start(&server, "http").await;
    // Redis knows the script already, so that the request is a single one.
    http.settle(&Settlement::default()).await.unwrap();
    http.connection = proxy.redis().connect(None).await.unwrap();
    proxy.harm_next_request(Fault::CutBeforeReply);
    let settlement = Settlement { dead: vec![dead(1, "orders/create")], ..up_to(ids[0], 1, 1) };
    let lost = http.settle(&settlement).await;
    assert!(matches!(lost, Err(QueueError::Unreachable(_))), "{lost:?}");
    http.connection = server.connect().await;
    http.settle_again(&settlement).await.unwrap();
    assert_eq!(server.ids("{spillway}:http:dead").await.len(), 1);
    assert_eq!(http.progress().await.cursor, ids[0]);
}

#[tokio::test]
async fn a_settlement_of_a_leader_of_the_past_is_fenced_and_changes_nothing() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one"]).await;
    let mut late = TestConsumer::start(&server, "http").await;
    let replays = late.replay([1]).await;
    let _new = TestConsumer::own(&server, "http").await;
    let settlement = Settlement {
        corrupt: CorruptEntries { packs: vec![ids[0]], replays: Vec::new() },
        bits: vec![(ids[0], vec![1])],
        replays,
        dead: vec![dead(2, "orders/create")],
        settled_after_cursor: 7,
        ..up_to(ids[0], 1, 1)
    };
    let before: Vec<String> = keys(&server).await;
    let fenced = late.settle(&settlement).await;
    assert!(matches!(fenced, Err(QueueError::Fenced)), "{fenced:?}");
    assert_eq!(keys(&server).await, before);
    assert_eq!(server.command::<u64>(&["HGET", "{spillway}:counts", "open:http"]).await, 0);
    assert_eq!(server.ids("{spillway}:http:replays").await.len(), 1);
    assert!(server.ids("{spillway}:http:dead").await.is_empty());
    assert_eq!(late.progress().await.cursor, StreamId::ZERO);
    assert_eq!(server.ids("{spillway}:in").await.len(), 1);
}

#[tokio::test]
async fn a_consumer_without_a_cursor_is_unregistered_and_nothing_changes() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one"]).await;
    let mut stray = TestConsumer::own(&server, "http").await;
    let before = keys(&server).await;
    let dead = vec![dead(1, "orders/create")];
    let refused = stray.settle(&Settlement { dead, ..up_to(ids[0], 1, 1) }).await;
    assert!(matches!(refused, Err(QueueError::Unregistered)), "{refused:?}");
    assert_eq!(keys(&server).await, before);
}

#[tokio::test]
async fn an_entry_that_cannot_be_decoded_is_set_aside_under_its_own_key() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"\x00\xffnot a pack"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let packs = vec![ids[0], StreamId { ms: 1, seq: 1 }];
    let corrupt = CorruptEntries { packs, replays: Vec::new() };
    http.settle(&Settlement { corrupt, ..up_to(ids[0], 1, 1) }).await.unwrap();
    assert!(server.ids("{spillway}:in").await.is_empty());
    let key = format!("{}{}", server.redis().keys.corrupt_prefix(), ids[0]);
    assert_eq!(key, format!("{{spillway}}:corrupt:{}", ids[0]));
    assert_eq!(server.command::<Vec<u8>>(&["GET", &key]).await, b"\x00\xffnot a pack");
    let gone = format!("{}1-1", server.redis().keys.corrupt_prefix());
    assert_eq!(server.command::<u8>(&["EXISTS", &gone]).await, 0);
}

#[tokio::test]
async fn a_replay_that_cannot_be_decoded_is_set_aside_too() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let replays = http.replay([1]).await;
    let key = format!("{{spillway}}:corrupt:replay:{}", replays[0]);
    let corrupt = CorruptEntries { packs: Vec::new(), replays };
    http.settle(&Settlement { corrupt, ..Settlement::default() }).await.unwrap();
    assert!(server.ids("{spillway}:http:replays").await.is_empty());
    assert_eq!(server.command::<Vec<u8>>(&["GET", &key]).await, dead(1, "orders/create").pack);
}

#[tokio::test]
async fn a_redis_that_came_back_with_older_data_is_noticed_before_anything_is_settled() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let dead_one = vec![dead(1, "orders/create")];
    http.settle(&Settlement { dead: dead_one, ..Settlement::default() }).await.unwrap();
    let older: Vec<u8> = server.command(&["GET", "{spillway}:http:settled"]).await;
    let older = String::from_utf8(older).unwrap();
    http.settle(&Settlement { dead: vec![dead(2, "orders/create")], ..up_to(ids[0], 1, 1) })
        .await
        .unwrap();
    let _: String = server.command(&["SET", "{spillway}:http:settled", &older]).await;
    let refused = http.settle(&up_to(ids[1], 1, 1)).await;
    assert!(matches!(refused, Err(QueueError::Unregistered)), "{refused:?}");
    assert_eq!(http.progress().await.cursor, ids[0]);
}

#[tokio::test]
async fn a_late_copy_of_the_first_settlement_is_refused_after_the_second() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mark = http.progress().await.mark;
    assert_eq!(mark, None);
    let proxy = Proxy::before(&server);
    http.connection = proxy.redis().connect(None).await.unwrap();
    let bits = vec![(ids[0], vec![0b01])];
    http.settle(&Settlement { bits, settled_after_cursor: 1, ..Settlement::default() })
        .await
        .unwrap();
    let copy = proxy.last_request();
    let bits = vec![(ids[0], vec![0b11])];
    http.settle(&Settlement { bits, settled_after_cursor: 2, ..Settlement::default() })
        .await
        .unwrap();
    let second = http.progress().await.mark;
    assert!(second.as_ref().is_some_and(|mark| mark.starts_with(http.claim.token())), "{second:?}");

    let reply = proxy.deliver(&copy).await;
    assert!(reply.starts_with("-NOGROUP"), "{reply}");
    let progress = http.progress().await;
    assert_eq!(progress.done[&ids[0]], [0b11]);
    assert_eq!(progress.mark, second);
    assert_eq!(server.command::<u64>(&["HGET", "{spillway}:counts", "open:http"]).await, 2);
    // The leader itself continues.
    http.settle(&up_to(ids[0], 1, 1)).await.unwrap();
}

#[tokio::test]
async fn the_first_settlement_of_a_leader_names_the_last_one_of_the_leader_before() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one"]).await;
    let mut first = TestConsumer::start(&server, "http").await;
    first.settle(&Settlement::default()).await.unwrap();
    let mut second = TestConsumer::own(&server, "http").await;
    // Redis comes back without the last settlement.
    let _: u64 = server.command(&["DEL", "{spillway}:http:settled"]).await;
    let refused = second.settle(&up_to(ids[0], 1, 1)).await;
    assert!(matches!(refused, Err(QueueError::Unregistered)), "{refused:?}");
    let mut third = TestConsumer::own(&server, "http").await;
    third.settle(&up_to(ids[0], 1, 1)).await.unwrap();
}

#[tokio::test]
async fn a_cursor_after_everything_that_redis_knows_is_refused() {
    let server = Server::start(&[]).await;
    let first = server.append_as("100-0").await;
    let mut http = TestConsumer::start(&server, "http").await;
    let older = server.dump("{spillway}:in").await;
    let lost = server.append_as("200-0").await;
    server.restore("{spillway}:in", &older).await;
    let before = keys(&server).await;
    let dead = vec![dead(1, "orders/create")];
    let refused = http.settle(&Settlement { dead, ..up_to(lost, 2, 2) }).await;
    assert!(matches!(refused, Err(QueueError::Unregistered)), "{refused:?}");
    assert_eq!(keys(&server).await, before);
    http.settle(&up_to(first, 1, 1)).await.unwrap();
}

#[tokio::test]
async fn what_was_appended_with_a_slower_clock_after_appends_were_lost_is_not_trimmed_unread() {
    let server = Server::start(&[]).await;
    server.append_as("100-0").await;
    let mut http = TestConsumer::start(&server, "http").await;
    let older = server.dump("{spillway}:in").await;
    let lost = server.append_as("110-0").await;
    server.restore("{spillway}:in", &older).await;
    server.append_as("105-0").await;
    server.append_as("120-0").await;
    let refused = http.settle(&up_to(lost, 2, 2)).await;
    assert!(matches!(refused, Err(QueueError::Unregistered)), "{refused:?}");
    assert_eq!(server.ids("{spillway}:in").await, ["100-0", "105-0", "120-0"]);
    assert_eq!(http.progress().await.cursor, StreamId::ZERO);
}

#[tokio::test]
async fn a_lost_entry_is_noticed_beside_a_slower_consumer_too_and_what_that_needs_is_kept() {
    let server = Server::start(&[]).await;
    let first = server.append_as("100-0").await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut kafka = TestConsumer::start(&server, "kafka").await;
    let older = server.dump("{spillway}:in").await;
    let lost = server.append_as("110-0").await;
    server.restore("{spillway}:in", &older).await;
    server.append_as("120-0").await;
    let refused = http.settle(&up_to(lost, 2, 2)).await;
    assert!(matches!(refused, Err(QueueError::Unregistered)), "{refused:?}");
    http.settle(&up_to(first, 1, 1)).await.unwrap();
    assert_eq!(server.ids("{spillway}:in").await, ["100-0", "120-0"]);
    kafka.settle(&up_to(first, 1, 1)).await.unwrap();
    assert_eq!(server.ids("{spillway}:in").await, ["120-0"]);
}

#[tokio::test]
async fn a_settlement_of_thousands_is_one_step() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let ids: Vec<_> = (1..=5_000).map(|seq| StreamId { ms: 1, seq }).collect();
    let settlement = Settlement {
        bits: ids.iter().map(|id| (*id, vec![1])).collect(),
        whole: ids[1..].to_vec(),
        dead: (1..=5_000).map(|ms| dead(ms, "orders/create")).collect(),
        ..Settlement::default()
    };
    http.settle(&settlement).await.unwrap();
    let letters = list(&http.redis, &mut http.connection, "http", StreamId::ZERO, 9_999).await;
    let order: Vec<_> = letters.unwrap().iter().map(|letter| letter.webhook.entry.ms).collect();
    assert_eq!(order, (1..=5_000).collect::<Vec<_>>());
    assert_eq!(http.progress().await.done.len(), 1);
}

async fn keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = server.command(&["KEYS", "*"]).await;
    keys.sort();
    keys
}

#[tokio::test]
async fn the_history_of_what_is_given_up_is_not_later_than_its_dead_letters() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    // Enough that the settlement takes some milliseconds of Redis' clock.
    let given_up: Vec<_> = (1..=2_000).map(|ms| dead(ms, "orders/create")).collect();
    let mut history = Vec::new();
    for one in &given_up {
        let outcome = RecordedOutcome::Dead;
        let past =
            OutcomeRecord { key: 7, entry: one.webhook.entry, index: 0, outcome, attempts: 9 };
        past.write(&mut history);
    }
    let remembered = Remembered { history, ..Remembered::default() };
    let settlement = Settlement { dead: given_up, remembered, ..Settlement::default() };
    http.settle(&settlement).await.unwrap();

    let chunks =
        history::after(&server.redis(), &mut http.connection, "http", StreamId::ZERO).await;
    let told = chunks.expect("redis answers")[0].id;
    let dead = server.ids("{spillway}:http:dead").await;
    let first = dead[0].parse::<StreamId>().expect("an id");
    assert_eq!(dead.len(), 2_000);
    assert!(told.ms <= first.ms, "given up at {told}, dead at {first}");
}
