//! Reactions of the downstreamer to the backend's answers.

use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::client::post;
use stories::receipt::Receipt;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(20);

/// Sends one webhook to a backend that does `first` once and then works. Returns what arrived.
async fn answered(first: Behaviour, settings: Settings<'_>) -> Vec<Receipt> {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(move |receipt| match receipt.attempt() {
        1 => first.clone(),
        _ => Behaviour::ok(),
    });
    let receiver = cell.receiver(&[]).await;
    let _downstreamer = cell.downstreamer(&backend, settings).await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    until("it is delivered", SOON, async || backend.delivered() == 1).await;
    backend.receipts()
}

async fn expect_retried(first: Behaviour, settings: Settings<'_>) -> Vec<Receipt> {
    let what = format!("{first:?}");
    let receipts = answered(first, settings).await;
    assert_eq!(receipts.len(), 2, "{what}");
    assert_eq!(receipts[1].attempt(), 2, "{what}");
    assert_eq!(receipts[0].spillway_id(), receipts[1].spillway_id(), "{what}");
    assert_eq!(receipts[0].body_hash, receipts[1].body_hash, "{what}");
    receipts
}

#[tokio::test]
async fn every_2xx_is_a_delivery() {
    for status in [200, 201, 202, 204] {
        assert_eq!(answered(Behaviour::status(status), &[]).await.len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_failing_backend_is_tried_again() {
    for status in [408, 425, 429, 500, 503, 599] {
        expect_retried(Behaviour::status(status), &[]).await;
    }
}

#[tokio::test]
async fn a_broken_connection_is_tried_again() {
    expect_retried(Behaviour::Reset, &[]).await;
    expect_retried(Behaviour::CutShort, &[]).await;
}

#[tokio::test]
async fn a_backend_that_says_nothing_is_tried_again_after_the_time_out() {
    let receipts = expect_retried(Behaviour::Hang, &[("DELIVERY_TIMEOUT", "1s")]).await;
    let waited = receipts[1].arrived - receipts[0].arrived;
    // The backend may notice a request a little late. A retry after a failure comes within 50 ms.
    let times = Duration::from_millis(500)..Duration::from_secs(4);
    assert!(times.contains(&waited), "{waited:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let redirect = Behaviour::status(302).header("Location", "/elsewhere");
    let receipts = expect_retried(redirect, &[]).await;
    assert_eq!(receipts[1].target, receipts[0].target);
}

#[tokio::test]
async fn an_answer_not_listed_is_tried_again() {
    for status in [401, 403, 404] {
        expect_retried(Behaviour::status(status), &[]).await;
    }
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let later = Behaviour::status(503).header("Retry-After", "2");
    let receipts = expect_retried(later, &[("RETRY_LONGEST", "10s")]).await;
    let waited = receipts[1].arrived - receipts[0].arrived;
    assert!(waited >= Duration::from_millis(1950), "{waited:?}");
}

#[tokio::test]
async fn retry_after_is_no_longer_than_the_longest_pause() {
    let much_later = Behaviour::status(503).header("Retry-After", "86400");
    let receipts = expect_retried(much_later, &[("RETRY_LONGEST", "1s")]).await;
    let waited = receipts[1].arrived - receipts[0].arrived;
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}
