//! Minutes without Redis at half of the sustained load, with webhooks drained before and after.
//! Measures what is refused, lost, repeated or out of order, and the time until everything is
//! normal.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::fs;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stories::backend::Backend;
use stories::binaries::repository;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::{Figures, check};
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

const CONNECTIONS: u64 = 256;
/// Refused requests began within this time of the outage: Redis counts as hanging after half a
/// second.
const UNDER_WAY: Duration = Duration::from_secs(1);
const RECEIVER_KILLS: u32 = 6;

/// Outage of Redis or of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    Killed,
    Stopped,
    Full,
    /// Redis is killed, and the receiver is killed repeatedly.
    ReceiverKilled,
}

/// Results of one outage.
struct Row {
    outage: Outage,
    sustained: f64,
    away: Duration,
    per_second: f64,
    figures: Figures,
    refused: usize,
    unanswered: usize,
    refused_last: Duration,
    slowest: Duration,
    waited: f64,
    normal_after: Duration,
}

/// A complete cell. The receiver's socket is held outside of it, as by systemd.
struct Stage {
    redis: RedisServer,
    receiver: Service,
    _downstreamer: Service,
    backend: Backend,
    cell: Cell,
}

impl Stage {
    async fn set() -> Self {
        let cell = Cell::busy();
        let redis = cell.redis(&[]).await;
        let spill = cell.directory().join("spill");
        let socket = Arc::new(TcpListener::bind("127.0.0.1:0").expect("a socket"));
        let spill = spill.to_str().expect("a path of letters");
        // All webhooks belong to one shop.
        let settings = [("SPILL_DIR", spill), ("SHOP_MAX_QUEUED", "100")];
        let receiver = cell.receiver_on(&socket, &settings);
        receiver.ready().await;
        let backend = Backend::start().await;
        let downstreamer = cell.downstreamer(&backend, &[("DEDUP_WINDOW", "0")]).await;
        Self { redis, receiver, _downstreamer: downstreamer, backend, cell }
    }

    async fn direct(&self, within: Duration) {
        until("webhooks go to Redis directly", within, async || {
            self.receiver.metric("spillway_spilling").await == Some(0.0)
                && self.receiver.metric("spillway_spill_webhooks").await == Some(0.0)
        })
        .await;
    }

    /// Causes the outage for this time. Returns when it began.
    async fn wrong(&mut self, outage: Outage, time: Duration) -> Instant {
        match outage {
            Outage::Killed | Outage::ReceiverKilled => self.redis.kill9(),
            Outage::Stopped => self.redis.sigstop(),
            Outage::Full => {
                self.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
            }
        }
        let began = Instant::now();
        if outage == Outage::ReceiverKilled {
            for _ in 0..RECEIVER_KILLS {
                sleep(time / (RECEIVER_KILLS + 1)).await;
                self.receiver.kill9();
                self.receiver.restart();
            }
        }
        sleep(time.saturating_sub(began.elapsed())).await;
        began
    }

    async fn right(&mut self, outage: Outage) {
        match outage {
            Outage::Killed | Outage::ReceiverKilled => self.redis.restart(),
            Outage::Stopped => self.redis.sigcont(),
            Outage::Full => {
                self.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
            }
        }
        self.redis.ready().await;
    }
}

fn load(pause: Duration) -> Load {
    Load {
        connections: CONNECTIONS,
        resources: 1000,
        pause,
        ..Load::steady(seed("spill, load", 91))
    }
}

/// Webhooks stored per second by a load without pauses.
async fn sustained() -> f64 {
    let stage = Stage::set().await;
    let ledger = Arc::new(Ledger::default());
    let running = load(Duration::ZERO).start(stage.receiver.address(), &ledger);
    sleep(size(Duration::from_secs(1), Duration::from_secs(5))).await;
    let (before, began) = (ledger.stored_count(), Instant::now());
    sleep(size(Duration::from_secs(2), Duration::from_secs(20))).await;
    let per_second = (ledger.stored_count() - before) as f64 / began.elapsed().as_secs_f64();
    running.stop().await;
    per_second
}

