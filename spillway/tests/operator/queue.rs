//! Tests of `spillway status` and `spillway consumers`, settings and exit codes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cell::{Cell, product};

#[tokio::test]
async fn the_status_of_a_queue_nobody_drains() {
    let cell = Cell::start().await;
    let empty = cell.told(&["status"]);
    assert!(empty.contains("0 webhooks in 0 packs") && empty.contains("no consumer"), "{empty}");
    cell.store(&[product(1), product(2)]).await;
    let status: Value = serde_json::from_str(&cell.told(&["status", "-o", "json"])).unwrap();
    assert_eq!((&status["queue"]["webhooks"], &status["queue"]["packs"]), (&2.into(), &2.into()));
    let consumer = &status["consumers"][0];
    assert_eq!((&consumer["name"], &consumer["waiting"]), (&"http".into(), &2.into()));
    assert!(consumer["leader"].is_null() && consumer["last_seen_seconds"].is_null(), "{consumer}");
    let text = cell.told(&["status"]);
    assert!(text.contains("2 webhooks in 2 packs") && text.contains("never"), "{text}");
}

#[tokio::test]
async fn consumers_are_added_listed_and_forgotten() {
    let cell = Cell::start().await;
    cell.store(&[product(1)]).await;
    assert!(
        cell.told(&["consumers", "add", "kafka", "--start-at", "now"]).contains("is registered")
    );
    assert!(cell.told(&["consumers", "add", "kafka"]).contains("already"));
    for list in [&["consumers"][..], &["consumers", "list"]] {
        let listed = cell.told(list);
        assert!(listed.contains("http") && listed.contains("kafka"), "{listed}");
        assert!(!listed.contains("CURSOR"), "{listed}");
        let wide = cell.told(&[list, &["--output", "wide"]].concat());
        assert!(wide.contains("CURSOR") && wide.contains("TOKEN"), "{wide}");
        let json = cell.told(&[list, &["-o", "json"]].concat());
        let names = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let names: Vec<_> = names.map(|consumer| consumer["name"].clone()).collect();
        assert_eq!(names, ["http", "kafka"]);
    }
    assert_eq!(cell.refused(&["consumers", "forget", "nobody", "--yes"]).0, 1);
    let told = cell.told(&["consumers", "forget", "http"]);
    assert!(told.contains("1 webhook it has not settled"), "{told}");
    assert!(told.ends_with("dry run: nothing was changed; add --yes to forget it\n"), "{told}");
    assert!(cell.told(&["consumers"]).contains("http"));
    cell.told(&["consumers", "forget", "http", "--yes"]);
    // No other consumer needed it: kafka began after it.
    let status: Value = serde_json::from_str(&cell.told(&["status", "-o", "json"])).unwrap();
    assert_eq!(status["queue"]["packs"], 0);
    assert_eq!(cell.refused(&["consumers", "add", "a:b"]).0, 64);
}

#[tokio::test]
async fn settings_come_by_flag_environment_and_file() {
    let cell = Cell::start().await;
    cell.store(&[product(1)]).await;
    let file = cell.path("settings.env");
    std::fs::write(&file, format!("REDIS_URL={}\nREDIS_PREFIX=other:\n", cell.url())).unwrap();
    let file = file.to_str().unwrap();
    let told = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_spillway"))
            .args(arguments)
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(told(&["status", "--env-file", file]).contains("0 webhooks"));
    let flag = ["status", "--env-file", file, "--redis-prefix", "{spillway}:"];
    assert!(told(&flag).contains("1 webhook "));
}

#[tokio::test]
async fn exit_codes_tell_what_was_wrong() {
    let cell = Cell::start().await;
    assert_eq!(cell.refused(&["--no-such-flag"]).0, 64);
    assert_eq!(cell.refused(&["no-such-command"]).0, 64);
    assert_eq!(cell.refused(&["send"]).0, 78, "no secret");
    let (code, told) = cell.refused(&["status", "--redis-url", "http://user:hush@x"]);
    assert_eq!(code, 78);
    assert!(told.contains("REDIS_URL") && !told.contains("hush"), "{told}");
    for command in
        [&["status"][..], &["top"], &["dead", "list"], &["explain", "x"], &["pause", "--all"]]
    {
        let url = ["--redis-url", "unix:///nonexistent.sock"];
        let (code, told) = cell.refused(&[command, &url].concat());
        assert_eq!(code, 69, "{command:?}");
        assert!(told.contains("/nonexistent.sock: ") && told.contains("is it running"), "{told}");
    }
    assert_eq!(cell.refused(&["status", "--env-file", "/nonexistent"]).0, 78);
    assert!(cell.told(&["--help"]).contains("doctor"));
    let version = cell.told(&["--version"]);
    let expected = format!("spillway {}\n", spillway_process::version());
    assert_eq!(version, expected);
    assert!(version.starts_with("spillway 0.1.0 ("), "{version}");
}

/// Command that may not open the socket of the cell: of another user, if this one is root.
fn command_as(program: &Path, cell: &Cell) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("REDIS_URL", cell.url());
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command
}

/// Root may open every socket: the command runs as another user then, from a directory that this
/// user may enter.
#[tokio::test]
async fn a_socket_that_this_user_may_not_open_is_named_with_its_group() {
    let cell = Cell::start().await;
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
    let program = open.path().join("spillway");
    // By another process: a file that a thread of this one writes is busy for what all others start.
    let mut copy = Command::new("cp");
    copy.args(["--preserve=mode", env!("CARGO_BIN_EXE_spillway")]).arg(&program);
    assert!(copy.status().unwrap().success());
    let mut command = command_as(&program, &cell);
    command.arg("status").current_dir(open.path());
    if !rustix::process::geteuid().is_root() {
        std::fs::set_permissions(cell.path("redis.sock"), Permissions::from_mode(0o000)).unwrap();
    }
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{told}");
    for part in ["may not", "belongs to user", "and group", "run this as root"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("--groups root") && !told.contains("as root or as root"), "{told}");
    let mut doctor = command_as(&program, &cell);
    doctor.arg("doctor").current_dir(open.path());
    let told = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    assert!(told.contains("-> run this as root") && !told.contains("-> start Redis"), "{told}");
}

#[tokio::test]
async fn every_command_has_a_man_page_and_completions() {
    let cell = Cell::start().await;
    let pages = cell.path("pages");
    cell.told(&["--generate", pages.to_str().unwrap()]);
    let read = |name: &str| std::fs::read_to_string(pages.join(name)).expect(name);
    assert!(
        read("spillway.1").contains("health") && read("spillway-config-show.1").contains("origin")
    );
    assert!(read("spillway-queue-drop.1").contains("dry run"));
    assert!(read("spillway-status.1").contains("wide"));
    assert!(read("spillway-health.1").contains("ADMIN_LISTEN"));
    for completions in ["spillway.bash", "_spillway", "spillway.fish"] {
        let text = read(completions);
        for word in ["health", "config", "show", "output", "wide", "yes"] {
            assert!(text.contains(word), "{completions} lacks {word}");
        }
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_failure() {
    let cell = Cell::start().await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Command::new(env!("CARGO_BIN_EXE_spillway"))
        .args(["status", "--redis-url", &cell.url()])
        .stdout(writer)
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(0));
}
