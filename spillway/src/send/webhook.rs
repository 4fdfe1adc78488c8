//! A webhook as Shopify sends it: headers in Shopify's order, a signature over its body, and new
//! ids and a new time for each request.

use std::num::NonZero;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::Full;
use spillway_webhook::Secrets;
use spillway_webhook::resource::Resource;
use time::OffsetDateTime;
use time::format_description::well_known::Iso8601;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};
use uuid::Uuid;

use crate::failure::Failure;

/// A product, as in a `products/update` webhook.
pub(crate) const SAMPLE: &str = include_str!("../../../request.json");

/// RFC 3339 with nine digits, as Shopify writes `X-Shopify-Triggered-At`.
const NANOSECONDS: EncodedConfig = Config::DEFAULT
    .set_time_precision(TimePrecision::Second { decimal_digits: NonZero::new(9) })
    .encode();

/// Kinds whose topics carry `X-Shopify-<Kind>-Id`.
const KINDS_WITH_ID: [&str; 12] = [
    "product",
    "order",
    "customer",
    "collection",
    "draft_order",
    "fulfillment",
    "refund",
    "inventory_item",
    "location",
    "checkout",
    "theme",
    "variant",
];

/// The parts that are the same in every request.
#[derive(Debug, Clone)]
pub(crate) struct SampleWebhook {
    topic: HeaderValue,
    shop: HeaderValue,
    signature: HeaderValue,
    resource: Option<(HeaderName, HeaderValue)>,
    body: Bytes,
}

/// The parts that differ in each request.
#[derive(Debug, Clone)]
pub(crate) struct Occasion {
    /// Time of the event (RFC 3339).
    pub triggered_at: String,
    /// Webhook id (a UUID).
    pub webhook_id: String,
    /// Event id (a UUID).
    pub event_id: String,
}

impl Occasion {
    /// The current time, with new ids.
    pub(crate) fn new() -> Self {
        let now = OffsetDateTime::now_utc().format(&Iso8601::<NANOSECONDS>);
        Self {
            triggered_at: now.expect("BUG: now has a date and a time"),
            webhook_id: Uuid::new_v4().to_string(),
            event_id: Uuid::new_v4().to_string(),
        }
    }
}

impl SampleWebhook {
    /// Signs `body` with the first of the secrets.
    pub(crate) fn new(
        topic: &str,
        shop: &str,
        body: Bytes,
        secrets: &Secrets,
    ) -> Result<Self, Failure> {
        let value = |flag: &str, text: &str| {
            let value = HeaderValue::from_str(text);
            value.map_err(|_| Failure::Usage(format!("{flag} {text:?} cannot be a header")))
        };
        Ok(Self {
            topic: value("--topic", topic)?,
            shop: value("--shop", shop)?,
            signature: ours(&secrets.sign(&body)),
            resource: resource_header(topic, &body),
            body,
        })
    }

    /// Builds a request with new ids.
    pub(crate) fn request(&self, uri: &Uri) -> Request<Full<Bytes>> {
        self.request_of(uri, &Occasion::new())
    }

    /// Builds a request with the given ids.
    pub(crate) fn request_of(&self, uri: &Uri, occasion: &Occasion) -> Request<Full<Bytes>> {
        let mut request = Request::post(uri.clone())
            .body(Full::new(self.body.clone()))
            .expect("BUG: the URI is well-formed already");
        if let Some(authority) = uri.authority() {
            request.headers_mut().insert(header::HOST, ours(authority.as_str()));
        }
        request.headers_mut().extend(self.headers(occasion));
        request
    }

    /// Every header except `Host`, in the order of a real delivery.
    pub(crate) fn headers(&self, occasion: &Occasion) -> HeaderMap {
        let shopify = |name: &'static str| HeaderName::from_static(name);
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_static("Shopify-Captain-Hook"));
        headers.insert(header::CONTENT_LENGTH, self.body.len().into());
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        let encodings = HeaderValue::from_static("gzip;q=1.0,deflate;q=0.6,identity;q=0.3");
        headers.insert(header::ACCEPT_ENCODING, encodings);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(shopify("x-shopify-api-version"), HeaderValue::from_static("2026-10"));
        headers.insert(shopify("x-shopify-event-id"), ours(&occasion.event_id));
        headers.insert(shopify("x-shopify-hmac-sha256"), self.signature.clone());
        if let Some((name, value)) = &self.resource {
            headers.insert(name.clone(), value.clone());
        }
        headers.insert(shopify("x-shopify-shop-domain"), self.shop.clone());
        headers.insert(shopify("x-shopify-topic"), self.topic.clone());
        headers.insert(shopify("x-shopify-triggered-at"), ours(&occasion.triggered_at));
        headers.insert(shopify("x-shopify-webhook-id"), ours(&occasion.webhook_id));
        headers
    }
}

/// `X-Shopify-Product-Id` and similar headers, from the id in the body.
fn resource_header(topic: &str, body: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let mut headers = HeaderMap::new();
    headers.insert("x-shopify-topic", HeaderValue::from_str(topic).ok()?);
    let resource = Resource::of(&headers, body);
    if resource.is_fallback || !KINDS_WITH_ID.contains(&resource.kind.as_str()) {
        return None;
    }
    let name = format!("x-shopify-{}-id", resource.kind.replace('_', "-"));
    Some((name.parse().ok()?, HeaderValue::from_str(&resource.id).ok()?))
}

/// A header value that this command made itself.
fn ours(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("BUG: our own values are visible ASCII")
}

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;

    use super::*;
    use spillway_webhook::{freshness, signature};
    use zeroize::Zeroizing;

    fn secrets() -> Secrets {
        Secrets::new(&[Zeroizing::new("secret".to_owned())])
    }

    fn webhook(topic: &str, body: &'static str) -> SampleWebhook {
        SampleWebhook::new(
            topic,
            "a.myshopify.com",
            Bytes::from_static(body.as_bytes()),
            &secrets(),
        )
        .unwrap()
    }

    #[test]
    fn what_is_sent_is_what_the_receiver_accepts() {
        let webhook = webhook("products/update", SAMPLE);
        let occasion = Occasion::new();
        let headers = webhook.headers(&occasion);
        let body = Bytes::from_static(SAMPLE.as_bytes());
        let received = spillway_webhook::Webhook {
            received_at_ms: 0,
            target: PathAndQuery::from_static("/"),
            headers,
            body,
        };
        let verified: Result<_, signature::BadSignature> = secrets().verify(received);
        assert!(verified.is_ok());
        assert!(freshness::millis(occasion.triggered_at.as_bytes()).is_some());
        assert_eq!(occasion.triggered_at.len(), "2026-01-01T00:00:00.123456789Z".len());
        assert_ne!(occasion.webhook_id, Occasion::new().webhook_id);
    }

    #[test]
    fn the_resource_is_named_where_shopify_names_it() {
        let id = |topic: &str, body: &'static str| {
            let headers = webhook(topic, body).headers(&Occasion::new());
            let found = headers.iter().find(|(name, _)| {
                let name = name.as_str();
                name.ends_with("-id") && !name.contains("webhook") && !name.contains("event")
            });
            found.map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        };
        assert_eq!(id("products/update", r#"{"id":7}"#).unwrap(), "x-shopify-product-id=7");
        assert_eq!(id("draft_orders/create", r#"{"id":7}"#).unwrap(), "x-shopify-draft-order-id=7");
        assert_eq!(id("products/update", "{}"), None);
        assert_eq!(id("app/uninstalled", r#"{"id":7}"#), None);
        assert!(SampleWebhook::new("a\nb", "s", Bytes::new(), &secrets()).is_err());
    }
}
