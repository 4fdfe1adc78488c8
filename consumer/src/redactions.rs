//! Redactions that were delivered: each is noted in Redis before it is settled, so that the data is purged later
//! (`spillway forget --due`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillway_process::error::chain;
use spillway_queue::redactions;
use spillway_queue::{QueueError, Redis};
use spillway_webhook::pack::{Pack, Packer};
use spillway_webhook::redaction::is_redaction;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{Redaction, WebhookId};

/// Time for Redis' answer, as for a settlement.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before Redis is asked again after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// Redactions that this process refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Number of delivered redactions that this process refused: nothing is purged because of them.
pub(crate) fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// A redaction that was delivered.
#[derive(Debug, Clone)]
pub struct DeliveredRedaction {
    webhook: WebhookId,
    /// A pack of one.
    pack: Vec<u8>,
}

impl DeliveredRedaction {
    /// The webhook at `index` of the pack, if it is a redaction. One that names nobody, or whose headers its signed
    /// body does not confirm, is logged, counted and left out.
    pub fn of(pack: &Pack, index: u32, webhook: WebhookId) -> Option<Self> {
        let view = pack.view(index);
        if !is_redaction(&view.topic()?) {
            return None;
        }
        if let Err(error) = Redaction::parse(&view, view.body) {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                %webhook, %error,
                "a redaction is refused, and nothing is purged because of it: if it is a real one, purge by hand with \
                 `spillway forget --shop`; see docs/privacy.md"
            );
            return None;
        }
        Some(Self { webhook, pack: Packer::new().single_out(pack, index) })
    }

    /// Notes it in Redis, and asks until Redis has it. Its caller ends this when its leadership ends.
    pub async fn note(&self, redis: &Redis, consumer: &str) {
        let mut is_failing = false;
        loop {
            match self.try_note(redis, consumer).await {
                Ok(is_new) => {
                    if is_new {
                        tracing::info!(webhook = %self.webhook, "noted a redaction that was delivered");
                    }
                    return;
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(
                            error = chain(&error),
                            "a redaction could not be noted; trying until redis answers"
                        );
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn try_note(&self, redis: &Redis, consumer: &str) -> Result<bool, QueueError> {
        let mut connection = redis.connect(Some(ANSWER_TIMEOUT)).await?;
        redactions::note(redis, &mut connection, consumer, self.webhook, &self.pack).await
    }
}

#[cfg(test)]
mod tests {
    use spillway_webhook::pack::Records;
    use spillway_webhook::{StreamId, Webhook};

    use super::*;

    fn pack(topic: &'static str, body: &'static str) -> Pack {
        let mut headers = http::HeaderMap::new();
        headers.insert("x-shopify-topic", http::HeaderValue::from_static(topic));
        let webhook = Webhook {
            received_at_ms: 7,
            target: http::uri::PathAndQuery::from_static("/webhooks"),
            headers,
            body: body.into(),
        };
        let mut records = Records::default();
        records.push(&webhook);
        Pack::decode(Packer::new().pack(&records)).expect("a pack")
    }

    #[test]
    fn only_a_redaction_that_names_somebody_is_noted() {
        let webhook = WebhookId { cell: 1, entry: StreamId { ms: 5, seq: 0 }, index: 0 };
        let is_noted =
            |topic, body| DeliveredRedaction::of(&pack(topic, body), 0, webhook).is_some();
        let of_shop = r#"{"shop_domain":"a.myshopify.com"}"#;
        assert!(is_noted("shop/redact", of_shop));
        assert!(!is_noted("shop/update", of_shop));
        assert!(!is_noted("customers/redact", of_shop), "it names no customer");
        let of_ann =
            r#"{"shop_domain":"a.myshopify.com","customer":{"id":12},"orders_to_redact":[]}"#;
        assert!(is_noted("customers/redact", of_ann));
        assert!(!is_noted("shop/redact", of_ann), "the header with the topic is not signed");
        assert!(!is_noted("shop/redact", "nonsense"));
    }
}
