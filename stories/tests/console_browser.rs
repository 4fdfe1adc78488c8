//! The console in Debian's Chromium, driven by Playwright: `console/browser.py` clicks and types, and this story looks
//! at the backend.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use stories::archive::ArchiveDirectory;
use stories::binaries::{ours, repository};
use stories::cell::Cell;
use stories::console::{Accounts, ConsoleServer, tool};
use stories::console_cell::{ConsoleCell, FAILING, REFUSED};
use stories::feed::Trickle;
use stories::load::Running;
use stories::process::{Process, Recipe};
use stories::report::say;
use stories::shop;
use stories::size::size;
use stories::until::until;

const SOON: Duration = Duration::from_secs(60);
const TOPICS: &[&str] = &["products/update", "orders/create"];
/// Shop whose webhooks wait for as long as a story looks at them.
const HELD: u64 = 7;

/// Runs a step of the script, which fails the test with all that was wrong.
async fn browse(url: &str, login: Option<&str>, step: &[&str]) {
    let mut command = Command::new(tool("browser/bin/python"));
    let script = repository().join("stories/tests/console/browser.py");
    command.arg("-B").arg(script).arg(url).args(step);
    command.env_remove("LOGIN").env("AXE", tool("axe.min.js")).env("CHROMIUM", chromium());
    command.envs(login.map(|login| ("LOGIN", login)));
    let run = move || command.output().expect("run the browser");
    let output = tokio::task::spawn_blocking(run).await.expect("the browser was run");
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{step:?}:\n{told}{errors}");
    for line in told.lines() {
        say(&format!("console: {line}"));
    }
}

fn chromium() -> &'static str {
    let path = "/usr/bin/chromium";
    assert!(Path::new(path).exists(), "{path} is missing; get it with: ops/deps.sh test");
    path
}

/// Browser of a person with a login.
async fn browse_as(office: &ConsoleCell, name: &str, step: &[&str]) {
    let login = format!("{name}:{}", Accounts::password(name));
    browse(&office.console.url(), Some(&login), step).await;
}

/// Webhooks of ten healthy shops and of the failing one.
fn flow(office: &ConsoleCell) -> Vec<Running> {
    let healthy = 10..20;
    let trickle = |shops: std::ops::Range<u64>, first_resource| {
        let every = Duration::from_millis(500);
        office.feed.trickle(&Trickle { shops, topics: TOPICS, every, first_resource })
    };
    vec![trickle(healthy, 1_000_000), trickle(FAILING..FAILING + 1, 2_000_000)]
}