async fn suffer(outage: Outage, sustained: f64) -> Row {
    let mut stage = Stage::set().await;
    let ledger = Arc::new(Ledger::default());
    let pause = Duration::from_secs_f64(CONNECTIONS as f64 * 2.0 / sustained);
    let (started, time) = (Instant::now(), size(Duration::from_secs(4), Duration::from_secs(300)));
    let running = load(pause).start(stage.receiver.address(), &ledger);
    sleep(time / 30).await;
    let went = stage.wrong(outage, time).await;
    let away = went.elapsed();
    let waited = stage.receiver.metric("spillway_spill_webhooks").await.unwrap_or_default();
    stage.right(outage).await;
    let back = Instant::now();
    stage.direct(size(Duration::from_secs(60), Duration::from_secs(600))).await;
    let normal_after = back.elapsed();
    sleep(time / 30).await;
    let per_second = ledger.stored_count() as f64 / started.elapsed().as_secs_f64();
    running.stop().await;
    let within = size(Duration::from_secs(120), Duration::from_secs(1200));
    ledger.delivered_to(&stage.backend, within).await;
    let figures = stage.backend.look(|receipts| check(&ledger, receipts, &HashSet::new()));
    let attempts = ledger.attempts();
    let refused = attempts.iter().filter(|attempt| attempt.outcome == Outcome::Later);
    let is_unanswered =
        |outcome| matches!(outcome, Outcome::Unanswered | Outcome::CutInAnswer | Outcome::NotSent);
    let row = Row {
        outage,
        sustained,
        away,
        per_second,
        figures,
        refused: refused.clone().count(),
        unanswered: attempts.iter().filter(|attempt| is_unanswered(attempt.outcome)).count(),
        refused_last: refused
            .map(|one| one.began.saturating_duration_since(went))
            .max()
            .unwrap_or_default(),
        slowest: attempts.iter().map(|attempt| attempt.took).max().unwrap_or_default(),
        waited,
        normal_after,
    };
    row.figures.print(&format!("spill, load, {outage:?}"));
    stage.backend.look(|receipts| say_repeats(receipts, went));
    say(&table(&[row.value()]));
    drop(stage.cell);
    row
}

/// Prints, for each webhook that was delivered again, the time in seconds after Redis went away,
/// and the attempt number that its sender gave it.
fn say_repeats(receipts: &[Receipt], went: Instant) {
    let mut first: HashMap<&str, &Receipt> = HashMap::new();
    let after = |receipt: &Receipt| {
        let arrived = receipt.arrived;
        arrived.saturating_duration_since(went).as_secs_f64()
            - went.saturating_duration_since(arrived).as_secs_f64()
    };
    for receipt in receipts.iter().filter(|receipt| receipt.delivered()) {
        let id = receipt.spillway_id();
        let Some(before) = first.insert(id, receipt) else { continue };
        say(&format!(
            "repeated: {id} at {:.3} s (attempt {}), {:.3} s (attempt {})",
            after(before),
            before.attempt(),
            after(receipt),
            receipt.attempt()
        ));
    }
}

impl Row {
    fn value(&self) -> Value {
        let Figures { sent, stored, lost, repeats, disordered, invented, altered, .. } =
            self.figures;
        json!({
            "outage": format!("{:?}", self.outage), "away_seconds": self.away.as_secs_f64(),
            "sustained_per_second": self.sustained,
            "stored_per_second": self.per_second, "sent": sent, "answered_200": stored,
            "refused": self.refused, "refused_last_ms_after": self.refused_last.as_secs_f64() * 1e3,
            "unanswered": self.unanswered, "lost": lost, "repeated": repeats,
            "disordered": disordered, "invented_or_altered": invented + altered,
            "waited_on_disk": self.waited, "slowest_answer_seconds": self.slowest.as_secs_f64(),
            "normal_after_seconds": self.normal_after.as_secs_f64(),
        })
    }

    fn expect_as_promised(&self) {
        // Deliveries under way when Redis went away are repeated with the same id. A pack that was
        // restored twice would have another id, and count as invented.
        self.figures.expect_sound(CONCURRENCY);
        self.figures.expect_no_late_repeat();
        assert!(self.waited > 0.0, "nothing was spilled");
        match self.outage {
            // Webhooks that Redis certainly refuses are spilled.
            Outage::Full => assert_eq!((self.refused, self.unanswered), (0, 0)),
            Outage::Killed | Outage::Stopped => {
                assert!(self.refused as u64 <= CONNECTIONS, "{} were refused", self.refused);
                assert!(self.refused_last <= UNDER_WAY, "refused after {:?}", self.refused_last);
                assert_eq!(self.unanswered, 0);
            }
            Outage::ReceiverKilled => {
                let most = CONNECTIONS as usize * (RECEIVER_KILLS as usize + 1);
                assert!(self.refused + self.unanswered <= most);
            }
        }
    }
}

