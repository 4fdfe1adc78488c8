//! Secrets by shop from an HTTP endpoint, `SHOP_SECRETS_URL`.
//!
//! [`cache`](super::cache) decides; this asks the endpoint and lets requests wait.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use rustix::process::nice;
use rustls::crypto::ring;
use spillway_process::background::Background;
use spillway_process::error::chain;
use spillway_process::settings::read_secrets;
use spillway_webhook::shopify::is_shop_domain;
use spillway_webhook::{Secrets, Verified, Webhook};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};
use zeroize::Zeroizing;

use super::answer::{parse, parse_several};
use super::cache::{Advice, Asked, CacheRules, Known, Looked, LookupCause, SecretCache};
use super::copies::SecretCopies;
use super::lookup_url::{filled, grouped, takes_several};
use super::{HASHED_AT_ONCE_BYTES_MAX, claimed_shop, verify};
use crate::metrics::{add, vec};
use crate::reply::Refusal;

/// Time for a lookup, less than `ACK_TIMEOUT` by default.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Lookups under way at once. More wait for a turn, a part of their time. First lookups of a shop, and
/// those after a wrong signature, have turns of their own: a stranger can cause any number of them.
const LOOKUPS_MAX: usize = 256;
const STRANGERS_MAX: usize = 64;
/// Time after which an idle connection is closed, before most servers do.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);
/// Niceness of the thread of lookups, above that of the process: a quarter of a core is left to it even
/// beside a thread that is always busy.
const NICENESS: i32 = 5;
/// Largest answer about a shop.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Least time between two log lines about lookups that failed.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Settings of the source.
#[derive(Debug, Clone)]
pub struct SourceSettings {
    /// URL with `{shop}` or `{shops}` in it.
    pub url: String,
    /// File with a bearer token, if any.
    pub token_file: Option<PathBuf>,
    /// Rules of the cache.
    pub rules: CacheRules,
}

/// The endpoint, and what it has answered.
pub struct SecretSource {
    settings: SourceSettings,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    authorization: ArcSwap<Option<HeaderValue>>,
    cache: Mutex<SecretCache>,
    start: Instant,
    /// Something is due earlier than before.
    rescheduled: Notify,
    turns: Semaphore,
    stranger_turns: Semaphore,
    logged: Mutex<Option<Instant>>,
    metrics: SourceMetrics,
    /// Runtime of the lookups, on a thread of their own. Requests are handled by others, one for each
    /// core.
    runtime: Handle,
}

/// Metrics of the source.
#[derive(Debug)]
struct SourceMetrics {
    found: IntCounter,
    unknown: IntCounter,
    failed: IntCounter,
    refused: IntCounter,
    stale: IntCounter,
    shops: IntGauge,
}

