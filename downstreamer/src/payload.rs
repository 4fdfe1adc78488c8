//! Fetches the payload of a stub, which Shopify sends in place of a body over its limit.
//!
//! A stub names a URL. It is signed, but its host need not be Shopify's: it is fetched only from a
//! host of `PAYLOAD_HOSTS`, and no redirect is followed. Bounded: a fetch in time and in bytes, all
//! fetches in number (`turns`), and all payloads in memory up to the end of their deliveries in
//! bytes. Nothing waits for its turn or for room with a slot of deliveries: it is tried again later.

mod settings;
mod turns;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, TRANSFER_ENCODING, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use spillway_process::clock::wall_clock_ms;
use spillway_webhook::pack::Record;
use spillway_webhook::{Stub, WebhookId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::access::BackendAccess;
use crate::body::LeasedBody;
use crate::connect::{ClientOptions, LeaseCheck, LeaseLost, LeasedClient, tls};
use crate::payload::turns::FetchTurns;

pub(crate) use crate::payload::settings::PayloadArgs;
pub use crate::payload::settings::{PayloadHost, PayloadSettings};

/// Fetches at once. More would hold slots of deliveries while the host of the payloads is slow.
const FETCHES_MAX: usize = 16;
/// Time within which a fetch that fails shows that its host does not hang.
const PROMPT: Duration = Duration::from_secs(1);
/// Payloads of the largest size that are in memory at once. Smaller ones are more.
const LARGEST_MAX: usize = 4;
/// Bytes for each permit of memory: a count of bytes would not fit into a `u32`.
const PERMIT_BYTES: usize = 1 << 10;
/// Time between two warnings about the same result.
const LOG_EVERY: Duration = Duration::from_secs(60);
const AGENT: &str = concat!("spillway/", env!("CARGO_PKG_VERSION"));

/// Result for a stub that is to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PayloadResult {
    /// As many fetches run, or as many payloads are in memory, as may at once. The attempt has
    /// failed.
    Busy,
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
    /// The payload is not there now, for this reason.
    Failed(PayloadResult, String),
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
    turns: Arc<FetchTurns>,
    /// Room in memory, in units of [`PERMIT_BYTES`].
    room: Arc<Semaphore>,
}

/// Reason for which there is no payload.
#[derive(Debug, PartialEq, Eq)]
enum FetchError {
    Busy(&'static str),
    /// Another try may succeed.
    Failed(String),
    /// No other try will succeed.
    Refused(u16),
    TooLarge,
    LeaseLost,
}

impl PayloadResult {
    /// All results.
    pub(crate) const ALL: [Self; 8] = [
        Self::Busy,
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
            Self::Busy => "busy",
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
            Self::Failed(result, _) => Some(*result),
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
        let options = ClientOptions {
            tls: tls("PAYLOAD_HOSTS", settings.has_tls(), &BackendAccess::default())?,
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
            turns: FetchTurns::new(FETCHES_MAX),
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
        if matches!(result, PayloadResult::Busy | PayloadResult::Fetched | PayloadResult::Off) {
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
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        match self.fetch(url, &host, stub.payload_bytes).await {
            Ok((bytes, room)) => (Payload::Fetched(bytes, room), host),
            Err(FetchError::LeaseLost) => (Payload::LeaseLost, host),
            Err(FetchError::TooLarge) => (Payload::Stub(PayloadResult::TooLarge), host),
            Err(FetchError::Refused(status)) => {
                (Payload::Stub(PayloadResult::Refused), format!("{host} answered {status}"))
            }
            Err(FetchError::Busy(cause)) => {
                (Payload::Failed(PayloadResult::Busy, cause.to_owned()), cause.to_owned())
            }
            Err(FetchError::Failed(cause)) => {
                let cause = format!("{host}: {cause}");
                (Payload::Failed(PayloadResult::Failed, cause.clone()), cause)
            }
        }
    }

    /// Fetches a payload of `told` bytes, if the stub tells them, and takes room in memory for it.
    async fn fetch(
        &self,
        url: Uri,
        host: &str,
        told: Option<u64>,
    ) -> Result<(Bytes, OwnedSemaphorePermit), FetchError> {
        let most = self.settings.bytes_max;
        let expected = told.map_or(most, |told| usize::try_from(told).unwrap_or(most).min(most));
        let mut room = self.room(expected)?;
        let turn = self.turns.turn(host).map_err(FetchError::Busy)?;
        let began = Instant::now();
        let fetched = tokio::time::timeout(self.timeout, self.get(url, told, &mut room)).await;
        let Ok(fetched) = fetched else {
            return Err(FetchError::Failed("no whole answer in time".into()));
        };
        // A connection that can't be made, or a proxy that gives up, may take as long as a fetch that
        // hangs.
        let is_prompt = !matches!(fetched, Err(FetchError::Failed(_))) || began.elapsed() < PROMPT;
        if is_prompt {
            turn.answered();
        }
        Ok((fetched?, room))
    }

    /// Gets a payload, and makes `room` as large as the answer announces.
    async fn get(
        &self,
        url: Uri,
        told: Option<u64>,
        room: &mut OwnedSemaphorePermit,
    ) -> Result<Bytes, FetchError> {
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
        let has_end = response.headers().contains_key(TRANSFER_ENCODING);
        let body = response.into_body();
        let bytes_max = self.settings.bytes_max;
        let announced = body.size_hint().exact().map(usize::try_from);
        let bytes = announced.map_or(bytes_max, |bytes| bytes.unwrap_or(usize::MAX));
        if bytes > bytes_max {
            return Err(FetchError::TooLarge);
        }
        match permits(bytes).checked_sub(room.num_permits()) {
            Some(more) if more > 0 => room.merge(self.room(more * PERMIT_BYTES)?),
            _ => drop(room.split(room.num_permits() - permits(bytes))),
        }
        let payload = read(body, bytes).await?;
        // Such a body ends with the connection. One that breaks looks like the end.
        let has_end = has_end || announced.is_some();
        if !has_end && told.is_some_and(|told| told > payload.len() as u64) {
            return Err(FetchError::Failed("the answer broke off".into()));
        }
        // A page of a proxy, such as one that tells of maintenance with a 200.
        if !payload.trim_ascii_start().starts_with(b"{") {
            return Err(FetchError::Failed("the answer is no JSON object".into()));
        }
        Ok(payload)
    }

    /// Room for a payload of this size.
    fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, FetchError> {
        let wanted = u32::try_from(permits(bytes)).expect("BUG: PAYLOAD_MAX is bounded");
        let room = self.room.clone().try_acquire_many_owned(wanted);
        room.map_err(|_| FetchError::Busy("too many payloads in memory"))
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