/// Columns of the table: name of the figure, heading and decimals.
const COLUMNS: [(&str, &str, usize); 14] = [
    ("sustained_per_second", "sustained/s", 0),
    ("stored_per_second", "stored/s", 0),
    ("away_seconds", "for (s)", 0),
    ("answered_200", "answered 200", 0),
    ("refused", "refused", 0),
    ("refused_last_ms_after", "last (ms)", 0),
    ("unanswered", "unanswered", 0),
    ("lost", "lost", 0),
    ("repeated", "repeated", 0),
    ("disordered", "disordered", 0),
    ("invented_or_altered", "invented or altered", 0),
    ("waited_on_disk", "waited", 0),
    ("slowest_answer_seconds", "slowest answer (s)", 1),
    ("normal_after_seconds", "normal after (s)", 1),
];

fn table(rows: &[Value]) -> String {
    let mut table = String::from("| outage |");
    for (_, heading, _) in COLUMNS {
        write!(table, " {heading} |").expect("a string");
    }
    table += "\n";
    table += &"|---".repeat(COLUMNS.len() + 1);
    table += "|\n";
    for row in rows {
        write!(table, "| {} |", row["outage"].as_str().unwrap_or_default()).expect("a string");
        for (key, _, decimals) in COLUMNS {
            let figure = row[key].as_f64().unwrap_or(f64::NAN);
            write!(table, " {figure:.decimals$} |").expect("a string");
        }
        table += "\n";
    }
    table
}

/// Writes a row into `spill.md` and `spill.json` in the directory named by `RESULTS`, if it is set.
/// Other rows stay, because each can be run separately.
fn write(row: &Row) {
    let Some(directory) = std::env::var_os("RESULTS") else { return };
    let directory = repository().join(directory);
    let before = fs::read_to_string(directory.join("spill.json")).unwrap_or_default();
    let before: Value = serde_json::from_str(&before).unwrap_or_default();
    let mut rows = before["outages"].as_array().cloned().unwrap_or_default();
    let row = row.value();
    rows.retain(|other| other["outage"] != row["outage"]);
    rows.push(row);
    let page = format!(
        "# Minutes without Redis, at half load\n\n`make endure-spill`: {CONNECTIONS} connections and \
         1,000 products in a closed loop, a release build, bodies of 0.1 to 2 KB, a downstreamer \
         that drains meanwhile; load, servers, Redis and backend share the cores. *Sustained* is what \
         was stored a second without a pause, just before; the load is half of it, as long as answers \
         keep up.\n\n\
         *Refused*: answered 503; *last*: how long after Redis went the last of them was sent (0: \
         before). *Unanswered*: the connection broke, or none was made. *Repeated*: delivered again with \
         the same id, by the consumer; a pack that is fed twice has another id, and counts as invented. \
         *Waited*: on the disk, when Redis came back. *Normal*: from then on, until all is fed and \
         webhooks go to Redis directly.\n\n{}",
        table(&rows)
    );
    let all = json!({ "command": "make endure-spill", "outages": rows });
    fs::write(directory.join("spill.md"), page).expect("write the result");
    let json = serde_json::to_string_pretty(&all).expect("numbers and text");
    fs::write(directory.join("spill.json"), json + "\n").expect("write the result");
}

async fn lives_through(outage: Outage) {
    let row = suffer(outage, sustained().await).await;
    // Written before it is judged, so that figures outside the limits are visible.
    write(&row);
    row.expect_as_promised();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_at_half_load() {
    lives_through(Outage::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_hangs_at_half_load() {
    lives_through(Outage::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_full_at_half_load() {
    lives_through(Outage::Full).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_is_killed_while_it_spills_at_half_load() {
    lives_through(Outage::ReceiverKilled).await;
}
