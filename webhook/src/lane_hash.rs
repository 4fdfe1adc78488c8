//! Hashes of shops and lanes. Redis and archives keep them, so they never change.

use crate::resource::Resource;
use crate::shopify::{Headers, resource_kind};
use crate::stable_hash;

/// Hash of a shop's domain.
pub fn of_domain(shop: &[u8]) -> u64 {
    stable_hash::of(&[shop])
}

/// Lane of all webhooks of a shop (`ORDER_BY=shop`).
pub fn of_shop(shop: &[u8]) -> u64 {
    stable_hash::of(&[b"shop", shop])
}

/// Lane of a shop and a kind of resource.
pub fn of_kind(shop: &[u8], kind: &[u8]) -> u64 {
    stable_hash::of(&[b"kind", shop, kind])
}

/// Lanes in which a webhook may lie, whatever its consumer orders by: by the kind of its resource, by the kind
/// of its topic, and by its shop.
pub fn candidates(headers: &impl Headers, body: &[u8]) -> [u64; 3] {
    let shop = headers.shop().unwrap_or_default();
    let topic = headers.topic().unwrap_or_default();
    let of_resource = Resource::of(headers, body).kind;
    let of_topic = resource_kind(&String::from_utf8_lossy(&topic));
    [of_kind(shop, of_resource.as_bytes()), of_kind(shop, of_topic.as_bytes()), of_shop(shop)]
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Order;

    impl Headers for Order {
        fn value(&self, name: &str) -> Option<&[u8]> {
            match name {
                "x-shopify-topic" => Some(b"orders/create"),
                "x-shopify-shop-domain" => Some(b"a.myshopify.com"),
                _ => None,
            }
        }
    }

    #[test]
    fn a_webhook_may_lie_in_the_lanes_of_its_kind_and_of_its_shop() {
        let lanes = candidates(&Order, b"{\"id\":7}");
        assert_eq!(lanes[0], of_kind(b"a.myshopify.com", b"order"));
        assert_eq!(lanes[1], lanes[0]);
        assert_eq!(lanes[2], of_shop(b"a.myshopify.com"));
        assert_ne!(lanes[0], of_domain(b"a.myshopify.com"));
    }
}
