//! Reading: in order, within its budget, without a change to anything.

use std::time::Duration;

use spillway_queue::QueueError;
use spillway_queue::append::Appender;
use spillway_queue::read::{Entry, LastRead, StreamNews, StreamReader};
use spillway_queue::settle::Settlement;
use spillway_webhook::StreamId;

use crate::consumer::{TestConsumer, webhook};
use crate::server::Server;

#[tokio::test]
async fn packs_are_read_as_they_were_appended_and_in_order() {
    let server = Server::start(&[]).await;
    let packs: Vec<Vec<u8>> = (0..100u8).map(|at| vec![at, 0, b'\r', b'\n', 255]).collect();
    let packs: Vec<&[u8]> = packs.iter().map(Vec::as_slice).collect();
    let ids = server.append(&packs).await;
    assert!(ids.is_sorted());
    let reader = StreamReader::new(server.redis(), "http");
    let mut connection = server.connect().await;
    let (mut after, mut read) = (StreamId::ZERO, Vec::new());
    loop {
        let found = reader.main_after(&mut connection, after, 1 << 20).await.unwrap();
        let Some(last) = found.last() else { break };
        after = last.id;
        read.extend(found);
    }
    assert_eq!(read.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
    assert_eq!(read.iter().map(|entry| &entry.pack[..]).collect::<Vec<_>>(), packs);
}

#[tokio::test]
async fn a_read_ends_with_the_entry_that_uses_its_budget_up() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[[b'x'; 1_000].as_slice(); 10]).await;
    let reader = StreamReader::new(server.redis(), "http");
    let mut connection = server.connect().await;
    for (bytes, expected) in [(1, 1), (999, 1), (1_500, 2), (2_500, 3), (1 << 20, 10)] {
        let found = reader.main_after(&mut connection, StreamId::ZERO, bytes).await.unwrap();
        assert_eq!(found.len(), expected, "{bytes} bytes");
    }
    let rest = reader.main_after(&mut connection, ids[7], 1 << 20).await.unwrap();
    assert_eq!(rest.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids[8..]);
}

#[tokio::test]
async fn entries_are_read_by_their_number_whatever_their_size() {
    let server = Server::start(&[]).await;
    let large = vec![b'x'; 100_000];
    let ids = server.append(&[b"one", &large[..], b"three", &large[..], b"five"]).await;
    let reader = StreamReader::new(server.redis(), "http");
    let mut connection = server.connect().await;
    for (after, expected) in
        [(StreamId::ZERO, &ids[..3]), (ids[0], &ids[1..4]), (ids[3], &ids[4..])]
    {
        let found = reader.main_next(&mut connection, after, 3).await.unwrap();
        assert_eq!(found.iter().map(|entry| entry.id).collect::<Vec<_>>(), expected);
    }
    let found = reader.main_next(&mut connection, ids[0], 1).await.unwrap();
    assert_eq!(found[0].pack, large);
    assert!(reader.main_next(&mut connection, ids[4], 3).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_entry_is_read_again_until_it_is_freed() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let again = http.reader.main_entry(&mut http.connection, ids[0]).await.unwrap();
    assert_eq!(again.unwrap(), "one");
    http.pass(ids[0]).await;
    assert_eq!(http.reader.main_entry(&mut http.connection, ids[0]).await.unwrap(), None);
    let found = http.reader.main_entries(&mut http.connection, &[ids[1], ids[0]]).await.unwrap();
    let found = found.into_iter().map(|entry| entry.map(|one| (one.id, one.pack)));
    assert_eq!(found.collect::<Vec<_>>(), [Some((ids[1], "two".into())), None]);
}

#[tokio::test]
async fn waiting_ends_with_entries_or_with_patience() {
    let server = Server::start(&[]).await;
    let reader = StreamReader::new(server.redis(), "http");
    let mut connection = server.connect().await;
    let soon = (2, Duration::from_millis(20));
    let found = |news: Result<StreamNews, QueueError>| {
        let StreamNews { main, is_replay } = news.unwrap();
        (main.into_iter().map(|entry| (entry.id, entry.pack)).collect::<Vec<_>>(), is_replay)
    };
    let start = Some(StreamId::ZERO);
    let woken = reader.wait_for(&mut connection, start, start, soon).await;
    assert_eq!(found(woken), (Vec::new(), false));
    let mut appender = Appender::new(server.redis());
    let long = (2, Duration::from_secs(8));
    let (woken, appended) = tokio::join!(
        reader.wait_for(&mut connection, start, start, long),
        appender.append(b"pack", 1),
    );
    let first = appended.unwrap();
    assert_eq!(found(woken), (vec![(first, "pack".into())], false));
    let woken = reader.wait_for(&mut connection, Some(first), start, soon).await;
    assert_eq!(found(woken), (Vec::new(), false));
    let add = ["XADD", "{spillway}:http:replays", "*", "p", "x"];
    let (woken, _) = tokio::join!(
        reader.wait_for(&mut connection, Some(first), start, long),
        server.command::<String>(&add),
    );
    assert_eq!(found(woken), (Vec::new(), true));
    let woken = reader.wait_for(&mut connection, Some(first), None, soon).await;
    assert_eq!(found(woken), (Vec::new(), false));

    let ids = server.append(&[b"two", b"three"]).await;
    let woken = reader.wait_for(&mut connection, start, start, soon).await;
    assert_eq!(found(woken), (vec![(first, "pack".into()), (ids[0], "two".into())], true));
}

#[tokio::test]
async fn replays_are_read_until_they_are_settled() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let ids = http.replay([5, 6]).await;
    let (reader, connection) = (&http.reader, &mut http.connection);
    let found = reader.replays_after(connection, StreamId::ZERO, 1 << 20).await.unwrap();
    let webhooks: Vec<_> = found.iter().map(|replay| replay.webhook).collect();
    assert_eq!(webhooks, [webhook(5), webhook(6)]);
    assert_eq!(&found[0].pack[..], b"pack of 5");
    let rest = reader.replays_after(connection, ids[0], 1 << 20).await.unwrap();
    assert_eq!(rest.iter().map(|replay| replay.id).collect::<Vec<_>>(), [ids[1]]);
    let again = reader.replay_entry(connection, ids[1]).await.unwrap();
    assert_eq!(again.unwrap(), "pack of 6");

    http.settle(&Settlement { replays: ids.clone(), ..Settlement::default() }).await.unwrap();
    let (reader, connection) = (&http.reader, &mut http.connection);
    assert!(reader.replays_after(connection, StreamId::ZERO, 1).await.unwrap().is_empty());
    assert_eq!(reader.replay_entry(connection, ids[1]).await.unwrap(), None);
}

