//! Orders of a purge: who is meant, and up to which webhook. What came later stays: the customer may have come back.

use spillway_queue::redactions::NotedRedaction;
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::redaction::{MatchedBy, NotARedaction, SearchedWebhook, is_redaction};
use spillway_webhook::shopify::Headers;
use spillway_webhook::{Position, Redaction, StreamId, WebhookId, stable_hash};

use super::hand::HandOrder;

/// One redaction to carry out.
#[derive(Debug, Clone)]
pub(super) struct PurgeOrder {
    redaction: Redaction,
    /// Position of the last webhook that is meant: the redaction's own.
    through: Position,
    /// Webhook that asked for it; `None` by hand.
    pub webhook: Option<WebhookId>,
    /// Name of its note; `None` if there is none.
    pub note: Option<String>,
}

/// All redactions of a purge.
#[derive(Debug, Clone, Default)]
pub(super) struct PurgeOrders(Vec<PurgeOrder>);

impl PurgeOrder {
    /// Order for everything up to an entry.
    pub(super) fn until(redaction: Redaction, last: StreamId) -> Self {
        Self { redaction, through: Position::new(last, u32::MAX), webhook: None, note: None }
    }

    /// Order by hand, with the name of its note.
    ///
    /// # Errors
    /// A sentence, if it names nobody.
    pub(super) fn by_hand(order: &HandOrder, note: Option<String>) -> Result<Self, String> {
        Ok(Self { note, ..Self::until(order.redaction()?, order.through) })
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
        let note = Some(noted.webhook.to_string());
        Ok(Self { redaction, through, webhook: Some(noted.webhook), note })
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

    /// Position up to which somebody is meant; `None` without orders.
    pub(super) fn through(&self) -> Option<Position> {
        self.0.iter().map(|order| order.through).max()
    }

    /// Names of the notes that these orders carry out.
    pub(super) fn notes(&self) -> Vec<String> {
        self.0.iter().filter_map(|order| order.note.clone()).collect()
    }

    /// Number by which the same set of orders is known.
    pub(super) fn subject(&self) -> u64 {
        let named = |order: &PurgeOrder| {
            format!("{} {:?}", order.note.as_deref().unwrap_or_default(), order.through)
        };
        let mut names: Vec<String> = self.0.iter().map(named).collect();
        names.sort_unstable();
        stable_hash::of(&[names.join("\n").as_bytes()])
    }

    /// Sign by which the webhook at a position holds data of somebody who is meant; `None` if it holds none.
    pub(super) fn matched(
        &self,
        entry: StreamId,
        index: u32,
        view: &View<'_>,
    ) -> Option<MatchedBy> {
        let position = Position::new(entry, index);
        let (mut earlier, mut repeated) = (Vec::new(), false);
        let may_repeat = view.topic().is_some_and(|topic| is_redaction(&topic));
        for order in &self.0 {
            if position <= order.through {
                earlier.push(order);
            } else if may_repeat {
                // Shopify sends a redaction again whose answer it did not see. It holds the same data.
                repeated |= order.redaction.is_repeated_by(view, view.body);
            }
        }
        if repeated {
            return Some(MatchedBy::Id);
        }
        if earlier.is_empty() {
            return None;
        }
        let mut webhook = SearchedWebhook::new(view, view.body);
        let mut signs = earlier.iter().filter_map(|order| order.redaction.matched(&mut webhook));
        let first = signs.next();
        if first == Some(MatchedBy::Text) && signs.any(|sign| sign == MatchedBy::Id) {
            return Some(MatchedBy::Id);
        }
        first
    }

    /// True if the webhook at a position holds data of somebody who is meant, whatever shows it.
    pub(super) fn is_meant(&self, entry: StreamId, index: u32, view: &View<'_>) -> bool {
        self.matched(entry, index, view).is_some()
    }

    /// True if this is the shop of an order.
    pub(super) fn is_named(&self, shop: &[u8]) -> bool {
        self.0.iter().any(|order| order.redaction.shop().as_bytes().eq_ignore_ascii_case(shop))
    }

    /// True if bytes that cannot be decoded show data of somebody who is meant.
    pub(super) fn is_shown_by(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|order| order.redaction.is_in_bytes(bytes))
    }

    /// True if webhooks of a shop may be meant. Some webhooks have no shop in their headers.
    pub(super) fn may_mean(&self, shop: &[u8]) -> bool {
        shop.is_empty() || self.is_named(shop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{customer_pack, noted_redaction};

    #[test]
    fn only_what_came_up_to_the_redaction_is_meant() {
        let order = PurgeOrder::of(&noted_redaction("customers/redact")).expect("a redaction");
        assert_eq!(order.kind(), "customer");
        let orders = PurgeOrders::new(vec![order]);
        assert_eq!(orders.last(), StreamId { ms: 5, seq: 2 });
        let of_order = Pack::decode(&customer_pack("orders/create", 12)).expect("a pack");
        let is_meant =
            |ms, seq, index| orders.is_meant(StreamId { ms, seq }, index, &of_order.view(0));
        assert!(is_meant(4, 9, 9) && is_meant(5, 2, 0) && is_meant(5, 2, 3));
        assert!(!is_meant(5, 2, 4) && !is_meant(5, 3, 0) && !is_meant(6, 0, 0));
        assert!(orders.may_mean(b"A.example") && orders.may_mean(b""));
        assert!(!orders.may_mean(b"b.example"));
        assert!(PurgeOrder::of(&noted_redaction("orders/create")).is_err());
        let again = Pack::decode(&customer_pack("customers/redact", 12)).expect("a pack");
        assert!(
            orders.is_meant(StreamId { ms: 9, seq: 0 }, 0, &again.view(0)),
            "it was sent twice"
        );
        let request = Pack::decode(&customer_pack("customers/data_request", 12)).expect("a pack");
        assert!(!orders.is_meant(StreamId { ms: 9, seq: 0 }, 0, &request.view(0)));
    }

    #[test]
    fn by_hand_everything_up_to_an_entry_is_meant() {
        let order = PurgeOrder::until(Redaction::of_shop("a.example"), StreamId { ms: 5, seq: 2 });
        assert_eq!((order.kind(), order.webhook), ("shop", None));
        let orders = PurgeOrders::new(vec![order]);
        let webhook = Pack::decode(&customer_pack("products/update", 12)).expect("a pack");
        assert!(orders.is_meant(StreamId { ms: 5, seq: 2 }, 70_000, &webhook.view(0)));
        assert!(!orders.is_meant(StreamId { ms: 5, seq: 3 }, 0, &webhook.view(0)));
    }
}