async fn stop(flows: Vec<Running>) {
    for flow in flows {
        flow.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_view_of_a_live_cell_can_be_read_by_everybody() {
    // Somebody who may see everything that there is: bodies too.
    let office = ConsoleCell::start_for(Cell::busy(), &[], &[("eve", "admin", true)]).await;
    let flows = flow(&office);
    office.bury(REFUSED[0], 30).await;
    office.hold(HELD, 30).await;
    office.told(&["pause", "--topic", "customers/update"]).await;
    browse_as(&office, "eve", &["views", &shop::domain(HELD), "/login"]).await;
    browse_as(&office, "eve", &["live"]).await;
    browse_as(&office, "eve", &["streams"]).await;
    stop(flows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clicks_replay_pause_and_drop_what_they_say() {
    let office = ConsoleCell::start(Cell::busy(), &[]).await;
    let flows = flow(&office);
    let [first, second, third] = REFUSED;
    let replayed = office.bury(first, 7).await;
    let later = office.bury(second, 3).await;
    office.bury(third, 4).await;
    let domain = shop::domain;
    office.backend.behave(move |receipt| {
        let is_failing = receipt.shop() == shop::domain(FAILING);
        stories::behaviour::Behaviour::status(if is_failing { 503 } else { 200 })
    });

    browse_as(&office, "sue", &["replay", &domain(first), "7"]).await;
    office.delivered(&replayed).await;
    assert_eq!(office.dead_letters().await, 7, "the others are left");
    browse_as(&office, "sue", &["replay_without_scripts", &domain(second), "3"]).await;
    office.delivered(&later).await;
    browse_as(&office, "otto", &["drop", "dead", &domain(third), "4"]).await;
    assert_eq!(office.dead_letters().await, 0);

    browse_as(&office, "otto", &["pause", &domain(15)]).await;
    let is_read = async || office.downstreamer.metric("spillway_pauses").await == Some(1.0);
    until("the pause is read", SOON, is_read).await;
    let held = office.store(15, 5).await;
    let others = office.store(30, 1).await;
    office.delivered(&others).await;
    assert!(held.iter().all(|id| !office.backend.has_delivered(id)), "a paused shop is delivered");
    browse_as(&office, "otto", &["resume", &domain(15)]).await;
    office.delivered(&held).await;

    let dropped = office.hold(40, 6).await;
    browse_as(&office, "otto", &["drop", "webhooks", &domain(40), "6"]).await;
    office.told(&["resume", "--all"]).await;
    let after = office.store(40, 1).await;
    office.delivered(&after).await;
    assert!(dropped.iter().all(|id| !office.backend.has_delivered(id)), "a drop was delivered");
    let audit = office.program("sue").json("/api/v1/audit?limit=200").await;
    let by = |way: &str| {
        let records = audit["records"].as_array().expect("records").iter();
        records.filter(|record| record["way"] == way).count()
    };
    assert_eq!(by("console"), 6, "two replays, two drops, a pause and its end: {audit}");
    stop(flows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boxes_choose_the_dead_letters_that_are_replayed_or_dropped() {
    let office = ConsoleCell::start(Cell::busy(), &[]).await;
    let shop = REFUSED[0];
    office.bury(shop, 5).await;
    office.bury(REFUSED[1], 2).await;
    office.heal();
    let path = format!("/api/v1/dead?shop={}", shop::domain(shop));
    let listed = async || {
        let list = office.program("sue").json(&path).await;
        let letters = list["letters"].as_array().expect("letters").iter();
        let ids = letters.map(|letter| letter["webhook_id"].as_str().expect("an id").to_owned());
        ids.collect::<Vec<_>>()
    };
    let all = listed().await;
    let domain = shop::domain(shop);
    browse_as(&office, "sue", &["chosen", "replay", &domain, "2"]).await;
    office.delivered(&all[..2]).await;
    assert_eq!(listed().await, all[2..], "the others of the shop are left");
    browse_as(&office, "otto", &["chosen", "drop", &domain, "2"]).await;
    assert_eq!(listed().await, all[4..]);
    assert_eq!(office.dead_letters().await, 3, "those of another shop are left");
    assert!(all[2..].iter().all(|id| !office.backend.has_delivered(id)), "they were not chosen");
    let audit = office.program("sue").json("/api/v1/audit").await;
    let filters = audit["records"].as_array().expect("records").iter();
    let filters: Vec<&str> = filters.filter_map(|record| record["filter"].as_str()).collect();
    assert!(filters.len() == 2, "{audit}");
    assert!(filters.iter().all(|filter| filter.starts_with("spillway-ids ")), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clicks_replay_from_the_archive() {
    let cell = Cell::busy();
    let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
    let url = archive.url();
    let office = ConsoleCell::start(cell, &[("ARCHIVE_URL", url.as_str())]).await;
    let archiver = office.cell.archiver(&url, &[("ARCHIVE_MAX_DELAY", "1s")]);
    archiver.ready().await;
    let ids = office.store(30, 4).await;
    let others = office.store(31, 2).await;
    office.delivered(&ids).await;
    office.delivered(&others).await;
    let is_archived = async || office.redis.stream_len("{spillway}:in").await == 0;
    until("all is archived", SOON, is_archived).await;
    let before = office.backend.count();
    browse_as(&office, "otto", &["archive", &shop::domain(30), "1h", "4"]).await;
    let again = async || office.backend.count() >= before + ids.len();
    until("they are delivered again", SOON, again).await;
    assert_eq!(office.backend.count(), before + ids.len(), "and the others are not");
    let plain = ConsoleServer::start(&office.cell, &office.accounts.settings()).await;
    let login = format!("otto:{}", Accounts::password("otto"));
    browse(&plain.url(), Some(&login), &["no_archive"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_alone_does_everything() {
    let office = ConsoleCell::start(Cell::busy(), &[]).await;
    let ids = office.bury(REFUSED[0], 3).await;
    office.heal();
    let (dead, paused) = (shop::domain(REFUSED[0]), shop::domain(50));
    browse_as(&office, "otto", &["keyboard", &dead, "3", &paused]).await;
    office.delivered(&ids).await;
    let pauses = office.pauses().await;
    assert!(pauses.len() == 1 && pauses[0].contains(&paused), "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strings_of_strangers_do_nothing_in_a_browser() {
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = stories::backend::Backend::start().await;
    backend.behave(|_| stories::behaviour::Behaviour::status(422));
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    downstreamer.leads().await;
    let mut stored = 0;
    let corpus = include_str!("console/hostile.txt");
    for (number, line) in (1..).zip(corpus.lines()) {
        let webhook = stories::webhook::Webhook::product(number, line, line.as_bytes().to_vec());
        let webhook = webhook.with("X-Shopify-Shop-Domain", line).topic(line);
        let answer = stories::client::post(receiver.address(), &webhook).await;
        stored += u64::from(answer.status == 200);
    }
    assert!(stored > 10, "{stored} were taken");
    let all = async || redis.stream_len(stories::console_cell::DEAD).await >= 10;
    until("they are dead letters", SOON, all).await;
    // A live part shows a pause.
    let pause = cell.spillway(&["pause", "--shop=<script>window.pwned=99</script>"]).await;
    assert!(pause.status.success(), "{pause:?}");
    let console = ConsoleServer::open_to_all(&cell, "admin").await;
    let part = stories::console::percent("\"><script>window.pwned=98</script>");
    let paths = [format!("/dead?shop={part}"), format!("/webhooks?id={part}"), format!("/{part}")];
    let step: Vec<&str> =
        std::iter::once("hostile").chain(paths.iter().map(String::as_str)).collect();
    browse(&console.url(), None, &step).await;
}

/// A cell of `spillway dev`. A signal ends it with all that it started, also if the test fails.
struct DevCell(Process);

impl Drop for DevCell {
    fn drop(&mut self) {
        if self.0.is_running() {
            self.0.sigterm();
            self.0.wait(SOON);
        }
    }
}

/// In a directory of its own, on free ports, as `make run` starts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_replays_a_dead_letter_within_a_minute_by_clicks_alone() {
    let cell = Cell::busy();
    let names = [
        "LISTEN",
        "RECEIVER_ADMIN_LISTEN",
        "DOWNSTREAMER_ADMIN_LISTEN",
        "DEMO_LISTEN",
        "CONSOLE_LISTEN",
    ];
    let ports = names.map(|name| (name.to_owned(), stories::port::free().to_string()));
    let (_, console) = ports[4].clone();
    let recipe = Recipe {
        name: "dev".to_owned(),
        program: ours("spillway"),
        arguments: vec!["dev".into()],
        environment: ports.to_vec(),
        directory: cell.directory().to_path_buf(),
        sockets: Vec::new(),
    };
    let mut dev = DevCell(recipe.start());
    let began = std::time::Instant::now();
    until("the address of the console is printed", SOON, async || {
        assert!(dev.0.is_running(), "spillway dev ended: {}", dev.0.output());
        let told = dev.0.output();
        told.contains(&console) && told.contains("was answered 200")
    })
    .await;
    browse(&format!("http://{console}/"), None, &["newcomer"]).await;
    say(&format!("console: a newcomer needed {:.0?} from `spillway dev`", began.elapsed()));
    dev.0.sigterm();
    let status = dev.0.exit(SOON).await;
    assert!(status.success(), "spillway dev ended with {status}");
}

/// `make console-screenshots` sets `SCREENSHOTS`. Otherwise the pictures are made and thrown away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pictures_of_the_docs_show_a_live_cell() {
    let directory = std::env::var("SCREENSHOTS").ok();
    if directory.is_none() && !size(false, true) {
        return;
    }
    let office = ConsoleCell::start(Cell::busy(), &[]).await;
    let flows = flow(&office);
    for shop in REFUSED {
        office.bury(shop, 4).await;
    }
    office.hold(HELD, 40).await;
    office.told(&["pause", "--topic", "customers/update"]).await;
    // Enough samples for a plot.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let own = office.cell.directory().to_str().expect("a plain path").to_owned();
    let directory = directory.unwrap_or(own);
    browse_as(&office, "otto", &["pictures", &directory, &shop::domain(HELD)]).await;
    stop(flows).await;
}
