//! Orders of a purge: who is meant, and up to which webhook. What came later stays: the customer may have come back.

use spillway_queue::redactions::NotedRedaction;
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::redaction::{NotARedaction, SearchedWebhook};
use spillway_webhook::{Position, Redaction, StreamId, WebhookId};

/// One redaction to carry out.
#[derive(Debug, Clone)]
pub(super) struct PurgeOrder {
    redaction: Redaction,
    /// Position of the last webhook that is meant: the redaction's own.
    through: Position,
    /// Webhook that asked for it; `None` by hand.
    pub webhook: Option<WebhookId>,
}

/// All redactions of a purge.
#[derive(Debug, Clone, Default)]
pub(super) struct PurgeOrders(Vec<PurgeOrder>);

impl PurgeOrder {
    /// Order for everything up to an entry.
    pub(super) fn until(redaction: Redaction, last: StreamId) -> Self {
        Self { redaction, through: Position::new(last, u32::MAX), webhook: None }
    }

    /// Order for everything up to a redaction that was delivered, with itself.
    ///
    /// # Errors
    /// A sentence, if the note cannot be read.
    pub(super) fn of(noted: &NotedRedaction) -> Result<Self, String> {
        let WebhookId { entry, index, .. } = noted.webhook;
        let pack = Pack::decode(&noted.pack).map_err(|error| error.to_string())?;
        if pack.count() != 1 {
            return Err("not a pack of one".to_owned());
        }
        let view = pack.view(0);
        let redaction = Redaction::parse(&view, view.body);
        let redaction = redaction.map_err(|error: NotARedaction| error.to_string())?;
        let through = Position::new(entry, index);
        Ok(Self { redaction, through, webhook: Some(noted.webhook) })
    }

    /// `customer` or `shop`.
    pub(super) fn kind(&self) -> &'static str {
        if self.redaction.is_of_shop() { "shop" } else { "customer" }
    }
}

impl PurgeOrders {
    /// Orders of one purge.
    pub(super) fn new(orders: Vec<PurgeOrder>) -> Self {
        Self(orders)
    }

    /// The orders.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PurgeOrder> {
        self.0.iter()
    }

    /// Entry up to which something may be meant.
    pub(super) fn last(&self) -> StreamId {
        self.0.iter().map(|order| order.through.entry()).max().unwrap_or(StreamId::ZERO)
    }

    /// True if the webhook at a position holds data of somebody who is meant.
    pub(super) fn is_meant(&self, entry: StreamId, index: u32, view: &View<'_>) -> bool {
        let position = Position::new(entry, index);
        let mut orders = self.0.iter().filter(|order| position <= order.through).peekable();
        if orders.peek().is_none() {
            return false;
        }
        let mut webhook = SearchedWebhook::new(view, view.body);
        orders.any(|order| order.redaction.is_in(&mut webhook))
    }

    /// True if bytes that cannot be decoded show data of somebody who is meant.
    pub(super) fn is_shown_by(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|order| order.redaction.is_in_bytes(bytes))
    }

    /// True if webhooks of a shop may be meant. Some webhooks have no shop in their headers.
    pub(super) fn may_mean(&self, shop: &[u8]) -> bool {
        let is_of =
            |order: &PurgeOrder| order.redaction.shop().as_bytes().eq_ignore_ascii_case(shop);
        shop.is_empty() || self.0.iter().any(is_of)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};
    use spillway_webhook::Webhook;
    use spillway_webhook::pack::{Packer, Records};

    use super::*;

    const BODY: &str = r#"{"shop_domain":"a.example","customer":{"id":12}}"#;

    fn pack(topic: &'static str) -> Bytes {
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-topic", HeaderValue::from_static(topic));
        headers.insert("x-shopify-shop-domain", HeaderValue::from_static("a.example"));
        let target = http::uri::PathAndQuery::from_static("/");
        let webhook = Webhook { received_at_ms: 7, target, headers, body: BODY.into() };
        let mut records = Records::default();
        records.push(&webhook);
        Packer::new().pack(&records).to_vec().into()
    }

    fn noted(topic: &'static str) -> NotedRedaction {
        let entry = StreamId { ms: 5, seq: 2 };
        NotedRedaction {
            webhook: WebhookId { cell: 1, entry, index: 3 },
            noted_ms: 9,
            consumer: "http".to_owned(),
            pack: pack(topic),
        }
    }

    #[test]
    fn only_what_came_up_to_the_redaction_is_meant() {
        let order = PurgeOrder::of(&noted("customers/redact")).expect("a redaction");
        assert_eq!(order.kind(), "customer");
        let orders = PurgeOrders::new(vec![order]);
        assert_eq!(orders.last(), StreamId { ms: 5, seq: 2 });
        let of_order = Pack::decode(&pack("orders/create")).expect("a pack");
        let is_meant =
            |ms, seq, index| orders.is_meant(StreamId { ms, seq }, index, &of_order.view(0));
        assert!(is_meant(4, 9, 9) && is_meant(5, 2, 0) && is_meant(5, 2, 3));
        assert!(!is_meant(5, 2, 4) && !is_meant(5, 3, 0) && !is_meant(6, 0, 0));
        assert!(orders.may_mean(b"A.example") && orders.may_mean(b""));
        assert!(!orders.may_mean(b"b.example"));
        assert!(PurgeOrder::of(&noted("orders/create")).is_err());
    }

    #[test]
    fn by_hand_everything_up_to_an_entry_is_meant() {
        let order = PurgeOrder::until(Redaction::of_shop("a.example"), StreamId { ms: 5, seq: 2 });
        assert_eq!((order.kind(), order.webhook), ("shop", None));
        let orders = PurgeOrders::new(vec![order]);
        let webhook = Pack::decode(&pack("products/update")).expect("a pack");
        assert!(orders.is_meant(StreamId { ms: 5, seq: 2 }, 70_000, &webhook.view(0)));
        assert!(!orders.is_meant(StreamId { ms: 5, seq: 3 }, 0, &webhook.view(0)));
    }
}
