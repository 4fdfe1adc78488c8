//! What the backend was sent, and what it said.

use std::time::Instant;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::ledger::Event;
use crate::wire::{HEADERS_MAX, Headers};

/// Bodies up to this size are kept whole; of longer ones the hash will do.
const KEPT_BODY_BYTES_MAX: usize = 1024;

/// SHA-256 of a body.
pub type BodyHash = [u8; 32];

/// One request as it reached the backend.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// When the whole request had come.
    pub arrived: Instant,
    /// When the answer began, if one was given.
    pub answered: Option<Instant>,
    /// The status given; `None` for a reset, a hang or an answer cut short.
    pub status: Option<u16>,
    /// The sender was gone before the answer.
    pub abandoned: bool,
    /// Method.
    pub method: String,
    /// Path and query as on the wire.
    pub target: String,
    /// Header lines as on the wire.
    pub headers: Headers,
    /// Hash of the body.
    pub body_hash: BodyHash,
    /// The body, if it is short.
    pub body: Option<Bytes>,
}

impl Receipt {
    /// A request just read.
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

    /// True if it was answered 2xx: from then on its sender may not lose it.
    pub fn delivered(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }

    /// A header that must be there.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.text(name);
        value.unwrap_or_else(|| panic!("a delivery carries {name}: {:?}", self.headers))
    }

    /// Shopify's id of the webhook.
    pub fn webhook_id(&self) -> &str {
        self.header("X-Shopify-Webhook-Id")
    }

    /// Its event: the test's or the load's own.
    pub fn event(&self) -> Event {
        Event::of(self.webhook_id()).expect("an event of ours")
    }

    /// Our id: one for each time the webhook was stored.
    pub fn spillway_id(&self) -> &str {
        self.header("Spillway-Id")
    }

    /// 1 for the first attempt.
    pub fn attempt(&self) -> u64 {
        self.header("Spillway-Attempt").parse().expect("Spillway-Attempt is a number")
    }

    /// How many older webhooks this one stands for.
    pub fn coalesced(&self) -> usize {
        let count = self.headers.text("Spillway-Coalesced").unwrap_or("0");
        count.parse().expect("Spillway-Coalesced is a number")
    }

    /// The shop it comes from.
    pub fn shop(&self) -> &str {
        self.header("X-Shopify-Shop-Domain")
    }

    /// Its topic.
    pub fn topic(&self) -> &str {
        self.header("X-Shopify-Topic")
    }
}

/// The head of a request, split.
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
    /// Splits a whole head. A delivery is well formed, whatever came in.
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

    /// Length of the body. Its whole is known before it is sent, so it is never chunked.
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