#[tokio::test]
async fn progress_of_a_consumer_nobody_registered_is_unregistered() {
    let server = Server::start(&[]).await;
    let reader = StreamReader::new(server.redis(), "http");
    let mut connection = server.connect().await;
    let without_stream = reader.progress(&mut connection).await;
    assert!(matches!(without_stream, Err(QueueError::Unregistered)), "{without_stream:?}");
    server.append(&[b"pack"]).await;
    let without_cursor = reader.progress(&mut connection).await;
    assert!(matches!(without_cursor, Err(QueueError::Unregistered)), "{without_cursor:?}");
}

#[tokio::test]
async fn after_a_reconnect_older_data_is_told_from_the_data_that_was_read() {
    let server = Server::start(&[]).await;
    let first = server.append(&[b"one"]).await[0];
    let mut http = TestConsumer::start(&server, "http").await;
    let older = server.dump("{spillway}:in").await;
    let second = server.append(&[b"two"]).await[0];
    let entry = |id, pack: &'static [u8]| LastRead::of(&Entry { id, pack: pack.into() });
    let (one, two) = (entry(first, b"one"), entry(second, b"two"));
    let (reader, connection) = (&http.reader, &mut http.connection);
    assert!(reader.holds(connection, &one).await.unwrap());
    assert!(reader.holds(connection, &two).await.unwrap());
    let other_bytes = entry(second, b"other");
    assert!(!reader.holds(connection, &other_bytes).await.unwrap());

    // Appends are lost, then others follow: with ids after the lost one, or before it.
    server.restore("{spillway}:in", &older).await;
    assert!(reader.holds(connection, &one).await.unwrap());
    assert!(!reader.holds(connection, &two).await.unwrap());
    server.append_as(&second.next().to_string()).await;
    assert!(!reader.holds(connection, &two).await.unwrap());
    let _: u64 = server.command(&["DEL", "{spillway}:in"]).await;
    assert!(!reader.holds(connection, &two).await.unwrap());
}

#[tokio::test]
async fn a_lost_replay_is_told_from_one_that_is_settled() {
    const REPLAYS: &str = "{spillway}:http:replays";
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let ids = http.replay([5, 6]).await;
    let (reader, connection) = (&http.reader, &mut http.connection);
    let found = reader.replays_after(connection, StreamId::ZERO, 1 << 20).await.unwrap();
    let last = LastRead::of_replay(&found[1]);
    assert!(reader.holds_replay(connection, &last).await.unwrap());
    let before = server.dump(REPLAYS).await;
    http.settle(&Settlement { replays: vec![ids[1]], ..Settlement::default() }).await.unwrap();
    let (reader, connection) = (&http.reader, &mut http.connection);
    assert!(reader.holds_replay(connection, &last).await.unwrap(), "it is settled");

    // Data without the last replay, as after a failover: later ones may have lower ids, or higher ones.
    server.restore(REPLAYS, &before).await;
    let older = LastRead::of_replay(&found[0]);
    assert!(reader.holds_replay(connection, &older).await.unwrap());
    let _: u64 = server.command(&["DEL", REPLAYS]).await;
    assert!(!reader.holds_replay(connection, &last).await.unwrap());
    for id in ["1-0".to_owned(), ids[1].next().to_string()] {
        let add = ["XADD", REPLAYS, &id, "p", "other", "id", "00000000-100-0-0"];
        let _: String = server.command(&add).await;
        assert!(!reader.holds_replay(connection, &last).await.unwrap(), "{id}");
    }
    let _: u64 = server.command(&["DEL", REPLAYS]).await;
    let id = ids[1].to_string();
    let add = ["XADD", REPLAYS, &id, "p", "other", "id", "00000000-100-0-0"];
    let _: String = server.command(&add).await;
    assert!(!reader.holds_replay(connection, &last).await.unwrap(), "another one has its id");
}

#[tokio::test]
async fn what_was_read_and_is_settled_needs_not_be_there() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.pass(ids[0]).await;
    let one = LastRead::of(&Entry { id: ids[0], pack: b"one"[..].into() });
    assert!(http.reader.holds(&mut http.connection, &one).await.unwrap());
    http.pass(ids[1]).await;
    assert!(http.reader.holds(&mut http.connection, &one).await.unwrap());
}

#[tokio::test]
async fn thousands_of_packs_that_are_settled_in_part_are_read_in_parts() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let bits = (1..=5_000).map(|seq| (StreamId { ms: 1, seq }, vec![1])).collect();
    http.settle(&Settlement { bits, ..Settlement::default() }).await.unwrap();
    let _: String = server.command(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(http.progress().await.done.len(), 5_000);
    let calls: String = server.command(&["INFO", "commandstats"]).await;
    assert!(!calls.contains("cmdstat_hgetall"), "{calls}");
    assert!(calls.contains("cmdstat_hscan"), "{calls}");
}
