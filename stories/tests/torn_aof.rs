//! A write to the AOF that a kill or a power cut has torn. Nothing of it is executed, however often
//! Redis starts after it, and nothing that was appended behind it is lost. Also: `redis-start` checks maxmemory.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stories::binaries::repository;
use stories::cell::Cell;
use stories::redis_server::RedisServer;
use stories::until::until;

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
    let status = redis.exit(Duration::from_secs(20)).await;
    assert!(!status.success(), "it started with a damaged AOF");
    assert_eq!(fs::read(&file).expect("read the AOF"), before, "the AOF was changed");
}

#[tokio::test]
async fn a_redis_with_a_password_is_repaired_too() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let _: String = redis.command(&["SET", "before", "1"]).await;
    append(&cell.directory().join("redis.conf"), b"\nrequirepass secret\n");
    redis.kill9();
    let file = last_file(&cell);
    let before = fs::read(&file).expect("read the AOF");
    append(&file, b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n*1\r\n$4\r\nEX");
    redis.restart();
    until("redis asks for the password", Duration::from_secs(30), async || {
        let answer = redis.try_command::<String>(&["PING"]).await;
        answer.is_err_and(|error| error.to_string().contains("NOAUTH"))
    })
    .await;
    // It asks for the password while it loads, too, and has cut nothing off before that ends.
    until("redis has loaded", Duration::from_secs(30), async || {
        let Ok(mut connection) = redis.connection().await else { return false };
        let mut pipe = redis::pipe();
        pipe.cmd("AUTH").arg("secret").cmd("GET").arg("before");
        let answer = pipe.query_async::<(String, String)>(&mut connection).await;
        answer.is_ok_and(|(_, value)| value == "1")
    })
    .await;
    assert_eq!(fs::read(&file).expect("read the AOF"), before);
}

/// Writes a program that stands in for one of Redis'.
fn write_program(directory: &Path, name: &str, script: &str) {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("write a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
}

/// Runs `redis-start` with programs that only note their arguments, and returns these with its exit
/// status.
fn start_with(cell: &Cell, manifest: &str, server: &str) -> (String, bool) {
    let directory = cell.directory();
    let (programs, aof) = (directory.join("programs"), directory.join("data/appendonlydir"));
    fs::create_dir_all(&programs).expect("make a directory");
    fs::create_dir_all(&aof).expect("make a directory");
    fs::write(aof.join("a.manifest"), manifest).expect("write the manifest");
    fs::write(aof.join("a.7.incr.aof"), "torn").expect("write an AOF");
    fs::write(directory.join("redis.conf"), "tls-port 6379\n").expect("write redis.conf");
    let noted = directory.join("noted");
    write_program(
        &programs,
        "redis-check-aof",
        &format!("echo check $1 >>{}; exit 1", noted.display()),
    );
    write_program(
        &programs,
        "redis-server",
        &format!("echo server $* >>{}\n{server}", noted.display()),
    );
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let status = Command::new(repository().join("ops/redis-start"))
        .args([directory.join("redis.conf"), directory.join("data")])
        .env("PATH", path)
        .status()
        .expect("run redis-start");
    assert!(!directory.join("data/redis-start.busy").exists(), "the mark is left");
    let text = fs::read_to_string(&noted).expect("read the notes");
    fs::remove_file(&noted).expect("remove the notes");
    (text, status.success())
}

#[test]
fn the_manifests_of_every_redis_are_read_and_a_load_that_fails_ends_the_start() {
    let cell = Cell::shared();
    let ends = "case \"$*\" in *load.sock*) exit 3;; esac";
    let base = "file a.7.base.rdb seq 7 type b\nfile a.6.incr.aof seq 6 type h\n";
    for last in
        ["file a.7.incr.aof seq 7 type i\n", "file a.7.incr.aof seq 7 type i startoffset 12\n"]
    {
        let (noted, is_started) = start_with(&cell, &format!("{base}{last}"), ends);
        let lines: Vec<&str> = noted.lines().collect();
        assert!(lines[0].starts_with("check") && lines[0].ends_with("a.7.incr.aof"), "{noted}");
        assert!(lines[1].contains("load.sock") && lines[1].contains("--tls-port 0"), "{noted}");
        assert_eq!(lines.len(), 2, "it was started after all: {noted}");
        assert!(!is_started);
    }
    let (noted, is_started) = start_with(&cell, base, ends);
    assert_eq!(noted.lines().count(), 1, "nothing to check: {noted}");
    assert!(is_started && !noted.contains("load.sock"), "{noted}");
}

/// Redis itself exits with 1 then, and systemd would start it again without end.
#[test]
fn a_maxmemory_that_redis_cannot_read_ends_the_start_and_is_not_tried_again() {
    let cell = Cell::shared();
    let directory = cell.directory();
    let noted = directory.join("noted");
    write_program(directory, "redis-server", &format!("echo $* >{}", noted.display()));
    let start = |value: &str| {
        let output = Command::new(repository().join("ops/redis-start"))
            .args(["redis.conf", ".", "--maxmemory", value, "--supervised", "systemd"])
            .current_dir(directory)
            .env("PATH", format!("{}:/usr/bin:/bin", directory.display()))
            .output()
            .expect("run redis-start");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for value in ["0", "1073741824", "512b", "1K", "21g", "21gb", "256MB"] {
        assert_eq!(start(value), (Some(0), String::new()), "{value}");
        let options = fs::read_to_string(&noted).expect("read the notes");
        assert!(options.contains(&format!("--maxmemory {value} --supervised")), "{options}");
        fs::remove_file(&noted).expect("remove the notes");
    }
    for value in ["", "gb", "21GiB", "1tb", "1.5gb", "2 gb", "2gb # of 5", "-1", "40%"] {
        let (status, said) = start(value);
        assert_eq!(status, Some(78), "{value}: {said}");
        assert!(said.contains(&format!("maxmemory is '{value}'")), "{said}");
        assert!(!noted.exists(), "Redis was started with {value}");
    }
    let unit = repository().join("ops/systemd/spillway-redis.service");
    let unit = fs::read_to_string(unit).expect("read the unit");
    let ends = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
    assert!(ends.is_some_and(|ends| ends.split(' ').any(|status| status == "78")), "{ends:?}");
}
