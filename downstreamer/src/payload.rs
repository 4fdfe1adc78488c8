//! Fetches the payload of a stub, which Shopify sends in place of a body over its limit.
//!
//! A stub names a URL. It is signed, but its host need not be Shopify's: it is fetched only from a
//! host of `PAYLOAD_HOSTS`, and no redirect is followed. Bounded: a fetch in time and in bytes, all
//! fetches in number, and all payloads in memory up to the end of their deliveries in bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use rustls::pki_types::ServerName;
use spillway_process::clock::wall_clock_ms;
use spillway_webhook::pack::Record;
use spillway_webhook::{Stub, WebhookId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::body::LeasedBody;
use crate::connect::{ClientOptions, LeaseCheck, LeaseLost, LeasedClient, tls};

/// Fetches at once. More would hold slots of deliveries while the host of the payloads is slow.
const FETCHES_MAX: usize = 16;
/// Payloads of the largest size that are in memory at once. Smaller ones are more.
const LARGEST_MAX: usize = 4;
/// Bytes for each permit of memory: a count of bytes would not fit into a `u32`.
const PERMIT_BYTES: usize = 1 << 10;
/// Time between two warnings about the same result.
const LOG_EVERY: Duration = Duration::from_secs(60);
const AGENT: &str = concat!("spillway/", env!("CARGO_PKG_VERSION"));

/// Checked settings of fetching.
#[derive(Debug, Clone)]
pub struct PayloadSettings {
    /// Hosts that payloads may be fetched from.
    pub hosts: Vec<PayloadHost>,
    /// Most bytes of one payload.
    pub bytes_max: usize,
}

/// A host that payloads may be fetched from, or all hosts below a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadHost {
    scheme: Scheme,
    /// Host in lower case, without the `*.` of a domain.
    name: String,
    /// True for all hosts below a domain, and not the domain itself.
    is_domain: bool,
    port: u16,
}

/// Result for a stub that is to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PayloadResult {
    /// The time that the stub names has passed. The stub is delivered.
    Expired,
    /// The payload could not be fetched now. The attempt has failed.
    Failed,
    /// The payload is delivered.
    Fetched,
    /// `FETCH_PAYLOADS=off`. The stub is delivered.
    Off,
    /// The URL is on no host of `PAYLOAD_HOSTS`. The stub is delivered.
    OtherHost,
    /// The host refused: a 4xx such as 403 and 410, or a redirect. The stub is delivered.
    Refused,
    /// The payload is larger than `PAYLOAD_MAX`. The stub is delivered.
    TooLarge,
}

/// A webhook's payload.
pub(crate) enum Payload {
    /// The webhook is no stub.
    Body,
    /// The stub itself is to be delivered.
    Stub(PayloadResult),
    /// The payload, and the room in memory that it takes.
    Fetched(Bytes, OwnedSemaphorePermit),
    /// The fetch failed, for this reason.
    Failed(String),
    /// The lease was lost meanwhile.
    LeaseLost,
}

/// Fetches payloads, if the settings say so.
pub(crate) struct PayloadFetcher {
    fetching: Option<Fetching>,
    /// Time of the last warning about each result.
    logged_at: Mutex<HashMap<PayloadResult, Instant>>,
}

/// Client for payloads, and its bounds.
struct Fetching {
    settings: PayloadSettings,
    timeout: Duration,
    client: LeasedClient<LeasedBody>,
    lease: LeaseCheck,
    slots: Semaphore,
    room: Arc<Semaphore>,
}

/// Reason for which there is no payload.
#[derive(Debug, PartialEq, Eq)]
enum FetchError {
    /// Another try may succeed.
    Failed(String),
    /// No other try will succeed.
    Refused(u16),
    TooLarge,
    LeaseLost,
}

impl PayloadHost {
    /// Parses `payloads.example.com`, `*.example.com` or `http://127.0.0.1:8080`. Without a scheme
    /// it is https, and without a port that of the scheme.
    ///
    /// # Errors
    /// The form that is expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "must be a host such as payloads.example.com or *.example.com, with \
                            another port as host:8443; without TLS: http://host";
        let (scheme, rest) = match text.split_once("://") {
            None => (Scheme::HTTPS, text),
            Some(("https", rest)) => (Scheme::HTTPS, rest),
            Some(("http", rest)) => (Scheme::HTTP, rest),
            Some(_) => return Err(FORM),
        };
        let domain = rest.strip_prefix("*.");
        let authority: Authority = domain.unwrap_or(rest).parse().map_err(|_| FORM)?;
        let host = authority.host();
        let name = ServerName::try_from(host.trim_matches(['[', ']'])).map_err(|_| FORM)?;
        let is_name = matches!(name, ServerName::DnsName(_));
        // `*.com` would be everybody's.
        if domain.is_some() && !(is_name && host.contains('.')) {
            return Err(FORM);
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str() == host => default_port(&scheme),
            None => return Err(FORM),
        };
        Ok(Self { scheme, name: host.to_ascii_lowercase(), is_domain: domain.is_some(), port })
    }

    /// True if this host serves the URL.
    fn is_of(&self, url: &Uri) -> bool {
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        let port = url.port_u16().unwrap_or_else(|| default_port(&self.scheme));
        let is_named = match host.strip_suffix(&self.name) {
            Some("") => !self.is_domain,
            Some(below) => self.is_domain && below.len() > 1 && below.ends_with('.'),
            None => false,
        };
        is_named && port == self.port && url.scheme() == Some(&self.scheme)
    }
}

