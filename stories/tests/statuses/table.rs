//! Rows of the status table that depend on the request itself.

use stories::cell::Cell;
use stories::client::{Connection, post, send};
use stories::webhook::Webhook;

use super::shared::receiver;

/// A session token as a browser may hold it: a JWT, signed by Shopify with the client secret.
const SESSION_TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwcyJ9";

/// Output of `gzip` for `{}`.
const GZIPPED: &[u8] =
    &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xab, 0xae, 5, 0, 0x43, 0xbf, 0xa6, 0xa3, 2, 0, 0, 0];

#[tokio::test]
async fn a_signed_webhook_is_stored_and_answered_200() {
    let receiver = receiver().await;
    receiver.post(&Webhook::any()).await.expect_stored();
    assert!(receiver.stored_packs().await > 0);
}

#[tokio::test]
async fn any_path_takes_webhooks() {
    let receiver = receiver().await;
    for target in [
        "/",
        "/a/b?c=d",
        "//a",
        "/caf%C3%A9",
        "/x?",
        "/.well-known/x",
        "/a..b",
        "/...",
        "/x?p=/../y",
    ] {
        let answer = receiver.post(&Webhook::any().to(target)).await;
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_connection_is_kept_over_answers_of_every_kind() {
    let receiver = receiver().await;
    let mut connection = Connection::to(receiver.address()).await;
    connection.post(&Webhook::any()).await.expect_stored();
    connection.post(&Webhook::any().signed_with("x")).await.expect(401, "bad_signature");
    connection.post(&Webhook::any().body("hello")).await.expect(400, "not_a_webhook");
    connection.post(&Webhook::any()).await.expect_stored();
}

#[tokio::test]
async fn two_requests_in_one_packet_get_two_answers() {
    let receiver = receiver().await;
    let mut connection = Connection::to(receiver.address()).await;
    let both = [Webhook::any().encode(), Webhook::any().encode()].concat();
    connection.write(&both).await.unwrap();
    connection.answer().await.expect_stored();
    connection.answer().await.expect_stored();
}

#[tokio::test]
async fn a_header_block_too_large_is_431() {
    let receiver = receiver().await;
    let large = Webhook::any().header("X-Large", vec![b'a'; 512 * 1024]);
    assert_eq!(receiver.post(&large).await.status, 431);
}

#[tokio::test]
async fn what_is_not_http_is_400() {
    let receiver = receiver().await;
    for nonsense in ["nonsense\r\n\r\n", "POST /\x01 HTTP/1.1\r\n\r\n", "POST / HTTP/9.9\r\n\r\n"] {
        let answer = send(receiver.address(), nonsense.as_bytes()).await;
        assert_eq!(answer.status, 400, "{nonsense:?}");
    }
}

#[tokio::test]
async fn two_lengths_for_one_body_are_400() {
    let receiver = receiver().await;
    let webhook = Webhook::any().header("Content-Length", "1");
    assert_eq!(receiver.post(&webhook).await.status, 400);
}

#[tokio::test]
async fn a_dot_segment_in_the_path_is_400() {
    let receiver = receiver().await;
    for target in [
        "/a/../b",
        "/a/..",
        "/..",
        "/./a",
        "/a/.",
        "/a/%2e%2e/b",
        "/%2E./b",
        "/.%2e",
        "/a/%2E",
        "/a/../b?c=d",
    ] {
        let answer = receiver.post(&Webhook::any().to(target)).await;
        assert_eq!(answer.status, 400, "{target}");
    }
}

#[tokio::test]
async fn any_method_but_post_is_405() {
    let receiver = receiver().await;
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let answer = receiver.post(&Webhook::any().method(method)).await;
        assert_eq!(answer.status, 405, "{method}");
    }
}

#[tokio::test]
async fn a_request_that_passed_a_downstreamer_is_508() {
    let receiver = receiver().await;
    let webhook = Webhook::any().header("Spillway-Id", "0001-0002-0003");
    receiver.post(&webhook).await.expect(508, "loop_detected");
    let lower = Webhook::any().header("spillway-id", "");
    receiver.post(&lower).await.expect(508, "loop_detected");
}

#[tokio::test]
async fn a_session_token_signed_with_the_secret_is_400() {
    let receiver = receiver().await;
    let token = Webhook::any().body(SESSION_TOKEN);
    receiver.post(&token).await.expect(400, "not_a_webhook");
}

#[tokio::test]
async fn an_oauth_query_signed_with_the_secret_is_400() {
    let receiver = receiver().await;
    let query = Webhook::any().body("code=1&shop=story.myshopify.com&timestamp=1337178173");
    receiver.post(&query).await.expect(400, "not_a_webhook");
}

#[tokio::test]
async fn an_empty_body_is_400() {
    let receiver = receiver().await;
    receiver.post(&Webhook::any().body("")).await.expect(400, "not_a_webhook");
}

#[tokio::test]
async fn json_objects_arrays_and_xml_are_webhooks() {
    let receiver = receiver().await;
    for body in ["{}", "[1]", "<?xml version=\"1.0\"?><product/>"] {
        receiver.post(&Webhook::any().body(body)).await.expect_stored();
    }
}

#[tokio::test]
async fn a_gzipped_body_is_not_opened_to_see_what_it_is() {
    let receiver = receiver().await;
    let gzipped = Webhook::any().header("Content-Encoding", "gzip").body(GZIPPED);
    receiver.post(&gzipped).await.expect(400, "not_a_webhook");
}

#[tokio::test]
async fn the_kinds_of_body_are_a_setting() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let any = cell.receiver(&[("BODY_KINDS", "any")]).await;
    let gzipped = Webhook::any().header("Content-Encoding", "gzip").body(GZIPPED);
    post(any.address(), &gzipped).await.expect_stored();
    let json = cell.receiver(&[("BODY_KINDS", "json")]).await;
    post(json.address(), &Webhook::any().body("<a/>")).await.expect(400, "not_a_webhook");
    post(json.address(), &Webhook::any()).await.expect_stored();
}

#[tokio::test]
async fn a_webhook_without_a_topic_is_400() {
    let receiver = receiver().await;
    let webhook = Webhook::any().without("X-Shopify-Topic");
    receiver.post(&webhook).await.expect(400, "missing_header");
}

#[tokio::test]
async fn a_webhook_without_a_shop_is_stored() {
    let receiver = receiver().await;
    receiver.post(&Webhook::any().without("X-Shopify-Shop-Domain")).await.expect_stored();
}
