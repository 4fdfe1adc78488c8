//! Tests of the numbers that `spillway console` shows of a cell.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header::CONNECTION;
use serde_json::Value;
use spillway_queue::consumers::HTTP;
use spillway_queue::lane::{KeyScheme, LaneChanges, LaneRow};
use spillway_queue::leader::Candidacy;
use spillway_queue::read::StreamReader;
use spillway_queue::settle::{Settlement, Settler};
use spillway_webhook::{Changes, Position, Spans};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::cell::{Cell, Letter, product};

/// The processes are looked at each 10 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nothing listens there.
const NOWHERE: &str = "127.0.0.1:1";
const SHOP: &str = "shop-0.myshopify.com";

/// The console's process ends when this value is dropped.
struct ConsoleProcess {
    process: Child,
    address: SocketAddr,
}

impl ConsoleProcess {
    /// Starts a console that is open to all, with this admin address of the receiver.
    fn start(cell: &Cell, receiver: &str) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let process = Command::new(env!("CARGO_BIN_EXE_spillway"))
            .args(["console", "--receiver", receiver])
            .args(["--downstreamer", NOWHERE, "--kafka-producer", NOWHERE])
            .env_clear()
            .env("REDIS_URL", cell.url())
            .env("CONSOLE_LISTEN", address.to_string())
            .env("CONSOLE_ANONYMOUS_ROLE", "support")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, address }
    }

    /// Text of a page or of an answer of the API; `None` until it is there.
    async fn try_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).await.ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
    }

    /// Waits until a page is there and is as it should be.
    async fn page(&self, path: &str, is_good: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let page = self.try_get(path).await;
            if let Some(page) = page.as_deref().filter(|page| is_good(page)) {
                return page.to_owned();
            }
            assert!(started.elapsed() < PATIENCE, "{path}: {page:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.page(path, |_| true).await).unwrap()
    }
}

impl Drop for ConsoleProcess {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Links of a page to waiting webhooks, with the number that each shows.
fn counts(page: &str) -> Vec<(String, u64)> {
    let links = page.split("<a href=\"/webhooks?").skip(1).filter_map(|rest| {
        let (query, rest) = rest.split_once("\">")?;
        let (number, _) = rest.split_once("</a>")?;
        Some((query.replace("&amp;", "&"), number.parse().ok()?))
    });
    links.collect()
}

/// Number of a large figure.
fn figure<'a>(page: &'a str, label: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("<dt>{label}</dt>")).expect("the figure");
    let (link, _) = rest.split_once("</a>").expect("a link");
    link.rsplit_once('>').expect("a number").1
}

#[tokio::test]
async fn numbers_of_one_shop_are_of_that_shop_and_each_leads_to_what_it_counts() {
    let cell = Cell::start().await;
    // Those have no id in the body: their resource is that of the topic. Both shops have a product 8.
    let mut letters: Vec<Letter> = (1..=6).map(product).collect();
    letters.push(Letter { topic: "products/create", body: b"{\"id\":8}", ..product(8) });
    letters.push(Letter { body: b"{\"id\":8}", ..product(9) });
    letters.push(product(2));
    cell.store(&letters).await;
    let console = ConsoleProcess::start(&cell, NOWHERE);
    let top = console.json(&format!("/api/v1/top?by=topic&shop={SHOP}")).await;
    assert_eq!((&top["waiting"], &top["is_exact"]), (&5.into(), &true.into()), "{top}");
    assert_eq!(top["oldest_ms"], 1_767_268_800_000_u64);
    let all = console.json("/api/v1/top?by=shop").await;
    assert_eq!(all["waiting"], 9, "{all}");
    let page = console.page(&format!("/shops/{SHOP}"), |_| true).await;
    assert_eq!((figure(&page, "Waiting"), figure(&page, "In lanes")), ("5", "0"), "{page}");
    for (by, groups) in [("shop", 2), ("topic", 2), ("resource", 4)] {
        let page = console.page(&format!("/shops?by={by}"), |_| true).await;
        let counts = counts(&page);
        assert_eq!(counts.len(), groups, "{by}: {page}");
        for (query, number) in counts {
            let found = console.json(&format!("/api/v1/webhooks?{query}")).await;
            let listed = found["webhooks"].as_array().map(Vec::len);
            assert_eq!(listed, usize::try_from(number).ok(), "{query}: {found}");
        }
    }
    let status = console.json("/api/v1/status").await;
    assert_eq!(status["consumers"][0]["in_lanes"], 0, "{status}");
}

