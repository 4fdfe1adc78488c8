//! Any webhooks, packed and unpacked.
//!
//! Properties: the stored parts of each webhook are unchanged, in the same order. Dropping some
//! webhooks does not change the others. A pack with one changed bit does not decode.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use spillway_webhook::Webhook;
use spillway_webhook::pack::{Pack, Record, Records};

use crate::packed;

/// Pieces of the input. A byte gives the length of the next piece.
struct Pieces<'a>(&'a [u8]);

/// Runs the target; see the module documentation.
pub fn run(data: &[u8]) {
    let mut pieces = Pieces(data);
    let (damaged, mask) = (pieces.number(), pieces.number());
    let mut webhooks = Vec::new();
    while !pieces.0.is_empty() && webhooks.len() < 32 {
        webhooks.push(webhook(&mut pieces));
    }
    let mut records = Records::default();
    webhooks.iter().for_each(|webhook| records.push(webhook));
    expect_same(&records, &webhooks.iter().collect::<Vec<_>>(), damaged);
    let is_kept = |index: usize| mask >> (index % 8) & 1 == 1;
    records.retain(is_kept);
    let kept = (0..).zip(&webhooks).filter(|(index, _)| is_kept(*index)).map(|(_, kept)| kept);
    expect_same(&records, &kept.collect::<Vec<_>>(), damaged);
}

fn expect_same(records: &Records, webhooks: &[&Webhook], damaged: u8) {
    let mut bytes = packed(records);
    let pack = Pack::decode(&bytes).expect("our own pack");
    assert_eq!(pack.count() as usize, webhooks.len());
    for (index, webhook) in (0..).zip(webhooks) {
        let Record { received_at_ms, target, headers, body } = pack.record(index);
        assert_eq!(received_at_ms, webhook.received_at_ms);
        assert_eq!(target, webhook.target.as_str());
        assert_eq!(body, webhook.body);
        let kept = webhook.kept_headers().map(|(name, value)| (name.as_str().as_bytes(), value));
        assert!(kept.eq(headers.iter().map(|(name, value)| (&name[..], &value[..]))));
    }
    let at = usize::from(damaged) * bytes.len() / 256;
    bytes[at] ^= 1;
    assert!(Pack::decode(&bytes).is_err(), "damage at {at} is not seen");
}

fn webhook(pieces: &mut Pieces<'_>) -> Webhook {
    let received_at_ms = pieces.piece().iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let target = PathAndQuery::try_from([b"/", pieces.piece()].concat());
    let mut headers = HeaderMap::new();
    for _ in 0..pieces.number() % 16 {
        let (name, value) = (pieces.piece(), pieces.piece());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    Webhook {
        received_at_ms,
        target: target.unwrap_or_else(|_| PathAndQuery::from_static("/")),
        headers,
        body: Bytes::copy_from_slice(pieces.piece()),
    }
}

impl<'a> Pieces<'a> {
    fn number(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn piece(&mut self) -> &'a [u8] {
        let bytes = usize::from(self.number()).min(self.0.len());
        let (piece, rest) = self.0.split_at(bytes);
        self.0 = rest;
        piece
    }
}
