//! Settings of the cell's Redis: the same for every process and for the operator's commands.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use spillway_queue::Redis;
use spillway_queue::access::Access;
use spillway_queue::keys::DEFAULT_PREFIX;
use zeroize::Zeroizing;

use crate::settings::{Checker, read_secrets};

/// Settings of the cell's Redis, as given.
#[derive(Clone, Args)]
pub struct RedisArgs {
    /// The cell's Redis: unix:///path, redis://host:port/db or rediss://host:port/db; its
    /// Sentinels: redis+sentinel://host:port,host:port/name; or nodes of its cluster:
    /// redis+cluster://host:port,host:port
    #[arg(
        long,
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "unix:///run/spillway/redis.sock",
        global = true
    )]
    pub redis_url: String,

    /// Prefix of the name of every key. In a cluster it must hold a hash tag, as the default does
    #[arg(long, env = "REDIS_PREFIX", default_value = DEFAULT_PREFIX, global = true)]
    pub redis_prefix: String,

    /// File with Redis' password, in place of one in REDIS_URL
    #[arg(long, env = "REDIS_PASSWORD_FILE", global = true)]
    pub redis_password_file: Option<PathBuf>,

    /// Certificate authorities for Redis' certificate, as PEM. Not set: those of the system
    #[arg(long, env = "REDIS_CA_FILE", global = true)]
    pub redis_ca_file: Option<PathBuf>,

    /// Our certificate for Redis, as PEM; needs REDIS_KEY_FILE
    #[arg(long, env = "REDIS_CERT_FILE", global = true)]
    pub redis_cert_file: Option<PathBuf>,

    /// Private key of REDIS_CERT_FILE, as PEM
    #[arg(long, env = "REDIS_KEY_FILE", global = true)]
    pub redis_key_file: Option<PathBuf>,
}

// Written by hand: the URL may hold a password.
impl fmt::Debug for RedisArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisArgs")
            .field("redis_prefix", &self.redis_prefix)
            .finish_non_exhaustive()
    }
}

impl RedisArgs {
    /// Creates settings from a URL and a prefix.
    pub fn new(redis_url: String, redis_prefix: String) -> Self {
        Self {
            redis_url,
            redis_prefix,
            redis_password_file: None,
            redis_ca_file: None,
            redis_cert_file: None,
            redis_key_file: None,
        }
    }

    /// Checks the settings. Does not connect to Redis.
    pub fn check(&self, checker: &mut Checker) -> Redis {
        let access = self.access(checker);
        if access.has_certificates() && !self.redis_url.starts_with("rediss") {
            checker.mistake(
                "REDIS_URL",
                "must begin with rediss where REDIS_CA_FILE or REDIS_CERT_FILE is set",
            );
        }
        if self.redis_prefix.contains(char::is_whitespace) {
            checker.mistake("REDIS_PREFIX", "must not contain white space");
        }
        Redis::with_access(&self.redis_url, &self.redis_prefix, &access).unwrap_or_else(|problem| {
            checker.mistake("REDIS_URL", problem);
            Redis::new("redis://127.0.0.1/", "").expect("BUG: a constant URL is well-formed")
        })
    }

    fn access(&self, checker: &mut Checker) -> Access {
        let mut pem = |key: &str, file: &Option<PathBuf>, kind: &str| {
            let file = file.as_deref()?;
            let read = read_pem(file, kind);
            read.map_err(|problem| checker.mistake(key, problem)).ok()
        };
        let authorities = pem("REDIS_CA_FILE", &self.redis_ca_file, "CERTIFICATE");
        let certificate = pem("REDIS_CERT_FILE", &self.redis_cert_file, "CERTIFICATE");
        let key = pem("REDIS_KEY_FILE", &self.redis_key_file, "PRIVATE KEY");
        if self.redis_cert_file.is_some() != self.redis_key_file.is_some() {
            checker.mistake("REDIS_CERT_FILE", "must be set together with REDIS_KEY_FILE, or not");
        }
        let password = self.redis_password_file.as_deref().and_then(|file| {
            let secrets = read_secrets(file);
            let secrets =
                secrets.map_err(|problem| checker.mistake("REDIS_PASSWORD_FILE", problem));
            secrets.ok()?.into_iter().next()
        });
        let identity = certificate.zip(key).map(|(pem, key)| (pem, Zeroizing::new(key)));
        Access { authorities, identity, password }
    }
}

/// Reads a file, and checks that it holds a PEM block of this kind.
fn read_pem(file: &Path, kind: &str) -> Result<Vec<u8>, String> {
    let shown = file.display();
    let pem = std::fs::read(file).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let holds = String::from_utf8_lossy(&pem).lines().any(|line| {
        line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{kind}-----"))
    });
    if holds { Ok(pem) } else { Err(format!("{shown} holds no PEM of a {}", kind.to_lowercase())) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        redis: RedisArgs,
    }

    fn mistakes(flags: &[&str]) -> String {
        let written = TestArgs::parse_from([&["x"], flags].concat());
        let mut checker = Checker::default();
        let redis = written.redis.check(&mut checker);
        assert!(!format!("{written:?} {redis:?}").contains("hush"));
        checker.finish(()).err().map_or(String::new(), |mistakes| mistakes.to_string())
    }

    #[test]
    fn a_password_in_the_url_is_not_printed() {
        assert_eq!(mistakes(&["--redis-url", "redis://me:hush@host/"]), "");
    }

    #[test]
    fn files_that_do_not_fit_are_named() {
        let url = ["--redis-url", "rediss://host/"];
        let found = mistakes(&[&url[..], &["--redis-ca-file", "/nowhere"]].concat());
        assert!(found.contains("REDIS_CA_FILE: cannot read /nowhere"), "{found}");
        let found = mistakes(&[&url[..], &["--redis-cert-file", "/dev/null"]].concat());
        assert!(found.contains("/dev/null holds no PEM of a certificate"), "{found}");
        assert!(found.contains("set together"), "{found}");
        let found = mistakes(&["--redis-url", "redis+cluster://a", "--redis-prefix", "shop:"]);
        assert!(found.contains("hash tag"), "{found}");
    }
}