impl SourceSettings {
    /// Reads the bearer token.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn read_token(&self) -> Result<Option<HeaderValue>, String> {
        let Some(file) = &self.token_file else { return Ok(None) };
        let tokens = read_secrets(file)?;
        let [token] = &tokens[..] else {
            return Err(format!("{} must hold one line", file.display()));
        };
        let text = Zeroizing::new(format!("Bearer {}", token.as_str()));
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| format!("{} holds no token: letters are not ASCII", file.display()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

impl SecretSource {
    /// Starts a thread that looks shops up, and keeps fresh what is used. It ends with the process.
    ///
    /// # Errors
    /// If the token can't be read, the URL is https and this machine knows no certificate authority,
    /// or no thread can be started.
    pub fn start(
        settings: SourceSettings,
        registry: &Registry,
        background: &Background,
    ) -> anyhow::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // It is there as long as the process. To drop it here, after an error, would panic.
        let runtime: &Runtime = Box::leak(Box::new(runtime));
        let source = Arc::new(Self::new(settings, registry, runtime.handle().clone())?);
        let kept = source.clone().keep();
        let guard = background.guard("secrets by shop");
        std::thread::Builder::new().name("secrets".to_owned()).spawn(move || {
            let _guard = guard;
            give_way();
            runtime.block_on(kept);
        })?;
        Ok(source)
    }

    fn new(settings: SourceSettings, registry: &Registry, runtime: Handle) -> anyhow::Result<Self> {
        let authorization = settings.read_token().map_err(anyhow::Error::msg)?;
        let https = if settings.url.starts_with("https:") {
            HttpsConnectorBuilder::new().with_provider_and_native_roots(ring::default_provider())?
        } else {
            tracing::warn!("SHOP_SECRETS_URL is http: secrets travel in clear");
            let config =
                rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
                    .with_safe_default_protocol_versions()?
                    .with_root_certificates(rustls::RootCertStore::empty())
                    .with_no_client_auth();
            HttpsConnectorBuilder::new().with_tls_config(config)
        };
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(LOOKUPS_MAX)
            .build(https.https_or_http().enable_http1().build());
        Ok(Self {
            client,
            authorization: ArcSwap::from_pointee(authorization),
            cache: Mutex::new(SecretCache::new(settings.rules)),
            start: Instant::now(),
            rescheduled: Notify::new(),
            turns: Semaphore::new(LOOKUPS_MAX),
            stranger_turns: Semaphore::new(STRANGERS_MAX),
            logged: Mutex::new(None),
            metrics: SourceMetrics::new(registry),
            runtime,
            settings,
        })
    }

    /// Checks a webhook with the secrets of its shop, if these are known and its body is not large.
    /// Most webhooks need nothing else. `copies`: those of this thread.
    ///
    /// # Errors
    /// Time at which the source was asked for the secrets, if it was not signed with them. `None` if
    /// there were none to check it with.
    pub fn verify_by_known<'a>(
        self: &Arc<Self>,
        webhook: &'a Webhook,
        copies: &SecretCopies,
        now: Duration,
    ) -> Result<Verified<'a>, Option<Duration>> {
        if webhook.body.len() > HASHED_AT_ONCE_BYTES_MAX {
            return Err(None);
        }
        // Only domains in lower case are ever known.
        let shop = claimed_shop(&webhook.headers).ok_or(None)?;
        if let Some(verified) = copies.verify(shop, webhook, now) {
            return verified.map_err(Some);
        }
        let known = self.cache().ask_known(shop, now).ok_or(None)?;
        let verified = known.secrets.get().verify(webhook).map_err(|_| Some(known.asked))?;
        self.used(shop, &known, now);
        copies.keep(shop, &known);
        Ok(verified)
    }

    /// Checks a webhook that arrived at `arrived` with the secrets of its shop, which may have to be
    /// looked up first, until `deadline`. `tried`: it was not signed with those that the source was
    /// asked for at that time.
    ///
    /// # Errors
    /// [`Refusal::BadSignature`] if none of them made the signature, and
    /// [`Refusal::SecretsUnavailable`] if they can't be looked up.
    pub async fn verify<'a>(
        self: &Arc<Self>,
        webhook: &'a Webhook,
        arrived: Duration,
        mut tried: Option<Duration>,
        deadline: Instant,
    ) -> Result<Verified<'a>, Refusal> {
        let shop = claimed_shop(&webhook.headers).filter(|shop| is_shop_domain(shop));
        let shop = shop.ok_or(Refusal::BadSignature)?;
        let shop = shop.to_ascii_lowercase();
        loop {
            let asked = match tried {
                None => self.cache().ask(&shop, self.now()),
                Some(tried) => self.cache().ask_again(&shop, tried, arrived, self.now()),
            };
            match self.begun(&shop, asked) {
                Advice::Use(known) => {
                    if let Ok(verified) = verify(known.secrets.get(), webhook).await {
                        self.used(&shop, &known, self.now());
                        return Ok(verified);
                    }
                    tried = Some(known.asked);
                }
                Advice::Unknown => return Err(Refusal::BadSignature),
                Advice::Wait(over) => {
                    let waited = timeout_at(deadline, over.cancelled()).await;
                    waited.map_err(|_| Refusal::SecretsUnavailable)?;
                }
                Advice::Unavailable => {
                    self.metrics.refused.inc();
                    return Err(Refusal::SecretsUnavailable);
                }
            }
        }
    }

    /// Looks shops up again before their secrets are too old, and forgets those that are not used.
    async fn keep(self: Arc<Self>) {
        let takes_several = takes_several(&self.settings.url);
        loop {
            let due = self.cache().next_due();
            let wait = async {
                match due {
                    Some(due) => sleep_until(self.start + due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.rescheduled.notified() => {}
                () = wait => {
                    // A shop for which the last request failed would fail those of others again.
                    let (alone, together): (Vec<_>, Vec<_>) = self.change(|cache| {
                        let begun = cache.due(self.now()).into_iter();
                        begun.partition(|shop| !takes_several || cache.has_failed(shop))
                    });
                    let alone = alone.into_iter().map(|shop| vec![shop]);
                    for shops in alone.chain(grouped(together)) {
                        self.spawn_lookup(shops, LookupCause::Age);
                    }
                }
            }
        }
    }

    /// File of the bearer token, if there is one.
    pub fn token_file(&self) -> Option<&PathBuf> {
        self.settings.token_file.as_ref()
    }

    /// Reads the token again. If it can't be read, the old one stays, and this returns false.
    pub fn reload(&self) -> bool {
        match self.settings.read_token() {
            Ok(authorization) => {
                self.authorization.store(Arc::new(authorization));
                if self.settings.token_file.is_some() {
                    tracing::info!("SHOP_SECRETS_TOKEN_FILE read again");
                }
                true
            }
            Err(problem) => {
                tracing::error!(%problem, "SHOP_SECRETS_TOKEN_FILE could not be read again; the old token stays");
                false
            }
        }
    }

    fn cache(&self) -> MutexGuard<'_, SecretCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the cache, and notes how many shops are in it then.
    fn change<T>(&self, change: impl FnOnce(&mut SecretCache) -> T) -> T {
        let mut cache = self.cache();
        let changed = change(&mut cache);
        self.metrics.shops.set(i64::try_from(cache.len()).unwrap_or(i64::MAX));
        changed
    }

    /// Notes that the secrets of a shop have verified a webhook.
    fn used(self: &Arc<Self>, shop: &str, known: &Known, now: Duration) {
        known.secrets.note_use();
        if known.is_due
            && let Some(cause) = self.cache().refresh(shop, now)
        {
            self.spawn_lookup(vec![shop.into()], cause);
        }
        if known.is_stale {
            self.metrics.stale.inc();
        }
    }

    /// Time since the start of the source.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn begun(self: &Arc<Self>, shop: &str, asked: Asked) -> Advice {
        if let Some(cause) = asked.begins {
            self.spawn_lookup(vec![shop.into()], cause);
        }
        asked.advice
    }

    /// Looks shops up by one request. What a stranger may have caused is never with others.
    fn spawn_lookup(self: &Arc<Self>, shops: Vec<Arc<str>>, cause: LookupCause) {
        let source = self.clone();
        self.runtime.spawn(async move {
            let looked = source.looked(&shops, cause).await.unwrap_or_else(|problem| {
                source.log_failure(&shops.join(","), &problem);
                shops.iter().map(|_| Looked::Failed).collect()
            });
            source.change(|cache| {
                let now = source.now();
                for (shop, looked) in shops.iter().zip(looked) {
                    let outcome = source.metrics.of(&looked);
                    cache.looked_up(shop, looked, now);
                    // Counted last: what arrives once it shows is not checked with older secrets.
                    outcome.inc();
                }
            });
            source.rescheduled.notify_one();
        });
    }

    /// Waits for a turn and looks shops up, within [`LOOKUP_TIMEOUT`] together.
    async fn looked(&self, shops: &[Arc<str>], cause: LookupCause) -> Result<Vec<Looked>, String> {
        let (turns, turn_within) = match cause {
            LookupCause::Age => (&self.turns, LOOKUP_TIMEOUT),
            // Time is left for the answer, or the source would look as if it failed.
            LookupCause::Stranger => (&self.stranger_turns, LOOKUP_TIMEOUT / 2),
        };
        let began = Instant::now();
        let end = began + LOOKUP_TIMEOUT;
        let Ok(turn) = timeout_at(began + turn_within, turns.acquire()).await else {
            return match cause {
                LookupCause::Age => Err("too many lookups wait for its answers".to_owned()),
                LookupCause::Stranger => Ok(shops.iter().map(|_| Looked::NotAsked).collect()),
            };
        };
        let _turn = turn.expect("BUG: it is never closed");
        let looked = timeout_at(end, self.look_up(shops)).await;
        looked.unwrap_or_else(|_| Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())))
    }

    /// Asks for shops. Returns what the answer says of each, in their order.
    async fn look_up(&self, shops: &[Arc<str>]) -> Result<Vec<Looked>, String> {
        let takes_several = takes_several(&self.settings.url);
        let url = filled(&self.settings.url, &shops.join(","));
        let mut request = Request::get(url).header(ACCEPT, "application/json, text/plain");
        if let Some(authorization) = &**self.authorization.load() {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await.map_err(|error| chain(&error))?;
        let status = answer.status();
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) && !takes_several {
            return Ok(vec![Looked::Unknown]);
        }
        if status != StatusCode::OK {
            return Err(format!("it answered {}", status.as_u16()));
        }
        let bytes_max = ANSWER_BYTES_MAX * shops.len();
        let body = Limited::new(answer.into_body(), bytes_max).collect().await;
        let body = body.map_err(|error| format!("its answer broke off or is too long: {error}"))?;
        let body = body.to_bytes();
        let answers = if takes_several { parse_several(&body, shops)? } else { vec![parse(&body)] };
        let looked = shops.iter().zip(answers).map(|(shop, secrets)| match secrets {
            Ok(secrets) => outcome(&secrets),
            Err(problem) => {
                self.log_failure(shop, &problem);
                Looked::Garbled
            }
        });
        Ok(looked.collect())
    }

    fn log_failure(&self, shop: &str, problem: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            tracing::error!(shop, problem, "secrets could not be looked up at SHOP_SECRETS_URL");
        }
    }
}