fn default_port(scheme: &Scheme) -> u16 {
    if *scheme == Scheme::HTTPS { 443 } else { 80 }
}

impl PayloadSettings {
    /// URL to fetch the payload of a stub from at `now_ms`, or the reason for which the stub itself
    /// is delivered.
    fn url(&self, stub: &Stub, now_ms: u64) -> Result<Uri, PayloadResult> {
        if stub.has_expired(now_ms) {
            return Err(PayloadResult::Expired);
        }
        let url: Uri = stub.payload_url.parse().map_err(|_| PayloadResult::OtherHost)?;
        let has_user = url.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if has_user || !self.hosts.iter().any(|host| host.is_of(&url)) {
            return Err(PayloadResult::OtherHost);
        }
        let bytes_max = u64::try_from(self.bytes_max).unwrap_or(u64::MAX);
        if stub.payload_bytes.is_some_and(|bytes| bytes > bytes_max) {
            return Err(PayloadResult::TooLarge);
        }
        Ok(url)
    }
}

impl PayloadResult {
    /// All results.
    pub(crate) const ALL: [Self; 7] = [
        Self::Expired,
        Self::Failed,
        Self::Fetched,
        Self::Off,
        Self::OtherHost,
        Self::Refused,
        Self::TooLarge,
    ];

    /// Label in the metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Failed => "failed",
            Self::Fetched => "fetched",
            Self::Off => "off",
            Self::OtherHost => "other_host",
            Self::Refused => "refused",
            Self::TooLarge => "too_large",
        }
    }
}

impl Payload {
    /// Result to count. `None` if nothing was to be fetched.
    pub(crate) fn result(&self) -> Option<PayloadResult> {
        match self {
            Self::Body | Self::LeaseLost => None,
            Self::Stub(result) => Some(*result),
            Self::Fetched(..) => Some(PayloadResult::Fetched),
            Self::Failed(_) => Some(PayloadResult::Failed),
        }
    }
}

impl PayloadFetcher {
    /// Fetcher with a new connection pool. Without settings it fetches nothing.
    ///
    /// # Errors
    /// If a host uses TLS and this machine knows no certificate authority.
    pub(crate) fn new(
        settings: Option<&PayloadSettings>,
        timeout: Duration,
        lease: LeaseCheck,
    ) -> anyhow::Result<Self> {
        let logged_at = Mutex::default();
        let Some(settings) = settings else { return Ok(Self { fetching: None, logged_at }) };
        let has_tls = settings.hosts.iter().any(|host| host.scheme == Scheme::HTTPS);
        let options = ClientOptions {
            tls: tls("PAYLOAD_HOSTS", has_tls)?,
            server_name: None,
            takes_http2: false,
            timeout,
            idle_max: FETCHES_MAX,
        };
        let fetching = Fetching {
            settings: settings.clone(),
            timeout,
            client: options.client(lease.clone()),
            lease,
            slots: Semaphore::new(FETCHES_MAX),
            room: Arc::new(Semaphore::new(LARGEST_MAX * permits(settings.bytes_max))),
        };
        Ok(Self { fetching: Some(fetching), logged_at })
    }

    /// Payload of a webhook that is to be delivered.
    pub(crate) async fn payload(&self, record: &Record, webhook: WebhookId) -> Payload {
        let Some(stub) = Stub::of(record, &record.body) else { return Payload::Body };
        let (payload, cause) = match &self.fetching {
            None if stub.has_expired(wall_clock_ms()) => {
                (Payload::Stub(PayloadResult::Expired), String::new())
            }
            None => (Payload::Stub(PayloadResult::Off), String::new()),
            Some(fetching) => fetching.payload(&stub).await,
        };
        if let Some(result) = payload.result() {
            self.log(webhook, result, &cause);
        }
        payload
    }

