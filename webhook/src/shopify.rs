//! Shopify's headers, in both families, and the meaning of its topics.
//!
//! None of these headers is covered by the signature: only the body is.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Start of the names of classic headers.
pub(crate) const CLASSIC_PREFIX: &str = "x-shopify-";
/// Part of it that the names of Events lack.
const CLASSIC_MARK: &str = "x-";

/// Family of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// A classic webhook.
    Classic,
    /// An Event.
    Event,
}

/// Read access to headers by lower-case name: the first value where a header is repeated.
pub trait Headers {
    /// The first value of `name`.
    fn value(&self, name: &str) -> Option<&[u8]>;

    /// Family of the delivery.
    fn family(&self) -> Family {
        match self.value(Family::Event.signature_header()) {
            Some(_) => Family::Event,
            None => Family::Classic,
        }
    }

    /// The first value of the family's header with this name, which is without its prefix and in
    /// lower case. Where that header is missing, the other family's is read.
    fn shopify(&self, name: &str) -> Option<&[u8]> {
        self.of_family(self.family(), name)
    }

    /// The same as [`shopify`](Self::shopify), for a family that is known already.
    fn of_family(&self, family: Family, name: &str) -> Option<&[u8]> {
        by_built_names(self, family, name)
    }

    /// Topic of the delivery: `products/update`, or topic and action of an Event as `Product/update`.
    /// An Event without an action header has its topic alone.
    fn topic(&self) -> Option<Cow<'_, [u8]>> {
        self.topic_of_family(self.family())
    }

    /// The same as [`topic`](Self::topic), for a family that is known already.
    fn topic_of_family(&self, family: Family) -> Option<Cow<'_, [u8]>> {
        let part = |name| self.of_family(family, name).filter(|value| !value.is_empty());
        let topic = part("topic")?;
        let action = if family == Family::Event { part("action") } else { None };
        Some(match action {
            Some(action) => Cow::Owned([topic, b"/", action].concat()),
            None => Cow::Borrowed(topic),
        })
    }

    /// The shop's domain, such as `example.myshopify.com`.
    fn shop(&self) -> Option<&[u8]> {
        self.shopify("shop-domain").filter(|shop| !shop.is_empty())
    }
}

impl Family {
    /// Name of the header with the signature, in lower case.
    pub const fn signature_header(self) -> &'static str {
        match self {
            Self::Classic => "x-shopify-hmac-sha256",
            Self::Event => "shopify-hmac-sha256",
        }
    }

    /// The same name, parsed.
    pub fn signature_name(self) -> &'static HeaderName {
        static CLASSIC: HeaderName = HeaderName::from_static(Family::Classic.signature_header());
        static EVENT: HeaderName = HeaderName::from_static(Family::Event.signature_header());
        match self {
            Self::Classic => &CLASSIC,
            Self::Event => &EVENT,
        }
    }
}

impl Headers for HeaderMap {
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(HeaderValue::as_bytes)
    }

    fn family(&self) -> Family {
        if self.contains_key(Family::Event.signature_name()) {
            Family::Event
        } else {
            Family::Classic
        }
    }

    fn of_family(&self, family: Family, name: &str) -> Option<&[u8]> {
        let Some(known) = READ_OF_EACH.iter().find(|known| known.name == name) else {
            return by_built_names(self, family, name);
        };
        let [own, other] = match family {
            Family::Classic => [&known.classic, &known.event],
            Family::Event => [&known.event, &known.classic],
        };
        self.get(own).or_else(|| self.get(other)).map(HeaderValue::as_bytes)
    }
}

/// Header of both families, with its names parsed once.
struct KnownHeader {
    name: &'static str,
    classic: HeaderName,
    event: HeaderName,
}

/// Headers that are read of each webhook.
static READ_OF_EACH: [KnownHeader; 3] = [
    KnownHeader::new("x-shopify-topic"),
    KnownHeader::new("x-shopify-triggered-at"),
    KnownHeader::new("x-shopify-shop-domain"),
];

impl KnownHeader {
    const fn new(classic: &'static str) -> Self {
        let (_, event) = classic.split_at(CLASSIC_MARK.len());
        let (_, name) = classic.split_at(CLASSIC_PREFIX.len());
        Self {
            name,
            classic: HeaderName::from_static(classic),
            event: HeaderName::from_static(event),
        }
    }
}

/// Value of the header with this name in a family, or in the other one.
fn by_built_names<'a>(
    headers: &'a (impl Headers + ?Sized),
    family: Family,
    name: &str,
) -> Option<&'a [u8]> {
    const LONGEST: usize = 96;
    let mut full = [0u8; LONGEST];
    let length = CLASSIC_PREFIX.len() + name.len();
    if length > LONGEST {
        return None;
    }
    full[..CLASSIC_PREFIX.len()].copy_from_slice(CLASSIC_PREFIX.as_bytes());
    full[CLASSIC_PREFIX.len()..length].copy_from_slice(name.as_bytes());
    let classic = std::str::from_utf8(&full[..length]).ok()?;
    let event = &classic[CLASSIC_MARK.len()..];
    let [own, other] = match family {
        Family::Classic => [classic, event],
        Family::Event => [event, classic],
    };
    headers.value(own).or_else(|| headers.value(other))
}

/// Mandatory privacy topics. Source: Shopify, "Privacy law compliance".
pub const COMPLIANCE_TOPICS: [&str; 3] =
    ["customers/data_request", "customers/redact", "shop/redact"];

/// True for the mandatory privacy topics. They are never refused for their age, dropped, coalesced
/// or aged out.
pub fn is_compliance(topic: &[u8]) -> bool {
    COMPLIANCE_TOPICS.iter().any(|one| one.as_bytes() == topic)
}

