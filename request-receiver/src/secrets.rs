//! The client secrets in force, and their reload while the process runs.
//!
//! The app's own secrets are valid for every shop, those of a shop for this shop alone: they come from
//! a [`directory`] or from a [`source`]. Files that can't be read, or hold no secret, leave the old ones
//! in force.

mod answer;
pub mod cache;
pub mod copies;
pub mod directory;
mod lookup_url;
pub mod settings;
pub mod source;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use prometheus::{IntCounter, IntCounterVec, Opts};
use spillway_process::reload::FromFiles;
use spillway_process::settings::read_secrets;
use spillway_webhook::signature::BadSignature;
use spillway_webhook::{Secrets, Verified, Webhook};
use tokio::task::yield_now;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::reply::Refusal;
use crate::secrets::copies::SecretCopies;
use crate::secrets::directory::read_directory;
use crate::secrets::settings::SecretSettings;
use crate::secrets::source::SecretSource;

/// Largest body that is hashed in one go. 1 MiB takes 0.7 ms with the processor's SHA instructions,
/// 3 ms without. During that time its shard serves no other connection.
pub const HASHED_AT_ONCE_BYTES_MAX: usize = 1 << 20;

/// Label of webhooks that a shop's own secret signed.
const SHOP_LABEL: &str = "shop";
/// Headers that name the shop, of both families.
const SHOP_HEADERS: [&str; 2] = ["x-shopify-shop-domain", "shopify-shop-domain"];
/// Bytes of the secret that nobody knows.
const UNKNOWN_BYTES: u64 = 32;

/// The secrets in force, with the copies of one shard.
#[derive(Debug)]
pub struct ShardSecrets {
    shared: Arc<ClientSecrets>,
    copies: SecretCopies,
}

/// The secrets in force, and the files from which they are read again.
#[derive(Debug)]
pub struct ClientSecrets {
    in_force: ArcSwap<SecretsInForce>,
    configured: SecretSettings,
    source: Option<Arc<SecretSource>>,
    matches: IntCounterVec,
}

#[derive(Debug)]
struct SecretsInForce {
    /// Secrets of the app. Without any, one that nobody knows, so that a forged webhook is hashed
    /// whether its shop has secrets or not. Not used then if there is a source.
    app: Secrets,
    /// For each shop with secrets of its own, the app's and these.
    shops: HashMap<Box<str>, Secrets>,
    /// A counter for each secret of the app, so that no webhook searches it by its label.
    matches: Vec<IntCounter>,
    shop_matches: IntCounter,
}

impl ClientSecrets {
    /// Starts with these secrets, and those of a source.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(
        mut configured: SecretSettings,
        source: Option<Arc<SecretSource>>,
    ) -> std::io::Result<Self> {
        let help = "Webhooks by the secret that signed them: first 8 hex digits of its SHA-256, or shop (SHOP_SECRETS_DIR or SHOP_SECRETS_URL).";
        let matches = Opts::new("spillway_signature_matches_total", help);
        let matches =
            IntCounterVec::new(matches, &["secret"]).expect("BUG: a constant name is valid");
        let in_force = ArcSwap::from_pointee(SecretsInForce::new(&configured, &matches)?);
        // What was read from files is read again: a secret that was rotated must not stay here.
        configured.shops.clear();
        if configured.file.is_some() {
            configured.secrets.clear();
        }
        Ok(Self { in_force, configured, source, matches })
    }

    /// Counter of webhooks for each secret, by its fingerprint.
    pub fn matches(&self) -> &IntCounterVec {
        &self.matches
    }

    /// Reads the files as `read`. If nobody would be let in any more, that is a mistake: what was emptied
    /// is more often a volume that is gone.
    fn read_again(&self) -> Result<SecretsInForce, String> {
        let read = self.read()?;
        let is_emptied = read.shops.is_empty() && !self.in_force.load().shops.is_empty();
        let Some(directory) = self.configured.shops_directory.as_ref().filter(|_| is_emptied)
        else {
            return Ok(read);
        };
        let directory = directory.display();
        if read.fingerprints().is_empty() {
            return Err(format!(
                "{directory} holds no shop any more; restart the receiver if that is right"
            ));
        }
        tracing::warn!("{directory} holds no shop any more; the app's secrets are valid for all");
        Ok(read)
    }

    fn read(&self) -> Result<SecretsInForce, String> {
        let mut settings = self.configured.clone();
        if let Some(file) = &settings.file {
            settings.secrets = read_secrets(file)?;
        }
        if let Some(directory) = &settings.shops_directory {
            settings.shops = read_directory(directory)?;
        }
        SecretsInForce::new(&settings, &self.matches)
            .map_err(|error| format!("cannot read random numbers: {error}"))
    }
}

