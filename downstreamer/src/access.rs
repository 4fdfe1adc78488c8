//! Access to the backend: authorities that certify it, the certificate that it is shown, and headers
//! of every delivery.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue};
use prometheus::{IntGauge, Registry};
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SignatureScheme};
use spillway_process::metrics::register;
use spillway_process::reload::FromFiles;
use spillway_process::{Checker, pem};

/// Most headers of `BACKEND_HEADERS_FILE`. Backends take a hundred in all, or fewer.
const HEADERS_MAX: usize = 30;

/// The settings of access as given.
#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    /// PEM file of the authorities that certify the backend, in place of this machine's
    #[arg(long, env = "BACKEND_CA_FILE")]
    backend_ca_file: Option<PathBuf>,

    /// PEM file of the certificate that the backend is shown (mutual TLS), followed by its chain; read
    /// again on SIGHUP, and within 10 s of a change
    #[arg(long, env = "BACKEND_CERT_FILE")]
    backend_cert_file: Option<PathBuf>,

    /// PEM file of the private key of that certificate
    #[arg(long, env = "BACKEND_KEY_FILE")]
    backend_key_file: Option<PathBuf>,

    /// File with headers of every delivery, one per line, such as Authorization: Bearer secret; read again
    /// on SIGHUP, and within 10 s of a change. They replace headers of the webhook
    #[arg(long, env = "BACKEND_HEADERS_FILE")]
    backend_headers_file: Option<PathBuf>,
}

/// The settings of access, checked.
#[derive(Debug, Clone, Default)]
pub struct BackendAccess {
    /// Authorities that certify the backend; `None` for this machine's.
    pub authorities: Option<RootCertStore>,
    /// Certificate that the backend is shown.
    pub identity: Option<Arc<ClientIdentity>>,
    /// Headers of every delivery.
    pub headers: Option<Arc<BackendHeaders>>,
}

/// A certificate and its key, which are read again when their files change.
#[derive(Debug)]
pub struct ClientIdentity {
    certificate: PathBuf,
    key: PathBuf,
    loaded: ArcSwap<CertifiedKey>,
    expiry: IntGauge,
}

/// Headers that are read again when their file changes.
#[derive(Debug)]
pub struct BackendHeaders {
    file: PathBuf,
    loaded: ArcSwap<HeaderMap>,
}

impl AccessArgs {
    /// Checks the settings.
    pub(crate) fn check(&self, checker: &mut Checker) -> BackendAccess {
        let mut mistake = |key: &str, problem: String| checker.mistake(key, problem);
        let authorities = self.backend_ca_file.as_deref().map(read_authorities).transpose();
        let authorities = authorities.unwrap_or_else(|problem| {
            mistake("BACKEND_CA_FILE", problem);
            None
        });
        let identity = match (&self.backend_cert_file, &self.backend_key_file) {
            (Some(certificate), Some(key)) => {
                let read = ClientIdentity::read(certificate.clone(), key.clone());
                read.map_err(|problem| mistake("BACKEND_CERT_FILE", problem)).ok()
            }
            (None, None) => None,
            _ => {
                let problem = "must be set together with BACKEND_KEY_FILE, or not";
                mistake("BACKEND_CERT_FILE", problem.to_owned());
                None
            }
        };
        let headers = self.backend_headers_file.clone().map(BackendHeaders::read).transpose();
        let headers = headers.unwrap_or_else(|problem| {
            mistake("BACKEND_HEADERS_FILE", problem);
            None
        });
        BackendAccess {
            authorities,
            identity: identity.map(Arc::new),
            headers: headers.map(Arc::new),
        }
    }
}

impl BackendAccess {
    /// State that is read again when its files change.
    pub fn states(&self) -> Vec<Arc<dyn FromFiles>> {
        let identity = self.identity.clone().map(|identity| identity as Arc<dyn FromFiles>);
        let headers = self.headers.clone().map(|headers| headers as Arc<dyn FromFiles>);
        identity.into_iter().chain(headers).collect()
    }
}

impl ClientIdentity {
    fn read(certificate: PathBuf, key: PathBuf) -> Result<Self, String> {
        let loaded = ArcSwap::from_pointee(pem::certified_key(&certificate, &key)?);
        Ok(Self { certificate, key, loaded, expiry: pem::expiry_gauge() })
    }

    /// Shows from now on when the certificate expires.
    pub(crate) fn register(&self, registry: &Registry) {
        register(registry, &self.expiry);
        self.show();
    }

    fn show(&self) {
        let loaded = self.loaded.load();
        pem::log_expiry(&self.certificate, &loaded);
        self.expiry.set(pem::expiry(&loaded).unwrap_or(i64::MAX));
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.loaded.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl FromFiles for ClientIdentity {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.certificate.clone(), self.key.clone()]
    }

    fn reload(&self) -> bool {
        match pem::certified_key(&self.certificate, &self.key) {
            Ok(pair) => {
                self.loaded.store(Arc::new(pair));
                self.show();
                tracing::info!("BACKEND_CERT_FILE read again");
                true
            }
            Err(problem) => {
                tracing::error!(%problem, "BACKEND_CERT_FILE could not be read again; the old certificate stays in force");
                false
            }
        }
    }
}

