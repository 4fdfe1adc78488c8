//! Shopify's header names, in both families, and the meaning of its topics.
//!
//! Shopify sends `X-Shopify-*`; the newer family drops the `X-`. Both are read, the older one
//! first. None of these headers is covered by the signature: only the body is.

use http::HeaderMap;

/// Read access to headers by lower-case name: the first value where a header is repeated.
pub trait Headers {
    /// The first value of `name`.
    fn value(&self, name: &str) -> Option<&[u8]>;

    /// The first value of `X-Shopify-<suffix>`, else of `Shopify-<suffix>`; `suffix` in lower case.
    fn shopify(&self, suffix: &str) -> Option<&[u8]> {
        const LONGEST: usize = 96;
        let mut name = [0u8; LONGEST];
        let length = "x-shopify-".len() + suffix.len();
        if length > LONGEST {
            return None;
        }
        name[.."x-shopify-".len()].copy_from_slice(b"x-shopify-");
        name["x-shopify-".len()..length].copy_from_slice(suffix.as_bytes());
        let full = std::str::from_utf8(&name[..length]).ok()?;
        self.value(full).or_else(|| self.value(&full["x-".len()..]))
    }

    /// The topic, such as `products/update`.
    fn topic(&self) -> Option<&[u8]> {
        self.shopify("topic").filter(|topic| !topic.is_empty())
    }

    /// The shop's domain, such as `example.myshopify.com`.
    fn shop(&self) -> Option<&[u8]> {
        self.shopify("shop-domain").filter(|shop| !shop.is_empty())
    }
}

impl Headers for HeaderMap {
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(http::HeaderValue::as_bytes)
    }
}

/// True for the mandatory privacy topics. They are never refused for their age, dropped, coalesced
/// or aged out. Source: Shopify, "Privacy law compliance".
pub fn is_compliance(topic: &[u8]) -> bool {
    matches!(topic, b"customers/data_request" | b"customers/redact" | b"shop/redact")
}

/// True for topics with which everything else of their shop stays in order. The webhooks sent
/// before such a one must arrive before it: a late order would bring back the data of a person who
/// must be forgotten.
pub fn is_barrier(topic: &[u8]) -> bool {
    matches!(topic, b"customers/redact" | b"shop/redact" | b"app/uninstalled")
}

/// True if `pattern` matches `topic`. A pattern is a topic, or all topics of a kind, such as
/// `orders/*`.
pub fn is_topic_match(pattern: &str, topic: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(kind) => topic.starts_with(kind.as_bytes()),
        None => topic == pattern.as_bytes(),
    }
}

/// Splits a comma-separated list of topics, or of kinds such as `orders/*`.
pub fn topic_list(text: &str) -> Vec<String> {
    let topics = text.split(',').map(str::trim).filter(|topic| !topic.is_empty());
    topics.map(ToOwned::to_owned).collect()
}

/// Returns the singular of a topic's first segment, such as `inventory_level` for
/// `inventory_levels/update`.
pub fn resource_kind(topic: &str) -> String {
    let plural = topic.split('/').next().unwrap_or_default();
    if let Some(stem) = plural.strip_suffix("ies") {
        return format!("{stem}y");
    }
    for ending in ["sses", "xes", "ches"] {
        if plural.ends_with(ending) {
            return plural[..plural.len() - 2].to_owned();
        }
    }
    match plural.strip_suffix('s') {
        Some(stem) if !stem.ends_with('s') && !stem.is_empty() => stem.to_owned(),
        _ => plural.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_read_and_the_older_one_wins() {
        let mut headers = HeaderMap::new();
        headers.insert("shopify-topic", "orders/create".parse().unwrap());
        assert_eq!(headers.topic(), Some(&b"orders/create"[..]));
        headers.insert("x-shopify-topic", "orders/paid".parse().unwrap());
        assert_eq!(headers.topic(), Some(&b"orders/paid"[..]));
    }

    #[test]
    fn a_pattern_means_a_topic_or_a_kind() {
        assert!(is_topic_match("orders/*", b"orders/create"));
        assert!(!is_topic_match("orders/*", b"orders_x/create"));
        assert!(is_topic_match("orders/paid", b"orders/paid"));
        assert!(!is_topic_match("orders/paid", b"orders/paid2"));
        assert!(is_topic_match("*", b"anything"));
    }

    #[test]
    fn kinds_are_singular() {
        for (topic, kind) in [
            ("products/update", "product"),
            ("inventory_levels/update", "inventory_level"),
            ("companies/create", "company"),
            ("tender_transactions/create", "tender_transaction"),
            ("tax_classes/update", "tax_class"),
            ("shop/update", "shop"),
            ("app/uninstalled", "app"),
            ("", ""),
        ] {
            assert_eq!(resource_kind(topic), kind, "{topic}");
        }
    }
}
