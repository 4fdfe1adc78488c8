//! Keys of records: records with the same key lie in one partition, in the order accepted.

use std::fmt::Write;

use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;

use crate::settings::Key;

/// Writes the key of a webhook into `key`. By resource: `<shop>/<kind>/<id>`, or `<shop>/<type>`
/// if the webhook has no resource id. By topic: `<shop>/<topic>`. By shop: `<shop>`.
pub(crate) fn write(
    by: Key,
    headers: &impl Headers,
    resource: Option<&Resource>,
    key: &mut String,
) {
    key.clear();
    push_text(headers.shop().unwrap_or_default(), key);
    match (by, resource) {
        (Key::Shop, _) => {}
        (Key::Resource, Some(resource)) => {
            // Writing to a string cannot fail.
            write!(key, "/{resource}").ok();
        }
        (Key::Resource | Key::Topic, _) => {
            key.push('/');
            push_text(&headers.topic().unwrap_or_default(), key);
        }
    }
}

fn push_text(bytes: &[u8], text: &mut String) {
    match std::str::from_utf8(bytes) {
        Ok(valid) => text.push_str(valid),
        Err(_) => text.push_str(&String::from_utf8_lossy(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(&'static [(&'static str, &'static str)]);

    impl Headers for Fixed {
        fn value(&self, name: &str) -> Option<&[u8]> {
            let found = self.0.iter().find(|(have, _)| *have == name);
            found.map(|(_, value)| value.as_bytes())
        }
    }

    fn check(by: Key, headers: &'static [(&'static str, &'static str)], expected: &str) {
        let headers = Fixed(headers);
        let resource = Resource::of(&headers, b"{}");
        let mut key = "left over".to_owned();
        write(by, &headers, Some(&resource), &mut key);
        assert_eq!(key, expected);
    }

    #[test]
    fn a_key_names_its_shop_first() {
        const PRODUCT: &[(&str, &str)] = &[
            ("x-shopify-topic", "products/update"),
            ("x-shopify-shop-domain", "a.myshopify.com"),
            ("x-shopify-product-id", "12"),
        ];
        const CART: &[(&str, &str)] =
            &[("x-shopify-topic", "carts/update"), ("x-shopify-shop-domain", "a.myshopify.com")];
        check(Key::Resource, PRODUCT, "a.myshopify.com/product/12");
        check(Key::Topic, PRODUCT, "a.myshopify.com/products/update");
        check(Key::Shop, PRODUCT, "a.myshopify.com");
        check(Key::Resource, CART, "a.myshopify.com/carts");
        check(Key::Resource, &[("x-shopify-topic", "carts/update")], "/carts");
    }
}
