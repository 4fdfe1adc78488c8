//! Bytes of webhooks as the delivery core sees them: decoded packs.

use std::sync::Arc;

use spillway_delivery::{Content, UpdateState};
use spillway_queue::controls::{Filter, WebhookFacts};
use spillway_webhook::fingerprint::{Fingerprint, fingerprint};
use spillway_webhook::pack::Pack;
use spillway_webhook::received::APP_HEADER;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{BodyState, Position, WebhookId};

use crate::classify::{shop_hash, subscription};

/// Approximate bytes of a dead letter's labels and ids.
const LABEL_BYTES: u64 = 256;

/// A decoded pack that its users share.
#[derive(Debug, Clone)]
pub struct PackBytes(pub Arc<Pack>);

/// Answer to the last attempt of a webhook that is given up.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Status, or 0 if there was no answer.
    pub status: u16,
    /// First bytes of the answer.
    pub answer: Vec<u8>,
}

/// Pause of anything except a whole shop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseFilter {
    /// Webhooks that are paused.
    pub filter: Filter,
    /// Id of this cell.
    pub cell: u32,
}

impl Content for PackBytes {
    type Evidence = Evidence;
    type Filter = PauseFilter;

    fn raw_bytes(&self) -> usize {
        self.0.raw_bytes()
    }

    fn record_bytes(&self, index: u32) -> usize {
        self.0.record_raw_bytes(index)
    }

    fn pluck(&self, index: u32) -> Self {
        Self(Arc::new(self.0.pluck(index)))
    }

    fn fingerprint(&self, index: u32) -> Option<Fingerprint> {
        let view = self.0.view(index);
        fingerprint(&view, view.target)
    }

    fn update(&self, index: u32) -> Option<UpdateState> {
        let view = self.0.view(index);
        let subscription = subscription(&view, view.target, view.body)?;
        Some(UpdateState { subscription, body: BodyState::of(&view, view.body)? })
    }

    fn shop_of(pause: &PauseFilter) -> Option<u64> {
        pause.filter.shop.as_ref().map(|shop| shop_hash(shop.as_bytes()))
    }

    fn is_matched(&self, index: u32, position: Position, pause: &PauseFilter) -> bool {
        let view = self.0.view(index);
        let text =
            |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        let shop = text(view.shop());
        let topic = text(view.topic().as_deref());
        let app = text(view.value(APP_HEADER.as_str()));
        let webhook_id = text(view.shopify("webhook-id"));
        pause.filter.matches(WebhookFacts {
            id: WebhookId { cell: pause.cell, entry: position.entry(), index: position.index },
            shop: &shop,
            topic: &topic,
            app: &app,
            webhook_id: &webhook_id,
            resource: || Resource::of(&view, view.body).to_string(),
        })
    }

    fn dead_bytes(&self, index: u32, evidence: &Evidence) -> u64 {
        // Upper limit: the record is compressed in the dead letter.
        let bytes = self.0.record_raw_bytes(index) + evidence.answer.len();
        LABEL_BYTES + u64::try_from(bytes).unwrap_or(u64::MAX / 2)
    }
}
