//! Time of the trigger. It is unsigned, so it only bounds staleness.

use stories::answer::Answer;
use stories::cell::Cell;
use stories::client::post;
use stories::webhook::{Webhook, rfc3339};
use time::{Duration, OffsetDateTime, UtcOffset};

use super::shared::receiver;

const TRIGGERED_AT: &str = "X-Shopify-Triggered-At";
const COMPLIANCE: [&str; 3] = ["customers/data_request", "customers/redact", "shop/redact"];

async fn triggered(value: &str) -> Answer {
    receiver().await.post(&Webhook::any().with(TRIGGERED_AT, value)).await
}

fn ago(duration: Duration) -> OffsetDateTime {
    OffsetDateTime::now_utc() - duration
}

#[tokio::test]
async fn nanoseconds_and_none_are_read() {
    let moment = ago(Duration::minutes(1)).replace_nanosecond(123_456_789).unwrap();
    triggered(&rfc3339(moment)).await.expect_stored();
    triggered(&rfc3339(moment.replace_nanosecond(0).unwrap())).await.expect_stored();
}

#[tokio::test]
async fn an_offset_is_read() {
    // Ten minutes ago by a clock 13 hours ahead. Read as UTC, it would be in the future.
    let moment = ago(Duration::minutes(10)).to_offset(UtcOffset::from_hms(13, 0, 0).unwrap());
    triggered(&rfc3339(moment)).await.expect_stored();
    let moment = ago(Duration::minutes(10)).to_offset(UtcOffset::from_hms(-11, 0, 0).unwrap());
    triggered(&rfc3339(moment)).await.expect_stored();
}

#[tokio::test]
async fn a_webhook_without_a_timestamp_is_stored_and_counted() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    post(receiver.address(), &Webhook::any().without(TRIGGERED_AT)).await.expect_stored();
    let counted = receiver.metric("spillway_without_triggered_at_total").await;
    assert_eq!(counted, Some(1.0));
}

#[tokio::test]
async fn a_timestamp_that_is_none_is_400() {
    for value in ["yesterday", "", "1700000000", "2026-13-41T00:00:00Z", "2026-01-01"] {
        triggered(value).await.expect(400, "bad_timestamp");
    }
}

#[tokio::test]
async fn one_from_the_future_is_400() {
    let moment = ago(Duration::minutes(-65));
    triggered(&rfc3339(moment)).await.expect(400, "from_the_future");
}

#[tokio::test]
async fn one_that_is_stale_is_400() {
    triggered(&rfc3339(ago(Duration::hours(73)))).await.expect(400, "stale");
}

#[tokio::test]
async fn clocks_may_differ_and_retries_take_hours() {
    triggered(&rfc3339(ago(Duration::minutes(-55)))).await.expect_stored();
    triggered(&rfc3339(ago(Duration::hours(71)))).await.expect_stored();
}

#[tokio::test]
async fn compliance_topics_are_taken_at_any_age() {
    let receiver = receiver().await;
    for topic in COMPLIANCE {
        let webhook = Webhook::any().topic(topic);
        let old = webhook.clone().with(TRIGGERED_AT, "2001-01-01T00:00:00Z");
        receiver.post(&old).await.expect_stored();
        receiver.post(&webhook.clone().without(TRIGGERED_AT)).await.expect_stored();
        receiver.post(&webhook.with(TRIGGERED_AT, "yesterday")).await.expect_stored();
    }
}

#[tokio::test]
async fn the_bounds_are_settings() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let settings =
        [("MAX_EVENT_AGE", "10m"), ("MAX_CLOCK_SKEW", "5m"), ("REQUIRE_TIMESTAMP", "true")];
    let receiver = cell.receiver(&settings).await;
    let webhook =
        |minutes| Webhook::any().with(TRIGGERED_AT, rfc3339(ago(Duration::minutes(minutes))));
    post(receiver.address(), &webhook(9)).await.expect_stored();
    post(receiver.address(), &webhook(11)).await.expect(400, "stale");
    post(receiver.address(), &webhook(-4)).await.expect_stored();
    post(receiver.address(), &webhook(-6)).await.expect(400, "from_the_future");
    let without = Webhook::any().without(TRIGGERED_AT);
    post(receiver.address(), &without).await.expect(400, "missing_header");
}
