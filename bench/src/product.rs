//! Bodies of `products/update`, each for a different product, in the shape of a template
//! (`request.json`) and with approximately the requested size.
//!
//! A body depends only on the template, the size, the random numbers and the time. Ids, titles,
//! descriptions, prices, stock and dates differ, as in real products. Keys, vocabulary and the form
//! of variants repeat, as in real products. Therefore the compression ratio is similar to that of
//! real data.

mod shape;
mod vary;
mod words;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use time::OffsetDateTime;

pub use shape::Product;

/// Size below which bodies have only a few fields of the product, as in a subscription with
/// `include_fields`. A complete product does not fit.
const WHOLE_BYTES_MIN: usize = 1_500;
/// Shopify's maximum number of variants of a product.
const VARIANTS_MAX: usize = 2_048;

/// Generator of bodies of one size.
pub struct Products {
    template: Product,
    variants: usize,
    description_bytes: usize,
    whole: bool,
}

impl Products {
    /// Determines the number of variants and the length of the description for bodies of about
    /// `body_bytes`.
    pub fn new(template: Product, body_bytes: usize) -> Self {
        let whole = body_bytes >= WHOLE_BYTES_MIN;
        let mut products = Self { template, variants: 1, description_bytes: 0, whole };
        let (one, two) = (products.sample_bytes(1), products.sample_bytes(2));
        // A twelfth is left for the description, which also fills the space that variants leave.
        let room = (body_bytes - body_bytes / 12).saturating_sub(one);
        products.variants = (1 + room / (two - one)).min(VARIANTS_MAX);
        products.description_bytes =
            body_bytes.saturating_sub(products.sample_bytes(products.variants));
        products
    }

    /// Returns the id and the body of a new product.
    pub fn make(&self, random: &mut SmallRng, now: OffsetDateTime) -> (u64, Vec<u8>) {
        // Descriptions vary by half, so that the length differs from body to body as in real data.
        let least = self.description_bytes - self.description_bytes / 4;
        let most = self.description_bytes + self.description_bytes / 4;
        let description_bytes = random.random_range(least..=most);
        let product = vary::vary(&self.template, self.variants, description_bytes, random, now);
        let json = if self.whole { product.whole() } else { product.few_fields() };
        (product.id, escape(&json))
    }

    fn sample_bytes(&mut self, variants: usize) -> usize {
        (self.variants, self.description_bytes) = (variants, 0);
        self.make(&mut SmallRng::seed_from_u64(0), OffsetDateTime::UNIX_EPOCH).1.len()
    }
}

/// Escapes the four characters that Shopify escapes in strings. JSON has them only in strings.
fn escape(json: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(json.len() + json.len() / 8);
    let mut rest = json;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'/' | b'<' | b'>' | b'&')) {
        escaped.extend_from_slice(&rest[..at]);
        escaped.extend_from_slice(match rest[at] {
            b'/' => br"\/",
            b'<' => br"\u003c",
            b'>' => br"\u003e",
            _ => br"\u0026",
        });
        rest = &rest[at + 1..];
    }
    escaped.extend_from_slice(rest);
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(body_bytes: usize, seed: u64) -> Vec<(u64, Vec<u8>)> {
        let template = serde_json::from_str(include_str!("../../request.json")).unwrap();
        let products = Products::new(template, body_bytes);
        let mut random = SmallRng::seed_from_u64(seed);
        (0..50).map(|_| products.make(&mut random, OffsetDateTime::UNIX_EPOCH)).collect()
    }

    #[test]
    fn bodies_are_about_as_long_as_asked() {
        for wanted in [500, 5_300, 51_200, 1_048_576] {
            let bodies = bodies(wanted, 1);
            let mean = bodies.iter().map(|(_, body)| body.len()).sum::<usize>() / bodies.len();
            assert!(mean.abs_diff(wanted) * 10 < wanted, "{mean} bytes instead of {wanted}");
        }
    }

    #[test]
    fn a_body_is_json_that_carries_its_id() {
        for (id, body) in bodies(5_300, 1) {
            let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(parsed["id"], id);
            assert_eq!(parsed["admin_graphql_api_id"], format!("gid://shopify/Product/{id}"));
            assert_eq!(parsed["variants"][1]["product_id"], id);
        }
    }

    #[test]
    fn bodies_differ_and_a_seed_repeats_them() {
        let mut ids: Vec<u64> = bodies(5_300, 1).iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 50);
        assert_eq!(bodies(5_300, 1), bodies(5_300, 1));
        assert_ne!(bodies(5_300, 1), bodies(5_300, 2));
    }
}