fn outcome(secrets: &[Zeroizing<String>]) -> Looked {
    if secrets.is_empty() { Looked::Unknown } else { Looked::Found(Secrets::new(secrets)) }
}

/// Lets the shards go first on a busy core. Lookups that nobody waits for are early.
fn give_way() {
    // On Linux, this changes the calling thread alone.
    if let Err(error) = nice(NICENESS) {
        tracing::debug!(%error, "lookups do not give way to requests");
    }
}

impl std::fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretSource").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl SourceMetrics {
    fn new(registry: &Registry) -> Self {
        let lookups: IntCounterVec = vec(
            registry,
            "spillway_secret_lookups_total",
            "Lookups of a shop's secrets at SHOP_SECRETS_URL; refused = webhooks answered 503 because none may begin (SHOP_SECRETS_RATE, a failure or a lookup for a wrong signature just before, 200,000 shops), and lookups that got no turn in time.",
            "outcome",
        );
        let counter = |name, help| add(registry, IntCounter::new(name, help));
        Self {
            found: lookups.with_label_values(&["found"]),
            unknown: lookups.with_label_values(&["unknown"]),
            failed: lookups.with_label_values(&["failed"]),
            refused: lookups.with_label_values(&["refused"]),
            stale: counter(
                "spillway_stale_secrets_total",
                "Webhooks verified with secrets older than SHOP_SECRETS_TTL, while SHOP_SECRETS_URL fails.",
            ),
            shops: add(
                registry,
                IntGauge::new(
                    "spillway_secret_shops",
                    "Shops that were looked up at SHOP_SECRETS_URL and are remembered.",
                ),
            ),
        }
    }

    fn of(&self, looked: &Looked) -> &IntCounter {
        match looked {
            Looked::Found(_) => &self.found,
            Looked::Unknown => &self.unknown,
            Looked::Failed | Looked::Garbled => &self.failed,
            Looked::NotAsked => &self.refused,
        }
    }
}

#[cfg(test)]
mod tests;
