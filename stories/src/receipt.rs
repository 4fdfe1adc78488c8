//! Requests that the backend was sent, and its answers.

use std::time::Instant;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::ledger::Event;
use crate::wire::{HEADERS_MAX, Headers};

/// Largest body that is kept. Of larger ones only the hash is kept.
const KEPT_BODY_BYTES_MAX: usize = 1024;

/// SHA-256 of a body.
pub type BodyHash = [u8; 32];

/// One request as it arrived at the backend.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// Time at which the whole request had arrived.
    pub arrived: Instant,
    /// Time at which the answer began, if there was one.
    pub answered: Option<Instant>,
    /// Status of the answer; `None` for a reset, a hang or an answer cut short.
    pub status: Option<u16>,
    /// Set if the sender was gone before the answer.
    pub abandoned: bool,
    /// Method.
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// Header lines as sent.
    pub headers: Headers,
    /// Hash of the body.
    pub body_hash: BodyHash,
    /// The body, if it is short.
    pub body: Option<Bytes>,
}

impl Receipt {
    /// Creates a receipt of a request that was just read.
    pub fn new(head: &RequestHead, body: Bytes) -> Self {
        Self {
            arrived: Instant::now(),
            answered: None,
            status: None,
            abandoned: false,
            method: head.method.clone(),
            target: head.target.clone(),
            headers: head.headers.clone(),
            body_hash: hash(&body),
            body: (body.len() <= KEPT_BODY_BYTES_MAX).then_some(body),
        }
    }

    /// True if it was answered 2xx. From then on, its sender must not lose it.
    pub fn delivered(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }

    /// Value of a header that must be present.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.text(name);
        value.unwrap_or_else(|| panic!("a delivery carries {name}: {:?}", self.headers))
    }

    /// Shopify's webhook id.
    pub fn webhook_id(&self) -> &str {
        self.shopify("Webhook-Id")
    }

    /// Event of the webhook, from the test or the load.
    pub fn event(&self) -> Event {
        Event::of(self.webhook_id()).expect("an event of ours")
    }

    /// The Spillway id: one for each time the webhook was stored.
    pub fn spillway_id(&self) -> &str {
        self.header("Spillway-Id")
    }

    /// Number of the attempt, from 1.
    pub fn attempt(&self) -> u64 {
        self.header("Spillway-Attempt").parse().expect("Spillway-Attempt is a number")
    }

    /// Number of older webhooks that this one stands for.
    pub fn coalesced(&self) -> usize {
        let count = self.headers.text("Spillway-Coalesced").unwrap_or("0");
        count.parse().expect("Spillway-Coalesced is a number")
    }

    /// Domain of the shop.
    pub fn shop(&self) -> &str {
        self.shopify("Shop-Domain")
    }

    /// Topic, without the action of an Event.
    pub fn topic(&self) -> &str {
        self.shopify("Topic")
    }

    /// Value of a header of Shopify's, in either family.
    fn shopify(&self, name: &str) -> &str {
        let event = self.headers.text(&format!("Shopify-{name}"));
        event.unwrap_or_else(|| self.header(&format!("X-Shopify-{name}")))
    }
}

/// The parsed head of a request.
#[derive(Debug)]
pub struct RequestHead {
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Header lines.
    pub headers: Headers,
}

impl RequestHead {
    /// Parses a complete head. A delivery is always well-formed, even if the webhook was not.
    pub fn parse(head: &[u8]) -> Self {
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut lines);
        let complete = parsed.parse(head).expect("a delivery is valid HTTP").is_complete();
        assert!(complete, "a head ends with a blank line");
        Self {
            method: parsed.method.expect("a method").to_owned(),
            target: parsed.path.expect("a target").to_owned(),
            headers: Headers::from(&*parsed.headers),
        }
    }

    /// Length of the body. It is known before the delivery starts, so a delivery is never chunked.
    pub fn body_bytes(&self) -> usize {
        let chunked = self.headers.get("transfer-encoding").is_some();
        assert!(!chunked, "a delivery carries its Content-Length");
        let length = self.headers.text("content-length").unwrap_or("0");
        length.parse().expect("Content-Length is a number")
    }
}

/// SHA-256.
pub fn hash(body: &[u8]) -> BodyHash {
    Sha256::digest(body).into()
}