impl FromFiles for ClientSecrets {
    fn files(&self) -> Vec<PathBuf> {
        let token = self.source.as_ref().and_then(|source| source.token_file());
        let configured = self.configured.file.iter().chain(&self.configured.shops_directory);
        configured.chain(token).cloned().collect()
    }

    fn reload(&self) -> bool {
        let is_token_read = self.source.as_ref().is_none_or(|source| source.reload());
        let has_files = self.configured.file.is_some() || self.configured.shops_directory.is_some();
        if !has_files {
            if self.source.is_none() {
                tracing::info!(
                    "told to read the secrets again, and they came from the environment"
                );
            }
            return is_token_read;
        }
        match self.read_again() {
            Ok(in_force) => {
                let fingerprints: Vec<_> = in_force.fingerprints().to_vec();
                let shops = in_force.shops.len();
                // Stored before the line is logged: a sender that sees the line may sign with the
                // new secret at once.
                self.in_force.store(Arc::new(in_force));
                tracing::info!(?fingerprints, shops, "secrets read again");
                is_token_read
            }
            Err(problem) => {
                tracing::error!(%problem, "the secrets could not be read again; the old ones stay in force");
                false
            }
        }
    }
}

impl ShardSecrets {
    /// The secrets as one shard sees them.
    pub fn new(shared: Arc<ClientSecrets>) -> Self {
        Self { shared, copies: SecretCopies::default() }
    }

    /// Checks the webhook's signature under the secrets in force. If they are to be looked up first,
    /// it may wait until `deadline`. A large body lets other tasks of the thread run meanwhile.
    ///
    /// # Errors
    /// [`Refusal::BadSignature`] if none of them made the signature, and
    /// [`Refusal::SecretsUnavailable`] if the shop's can't be looked up.
    pub async fn verify<'a>(
        &self,
        webhook: &'a Webhook,
        deadline: Instant,
    ) -> Result<Verified<'a>, Refusal> {
        let shared = &*self.shared;
        let is_without_own = shared.source.is_some() && shared.in_force.load().matches.is_empty();
        let verified = if is_without_own {
            Err(BadSignature)
        } else if webhook.body.len() <= HASHED_AT_ONCE_BYTES_MAX {
            shared.in_force.load().of(webhook).verify(webhook)
        } else {
            // Not borrowed: a reload would wait for the end of the borrow.
            let in_force = shared.in_force.load_full();
            verify(in_force.of(webhook), webhook).await
        };
        match (verified, &shared.source) {
            (Ok(verified), _) => {
                shared.in_force.load().count(verified.secret());
                Ok(verified)
            }
            (Err(BadSignature), None) => Err(Refusal::BadSignature),
            (Err(BadSignature), Some(source)) => {
                // Taken first: a lookup that this webhook begins is asked for after it arrived.
                let arrived = source.now();
                let verified = match source.verify_by_known(webhook, &self.copies, arrived) {
                    Ok(verified) => verified,
                    // Boxed, so that all other futures stay small.
                    Err(tried) => {
                        Box::pin(source.verify(webhook, arrived, tried, deadline)).await?
                    }
                };
                shared.in_force.load().shop_matches.inc();
                Ok(verified)
            }
        }
    }

    /// Drops copies that no longer serve.
    pub fn sweep(&self) {
        if let Some(source) = &self.shared.source {
            self.copies.sweep(source.now());
        }
    }
}

impl SecretsInForce {
    fn new(settings: &SecretSettings, matches: &IntCounterVec) -> std::io::Result<Self> {
        let app = &settings.secrets;
        let with_app = |own: &Vec<Zeroizing<String>>| {
            let both: Vec<_> = app.iter().chain(own).cloned().collect();
            Secrets::new(&both)
        };
        let shops = settings.shops.iter().map(|(shop, own)| (shop.clone(), with_app(own)));
        let shops = shops.collect();
        let known = Secrets::new(app);
        let counters = known.fingerprints().iter();
        let counters = counters.map(|label| matches.with_label_values(&[label])).collect();
        let shop_matches = matches.with_label_values(&[SHOP_LABEL]);
        let app = if app.is_empty() { Secrets::new(&[unknown_secret()?]) } else { known };
        Ok(Self { app, shops, matches: counters, shop_matches })
    }

    /// Secrets that may sign a webhook. The shop is what the sender claims: with the secret of one
    /// shop, nobody can sign for another.
    fn of(&self, webhook: &Webhook) -> &Secrets {
        if self.shops.is_empty() {
            return &self.app;
        }
        let shop = claimed_shop(&webhook.headers);
        shop.and_then(|shop| self.shops.get(shop)).unwrap_or(&self.app)
    }

