//! A webhook as Shopify sends it, of either family: its headers, a signature over its body, and new
//! ids and a new time for each request.

use std::num::NonZero;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::Full;
use serde_json::Value;
use spillway_webhook::Secrets;
use spillway_webhook::resource::Resource;
use time::OffsetDateTime;
use time::format_description::well_known::Iso8601;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};
use uuid::Uuid;

use crate::failure::Failure;

/// A product, as in a `products/update` webhook.
pub(crate) const SAMPLE: &str = include_str!("../../../request.json");
/// An Event of a product, `Product/update`.
pub(crate) const SAMPLE_EVENT: &str = include_str!("../../../request-events.json");

/// RFC 3339 with nine digits, as Shopify writes the time of a classic webhook.
const NANOSECONDS: EncodedConfig = digits(9);
/// RFC 3339 with six digits, as Shopify writes the time of an Event.
const MICROSECONDS: EncodedConfig = digits(6);

const API_VERSION: HeaderValue = HeaderValue::from_static("2026-10");

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
    shop: HeaderValue,
    signature: HeaderValue,
    naming: Naming,
    body: Bytes,
}

/// Headers that name what happened.
#[derive(Debug, Clone)]
enum Naming {
    Classic { topic: HeaderValue, resource: Option<(HeaderName, HeaderValue)> },
    Event { topic: HeaderValue, action: HeaderValue, handle: HeaderValue },
}

/// The parts that differ in each request.
#[derive(Debug, Clone)]
pub(crate) struct Occasion {
    /// Time of the event.
    pub triggered_at: OffsetDateTime,
    /// Webhook id (a UUID).
    pub webhook_id: String,
    /// Event id (a UUID).
    pub event_id: String,
}

impl Occasion {
    /// The current time, with new ids.
    pub(crate) fn new() -> Self {
        Self {
            triggered_at: OffsetDateTime::now_utc(),
            webhook_id: Uuid::new_v4().to_string(),
            event_id: Uuid::new_v4().to_string(),
        }
    }
}

impl Occasion {
    fn time<const CONFIG: EncodedConfig>(&self) -> HeaderValue {
        let text = self.triggered_at.format(&Iso8601::<CONFIG>);
        ours(&text.expect("BUG: now has a date and a time"))
    }
}

impl SampleWebhook {
    /// A classic webhook. Signs `body` with the first of the secrets.
    pub(crate) fn classic(
        topic: &str,
        shop: &str,
        body: Bytes,
        secrets: &Secrets,
    ) -> Result<Self, Failure> {
        let resource = resource_header(topic, &body);
        let naming = Naming::Classic { topic: value("--topic", topic)?, resource };
        Self::new(naming, shop, body, secrets)
    }

    /// An Event, named as its body says. Signs `body` with the first of the secrets.
    pub(crate) fn event(shop: &str, body: Bytes, secrets: &Secrets) -> Result<Self, Failure> {
        let parts: Value = serde_json::from_slice(&body).unwrap_or_default();
        let part = |name: &str| match parts[name].as_str() {
            Some(text) => value(name, text),
            None => Err(Failure::Usage(format!(
                "the body of an Event has a text named {name}, as in request-events.json"
            ))),
        };
        let naming = Naming::Event {
            topic: part("topic")?,
            action: part("action")?,
            handle: part("handle")?,
        };
        Self::new(naming, shop, body, secrets)
    }

