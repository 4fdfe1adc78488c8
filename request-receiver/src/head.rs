//! Head of a request: what one pass over its headers finds, and the checks that need no body.

use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use spillway_webhook::received::APP_HEADER_NAME;
use spillway_webhook::shopify::Family;
use spillway_webhook::target;

use crate::reply::Refusal;
use crate::topics::{TopicClaim, TopicMetrics};

/// Part of the names of all headers of Shopify.
const SHOPIFY: &[u8] = b"shopify-";
/// Starts of the names that Spillway or Shopify alone may set.
const RESERVED: [&str; 3] = ["spillway-", "shopify-", "x-shopify-"];
/// Header that a downstreamer sets on every delivery.
const DELIVERY_HEADER: &str = "spillway-id";

/// Facts that one pass over a head finds, before anything else is done.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead {
    /// Bytes of the request's target and headers.
    pub bytes: usize,
    /// Length of the body as announced. 0 if it is sent in chunks.
    pub announced_bytes: usize,
    /// Family of the delivery.
    pub family: Family,
    /// Topic that the headers name.
    pub topic: TopicClaim,
    /// True if a downstreamer sent it.
    pub is_delivery: bool,
    /// True if it has a header that names the app, which only the receiver may set.
    pub names_app: bool,
    is_ambiguous: bool,
}

impl RequestHead {
    /// Reads the head. The topic is looked up among those that are known.
    pub fn read<B>(request: &Request<B>, topics: &TopicMetrics) -> Self {
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let mut head = Self {
            bytes: target.len(),
            announced_bytes: 0,
            family: Family::Classic,
            topic: TopicClaim::Missing,
            is_delivery: false,
            names_app: false,
            is_ambiguous: false,
        };
        head.read_headers(request.headers());
        head.topic = topics.claim(head.family, request.headers());
        head
    }

    /// Counts bytes, finds the family, and notes whatever a proxy in front may have read in another
    /// way than hyper does. Transfer codings other than `chunked` leave open where the request ends. Two hosts leave open whom it is for
    /// (RFC 9112, sections 6.1 and 3.2). A Content-Length next to `chunked` never gets here: hyper
    /// removes it, and ends the connection with that request.
    fn read_headers(&mut self, headers: &HeaderMap) {
        const EVENT: &str = Family::Event.signature_header();
        let mut hosts = 0;
        let mut codings = 0;
        for (name, value) in headers {
            let name = name.as_str();
            self.bytes += name.len() + value.len();
            match name {
                "host" => hosts += 1,
                "content-length" => self.announced_bytes = length(value),
                "transfer-encoding" => {
                    codings += 1;
                    self.is_ambiguous |= !value.as_bytes().eq_ignore_ascii_case(b"chunked");
                }
                "connection" => self.is_ambiguous |= names_shopify(value),
                EVENT => self.family = Family::Event,
                DELIVERY_HEADER => self.is_delivery = true,
                APP_HEADER_NAME => self.names_app = true,
                _ => self.is_ambiguous |= is_disguised(name),
            }
        }
        self.is_ambiguous |= hosts > 1 || codings > 1;
    }

    /// Checks what needs neither the body nor the state of the receiver.
    ///
    /// # Errors
    /// The answer to a request that can't be a webhook.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        if self.is_ambiguous {
            return Err(Refusal::Malformed);
        }
        let Some(target) = target_with_path(request.uri()) else {
            // CONNECT names only an authority.
            let is_connect = request.method() == Method::CONNECT;
            return Err(if is_connect { Refusal::NotPost } else { Refusal::Malformed });
        };
        if target::has_dot_segment(target.as_bytes()) {
            return Err(Refusal::DotSegment);
        }
        if request.method() != Method::POST {
            return Err(Refusal::NotPost);
        }
        Ok(())
    }
}

/// Returns the target from its path on. `None` if it has no path, as `*`, `host:80` or
/// `http://host`.
fn target_with_path(uri: &Uri) -> Option<&str> {
    let target = uri.path_and_query()?.as_str();
    // `http` makes the same value of `http://host` as of `http://host/`. But a path that was
    // received stands right after the authority, in one buffer.
    let is_received = uri.authority().is_none_or(|authority| {
        authority.as_str().as_bytes().as_ptr_range().end == target.as_ptr()
    });
    // `*` is for OPTIONS alone (RFC 9112, section 3.2.4).
    (is_received && target.starts_with('/')).then_some(target)
}

/// Returns true for a header such as `Spillway_App`. Many backends read `_` in a name as `-`: they
/// would take it for a header that Spillway or Shopify alone may set.
fn is_disguised(name: &str) -> bool {
    name.starts_with(['s', 'x'])
        && has_underscore(name.as_bytes())
        && RESERVED.iter().any(|start| name.replace('_', "-").starts_with(start))
}

