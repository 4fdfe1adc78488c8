//! Signatures. If a signature is wrong, it is the reported error, whatever else is wrong.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use std::time::Duration;

use stories::cell::Cell;
use stories::client::{post, send};
use stories::ledger::Event;
use stories::shop;
use stories::until::until;
use stories::webhook::{SECRET, SIGNATURE, Webhook, sign};

use super::shared::receiver;

#[tokio::test]
async fn no_signature_is_401() {
    let receiver = receiver().await;
    receiver.post(&Webhook::any().without(SIGNATURE)).await.expect(401, "bad_signature");
}

#[tokio::test]
async fn the_signature_of_another_secret_is_401() {
    let receiver = receiver().await;
    receiver.post(&Webhook::any().signed_with("another")).await.expect(401, "bad_signature");
}

#[tokio::test]
async fn the_signature_of_another_body_is_401() {
    let receiver = receiver().await;
    let other = Webhook::any().with(SIGNATURE, sign(SECRET, b"{\"another\":\"body\"}"));
    receiver.post(&other).await.expect(401, "bad_signature");
}

#[tokio::test]
async fn what_is_not_base64_of_32_bytes_is_401() {
    let receiver = receiver().await;
    // The alphabets differ in two letters: uses a body whose signature contains one of them.
    let telling = |signature: &str| signature.contains(['+', '/']);
    let bodies = (0..).map(|n| format!("{{\"n\":{n}}}"));
    let body = bodies.into_iter().find(|body| telling(&sign(SECRET, body.as_bytes()))).unwrap();
    let raw = STANDARD.decode(sign(SECRET, body.as_bytes())).unwrap();
    let wrong = [
        URL_SAFE.encode(&raw),
        STANDARD_NO_PAD.encode(&raw),
        STANDARD.encode(&raw[..31]),
        STANDARD.encode([&raw[..], &[0]].concat()),
        raw.iter().map(|byte| format!("{byte:02x}")).collect(),
        String::new(),
        "?".to_owned(),
        format!("{}\u{e9}", STANDARD.encode(&raw)),
    ];
    for signature in wrong {
        let webhook = Webhook::any().body(body.as_str()).with(SIGNATURE, &signature);
        let answer = receiver.post(&webhook).await;
        assert_eq!(answer.status, 401, "{signature:?}");
        assert_eq!(answer.code(), "bad_signature");
    }
}

#[tokio::test]
async fn two_signature_headers_are_401() {
    let receiver = receiver().await;
    let webhook = Webhook::any();
    let right = sign(SECRET, webhook.payload());
    let twice = webhook.clone().header(SIGNATURE, &right);
    receiver.post(&twice).await.expect(401, "bad_signature");
    let second_wrong = webhook.clone().header(SIGNATURE, sign("another", webhook.payload()));
    receiver.post(&second_wrong).await.expect(401, "bad_signature");
}

#[tokio::test]
async fn a_wrong_signature_wins_over_all_else() {
    let receiver = receiver().await;
    let forged = Webhook::any().signed_with("another");
    for also_wrong in [
        forged.clone().header("Spillway-Id", "1"),
        forged.clone().without("X-Shopify-Topic"),
        forged.clone().without("X-Shopify-Triggered-At"),
        forged.clone().with("X-Shopify-Triggered-At", "2001-01-01T00:00:00Z"),
        Webhook::any().body("eyJ").signed_with("another"),
        Webhook::any().body("").signed_with("another"),
    ] {
        receiver.post(&also_wrong).await.expect(401, "bad_signature");
    }
}

#[tokio::test]
async fn bytes_that_are_not_text_are_signed_like_any_other() {
    let receiver = receiver().await;
    let body = b"{\"title\":\"\xff\xfe\xc3\x28\0\"}".to_vec();
    receiver.post(&Webhook::any().body(body)).await.expect_stored();
}

#[tokio::test]
async fn a_chunked_body_is_verified_whole() {
    let receiver = receiver().await;
    let webhook = Webhook::any().body(format!("{{\"fill\":\"{}\"}}", "x".repeat(10_000)));
    send(receiver.address(), &webhook.encode_chunked(999)).await.expect_stored();
    let forged = webhook.signed_with("another");
    send(receiver.address(), &forged.encode_chunked(999)).await.expect(401, "bad_signature");
}

#[tokio::test]
async fn headers_of_both_families_are_read_in_any_case() {
    let receiver = receiver().await;
    let event = shop::event(1, "prices", Event { resource: 1, sequence: 1 });
    receiver.post(&event).await.expect_stored();
    receiver.post(&event.clone().rename("Shopify-", "shopify-")).await.expect_stored();
    receiver.post(&Webhook::any().rename("X-Shopify-", "x-shopify-")).await.expect_stored();
    let forged = event.with("Shopify-Hmac-Sha256", sign("another", b"{}"));
    receiver.post(&forged.rename("Shopify-", "shopify-")).await.expect(401, "bad_signature");
}

#[tokio::test]
async fn an_old_and_a_new_secret_verify_at_once() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("SHOPIFY_CLIENT_SECRET", "old-secret,new-secret")]).await;
    for secret in ["old-secret", "new-secret"] {
        let webhook = Webhook::any().signed_with(secret);
        post(receiver.address(), &webhook).await.expect_stored();
    }
    let webhook = Webhook::any().signed_with("old-secret,new-secret");
    post(receiver.address(), &webhook).await.expect(401, "bad_signature");
}

#[tokio::test]
async fn secrets_are_rotated_by_file_and_sighup() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let path = cell.directory().join("secrets");
    std::fs::write(&path, "first-secret\n").unwrap();
    let file =
        [("SHOPIFY_CLIENT_SECRET", ""), ("SHOPIFY_CLIENT_SECRET_FILE", path.to_str().unwrap())];
    let mut receiver = cell.receiver(&file).await;
    let (first, second) =
        (Webhook::any().signed_with("first-secret"), Webhook::any().signed_with("second-secret"));
    post(receiver.address(), &first).await.expect_stored();
    post(receiver.address(), &second).await.expect(401, "bad_signature");

    std::fs::write(&path, "first-secret\nsecond-secret\n").unwrap();
    receiver.sighup();
    let verifies = async |webhook| post(receiver.address(), webhook).await.status == 200;
    until("the second secret verifies", Duration::from_secs(20), async || verifies(&second).await)
        .await;
    post(receiver.address(), &first).await.expect_stored();

    std::fs::write(&path, "second-secret\n").unwrap();
    receiver.sighup();
    until("the first is forgotten", Duration::from_secs(20), async || !verifies(&first).await)
        .await;
    post(receiver.address(), &second).await.expect_stored();
    assert!(receiver.is_running());
}

#[tokio::test]
async fn a_file_spoilt_at_sighup_leaves_the_secrets_as_they_were() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let path = cell.directory().join("secrets");
    std::fs::write(&path, "first-secret\n").unwrap();
    let file =
        [("SHOPIFY_CLIENT_SECRET", ""), ("SHOPIFY_CLIENT_SECRET_FILE", path.to_str().unwrap())];
    let mut receiver = cell.receiver(&file).await;
    let before = receiver.output().len();
    std::fs::write(&path, "\n").unwrap();
    receiver.sighup();
    until("it says so", Duration::from_secs(20), async || receiver.output().len() > before).await;
    post(receiver.address(), &Webhook::any().signed_with("first-secret")).await.expect_stored();
    assert!(receiver.is_running());
    assert!(!receiver.output().contains("first-secret"), "a secret in the log");
}