    /// Logs a result, without the URL: the payload can be read with it.
    fn log(&self, webhook: WebhookId, result: PayloadResult, cause: &str) {
        let label = result.label();
        tracing::debug!(%webhook, result = label, cause, "a stub instead of a body");
        if matches!(result, PayloadResult::Fetched | PayloadResult::Off) {
            return;
        }
        let mut logged_at = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        if logged_at.get(&result).is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return;
        }
        logged_at.insert(result, Instant::now());
        if result == PayloadResult::Failed {
            tracing::warn!(%webhook, cause, "the payload of a stub was not fetched; trying again");
        } else {
            tracing::warn!(%webhook, result = label, cause, "a stub is delivered without its payload");
        }
    }
}

impl Fetching {
    /// Payload of a stub, and the cause of a failure for the log.
    async fn payload(&self, stub: &Stub) -> (Payload, String) {
        let url = match self.settings.url(stub, wall_clock_ms()) {
            Ok(url) => url,
            Err(result) => return (Payload::Stub(result), host_of(&stub.payload_url)),
        };
        let host = url.host().unwrap_or_default().to_owned();
        let fetched = tokio::time::timeout(self.timeout, self.fetch(url)).await;
        match fetched.unwrap_or_else(|_| Err(FetchError::Failed("no whole answer in time".into())))
        {
            Ok((bytes, room)) => (Payload::Fetched(bytes, room), host),
            Err(FetchError::LeaseLost) => (Payload::LeaseLost, host),
            Err(FetchError::TooLarge) => (Payload::Stub(PayloadResult::TooLarge), host),
            Err(FetchError::Refused(status)) => {
                (Payload::Stub(PayloadResult::Refused), format!("{host} answered {status}"))
            }
            Err(FetchError::Failed(cause)) => {
                let cause = format!("{host}: {cause}");
                (Payload::Failed(cause.clone()), cause)
            }
        }
    }

    async fn fetch(&self, url: Uri) -> Result<(Bytes, OwnedSemaphorePermit), FetchError> {
        let _slot = self.slots.acquire().await.expect("BUG: it is never closed");
        let body = LeasedBody::new(Bytes::new(), self.lease.clone());
        let request = Request::get(url)
            .header(USER_AGENT, AGENT)
            .header(ACCEPT_ENCODING, "identity")
            .body(body)
            .map_err(|_| FetchError::Failed("no request can be made of the URL".into()))?;
        let response = self.client.request(request).await.map_err(|error| {
            if LeaseLost::is_cause_of(&error) {
                FetchError::LeaseLost
            } else if error.is_connect() {
                FetchError::Failed("no connection".into())
            } else {
                FetchError::Failed("the connection broke".into())
            }
        })?;
        judge_head(&response)?;
        let body = response.into_body();
        let bytes_max = self.settings.bytes_max;
        let announced = body.size_hint().exact().map(usize::try_from);
        let bytes = announced.map_or(bytes_max, |bytes| bytes.unwrap_or(usize::MAX));
        if bytes > bytes_max {
            return Err(FetchError::TooLarge);
        }
        let wanted = u32::try_from(permits(bytes)).expect("BUG: PAYLOAD_MAX is bounded");
        let room = self.room.clone().acquire_many_owned(wanted).await;
        let room = room.expect("BUG: it is never closed");
        Ok((read(body, bytes).await?, room))
    }
}

/// Judges the head of an answer.
fn judge_head<B>(response: &Response<B>) -> Result<(), FetchError> {
    let status = response.status().as_u16();
    let encoding = response.headers().get(CONTENT_ENCODING);
    match status {
        // The backend does not expect a compressed body.
        200 if encoding.is_some_and(|encoding| encoding != "identity") => {
            Err(FetchError::Refused(status))
        }
        200 => Ok(()),
        408 | 425 | 429 | 500..=599 => Err(FetchError::Failed(format!("answered {status}"))),
        _ => Err(FetchError::Refused(status)),
    }
}

/// Reads a payload of at most `bytes_max`.
async fn read(mut body: Incoming, bytes_max: usize) -> Result<Bytes, FetchError> {
    let mut bytes = Vec::with_capacity(bytes_max);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| FetchError::Failed("the answer broke off".into()))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > bytes_max - bytes.len() {
            return Err(FetchError::TooLarge);
        }
        bytes.extend_from_slice(&data);
    }
    if bytes.is_empty() {
        return Err(FetchError::Failed("the answer is empty".into()));
    }
    Ok(bytes.into())
}

/// Host of a URL, which may be shown.
fn host_of(url: &str) -> String {
    let url: Option<Uri> = url.parse().ok();
    url.and_then(|url| url.host().map(ToOwned::to_owned)).unwrap_or_default()
}

