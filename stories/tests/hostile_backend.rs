//! A hostile or broken backend: whatever it answers, each webhook is retried and delivered, and the
//! downstreamer's memory stays bounded.

use std::collections::HashMap;
use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::client::post;
use stories::hostile::answers;
use stories::report::say;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(120);

/// Memory that hyper reads of a head (about 400 KB) and its answer for each connection, plus what
/// the process needs in any case.
const GROWTH_MAX: u64 = CONCURRENCY as u64 * (512 << 10) + (16 << 20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_backend_answers_each_webhook_is_delivered_in_the_end() {
    let cell = Cell::measured();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let cases: Vec<_> = answers::all();
    let plan: HashMap<String, Behaviour> =
        (0..).zip(&cases).map(|(case, (_, behaviour))| (id(case), behaviour.clone())).collect();
    backend.behave(move |receipt| match receipt.attempt() {
        1 => plan[receipt.webhook_id()].clone(),
        _ => Behaviour::ok(),
    });
    for case in 0..cases.len() {
        let webhook =
            Webhook::product(case as u64 + 1, &id(case), format!("{{\"id\":{case}}}").into());
        post(receiver.address(), &webhook).await.expect_stored();
    }
    // All deliveries start at once, because the webhooks are stored before the downstreamer starts.
    let settings = [("DELIVERY_TIMEOUT", "2s"), ("MIN_CONCURRENCY", "64")];
    let mut downstreamer = cell.downstreamer(&backend, &settings).await;
    let before = downstreamer.resident_bytes();
    let mut most = before;
    let all_delivered = async || {
        most = most.max(downstreamer.resident_bytes());
        backend.delivered() == cases.len()
    };
    until("all are delivered", SOON, all_delivered).await;
    backend.look(|receipts| {
        for (case, (name, _)) in cases.iter().enumerate() {
            let id = id(case);
            let attempts = receipts.iter().filter(|receipt| receipt.webhook_id() == id);
            let attempts: Vec<_> = attempts.map(|receipt| receipt.attempt()).collect();
            // The second answer completes the webhook; it is not sent again.
            assert_eq!(attempts, [1, 2], "{name}");
        }
    });
    say(&format!("hostile backend: memory {} MiB, at most {} MiB", before >> 20, most >> 20));
    assert!(most < before + GROWTH_MAX, "{before} grew to {most}");
    assert!(downstreamer.is_running() && !downstreamer.output().contains("panicked"));
}

fn id(case: usize) -> String {
    format!("case-{case}")
}
