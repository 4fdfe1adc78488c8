//! Settings of the client secrets, as set and as checked.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use spillway_process::Checker;
use zeroize::Zeroizing;

use super::cache::CacheRules;
use super::directory::{SecretsByShop, read_directory};
use super::lookup_url;
use super::source::SourceSettings;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Shops whose secrets from SHOP_SECRETS_URL are remembered at once. Each takes about 1 KiB.
const SHOPS_MAX: usize = 200_000;

/// Settings of the client secrets, as set.
#[derive(Args)]
pub struct SecretArgs {
    /// The app's client secret; several, comma separated, while it is rotated: any of them
    /// verifies. Prefer the file: a flag is visible in the process list
    #[arg(long, env = "SHOPIFY_CLIENT_SECRET", hide_env_values = true)]
    shopify_client_secret: Option<String>,

    /// File with the client secret, one per line; read again on SIGHUP, and within 10 s of a
    /// change
    #[arg(long, env = "SHOPIFY_CLIENT_SECRET_FILE")]
    shopify_client_secret_file: Option<PathBuf>,

    /// Directory with a file for each shop that has client secrets of its own, as with custom apps:
    /// named by its domain (example.myshopify.com), one secret per line; read again on SIGHUP,
    /// and within 10 s after a file was created, replaced or removed. A shop's secrets are valid for this
    /// shop alone, the app's for all
    #[arg(long, env = "SHOP_SECRETS_DIR")]
    shop_secrets_dir: Option<PathBuf>,

    /// HTTP endpoint of yours that returns the client secrets of a shop, in place of
    /// SHOP_SECRETS_DIR: a URL with {shop} in it, which answers JSON or one secret per line, and 404
    /// for a shop without any; or with {shops}, several shops, comma separated, which answers a JSON
    /// object with a list for each of them, empty for a shop without any
    #[arg(long, env = "SHOP_SECRETS_URL")]
    shop_secrets_url: Option<String>,

    /// File with a bearer token for SHOP_SECRETS_URL; read again on SIGHUP, and within 10 s of a change
    #[arg(long, env = "SHOP_SECRETS_TOKEN_FILE")]
    shop_secrets_token_file: Option<PathBuf>,

    /// Time for which an answer of SHOP_SECRETS_URL is valid. What is in use is looked up again
    /// shortly before [1s to 24h]
    #[arg(long, env = "SHOP_SECRETS_TTL", default_value = "5m")]
    shop_secrets_ttl: String,

    /// Time after SHOP_SECRETS_TTL for which secrets stay valid while SHOP_SECRETS_URL fails [0 to
    /// 30d]
    #[arg(long, env = "SHOP_SECRETS_STALE_MAX", default_value = "24h")]
    shop_secrets_stale_max: String,

    /// Maximum lookups a second of shops without known secrets, in bursts of ten times that; webhooks
    /// beyond it are answered 503. As many lookups may follow wrong signatures [1 to 100000]
    #[arg(long, env = "SHOP_SECRETS_RATE", default_value = "100")]
    shop_secrets_rate: String,
}

/// Client secrets as they were set.
#[derive(Clone, Default)]
pub struct SecretSettings {
    /// Secrets of the app. Any of them verifies a signature. There may be none with a directory, an
    /// endpoint or apps.
    pub secrets: Vec<Zeroizing<String>>,
    /// File from which the secrets were read, if any.
    pub file: Option<PathBuf>,
    /// Secrets of shops.
    pub shops: SecretsByShop,
    /// Directory from which those were read, if any.
    pub shops_directory: Option<PathBuf>,
    /// Endpoint that names secrets of shops, if any.
    pub source: Option<SourceSettings>,
}

impl SecretSettings {
    /// True if there is none of any kind.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.shops_directory.is_none() && self.source.is_none()
    }
}

impl fmt::Debug for SecretSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretSettings")
            .field("secrets", &self.secrets.len())
            .field("file", &self.file)
            .field("shops", &self.shops.len())
            .field("shops_directory", &self.shops_directory)
            .field("source", &self.source)
            .finish()
    }
}

impl SecretArgs {
    /// Checks the settings. `required`: there must be some.
    pub fn check(&self, checker: &mut Checker, required: bool) -> SecretSettings {
        let shops_directory = self.shop_secrets_dir.clone();
        let shops_directory = shops_directory.filter(|path| !path.as_os_str().is_empty());
        let source = self.secret_source(checker);
        if source.is_some() && shops_directory.is_some() {
            checker.mistake("SHOP_SECRETS_URL", "can't be used with SHOP_SECRETS_DIR: remove one");
        }
        let secrets = checker.secrets(
            "SHOPIFY_CLIENT_SECRET",
            self.shopify_client_secret.as_deref().filter(|secret| !secret.is_empty()),
            self.shopify_client_secret_file.as_deref(),
            required && shops_directory.is_none() && source.is_none(),
        );
        let shops = shops_directory.as_deref().map(read_directory).transpose();
        let shops = shops.unwrap_or_else(|problem| {
            checker.mistake("SHOP_SECRETS_DIR", problem);
            None
        });
        SecretSettings {
            secrets,
            file: self.shopify_client_secret_file.clone(),
            shops: shops.unwrap_or_default(),
            shops_directory,
            source,
        }
    }

    fn secret_source(&self, checker: &mut Checker) -> Option<SourceSettings> {
        let s = Duration::from_secs;
        let url = self.shop_secrets_url.clone().unwrap_or_default();
        let rules = CacheRules {
            ttl: checker.duration("SHOP_SECRETS_TTL", &self.shop_secrets_ttl, s(1)..=DAY),
            stale_max: checker.duration(
                "SHOP_SECRETS_STALE_MAX",
                &self.shop_secrets_stale_max,
                Duration::ZERO..=30 * DAY,
            ),
            lookups_a_second: f64::from(checker.number(
                "SHOP_SECRETS_RATE",
                &self.shop_secrets_rate,
                1..=100_000_u32,
            )),
            shops_max: SHOPS_MAX,
            together: lookup_url::together(&url),
            is_early: true,
        };
        let token_file = self.shop_secrets_token_file.clone();
        let token_file = token_file.filter(|path| !path.as_os_str().is_empty());
        if url.is_empty() {
            if token_file.is_some() {
                checker.mistake("SHOP_SECRETS_TOKEN_FILE", "needs SHOP_SECRETS_URL: set it, too");
            }
            return None;
        }
        if let Err(problem) = lookup_url::check(&url) {
            checker.mistake("SHOP_SECRETS_URL", problem);
        }
        let source = SourceSettings { url, token_file, rules };
        if let Err(problem) = source.read_token() {
            checker.mistake("SHOP_SECRETS_TOKEN_FILE", problem);
        }
        Some(source)
    }
}
