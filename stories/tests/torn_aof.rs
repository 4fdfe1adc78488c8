//! A write to the AOF that a kill or a power cut has torn. Nothing of it is executed, however often
//! Redis starts after it, and nothing that was appended behind it is lost.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use stories::cell::Cell;
use stories::redis_server::RedisServer;

/// Commands of one transaction, as Redis appends them.
const TRANSACTION: [&[&str]; 4] =
    [&["MULTI"], &["SET", "torn:first", "1"], &["SET", "torn:second", "2"], &["EXEC"]];

fn encode(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    text
}

/// The file that Redis appends to.
fn last_file(cell: &Cell) -> PathBuf {
    let directory = cell.directory().join("appendonlydir");
    let files = fs::read_dir(directory).expect("the AOF's directory");
    let mut paths = files.map(|entry| entry.expect("an entry").path());
    paths
        .find(|path| {
            path.extension().is_some_and(|end| end == "aof")
                && path.to_string_lossy().contains(".incr.")
        })
        .expect("a file that is appended to")
}

fn append(file: &PathBuf, bytes: &[u8]) {
    let mut file = File::options().append(true).open(file).expect("open the AOF");
    file.write_all(bytes).expect("append to the AOF");
}

async fn restart(redis: &mut RedisServer) {
    redis.kill9();
    redis.restart();
    redis.ready().await;
}

async fn has(redis: &RedisServer, key: &str) -> bool {
    redis.command::<u64>(&["EXISTS", key]).await == 1
}

#[tokio::test]
async fn a_torn_transaction_is_never_executed_and_swallows_nothing_behind_it() {
    let transaction: Vec<u8> =
        TRANSACTION.iter().flat_map(|words| encode(words).into_bytes()).collect();
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    // Each kind of place: in a length, in a word, behind a word, between commands, before the last byte.
    let mut cuts: Vec<usize> = (1..transaction.len()).step_by(7).collect();
    cuts.extend([15, 16, 17, 18, transaction.len() - 1]);
    for cut in cuts {
        redis.kill9();
        append(&last_file(&cell), &transaction[..cut]);
        redis.restart();
        redis.ready().await;
        // One command is appended without MULTI: behind an open transaction it would belong to that.
        let alone = format!("alone:{cut}");
        let _: String = redis.command(&["SET", &alone, "1"]).await;
        restart(&mut redis).await;
        assert!(has(&redis, &alone).await, "cut at {cut}: an answered write is lost");
        let both = "redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[2], 1) return 1";
        let _: u64 = redis.command(&["EVAL", both, "2", "both:first", "both:second"]).await;
        restart(&mut redis).await;
        assert!(has(&redis, &alone).await, "cut at {cut}: an answered write is lost");
        for key in ["torn:first", "torn:second"] {
            assert!(!has(&redis, key).await, "cut at {cut}: {key} was executed");
        }
    }
    assert!(!cell.directory().join("load.sock").exists(), "the socket of the first load is left");
}

#[tokio::test]
async fn a_fault_in_the_middle_of_the_aof_is_left_to_a_person() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let _: String = redis.command(&["SET", "before", "1"]).await;
    redis.kill9();
    let file = last_file(&cell);
    append(
        &file,
        &[
            b"*1\r\n$5\r\nMULTI\r\n".as_slice(),
            &[0; 64],
            encode(&["SET", "behind", "1"]).as_bytes(),
        ]
        .concat(),
    );
    let before = fs::read(&file).expect("read the AOF");
    redis.restart();
    let status = redis.exit(std::time::Duration::from_secs(20)).await;
    assert!(!status.success(), "it started with a damaged AOF");
    assert_eq!(fs::read(&file).expect("read the AOF"), before, "the AOF was changed");
}