fn permits(bytes: usize) -> usize {
    bytes.div_ceil(PERMIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(hosts: &str, url: &str) -> bool {
        let hosts = hosts.split(',').map(|host| PayloadHost::parse(host).unwrap()).collect();
        let settings = PayloadSettings { hosts, bytes_max: 100 };
        settings.url(&stub(url), 1).is_ok()
    }

    fn stub(url: &str) -> Stub {
        Stub { payload_url: url.to_owned(), payload_bytes: None, expires_at_ms: None }
    }

    #[test]
    fn a_payload_is_fetched_only_from_a_host_that_is_named() {
        let hosts =
            "a.example.com,*.Shop.example,h.example:8443,http://127.0.0.1:8080,http://[::1]";
        let good = "https://a.example.com/1?b=c https://A.example.com:443/1 https://b.shop.example/1 \
                    https://c.b.shop.example/1 https://h.example:8443/ http://127.0.0.1:8080/1 \
                    http://[::1]/1";
        for url in good.split(' ') {
            assert!(is_allowed(hosts, url), "{url}");
        }
        let bad = "http://a.example.com/1 https://a.example.com:8443/1 https://b.a.example.com/1 \
                   https://shop.example/1 https://.shop.example/1 https://evilshop.example/1 \
                   https://b.shop.example.evil.example/1 https://b.shop.example./1 \
                   https://a.example.com@evil.example/1 https://user@a.example.com/1 \
                   https://evil.example/a.example.com https://evil.example#a.example.com \
                   https://evil.example?a.example.com https://h.example/ https://127.0.0.1:8080/1 \
                   http://127.0.0.1/1 http://127.1:8080/1 http://[::1]:8080/1 \
                   https://169.254.169.254/1 file:///etc/passwd ftp://a.example.com/1 \
                   a.example.com/1 /1 https://a.example.com\\@evil.example/1";
        for url in bad.split(' ').chain([" https://a.example.com/1", ""]) {
            assert!(!is_allowed(hosts, url), "{url}");
        }
    }

    #[test]
    fn a_host_that_is_none_is_a_mistake() {
        let bad = "* *.com *.10.0.0.1 *.[::1] a.*.example https:// ftp://a.example a.example/path \
                   a.example: a.example:99999 user@a.example https://a.example?b";
        for host in bad.split(' ').chain(["", "a b"]) {
            assert!(PayloadHost::parse(host).is_err(), "{host}");
        }
        let plain = PayloadHost::parse("http://a.example").unwrap();
        assert_eq!(plain, PayloadHost::parse("http://A.example:80").unwrap());
        assert_ne!(plain, PayloadHost::parse("a.example:80").unwrap());
        assert_eq!(PayloadHost::parse("https://a.example"), PayloadHost::parse("a.example:443"));
    }

    #[test]
    fn what_has_expired_or_is_too_large_is_not_fetched() {
        let hosts = vec![PayloadHost::parse("a.example").unwrap()];
        let settings = PayloadSettings { hosts, bytes_max: 100 };
        let url = |payload_bytes, expires_at_ms, now_ms| {
            let stub = Stub { payload_bytes, expires_at_ms, ..stub("https://a.example/1") };
            settings.url(&stub, now_ms).err()
        };
        assert_eq!(url(Some(100), Some(1_001), 1_000), None);
        assert_eq!(url(None, Some(1_000), 1_000), Some(PayloadResult::Expired));
        assert_eq!(url(Some(101), None, 1_000), Some(PayloadResult::TooLarge));
        let elsewhere = Stub { payload_bytes: Some(101), ..stub("https://b.example/1") };
        assert_eq!(settings.url(&elsewhere, 1).err(), Some(PayloadResult::OtherHost));
    }

    #[test]
    fn the_table_of_answers() {
        let judged = |status: u16, encoding: Option<&str>| {
            let mut response = Response::builder().status(status);
            if let Some(encoding) = encoding {
                response = response.header(CONTENT_ENCODING, encoding);
            }
            judge_head(&response.body(()).unwrap())
        };
        assert_eq!(judged(200, None), Ok(()));
        assert_eq!(judged(200, Some("identity")), Ok(()));
        assert_eq!(judged(200, Some("gzip")), Err(FetchError::Refused(200)));
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(matches!(judged(status, None), Err(FetchError::Failed(_))), "{status}");
        }
        for status in [201, 204, 206, 301, 302, 307, 400, 401, 403, 404, 410] {
            assert_eq!(judged(status, None), Err(FetchError::Refused(status)));
        }
    }
}