    fn count(&self, secret: usize) {
        self.matches.get(secret).unwrap_or(&self.shop_matches).inc();
    }

    /// Fingerprints of the app's own secrets.
    fn fingerprints(&self) -> &[String] {
        &self.app.fingerprints()[..self.matches.len()]
    }
}

/// Shop that all headers for it claim. `None` if they differ: the backend might read another one
/// than is checked here.
fn claimed_shop(headers: &HeaderMap) -> Option<&str> {
    let mut claims = SHOP_HEADERS.iter().flat_map(|name| headers.get_all(*name));
    let first = claims.next()?;
    let is_one = claims.all(|other| other == first);
    first.to_str().ok().filter(|_| is_one)
}

/// Checks a webhook's signature. A large body is hashed in pieces.
///
/// # Errors
/// [`BadSignature`] if none of the secrets made it.
pub async fn verify<'a>(
    secrets: &Secrets,
    webhook: &'a Webhook,
) -> Result<Verified<'a>, BadSignature> {
    if webhook.body.len() <= HASHED_AT_ONCE_BYTES_MAX {
        return secrets.verify(webhook);
    }
    // Boxed, so that the futures of the many small bodies stay small.
    Box::pin(secrets.verify_in_pieces(webhook, yield_now)).await
}

/// Returns a secret that nobody knows.
fn unknown_secret() -> std::io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new(Vec::new());
    File::open("/dev/urandom")?.take(UNKNOWN_BYTES).read_to_end(&mut bytes)?;
    Ok(Zeroizing::new(bytes.iter().map(|byte| char::from(*byte)).collect()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::{Path, PathBuf};

    use bytes::Bytes;
    use futures_util::FutureExt;
    use http::uri::PathAndQuery;

    use super::*;

    fn secret(text: &str) -> Zeroizing<String> {
        Zeroizing::new(text.to_owned())
    }

    fn settings(app: &[&str], file: Option<PathBuf>, directory: Option<&Path>) -> SecretSettings {
        let shops = directory.map(read_directory).transpose().expect("right files");
        SecretSettings {
            secrets: app.iter().map(|text| secret(text)).collect(),
            file,
            shops: shops.unwrap_or_default(),
            shops_directory: directory.map(Path::to_owned),
            source: None,
        }
    }

    fn webhook(shop: &str, signed_with: &str) -> Webhook {
        of_body(Bytes::from_static(br#"{"id":1}"#), shop, signed_with)
    }

    fn of_body(body: Bytes, shop: &str, signed_with: &str) -> Webhook {
        let signature = Secrets::new(&[secret(signed_with)]).sign(&body);
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-hmac-sha256", signature.parse().expect("a header value"));
        headers.insert("x-shopify-shop-domain", shop.parse().expect("a header value"));
        let target = PathAndQuery::from_static("/webhooks");
        Webhook { received_at_ms: 0, target, headers, body }
    }

    fn of_files(app: &[&str], file: Option<PathBuf>, directory: Option<&Path>) -> ShardSecrets {
        let secrets = ClientSecrets::new(settings(app, file, directory), None);
        ShardSecrets::new(Arc::new(secrets.expect("random numbers")))
    }

    fn verifies(secrets: &ShardSecrets, webhook: Webhook) -> bool {
        let deadline = Instant::now();
        let verified = secrets.verify(&webhook, deadline).now_or_never();
        verified.expect("it waits for nothing").is_ok()
    }

    /// Shops of a sample, and their secrets.
    fn shop(number: usize) -> (String, String) {
        (format!("shop-{number}.myshopify.com"), format!("secret-{number}"))
    }

    #[test]
    fn a_shop_is_signed_for_by_its_own_secret_or_by_the_app_s() {
        let directory = tempfile::tempdir().expect("create a directory");
        for (shop, secret) in (0..100).map(shop) {
            std::fs::write(directory.path().join(shop), secret).expect("write a secret");
        }
        for app in [&[][..], &["app"]] {
            let secrets = of_files(app, None, Some(directory.path()));
            let mut accepted = HashSet::new();
            for (claimed, _) in (0..101).map(shop) {
                for (owner, signed_with) in (0..101).map(shop) {
                    if verifies(&secrets, webhook(&claimed, &signed_with)) {
                        accepted.insert((claimed.clone(), owner));
                    }
                }
                assert_eq!(verifies(&secrets, webhook(&claimed, "app")), !app.is_empty());
            }
            let own: HashSet<_> = (0..100).map(|number| (shop(number).0, shop(number).0)).collect();
            assert_eq!(accepted, own);
            assert_eq!(secrets.shared.matches.with_label_values(&["shop"]).get(), 100);
        }
    }

    #[tokio::test]
    async fn a_large_body_is_checked_as_a_small_one_is() {
        let directory = tempfile::tempdir().expect("create a directory");
        let (one, own) = shop(1);
        std::fs::write(directory.path().join(&one), &own).expect("write a secret");
        let secrets = of_files(&["app"], None, Some(directory.path()));
        let body = Bytes::from(vec![b' '; HASHED_AT_ONCE_BYTES_MAX + 1]);
        for (signed_with, is_good) in [(own.as_str(), true), ("app", true), ("guess", false)] {
            let checked = of_body(body.clone(), &one, signed_with);
            let verified = secrets.verify(&checked, Instant::now()).await;
            assert_eq!(verified.is_ok(), is_good, "{signed_with}");
        }
    }

    #[test]
    fn a_shop_that_is_claimed_twice_is_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(claimed_shop(&headers), None);
        for name in SHOP_HEADERS {
            headers.append(name, "a.myshopify.com".parse().expect("a header value"));
            assert_eq!(claimed_shop(&headers), Some("a.myshopify.com"));
        }
        for name in SHOP_HEADERS {
            let mut headers = headers.clone();
            headers.append(name, "b.myshopify.com".parse().expect("a header value"));
            assert_eq!(claimed_shop(&headers), None);
        }
    }

    #[test]
    fn a_reload_takes_all_files_or_none() {
        let directory = tempfile::tempdir().expect("create a directory");
        let file = tempfile::NamedTempFile::new().expect("create a file");
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).expect("write a secret");
        };
        std::fs::write(file.path(), "app").expect("write the file");
        let (one, two) = (shop(1).0, shop(2).0);
        write(&one, "old");
        let path = Some(file.path().to_owned());
        let secrets = of_files(&["app"], path, Some(directory.path()));
        let is_good = |shop: &str, secret: &str| verifies(&secrets, webhook(shop, secret));
        // While a secret is rotated, both are valid.
        write(&one, "old\nnew\n");
        write(&two, "other");
        secrets.shared.reload();
        assert!(is_good(&one, "old") && is_good(&one, "new") && is_good(&two, "other"));
        write(&one, "new");
        write("no-domain", "x");
        std::fs::write(file.path(), "newer app").expect("write the file");
        secrets.shared.reload();
        assert!(is_good(&one, "old") && is_good(&one, "app") && !is_good(&one, "newer app"));
        std::fs::remove_file(directory.path().join("no-domain")).expect("remove the file");
        secrets.shared.reload();
        assert!(!is_good(&one, "old") && is_good(&one, "new"));
        assert!(is_good(&two, "newer app") && !is_good(&two, "app"));
    }

    #[test]
    fn a_directory_that_has_lost_all_shops_changes_nothing() {
        let directory = tempfile::tempdir().expect("create a directory");
        let secrets = of_files(&[], None, Some(directory.path()));
        assert!(secrets.shared.reload(), "it began without shops");
        let (shop, secret) = shop(1);
        std::fs::write(directory.path().join(&shop), &secret).expect("write a secret");
        assert!(secrets.shared.reload());
        std::fs::remove_file(directory.path().join(&shop)).expect("remove the secret");
        assert!(!secrets.shared.reload());
        assert!(verifies(&secrets, webhook(&shop, &secret)));
    }

    #[test]
    fn the_last_shop_may_leave_an_app_that_has_a_secret() {
        let directory = tempfile::tempdir().expect("create a directory");
        let (shop, secret) = shop(1);
        std::fs::write(directory.path().join(&shop), &secret).expect("write a secret");
        let secrets = of_files(&["app"], None, Some(directory.path()));
        std::fs::remove_file(directory.path().join(&shop)).expect("remove the secret");
        assert!(secrets.shared.reload());
        assert!(!verifies(&secrets, webhook(&shop, &secret)));
        assert!(verifies(&secrets, webhook(&shop, "app")));
    }

    #[test]
    fn no_secret_is_printed_and_none_of_a_file_is_kept() {
        let directory = tempfile::tempdir().expect("create a directory");
        std::fs::write(directory.path().join(shop(1).0), "of a shop").expect("write a secret");
        let file = Some(PathBuf::from("/etc/secret"));
        let settings = settings(&["of the app"], file, Some(directory.path()));
        let secrets = ClientSecrets::new(settings.clone(), None).expect("random numbers");
        for printed in [format!("{settings:?}"), format!("{secrets:?}")] {
            assert!(!printed.contains("of a shop") && !printed.contains("of the app"), "{printed}");
        }
        assert!(secrets.configured.secrets.is_empty() && secrets.configured.shops.is_empty());
    }
}