/// True for topics with which everything else of their shop stays in order. The webhooks sent
/// before such a one must arrive before it: a late order would bring back the data of a person who
/// must be forgotten.
pub fn is_barrier(topic: &[u8]) -> bool {
    matches!(topic, b"customers/redact" | b"shop/redact" | b"app/uninstalled")
}

/// True if `pattern` matches `topic`. A pattern is a topic, or all topics of a kind, such as
/// `orders/*` and `Order/*`.
pub fn is_topic_match(pattern: &str, topic: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(kind) => topic.starts_with(kind.as_bytes()),
        None => topic == pattern.as_bytes(),
    }
}

/// True for a topic, or for the pattern of a kind such as `orders/*`. An Event without an action, and
/// topics such as `customer.tags_added`, have no slash.
pub fn is_topic_pattern(text: &str) -> bool {
    let is_whole = |part: &str| !part.is_empty() && !part.contains('*');
    match text.split_once('/') {
        Some((kind, event)) => is_whole(kind) && (event == "*" || is_whole(event)),
        None => is_whole(text) && (text.contains('.') || text.starts_with(char::is_uppercase)),
    }
}

/// True for the domain of a shop.
pub fn is_shop_domain(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        let is_whole = !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
        is_whole && label.bytes().all(is_letter)
    };
    text.len() <= 253 && text.contains('.') && text.split('.').all(is_label)
}

/// Splits a comma-separated list of topics, or of kinds such as `orders/*`.
pub fn topic_list(text: &str) -> Vec<String> {
    let topics = text.split(',').map(str::trim).filter(|topic| !topic.is_empty());
    topics.map(ToOwned::to_owned).collect()
}

/// Kind of a topic's resource: `inventory_item` for `inventory_items/update`, whose first segment is
/// a plural, and for the Event `InventoryItem/update`, whose first segment is a GraphQL type.
pub fn resource_kind(topic: &str) -> String {
    let plural = topic.split('/').next().unwrap_or_default();
    if plural.starts_with(|first: char| first.is_ascii_uppercase()) {
        return snake_case(plural);
    }
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

/// Returns a body without its byte order mark.
pub fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

fn snake_case(type_name: &str) -> String {
    let mut kind = String::with_capacity(type_name.len() + 4);
    for letter in type_name.chars() {
        if letter.is_ascii_uppercase() && !kind.is_empty() {
            kind.push('_');
        }
        kind.push(letter.to_ascii_lowercase());
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(headers: &[(&'static str, &str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        map.topic().map(|topic| String::from_utf8_lossy(&topic).into_owned())
    }

    #[test]
    fn the_signature_tells_the_family() {
        let classic = [("shopify-topic", "Order"), ("x-shopify-topic", "orders/paid")];
        assert_eq!(topic(&classic).as_deref(), Some("orders/paid"));
        assert_eq!(topic(&classic[..1]).as_deref(), Some("Order"));
        let mut event = Vec::from([("shopify-hmac-sha256", "s"), ("shopify-action", "update")]);
        event.extend(classic);
        assert_eq!(topic(&event).as_deref(), Some("Order/update"));
        event[1].1 = "";
        assert_eq!(topic(&event).as_deref(), Some("Order"));
        assert_eq!(topic(&event[..2]), None);
        event[2].1 = "";
        assert_eq!(topic(&event), None);
    }

    #[test]
    fn a_header_whose_name_is_parsed_once_is_read_as_any_other() {
        let values = [&[][..], &["1"], &["", "2"]];
        for name in ["topic", "triggered-at", "shop-domain", "action", "webhook-id"] {
            for (own, other) in values.iter().flat_map(|own| values.map(|other| (*own, other))) {
                let mut headers = HeaderMap::new();
                for (prefix, given) in [(CLASSIC_PREFIX, own), ("shopify-", other)] {
                    let full = HeaderName::try_from(format!("{prefix}{name}")).unwrap();
                    for value in given {
                        headers.append(&full, value.parse().unwrap());
                    }
                }
                let first =
                    |given: &'static [&'static str]| given.first().map(|text| text.as_bytes());
                for (family, expected) in [
                    (Family::Classic, first(own).or(first(other))),
                    (Family::Event, first(other).or(first(own))),
                ] {
                    assert_eq!(headers.of_family(family, name), expected, "{name} {headers:?}");
                    assert_eq!(by_built_names(&headers, family, name), expected);
                }
            }
        }
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
    fn a_star_stands_for_the_whole_event_and_nothing_else() {
        for good in ["orders/create", "orders/*", "Order/update", "Order", "customer.tags_added"] {
            assert!(is_topic_pattern(good), "{good}");
        }
        for bad in ["", "*", "orders", "orders/", "/create", "*/create", "orders/cre*", "or*/*"] {
            assert!(!is_topic_pattern(bad), "{bad}");
        }
    }

    #[test]
    fn a_domain_has_labels() {
        for good in ["a.myshopify.com", "A-1.example"] {
            assert!(is_shop_domain(good), "{good}");
        }
        for bad in ["", "a", "a.", ".a", "-a.b", "a_b.c", "a.b/c", "*.myshopify.com"] {
            assert!(!is_shop_domain(bad), "{bad}");
        }
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
            ("Product/update", "product"),
            ("InventoryItem/update", "inventory_item"),
            ("MetaobjectDefinition/create", "metaobject_definition"),
            ("Order", "order"),
            ("", ""),
        ] {
            assert_eq!(resource_kind(topic), kind, "{topic}");
        }
    }
}
