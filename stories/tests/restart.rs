//! Restarts and secret rotations under load that no sender notices.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use std::collections::HashSet;

use stories::backend::Backend;
use stories::cell::Cell;
use stories::check::check;
use stories::ledger::{Event, Ledger, Outcome};
use stories::line::Line;
use stories::load::Load;
use stories::report::say;
use stories::seed::seed;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;

/// Longer than the receiver takes to stop on a busy machine.
const EXIT_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_is_restarted_and_no_request_fails() {
    let seed = seed("restarts", 51);
    let restarts = size(10, 100);
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let socket = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let mut receiver = cell.receiver_on(&socket, &[]);
    receiver.ready().await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let ledger = Arc::new(Ledger::default());
    let busy = Load { connections: 24, pause: Duration::from_millis(10), ..Load::steady(seed) };
    // Actual pauses are half to one and a half times this: up to 4.5 s if restarts may be slow.
    let pause = size(Duration::from_secs(1), Duration::from_secs(3));
    let first_resource = 1 + busy.resources;
    let quiet = Load { connections: 8, resources: 8, first_resource, pause, ..busy.clone() };
    let running = [busy, quiet].map(|load| load.start(receiver.address(), &ledger));

    let mut longest = Duration::ZERO;
    for _ in 0..restarts {
        let stored = ledger.stored_count();
        until("webhooks come in", EXIT_WITHIN, async || ledger.stored_count() > stored + 50).await;
        let told = Instant::now();
        receiver.sigterm();
        // Like systemd, it starts nothing before this one has ended.
        assert_eq!(receiver.exit(EXIT_WITHIN).await.code(), Some(0));
        longest = longest.max(told.elapsed());
        receiver.restart();
    }
    for load in running {
        load.stop().await;
    }

    let attempts = ledger.attempts();
    let slowest = attempts.iter().map(|attempt| attempt.took).max().unwrap();
    say(&format!(
        "restarts: {restarts} under {} requests; the longest took {longest:?} to end; the slowest \
         request {slowest:?}",
        attempts.len(),
    ));
    let failed: Vec<_> =
        attempts.iter().filter(|attempt| attempt.outcome != Outcome::Stored).collect();
    assert!(failed.is_empty(), "{} requests failed: {:?}", failed.len(), failed.first());
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("restarts");
    figures.expect_sound(0);
}

#[tokio::test]
async fn who_connects_during_the_last_call_waits_for_no_idle_connection() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let mut receiver = cell.receiver(&[]).await;
    // A used connection that is kept open.
    let mut idle = stories::client::Connection::to(receiver.address()).await;
    idle.post(&Webhook::any()).await.expect_stored();
    receiver.sigterm();
    receiver.unready("stopping").await;
    let answer = stories::client::post(receiver.address(), &Webhook::any()).await;
    answer.expect_stored();
    assert_eq!(answer.headers.text("connection"), Some("close"));
    assert!(receiver.is_running(), "the idle connection still has its time");
    let answer = idle.post(&Webhook::any()).await;
    answer.expect_stored();
    assert_eq!(answer.headers.text("connection"), Some("close"));
    assert_eq!(receiver.exit(EXIT_WITHIN).await.code(), Some(0));
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_is_logged_once_and_so_is_its_end() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    downstreamer.ready().await;
    let lines = |text: &str| downstreamer.output().matches(text).count();
    redis.kill9();
    downstreamer.unready("queue_unavailable").await;
    until("it is logged", EXIT_WITHIN, async || lines("reading the queue failed") > 0).await;
    redis.restart();
    redis.ready().await;
    until("the end is logged", EXIT_WITHIN, async || lines("the queue is read again") > 0).await;
    // One for the main stream and one for the replays.
    assert!(lines("reading the queue failed") <= 2, "{}", downstreamer.output());
    assert!(downstreamer.output().contains("backend=http://127.0.0.1:"), "as an operator reads it");
}

const SIGNERS: usize = 16;

/// Senders that sign with the newest secret that the receiver has loaded.
struct Signers {
    newest: AtomicUsize,
    /// For each sender, the secret of its last answered webhook.
    used: [AtomicUsize; SIGNERS],
    is_over: AtomicBool,
    ledger: Arc<Ledger>,
}

fn secret(number: usize) -> String {
    format!("secret-number-{number}")
}

impl Signers {
    /// True if no webhook that was signed with an older secret is under way.
    fn all_use(&self, number: usize) -> bool {
        self.used.iter().all(|used| used.load(Ordering::Relaxed) >= number)
    }

    async fn send(self: Arc<Self>, place: usize, address: std::net::SocketAddr) {
        let resource = place as u64 + 1;
        let mut line = Line::new(address, &self.ledger);
        let mut sequence = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            sequence += 1;
            let number = self.newest.load(Ordering::Relaxed);
            let event = Event { resource, sequence };
            let body = format!("{{\"id\":{resource},\"sequence\":{sequence}}}");
            let webhook = Webhook::product(resource, &event.webhook_id(), body.into_bytes())
                .signed_with(&secret(number));
            line.attempt(event, &webhook).await;
            self.used[place].store(number, Ordering::Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_rotated_under_load_and_nobody_is_turned_away() {
    let rotations = size(20, 200);
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let path = cell.directory().join("secrets");
    // Replaces the file atomically, as an editor or `install` does: a reader gets one complete
    // version.
    let write = |secrets: &[usize]| {
        let new = cell.directory().join("secrets.new");
        let lines: String = secrets.iter().map(|number| secret(*number) + "\n").collect();
        std::fs::write(&new, lines).unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    write(&[0]);
    let file = path.to_str().unwrap();
    let settings = [("SHOPIFY_CLIENT_SECRET", ""), ("SHOPIFY_CLIENT_SECRET_FILE", file)];
    let receiver = cell.receiver(&settings).await;
    let reloaded = async |times: usize| {
        let is_reloaded = || receiver.output().matches("secrets read again").count() >= times;
        until("the secrets are read again", EXIT_WITHIN, async || is_reloaded()).await;
    };
    let ledger = Arc::new(Ledger::default());
    let (newest, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (used, ledger_too) = (Default::default(), ledger.clone());
    let signers = Arc::new(Signers { newest, used, is_over, ledger: ledger_too });
    let senders: Vec<_> = (0..SIGNERS)
        .map(|place| tokio::spawn(signers.clone().send(place, receiver.address())))
        .collect();
    for number in 1..=rotations {
        // The new secret is added to the old one, then Shopify signs with it, then the old one is
        // removed.
        write(&[number - 1, number]);
        receiver.sighup();
        reloaded(2 * number - 1).await;
        signers.newest.store(number, Ordering::Relaxed);
        until("all use the new one", EXIT_WITHIN, async || signers.all_use(number)).await;
        write(&[number]);
        receiver.sighup();
        reloaded(2 * number).await;
    }
    signers.is_over.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    let attempts = ledger.attempts();
    say(&format!("rotations: {rotations} under {} requests", attempts.len()));
    let failed: Vec<_> =
        attempts.iter().filter(|attempt| attempt.outcome != Outcome::Stored).collect();
    assert!(failed.is_empty(), "{} requests failed: {:?}", failed.len(), failed.first());
    let old = Webhook::any().signed_with(&secret(rotations - 1));
    stories::client::post(receiver.address(), &old).await.expect(401, "bad_signature");
}
