//! A crowd: shops that send numbered webhooks. The number determines shop, resource and body.

use std::collections::HashSet;
use std::ops::Range;

use crate::endurance::sender::CONNECTIONS;
use crate::ledger::Event;
use crate::shop;
use crate::webhook::Webhook;

/// Two of this many webhooks of a shop are about the same resource; all others have their own.
const ROUNDS: u32 = 8;
/// Words in each body. They compress about as well as those of a product.
const WORDS: usize = 24;

/// Shops that take turns to send webhooks of one topic.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// Number of the first webhook, and the number after the last.
    numbers: Range<u32>,
    topic: &'static str,
    /// Shops in the order of their turns, which repeats.
    turns: Vec<u32>,
    /// Distance from a webhook of a resource to its next, a multiple of the number of connections.
    /// Both use the same connection, so the first is accepted before the next is sent.
    stride: u32,
}

impl Crowd {
    /// A crowd of these shops, one turn each.
    pub fn new(topic: &'static str, shops: Range<u32>, numbers: Range<u32>) -> Self {
        Self::with_turns(topic, shops.collect(), numbers)
    }

    /// Adds `more` turns for each busy shop, spread over the whole round.
    pub fn with_busy(mut self, is_busy: impl Fn(u32) -> bool, more: u32) -> Self {
        let busy: Vec<u32> = self.turns.iter().copied().filter(|shop| is_busy(*shop)).collect();
        let additional = busy.len() * more as usize;
        let apart = self.turns.len() / additional.max(1);
        let mut additional = busy.iter().copied().cycle().take(additional);
        let mut turns = Vec::new();
        for (place, shop) in self.turns.drain(..).enumerate() {
            turns.push(shop);
            if place % apart == 0 {
                turns.extend(additional.next());
            }
        }
        turns.extend(additional);
        Self::with_turns(self.topic, turns, self.numbers)
    }

    fn with_turns(topic: &'static str, turns: Vec<u32>, numbers: Range<u32>) -> Self {
        let mut stride = turns.len() as u32;
        while !stride.is_multiple_of(CONNECTIONS) {
            stride += turns.len() as u32;
        }
        Self { numbers, topic, turns, stride }
    }

    /// Numbers of its webhooks.
    pub fn numbers(&self) -> Range<u32> {
        self.numbers.clone()
    }

    /// Number of its shops.
    pub fn shops(&self) -> usize {
        self.turns.iter().collect::<HashSet<_>>().len()
    }

    /// Shop of a webhook.
    pub fn shop(&self, number: u32) -> u32 {
        self.turns[(number - self.numbers.start) as usize % self.turns.len()]
    }

    /// Number of the earlier webhook of the same resource.
    pub fn before(&self, number: u32) -> Option<u32> {
        let round = (number - self.numbers.start) / self.stride;
        (round % ROUNDS == 1).then(|| number - self.stride)
    }

    /// Number of the later webhook of the same resource.
    pub fn after(&self, number: u32) -> Option<u32> {
        let next = number.checked_add(self.stride)?;
        (self.numbers.contains(&next) && self.before(next) == Some(number)).then_some(next)
    }

    /// The webhook with this number.
    pub fn webhook(&self, number: u32) -> Webhook {
        let resource = u64::from(self.before(number).unwrap_or(number)) + 1;
        let event = Event { resource, sequence: u64::from(number) };
        let webhook = Webhook::product(resource, &event.webhook_id(), body(number))
            .with("X-Shopify-Shop-Domain", shop::domain(self.shop(number).into()))
            .topic(self.topic);
        match self.topic.split_once('/') {
            Some(("orders", _)) => webhook
                .without("X-Shopify-Product-Id")
                .header("X-Shopify-Order-Id", resource.to_string()),
            _ => webhook,
        }
    }
}

/// Body of a webhook: about 300 bytes, different for each number.
pub fn body(number: u32) -> Vec<u8> {
    let mut body = format!("{{\"number\":{number},\"tags\":\"").into_bytes();
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..WORDS {
        // SplitMix64 (G. Steele et al., 2014), so that the text is the same in every run.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        body.extend_from_slice(format!("tag-{:06x}, ", (mixed >> 40) & 0xff_ffff).as_bytes());
    }
    body.extend_from_slice(b"\"}");
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_webhook_of_a_resource_is_of_its_shop_and_connection() {
        let crowd = Crowd::new("products/update", 0..1_000, 0..100_000)
            .with_busy(|shop| shop % 100 == 4, 4);
        let pairs: Vec<u32> = crowd.numbers().filter(|one| crowd.after(*one).is_some()).collect();
        assert!(pairs.len() > 10_000);
        for first in pairs {
            let next = crowd.after(first).unwrap();
            assert_eq!(crowd.before(next), Some(first));
            assert_eq!(crowd.shop(next), crowd.shop(first));
            assert_eq!(next % CONNECTIONS, first % CONNECTIONS);
        }
    }

    #[test]
    fn busy_shops_have_more_turns() {
        let crowd =
            Crowd::new("products/update", 0..1_000, 0..1_040).with_busy(|shop| shop % 100 == 4, 4);
        let turns = |shop| crowd.numbers().filter(|one| crowd.shop(*one) == shop).count();
        assert_eq!((turns(3), turns(4), turns(904)), (1, 5, 5));
    }
}