/// Looks at eight bytes at a time.
fn has_underscore(name: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const UNDERSCORES: u64 = ONES * b'_' as u64;
    let Some(last) = name.last_chunk() else { return name.contains(&b'_') };
    let (words, _) = name.as_chunks();
    words.iter().chain([last]).any(|word| {
        // A byte is 0 if it was an underscore. Only below such a byte does the subtraction set a high
        // bit that was not set.
        let word = u64::from_ne_bytes(*word) ^ UNDERSCORES;
        word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
    })
}

/// Returns true if a `Connection` header names one of Shopify's. What it names is not stored: the
/// webhook would be checked by other headers than it is delivered with.
fn names_shopify(connection: &HeaderValue) -> bool {
    let mut parts = connection.as_bytes().windows(SHOPIFY.len());
    parts.any(|part| part.eq_ignore_ascii_case(SHOPIFY))
}

/// Length that is announced. hyper has already refused one that is not a number, and two that
/// differ.
fn length(value: &HeaderValue) -> usize {
    value.to_str().ok().and_then(|length| length.parse().ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prometheus::Registry;

    use super::*;

    fn read(request: &Request<()>) -> RequestHead {
        RequestHead::read(request, &TopicMetrics::new(&Registry::new()))
    }

    fn with_headers(headers: &[(&str, &str)]) -> (RequestHead, Result<(), Refusal>) {
        let mut request = Request::post("/a?b");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let head = read(&request);
        (head, head.check(&request))
    }

    #[test]
    fn a_target_is_taken_by_its_path_and_refused_without_one() {
        let checked = |method: &str, target: &'static str| {
            // Built as hyper does it, from a slice of its buffer.
            let uri = Uri::from_maybe_shared(Bytes::from_static(target.as_bytes()));
            let request = Request::builder().method(method).uri(uri.expect("a target"));
            let request = request.body(()).expect("a request");
            let target = request.uri().path_and_query().map(ToString::to_string);
            read(&request).check(&request).map(|()| target)
        };
        for (target, path) in [
            ("/", "/"),
            ("/webhooks?shop=1", "/webhooks?shop=1"),
            ("http://other.example/", "/"),
            ("http://other.example:80/a?b", "/a?b"),
            ("https://other.example/a", "/a"),
        ] {
            assert_eq!(checked("POST", target), Ok(Some(path.to_owned())), "{target}");
        }
        for target in ["*", "other.example:80", "other.example", "http://other.example"] {
            assert_eq!(checked("POST", target), Err(Refusal::Malformed), "{target}");
        }
        for target in ["http://other.example?a=/b", "http://other.example#a"] {
            assert_eq!(checked("POST", target), Err(Refusal::Malformed), "{target}");
        }
        assert_eq!(checked("CONNECT", "other.example:80"), Err(Refusal::NotPost));
        assert_eq!(checked("GET", "http://other.example/"), Err(Refusal::NotPost));
    }

    #[test]
    fn one_pass_finds_what_is_asked_for_later() {
        let (plain, checked) = with_headers(&[("host", "a"), ("content-length", "12")]);
        assert_eq!(checked, Ok(()));
        assert_eq!((plain.bytes, plain.announced_bytes), (4 + 5 + 16, 12));
        assert_eq!((plain.family, plain.topic), (Family::Classic, TopicClaim::Missing));
        assert!(!plain.is_delivery && !plain.names_app);
        let event = [("shopify-hmac-sha256", "s"), ("shopify-topic", "Product")];
        let own = [("spillway-id", "1-1-1"), ("spillway-app", "one")];
        let (event, checked) = with_headers(&[event, own].concat());
        assert_eq!((checked, event.announced_bytes), (Ok(()), 0));
        assert_eq!((event.family, event.topic), (Family::Event, TopicClaim::Other));
        assert!(event.is_delivery && event.names_app);
    }

    #[test]
    fn a_head_that_others_may_read_in_another_way_is_refused() {
        for headers in [
            &[("host", "a"), ("host", "a")][..],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("connection", "close"), ("connection", "X-Shopify-Topic")],
            &[("spillway_app", "one")],
            &[("x-shopify_topic", "a")],
            &[("x_shopify-shop-domain", "a"), ("host", "a")],
        ] {
            assert_eq!(with_headers(headers).1, Err(Refusal::Malformed), "{headers:?}");
        }
        for headers in [
            &[("transfer-encoding", "Chunked"), ("host", "a")][..],
            &[("connection", "keep-alive"), ("connection", "x-other")],
            &[("cf_ray", "1"), ("x_request_id", "2"), ("spillway", "3")],
        ] {
            assert_eq!(with_headers(headers).1, Ok(()), "{headers:?}");
        }
    }
}
