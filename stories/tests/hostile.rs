//! Attacks on the receiver while good webhooks come in.
//!
//! Under every attack, each good webhook must be answered 200 and no bad request may be answered
//! 5xx. Memory stays within what connections may hold, nothing panics, and no hidden request is
//! found in another one. Under `make hostile`, the p99 of good webhooks also grows by at most a
//! fifth.

mod report;
mod trial;

use std::sync::Arc;
use std::time::Duration;

use stories::authority::Authority;
use stories::backend::Backend;
use stories::cell::Cell;
use stories::feed::{Feed, Trickle};
use stories::hostile::attack::Attack;
use stories::hostile::{HIDDEN, play, shape};
use stories::ledger::{Ledger, Outcome};
use stories::port;
use stories::report::say;
use stories::service::Service;
use stories::size::size;
use stories::until::until;
use tokio::task::JoinSet;

use trial::{Scene, Trial};

const SOON: Duration = Duration::from_secs(60);

/// Short timeouts, so that slow attackers are disconnected during the test. The timeout of headers
/// is the default, because it also sets how often idle attackers reconnect. The largest body is
/// small, so that oversized bodies are small too.
const SETTINGS: [(&str, &str); 5] = [
    ("MAX_BODY", "1MiB"),
    ("MAX_IN_FLIGHT", "64MiB"),
    ("MAX_CONNECTIONS", "20000"),
    ("HEADER_TIMEOUT", "5s"),
    ("BODY_TIMEOUT", "1s"),
];

/// 500 webhooks per second over 32 connections.
const GOOD: Trickle = Trickle {
    shops: 1..33,
    topics: &["products/update"],
    every: Duration::from_millis(64),
    first_resource: 1,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_found_where_another_reader_would_see_none() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let short = [("IDLE_TIMEOUT", "1s"), ("HEADER_TIMEOUT", "1s")];
    let mut receiver = cell.receiver(&[&SETTINGS[..], &short].concat()).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let mut tasks = JoinSet::new();
    for shape in [shape::all(), vec![shape::pipelined()]].concat() {
        let address = receiver.address();
        // Reads until the connection ends, to detect an answer too many.
        tasks.spawn(async move { (play(address, &shape.bytes, usize::MAX).await, shape) });
    }
    let mut wrong = Vec::new();
    let mut stored = 0;
    for (heard, shape) in tasks.join_all().await {
        stored += heard.iter().filter(|status| **status == 200).count();
        if heard != shape.expected {
            wrong.push(format!("{}: {heard:?} instead of {:?}", shape.name, shape.expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    until("what was stored is delivered", SOON, async || backend.delivered() == stored).await;
    let is_hidden = |id: &str| id.starts_with(HIDDEN);
    backend.look(|receipts| {
        assert!(receipts.iter().all(|receipt| !is_hidden(receipt.webhook_id())));
    });
    expect_well(&mut receiver);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn good_webhooks_are_stored_under_every_attack() {
    let cell = Cell::measured();
    let redis = cell.redis(&[]).await;
    let authority = Authority::new(cell.directory(), "authority");
    authority.certify("served");
    let path = |name: &str| cell.directory().join(name).display().to_string();
    let (tls, certificate, key) = (port::free(), path("served.pem"), path("served.key"));
    let listen = tls.to_string();
    let https = [
        ("LISTEN_TLS", listen.as_str()),
        ("TLS_CERT_FILE", certificate.as_str()),
        ("TLS_KEY_FILE", key.as_str()),
    ];
    let mut receiver = cell.receiver(&[&SETTINGS[..], &https].concat()).await;
    let is_measured = size(false, true);
    let mut bare = None;
    if is_measured {
        bare = Some(cell.bare_server(&[("BODY_BYTES_MAX", "1048576")]).await);
    }
    let ledger = Arc::new(Ledger::default());
    let traffic = Feed::to(receiver.address(), &ledger).trickle(&GOOD);
    until("the traffic flows", SOON, async || ledger.stored_count() > 500).await;
    let mut trials = Vec::new();
    for attack in attacks() {
        let scene = Scene { receiver: &receiver, tls, bare: bare.as_ref(), ledger: &ledger };
        let trial = Trial::run(attack, &scene).await;
        say(&format!("hostile: {trial}"));
        trial.expect_harmless();
        expect_well(&mut receiver);
        trials.push(trial);
    }
    traffic.stop().await;
    let attempts = ledger.attempts();
    let bad = attempts.iter().filter(|attempt| attempt.outcome != Outcome::Stored);
    assert_eq!(bad.count(), 0, "of {} good webhooks", attempts.len());
    expect_stored(&trials, ledger.stored_count() as u64, {
        redis.command(&["HGET", "{spillway}:counts", "appended"]).await
    });
    if is_measured {
        report::write(&trials, attempts.len());
        let felt = trials.iter().filter(|trial| !trial.is_unfelt()).map(|trial| trial.attack);
        let felt: Vec<_> = felt.collect();
        assert!(felt.is_empty(), "p99 grew more than it may under {felt:?}");
    }
}

/// All attacks, or those that `ATTACKS` names.
fn attacks() -> Vec<Attack> {
    let wanted = std::env::var("ATTACKS").unwrap_or_default();
    let is_wanted = |attack: &Attack| {
        wanted.is_empty() || wanted.split(' ').any(|name| name == format!("{attack:?}"))
    };
    [Attack::Nothing].into_iter().chain(Attack::ALL).filter(is_wanted).collect()
}

/// Checks that the queue holds what was answered 200, and nothing else.
fn expect_stored(trials: &[Trial], good: u64, appended: u64) {
    let strange: u64 = trials.iter().map(Trial::stored).sum();
    // Attackers that were stopped may have missed some answers.
    let owed: u64 = trials.iter().map(Trial::owed_max).sum();
    let expected = good + strange..=good + strange + owed;
    assert!(expected.contains(&appended), "{appended} are stored, not {expected:?}");
}

fn expect_well(receiver: &mut Service) {
    assert!(receiver.is_running(), "the receiver ended");
    assert!(!receiver.output().contains("panicked"), "something panicked");
}