/// Writes rows of lanes, as a downstreamer does: lane `n` of the shop holds `n` webhooks.
async fn fill_lanes(cell: &Cell, lanes: u64) {
    let (redis, mut connection) = cell.connect().await;
    let claim = Candidacy::new(redis.clone(), HTTP);
    claim.take(&mut connection, "").await.unwrap();
    let mark = StreamReader::new(redis.clone(), HTTP).mark(&mut connection).await.unwrap();
    let mut settler = Settler::new(redis, HTTP, claim.token(), mark);
    settler.begin();
    let at = Position { ms: 1_767_268_800_000, seq: 0, index: 0 };
    let row = |lane: u64| LaneRow {
        lane,
        shop: SHOP.to_owned(),
        kind: format!("kind{lane}"),
        scheme: KeyScheme::Kind,
        first_chunk: 1,
        last_chunk: 1,
        waiting: lane,
        first: at,
        last: at,
        failing: Spans::default(),
        tripped: false,
        suspect: false,
    };
    let lanes = LaneChanges {
        rows: Changes::write((1..=lanes).map(row)),
        waiting: (1..=lanes).sum(),
        oldest_ms: at.ms,
        ..LaneChanges::default()
    };
    let settlement = Settlement { lanes, ..Settlement::default() };
    settler.apply(&mut connection, &settlement).await.unwrap();
    claim.release(&mut connection).await.unwrap();
}

#[tokio::test]
async fn webhooks_in_lanes_are_counted_before_the_page_is_cut() {
    let cell = Cell::start().await;
    cell.store(&[product(1)]).await;
    fill_lanes(&cell, 25).await;
    let console = ConsoleProcess::start(&cell, NOWHERE);
    let path = format!("/api/v1/lanes?shop={SHOP}&limit=20");
    let lanes = console.json(&path).await;
    assert_eq!(lanes["lanes"].as_array().map(Vec::len), Some(20));
    assert_eq!((&lanes["waiting"], &lanes["total"]), (&325.into(), &25.into()), "{lanes}");
    assert!(lanes["at_ms"].as_u64() > Some(0), "{lanes}");
    let page = console.page(&format!("/lanes?shop={SHOP}"), |_| true).await;
    assert!(page.contains(&format!("325 webhooks of {SHOP} in lanes, read at ")), "{page}");
    // Later lanes are there when they are asked for, however long nobody asked.
    sleep(Duration::from_secs(3)).await;
    fill_lanes(&cell, 30).await;
    assert_eq!(console.json(&path).await["waiting"], 465, "those of the first look are shown");
}

#[tokio::test]
async fn the_overview_tells_that_the_receiver_spills_and_that_it_is_gone() {
    let cell = Cell::start().await;
    cell.store(&[product(1)]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    let metrics = || async { ([(CONNECTION, "close")], "spillway_spill_webhooks 12\n") };
    let router = Router::new().fallback(metrics);
    let receiver = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let console = ConsoleProcess::start(&cell, &admin);
    let spills = |page: &str| page.contains("receiver: webhooks on disk (overflow): 12");
    console.page("/", spills).await;
    receiver.abort();
    assert!(receiver.await.is_err(), "it does not end by itself");
    let is_gone = |page: &str| page.contains("the receiver does not answer any more");
    let page = console.page("/", is_gone).await;
    assert!(page.contains("Needs attention") && !spills(&page), "{page}");
    let status = console.json("/api/v1/status").await;
    assert_eq!(status["processes"][0]["state"], "away", "{status}");
}

#[tokio::test]
async fn a_receiver_that_never_answered_is_no_alarm_and_no_proof() {
    let cell = Cell::start().await;
    cell.store(&[product(1)]).await;
    let console = ConsoleProcess::start(&cell, NOWHERE);
    let page = console.page("/", |page| page.contains("not seen")).await;
    assert!(!page.contains("All is well") && !page.contains("does not answer"), "{page}");
}
