//! The disk of the overflow log: full, torn, damaged, or claimed by another receiver. Also a Redis
//! that has lost what was restored to it.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::cell::Cell;
use stories::check::check;
use stories::client::{Connection, post};
use stories::disk::SmallDisk;
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::sick_disk::{Health, SickDisk};
use stories::size::size;
use stories::supervisor::Supervisor;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::time::sleep;

const SOON: Duration = Duration::from_secs(20);
const EACH: [(&str, &str); 1] = [("DEDUP_WINDOW", "0")];

fn directory(cell: &Cell, name: &str) -> String {
    cell.directory().join(name).to_str().expect("a path of letters").to_owned()
}

async fn direct(receiver: &Service) {
    until("webhooks go to Redis directly", SOON, async || {
        receiver.metric("spillway_spilling").await == Some(0.0)
            && receiver.metric("spillway_spill_webhooks").await == Some(0.0)
    })
    .await;
}

async fn exits_78(receiver: &mut Service, saying: &str) {
    assert_eq!(receiver.exit(SOON).await.code(), Some(78), "{}", receiver.output());
    assert!(receiver.output().contains(saying), "{}", receiver.output());
}

/// Fills the overflow log until no more is accepted. Then Redis returns with everything that was
/// answered 200.
async fn a_full_spill(cell: &Cell, spill: &str, spill_max: &str, story: &str) {
    let settings = [("SPILL_DIR", spill), ("SPILL_MAX", spill_max), ("MAX_BODY", "1MiB")];
    let receiver = cell.receiver(&settings).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: 16,
        resources: 100,
        body_bytes: 8_000..=64_000,
        pause: Duration::from_millis(10),
        ..Load::steady(seed(story, 81))
    };
    let running = load.start(receiver.address(), &ledger);
    until("the spill is full", SOON, async || ledger.count(Outcome::Later) > 100).await;
    receiver.unready("spill_full").await;
    let mut connection = Connection::to(receiver.address()).await;
    until("it is refused as full", SOON, async || {
        let answer = connection.post(&Webhook::any().body("{}".repeat(30_000))).await;
        if answer.headers.text("connection") == Some("close") {
            connection = Connection::to(receiver.address()).await;
        }
        answer.status == 503 && answer.text().contains("queue_full")
    })
    .await;
    let waiting = receiver.metric("spillway_spill_webhooks").await.unwrap_or_default();
    let bytes = receiver.metric("spillway_spill_bytes").await.unwrap_or_default();
    let limit = receiver.metric("spillway_spill_limit_bytes").await.unwrap_or_default();
    say(&format!("{story}: {waiting} webhooks in {bytes} bytes"));
    assert!(waiting > 50.0 && bytes <= limit, "{waiting} in {bytes}");

    let _redis = cell.redis(&[]).await;
    direct(&receiver).await;
    receiver.ready().await;
    let stored = ledger.stored_count();
    until("webhooks are taken again", SOON, async || ledger.stored_count() > stored + 100).await;
    running.stop().await;
    assert_eq!(ledger.count(Outcome::Unanswered) + ledger.count(Outcome::CutInAnswer), 0);
    let backend = Backend::start().await;
    let _downstreamer = cell.downstreamer(&backend, &EACH).await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    let figures = check(&ledger, &backend.receipts_of_load(), &HashSet::new());
    figures.print(story);
    figures.expect_sound(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spill_at_its_limit_refuses_and_loses_nothing() {
    let cell = Cell::busy();
    let spill = directory(&cell, "spill");
    a_full_spill(&cell, &spill, "6MiB", "spill, at its limit").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_refuses_and_loses_nothing() {
    let cell = Cell::busy();
    let Some(mount) = SmallDisk::mount(cell.directory().join("disk"), 4) else {
        say("spill: only root can make a small disk to fill; the limit is tested without");
        return;
    };
    let spill = mount.path().join("spill").to_str().unwrap().to_owned();
    a_full_spill(&cell, &spill, "1GiB", "spill, on a full disk").await;
}

#[tokio::test]
async fn a_disk_that_was_full_is_found_to_have_room_without_a_request() {
    let cell = Cell::shared();
    let Some(mount) = SmallDisk::mount(cell.directory().join("disk"), 4) else {
        say("spill: only root can make a small disk to fill; probing is tested without");
        return;
    };
    let spill = mount.path().join("spill").to_str().unwrap().to_owned();
    let receiver = cell.receiver(&[("SPILL_DIR", &spill), ("MAX_BODY", "1MiB")]).await;
    store(&receiver, 3).await;
    let other = mount.path().join("something-else");
    let mut file = File::create(&other).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let large = Webhook::any().body("{}".repeat(30_000));
    until("the disk is found to be full", SOON, async || {
        post(receiver.address(), &large).await.status == 503
    })
    .await;
    receiver.unready("spill_full").await;
    // The log stays full through several attempts: it is not reported as healthy.
    let began = Instant::now();
    until("some time passes", SOON, async || {
        assert!(!receiver.is_ready().await);
        began.elapsed() > Duration::from_secs(3)
    })
    .await;
    let waiting = receiver.metric("spillway_spill_webhooks").await.unwrap_or_default();
    drop(file);
    fs::remove_file(other).unwrap();
    receiver.ready().await;
    assert!(receiver.output().contains("the spill takes webhooks again"));
    assert_eq!(receiver.metric("spillway_spill_webhooks").await, Some(waiting));
    store(&receiver, 3).await;
    assert_eq!(receiver.metric("spillway_spill_webhooks").await, Some(waiting + 3.0));
    assert_eq!(receiver.metric("spillway_spill_errors_total").await, Some(0.0));
}

/// Segments with content, oldest first.
fn segments(spill: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(spill).expect("read the spill");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "spill"))
        .filter(|path| fs::metadata(path).expect("look at a segment").len() > 40)
        .collect();
    paths.sort();
    paths
}