    fn new(naming: Naming, shop: &str, body: Bytes, secrets: &Secrets) -> Result<Self, Failure> {
        let shop = value("--shop", shop)?;
        Ok(Self { shop, signature: ours(&secrets.sign(&body)), naming, body })
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
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_static("Shopify-Captain-Hook"));
        headers.insert(header::CONTENT_LENGTH, self.body.len().into());
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        let encodings = HeaderValue::from_static("gzip;q=1.0,deflate;q=0.6,identity;q=0.3");
        headers.insert(header::ACCEPT_ENCODING, encodings);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match &self.naming {
            Naming::Classic { topic, resource } => {
                self.name_classic(&mut headers, topic, resource.as_ref(), occasion);
            }
            Naming::Event { topic, action, handle } => {
                headers.insert("shopify-topic", topic.clone());
                headers.insert("shopify-action", action.clone());
                headers.insert("shopify-handle", handle.clone());
                headers.insert("shopify-shop-domain", self.shop.clone());
                headers.insert("shopify-api-version", API_VERSION);
                headers.insert("shopify-webhook-id", ours(&occasion.webhook_id));
                headers.insert("shopify-triggered-at", occasion.time::<MICROSECONDS>());
                headers.insert("shopify-hmac-sha256", self.signature.clone());
            }
        }
        headers
    }

    fn name_classic(
        &self,
        headers: &mut HeaderMap,
        topic: &HeaderValue,
        resource: Option<&(HeaderName, HeaderValue)>,
        occasion: &Occasion,
    ) {
        headers.insert("x-shopify-api-version", API_VERSION);
        headers.insert("x-shopify-event-id", ours(&occasion.event_id));
        headers.insert("x-shopify-hmac-sha256", self.signature.clone());
        if let Some((name, value)) = resource {
            headers.insert(name.clone(), value.clone());
        }
        headers.insert("x-shopify-shop-domain", self.shop.clone());
        headers.insert("x-shopify-topic", topic.clone());
        headers.insert("x-shopify-triggered-at", occasion.time::<NANOSECONDS>());
        headers.insert("x-shopify-webhook-id", ours(&occasion.webhook_id));
    }
}

const fn digits(digits: u8) -> EncodedConfig {
    let precision = TimePrecision::Second { decimal_digits: NonZero::new(digits) };
    Config::DEFAULT.set_time_precision(precision).encode()
}

fn value(name: &str, text: &str) -> Result<HeaderValue, Failure> {
    let value = HeaderValue::from_str(text);
    value.map_err(|_| Failure::Usage(format!("{name} {text:?} cannot be a header")))
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
    use spillway_webhook::shopify::Headers;
    use spillway_webhook::{family, freshness, signature};
    use zeroize::Zeroizing;

    fn secrets() -> Secrets {
        Secrets::new(&[Zeroizing::new("secret".to_owned())])
    }

    fn webhook(topic: &str, body: &'static str) -> SampleWebhook {
        let body = Bytes::from_static(body.as_bytes());
        SampleWebhook::classic(topic, "a.myshopify.com", body, &secrets()).unwrap()
    }

    fn event(body: &'static str) -> Result<SampleWebhook, Failure> {
        SampleWebhook::event("a.myshopify.com", Bytes::from_static(body.as_bytes()), &secrets())
    }

    #[test]
    fn what_is_sent_is_what_the_receiver_accepts() {
        let classic = webhook("products/update", SAMPLE);
        let event = event(SAMPLE_EVENT).unwrap();
        for (sent, topic, digits) in [(classic, "products/update", 9), (event, "Product/update", 6)]
        {
            let occasion = Occasion::new();
            let received = spillway_webhook::Webhook {
                received_at_ms: 0,
                target: PathAndQuery::from_static("/"),
                headers: sent.headers(&occasion),
                body: sent.body.clone(),
            };
            let verified: Result<_, signature::BadSignature> = secrets().verify(&received);
            verified.unwrap();
            let headers = &received.headers;
            assert_eq!(family::check(headers.family(), headers, &received.body), Ok(()));
            assert_eq!(headers.topic().as_deref(), Some(topic.as_bytes()));
            let time = headers.shopify("triggered-at").unwrap();
            assert!(freshness::millis(time).is_some());
            assert_eq!(time.len(), "2026-01-01T00:00:00.Z".len() + digits);
        }
        assert_ne!(Occasion::new().webhook_id, Occasion::new().webhook_id);
    }

    #[test]
    fn an_event_is_named_by_its_body() {
        let resource = |sent: SampleWebhook| {
            Resource::of(&sent.headers(&Occasion::new()), &sent.body).to_string()
        };
        let same = resource(webhook("products/update", SAMPLE));
        assert_eq!(resource(event(SAMPLE_EVENT).unwrap()), same);
        let Err(failure) = event(SAMPLE) else { panic!("a classic body is no Event") };
        assert!(failure.to_string().contains("request-events.json"), "{failure}");
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
        assert!(SampleWebhook::classic("a\nb", "s", Bytes::new(), &secrets()).is_err());
    }
}
