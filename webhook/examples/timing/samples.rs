//! Refusals, and the time that each took.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue};
use sha2::Sha256;
use spillway_webhook::{Secrets, Webhook};
use zeroize::Zeroizing;

const SECRET: &str = "hush";
/// A small body makes the comparison a larger part of the whole.
const BODY: &[u8] = br#"{"id":1}"#;
const NAME: &str = "x-shopify-hmac-sha256";
/// Number of inputs that are made ahead at a time, so that making them is not measured.
const AHEAD: usize = 10_000;

/// One refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub is_random: bool,
    pub nanoseconds: u64,
}

/// Comparison that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The receiver's comparison.
    Ours,
    /// A comparison that stops at the first difference.
    StopsEarly,
}

/// Repeatable random numbers (S. Vigna's splitmix64).
struct Chance(u64);

/// Measures `count` refusals.
pub(crate) fn take(check: Check, count: usize) -> Vec<Sample> {
    let secrets = Secrets::new(&[Zeroizing::new(SECRET.to_owned())]);
    let right: [u8; 32] = keyed().finalize().into_bytes().into();
    let mut chance = Chance(2026);
    let mut samples = Vec::with_capacity(count + AHEAD);
    // The first measurements run with cold caches and a slow clock, so they are thrown away.
    let mut is_warm = false;
    while samples.len() < count {
        let inputs: Vec<_> = (0..AHEAD).map(|_| input(&right, &mut chance)).collect();
        let measured = inputs.into_iter().map(|(is_random, webhook)| {
            let began = Instant::now();
            let is_refused = match check {
                Check::Ours => secrets.verify(&webhook).is_err(),
                Check::StopsEarly => !stops_early(&webhook),
            };
            let took = began.elapsed();
            assert!(is_refused, "no signature here is right");
            Sample { is_random, nanoseconds: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) }
        });
        let measured: Vec<_> = measured.collect();
        if std::mem::replace(&mut is_warm, true) {
            samples.extend(measured);
        }
    }
    samples.truncate(count);
    samples
}

fn input(right: &[u8; 32], chance: &mut Chance) -> (bool, Webhook) {
    let is_random = chance.next() & 1 == 1;
    let mut claimed = [0; 32];
    for part in claimed.chunks_exact_mut(8) {
        part.copy_from_slice(&chance.next().to_le_bytes());
    }
    if !is_random {
        let last = right[31] ^ (claimed[31] | 1);
        claimed = *right;
        claimed[31] = last;
    }
    let mut headers = HeaderMap::new();
    let value = HeaderValue::try_from(STANDARD.encode(claimed)).expect("base64 is a value");
    headers.insert(NAME, value);
    let (target, body) = (PathAndQuery::from_static("/"), Bytes::from_static(BODY));
    (is_random, Webhook { received_at_ms: 0, target, headers, body })
}

fn keyed() -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes());
    let mut mac = mac.expect("a key of any length will do");
    mac.update(BODY);
    mac
}

/// A comparison that is not constant-time, as `verify` must not be.
fn stops_early(webhook: &Webhook) -> bool {
    let claimed = STANDARD.decode(webhook.headers[NAME].as_bytes()).expect("base64");
    let right = keyed().finalize().into_bytes();
    for (a, b) in claimed.iter().zip(right) {
        if std::hint::black_box(*a) != std::hint::black_box(b) {
            return false;
        }
    }
    true
}

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
