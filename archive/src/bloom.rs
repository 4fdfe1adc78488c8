//! Bloom filters: sets that say "certainly not in it" or "probably in it".
//!
//! With 10 bits and 7 probes for each element, 0.8 % of other elements seem to be in the set. The element is
//! given by a hash that never changes ([`stable_hash`]). The two halves of the hash give all probes
//! (Kirsch and Mitzenmacher, "Less Hashing, Same Performance").

use spillway_webhook::stable_hash;

/// Bits for each element.
const BITS_EACH: usize = 10;
/// Probes for each element: `BITS_EACH` · ln 2, at which the rate of errors is lowest.
const PROBES: u64 = 7;

/// A set of hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BloomFilter {
    /// Never empty.
    bits: Vec<u8>,
}

/// Hash of Shopify's webhook id.
pub fn webhook_id_hash(id: &[u8]) -> u64 {
    stable_hash::of(&[b"webhook-id", id])
}

/// Hash of a resource, such as `product/12`, of a shop.
pub fn resource_hash(shop: &[u8], resource: &[u8]) -> u64 {
    stable_hash::of(&[b"resource", shop, resource])
}

impl BloomFilter {
    /// Filter that holds these hashes.
    pub(crate) fn of(hashes: &[u64]) -> Self {
        let mut bits = vec![0; (hashes.len() * BITS_EACH).div_ceil(8).max(1)];
        for hash in hashes {
            for place in places(*hash, bits.len()) {
                bits[place / 8] |= 1 << (place % 8);
            }
        }
        Self { bits }
    }

    /// Filter with these bits, if there are any.
    pub(crate) fn from_bits(bits: &[u8]) -> Option<Self> {
        (!bits.is_empty()).then(|| Self { bits: bits.to_vec() })
    }

    /// Bits, the lowest of each byte first.
    pub(crate) fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// False if the filter certainly does not hold `hash`.
    pub fn may_hold(&self, hash: u64) -> bool {
        places(hash, self.bits.len()).all(|place| self.bits[place / 8] & (1 << (place % 8)) != 0)
    }
}

/// Numbers of the bits of a hash, in a filter of `bytes`.
fn places(hash: u64, bytes: usize) -> impl Iterator<Item = usize> {
    let bits = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(8);
    let first = hash >> 32;
    // Odd: otherwise many probes of one hash could be the same bit.
    let step = (hash & 0xffff_ffff) | 1;
    (0..PROBES).map(move |probe| {
        let place = (first + probe * step) % bits;
        usize::try_from(place).expect("BUG: below the number of bits in memory")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u32) -> u64 {
        webhook_id_hash(format!("b54557e4-bdd9-4b37-8a5f-{number:012}").as_bytes())
    }

    #[test]
    fn what_is_in_it_is_found_and_few_others() {
        for count in [1, 10, 1_000, 50_000] {
            let hashes: Vec<u64> = (0..count).map(hash).collect();
            let filter = BloomFilter::of(&hashes);
            assert!(hashes.iter().all(|hash| filter.may_hold(*hash)));
            assert!(filter.bits().len() <= hashes.len() * 2, "{count}");
            let others = 1_000_000..1_100_000;
            let found = others.filter(|number| filter.may_hold(hash(*number))).count();
            assert!(found < 2_500, "{found} of 100,000 others seem to be in a filter of {count}");
        }
    }

    #[test]
    fn an_empty_filter_holds_nothing() {
        let filter = BloomFilter::of(&[]);
        assert!((0..1_000).all(|number| !filter.may_hold(hash(number))));
        assert_eq!(BloomFilter::from_bits(filter.bits()), Some(filter));
        assert_eq!(BloomFilter::from_bits(&[]), None);
    }
}