impl BackendHeaders {
    fn read(file: PathBuf) -> Result<Self, String> {
        let loaded = ArcSwap::from_pointee(read_headers(&file)?);
        Ok(Self { file, loaded })
    }

    /// Sets the headers of a delivery.
    pub fn set(&self, headers: &mut HeaderMap) {
        let loaded = self.loaded.load();
        for name in loaded.keys() {
            headers.remove(name);
            for value in loaded.get_all(name) {
                headers.append(name, value.clone());
            }
        }
    }
}

impl FromFiles for BackendHeaders {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn reload(&self) -> bool {
        match read_headers(&self.file) {
            Ok(headers) => {
                let count = headers.len();
                self.loaded.store(Arc::new(headers));
                tracing::info!(count, "BACKEND_HEADERS_FILE read again");
                true
            }
            Err(problem) => {
                tracing::error!(%problem, "BACKEND_HEADERS_FILE could not be read again; the old headers stay in force");
                false
            }
        }
    }
}

/// Headers that a delivery has itself, or that concern its connection only.
const RESERVED: [&str; 10] = [
    "host",
    "connection",
    "content-length",
    "content-type",
    "transfer-encoding",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// Reads authorities. Each must be one that a certificate can be checked with.
fn read_authorities(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in pem::certificates(file)? {
        let added = roots.add(authority);
        added.map_err(|error| format!("{} holds no authority: {error}", file.display()))?;
    }
    Ok(roots)
}

/// Reads headers, one per line. Empty lines and those that begin with `#` are skipped.
fn read_headers(file: &Path) -> Result<HeaderMap, String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| format!("cannot read {shown}: {error}"))?;
    let mut headers = HeaderMap::new();
    for (at, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        // Only the number is named: the line may hold a secret.
        let bad = |problem: &str| format!("{shown}, line {at}: {problem}");
        let (name, value) =
            line.split_once(':').ok_or_else(|| bad("not of the form Name: value"))?;
        let name: HeaderName = name.trim().parse().map_err(|_| bad("not the name of a header"))?;
        let mut value: HeaderValue =
            value.trim().parse().map_err(|_| bad("not the value of a header"))?;
        let is_ours = |prefix: &str| name.as_str().starts_with(prefix);
        if RESERVED.contains(&name.as_str())
            || ["spillway-", "x-shopify-", "shopify-"].into_iter().any(is_ours)
        {
            return Err(bad(&format!("{name} is set by Shopify, Spillway or HTTP itself")));
        }
        value.set_sensitive(true);
        headers.append(name, value);
        if headers.len() > HEADERS_MAX {
            return Err(bad(&format!("more than {HEADERS_MAX} headers")));
        }
    }
    // It was emptied, or is not written yet: the backend would refuse deliveries without them.
    if headers.is_empty() {
        return Err(format!("{shown} holds no header"));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HeaderMap, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("write");
        read_headers(file.path())
    }

    #[test]
    fn headers_are_read_a_line_each() {
        let headers =
            read("# ours\n\nAuthorization: Bearer a:b \nX-Team: one\nX-Team: two\n").unwrap();
        assert_eq!(headers["authorization"], "Bearer a:b");
        assert_eq!(headers.get_all("x-team").iter().count(), 2);
        assert!(!format!("{headers:?}").contains("Bearer"), "it may be a secret");
    }

    #[test]
    fn a_mistake_is_named_by_its_line_and_not_its_text() {
        let many = "A: hush\n".repeat(31);
        for (text, problem) in [
            ("X: 1\nhush", "line 2: not of the form"),
            ("X Y: hush", "line 1: not the name"),
            ("X: hush\x07", "line 1: not the value"),
            ("Host: hush", "line 1: host is set by"),
            ("X-Shopify-Topic: hush", "x-shopify-topic is set by"),
            (many.as_str(), "line 31: more than 30"),
            ("# only hush\n\n", "holds no header"),
            ("", "holds no header"),
        ] {
            let told = read(text).expect_err(text);
            assert!(told.contains(problem) && !told.contains("hush"), "{told}");
        }
    }

    #[test]
    fn an_authority_that_no_certificate_can_be_checked_with_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(file.path(), text).expect("write");
        let told = read_authorities(file.path()).map(|_| ()).expect_err("it is none");
        assert!(told.contains("holds no authority"), "{told}");
    }

    #[test]
    fn they_replace_what_the_webhook_had() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "Authorization: ours").expect("write");
        let ours = BackendHeaders::read(file.path().to_path_buf()).expect("read");
        let mut headers = HeaderMap::new();
        headers.append("authorization", HeaderValue::from_static("a stranger's"));
        headers.append("authorization", HeaderValue::from_static("another"));
        headers.insert("x", HeaderValue::from_static("kept"));
        ours.set(&mut headers);
        assert_eq!(headers["authorization"], "ours");
        assert_eq!(headers.len(), 2);
        std::fs::write(file.path(), "Host: nonsense").expect("write");
        assert!(!ours.reload());
        ours.set(&mut headers);
        assert_eq!(headers["authorization"], "ours");
    }
}