async fn store(receiver: &Service, count: usize) {
    for _ in 0..count {
        post(receiver.address(), &Webhook::any()).await.expect_stored();
    }
}

#[tokio::test]
async fn a_torn_tail_is_cut_and_damage_is_told_and_passed() {
    let cell = Cell::shared();
    let spill = directory(&cell, "spill");
    let mut receiver = cell.receiver_starting(&[("SPILL_DIR", &spill)]);
    receiver.ready().await;
    store(&receiver, 30).await;
    receiver.kill9();
    // A torn write, as after a power failure.
    let newest = segments(&spill).pop().unwrap();
    let mut file = OpenOptions::new().append(true).open(&newest).unwrap();
    file.write_all(b"SPRC and then something else").unwrap();
    receiver.restart();
    receiver.ready().await;
    assert!(receiver.output().contains("a torn tail of the spill is cut off"));
    assert_eq!(receiver.metric("spillway_spill_webhooks").await, Some(30.0));
    store(&receiver, 10).await;
    receiver.kill9();

    let oldest = segments(&spill).remove(0);
    let middle = fs::metadata(&oldest).unwrap().len() / 2;
    flip(&oldest, middle);
    let redis = cell.redis(&[]).await;
    receiver.restart();
    direct(&receiver).await;
    let fed: usize = redis.command(&["HGET", "{spillway}:counts", "appended"]).await;
    assert_eq!(fed, 39, "all but the damaged one");
    assert_eq!(receiver.metric("spillway_spill_errors_total").await, Some(1.0));
    let output = receiver.output();
    let told = output.lines().find(|line| line.contains("a spilled pack is damaged: it is lost"));
    let told = told.unwrap_or_else(|| panic!("not a word of it: {output}"));
    assert!(told.contains("offset=") && told.contains(&oldest.display().to_string()), "{told}");
    let aside = PathBuf::from(format!("{}.damaged", oldest.display()));
    until("the file is kept", SOON, async || aside.exists() && !oldest.exists()).await;
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open a segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte");
    file.write_all_at(&[byte[0] ^ 0xff], offset).expect("a byte");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_receiver_spills_for_a_cell() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let (one, other) = (directory(&cell, "one"), directory(&cell, "other"));
    let mut first = cell.receiver(&[("SPILL_DIR", &one)]).await;
    let mut same = cell.receiver_starting(&[("SPILL_DIR", &one)]);
    exits_78(&mut same, "in use by another receiver").await;
    let mut second = cell.receiver_starting(&[("SPILL_DIR", &other)]);
    exits_78(&mut second, "SPILL_DIR: another receiver of this cell").await;
    let mut without = cell.receiver_starting(&[]);
    exits_78(&mut without, "SPILL_DIR: another receiver of this cell").await;
    store(&first, 1).await;

    // After a crash it takes over from itself at once; others wait until it is known to be gone.
    first.kill9();
    first.restart();
    first.ready().await;
    store(&first, 1).await;
    first.kill9();
    let second = cell.receiver(&[("SPILL_DIR", &other)]).await;
    store(&second, 1).await;
    // The first returns, and finds that another receiver has taken over.
    first.restart();
    exits_78(&mut first, "SPILL_DIR: another receiver of this cell").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_without_a_spill_stands_back_behind_one_with_it() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let without = cell.receiver(&[]).await;
    let spill = directory(&cell, "spill");
    let mut with = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    without.unready("a receiver with SPILL_DIR must be").await;
    post(without.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    store(&with, 1).await;
    with.sigterm();
    assert_eq!(with.exit(SOON).await.code(), Some(0));
    without.ready().await;
    store(&without, 1).await;

    // The next start waits for the claim of a killed receiver; later starts do not.
    with.restart();
    with.ready().await;
    with.kill9();
    let late = cell.receiver(&[]).await;
    assert!(late.output().contains("a receiver that spilled for this cell has ended"));
    let claim: Option<String> = redis.command(&["GET", "{spillway}:spill:claim"]).await;
    assert_eq!(claim, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_whose_cell_was_taken_while_it_slept_says_so() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let (one, other) = (directory(&cell, "spill"), directory(&cell, "other"));
    let asleep = cell.receiver(&[("SPILL_DIR", &one)]).await;
    direct(&asleep).await;
    asleep.sigstop();
    let awake = cell.receiver(&[("SPILL_DIR", &other)]).await;
    direct(&awake).await;
    asleep.sigcont();
    asleep.unready("spill_claimed").await;
    post(asleep.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    store(&awake, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_lost_its_data_is_told_of_and_fed_nothing_that_others_were_appended_behind() {
    for (is_restarted, is_sick, maxmemory) in
        [(false, false, "0"), (true, false, "0"), (false, true, "0"), (false, false, "700kb")]
    {
        let cell = Cell::shared();
        let mut redis = cell.redis(&[]).await;
        let spill = directory(&cell, "spill");
        let disk = SickDisk::new(cell.directory(), spill.as_ref());
        let environment = disk.environment();
        let mut settings = vec![("SPILL_DIR", spill.as_str())];
        settings.extend(environment.iter().map(|(key, value)| (*key, value.as_str())));
        let mut receiver = cell.receiver(&settings).await;
        redis.kill9();
        store_while_away(&receiver, 10).await;
        // Then it cannot be removed.
        disk.is(if is_sick { Health::Fails } else { Health::Well });
        redis.restart();
        direct(&receiver).await;
        store(&receiver, 1).await;
        if !is_sick {
            until("what was fed is removed", SOON, async || segments(&spill).is_empty()).await;
        }
        redis.kill9();
        // All data of Redis is lost with its disk.
        let aof = cell.directory().join("appendonlydir");
        fs::remove_dir_all(aof).expect("remove what Redis has");
        let spilled = if is_sick { 0 } else { 5 };
        store_while_away(&receiver, spilled).await;
        if is_restarted {
            receiver.kill9();
            receiver.restart();
        }
        redis.add_arguments(&["--maxmemory", maxmemory]);
        redis.restart();
        let told = || {
            receiver.output().matches("redis does not know packs that were restored to it").count()
        };
        until("it is told of", SOON, async || told() > 0).await;
        // This also holds if Redis is full.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(told(), 1);
        let errors = receiver.metric("spillway_spill_errors_total").await;
        assert!(is_sick || errors == Some(1.0), "{errors:?}");
        redis.ready().await;
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
        direct(&receiver).await;
        let fed: Option<u64> = redis.command(&["HGET", "{spillway}:counts", "appended"]).await;
        assert_eq!(
            fed.unwrap_or(0),
            spilled as u64,
            "restarted: {is_restarted}, with a sick disk: {is_sick}"
        );
        store(&receiver, 1).await;
    }
}

async fn store_while_away(receiver: &Service, count: usize) {
    until("it spills", SOON, async || receiver.metric("spillway_spilling").await == Some(1.0))
        .await;
    store(receiver, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_can_spill_is_restarted_and_no_request_fails() {
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let spill = directory(&cell, "spill");
    let socket = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let mut receiver = cell.receiver_on(&socket, &[("SPILL_DIR", &spill)]);
    receiver.ready().await;
    let ledger = Arc::new(Ledger::default());
    let load = Load::steady(seed("spill, restarts", 82));
    let running = load.start(receiver.address(), &ledger);
    for _ in 0..size(4, 50) {
        let stored = ledger.stored_count();
        until("webhooks come in", SOON, async || ledger.stored_count() > stored + 50).await;
        receiver.sigterm();
        assert_eq!(receiver.exit(SOON).await.code(), Some(0));
        receiver.restart();
    }
    receiver.ready().await;
    running.stop().await;
    let attempts = ledger.attempts();
    let failed = attempts.iter().filter(|attempt| attempt.outcome != Outcome::Stored).count();
    assert_eq!(failed, 0, "of {}", attempts.len());
    let backend = Backend::start().await;
    let _downstreamer = cell.downstreamer(&backend, &EACH).await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("spill, restarts");
    figures.expect_sound(0);
}

#[tokio::test]
async fn a_receiver_that_spills_is_vouched_for() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let spill = directory(&cell, "spill");
    let mut supervisor = Supervisor::listen(cell.directory());
    let address = supervisor.address().to_owned();
    let settings =
        [("NOTIFY_SOCKET", address.as_str()), ("WATCHDOG_USEC", "4000000"), ("SPILL_DIR", &spill)];
    let receiver = cell.receiver_starting(&settings);
    supervisor.hears("READY=1").await;
    store(&receiver, 1).await;
    redis.sigstop();
    // The first request hangs with Redis; later ones do not.
    let mut hangs = Connection::to(receiver.address()).await;
    hangs.write(&Webhook::any().encode()).await.unwrap();
    until("webhooks are spilled", SOON, async || {
        receiver.metric("spillway_spilling").await == Some(1.0)
    })
    .await;
    store(&receiver, 5).await;
    supervisor.hears_pings(6).await;
    // The webhook was sent and its outcome is unknown, or its shard was not connected yet and the
    // webhook is spilled too.
    let status = hangs.answer().await.status;
    assert!(status == 503 || status == 200, "{status}");
    redis.sigcont();
    direct(&receiver).await;
    supervisor.hears_pings(2).await;
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_said_at_start() {
    let cell = Cell::shared();
    let file = directory(&cell, "file");
    File::create(&file).unwrap();
    let mut receiver = cell.receiver_starting(&[("SPILL_DIR", &file)]);
    exits_78(&mut receiver, "SPILL_DIR: ").await;
    let mistyped = directory(&cell, "mistyped/spill");
    let mut receiver = cell.receiver_starting(&[("SPILL_DIR", &mistyped)]);
    exits_78(&mut receiver, "mistyped does not exist").await;
    assert!(!cell.directory().join("mistyped").exists(), "it was created");
    let settings = [("SPILL_DIR", mistyped.as_str()), ("SHOPIFY_CLIENT_SECRET", "x")];
    let checked = cell.run("request-receiver", &["--check"], &settings).await;
    assert_eq!(checked.status.code(), Some(78), "{checked:?}");
    for (key, value) in [("SPILL_DIR", "relative/path"), ("SPILL_MAX", "10")] {
        let mut receiver = cell.receiver_starting(&[(key, value)]);
        exits_78(&mut receiver, key).await;
    }
    let mut receiver = cell.receiver_starting(&[("SPILL_DIR", &file), ("SPILL_MAX", "16MiB")]);
    exits_78(&mut receiver, "SPILL_MAX: must be at least MAX_BODY").await;
}
