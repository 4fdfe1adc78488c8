//! Certificates and private keys in PEM files.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::IntGauge;
use rustls::Error::InconsistentKeys;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::validity::not_after;

/// Time before the end of a certificate from which on it is logged when it is read. Certificates are
/// renewed weeks before.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reads all certificates of a file, of which there is at least one.
///
/// # Errors
/// A sentence that names the file.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| problem(file, "certificate", &error))?;
    if certificates.is_empty() {
        return Err(problem(file, "certificate", &pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

/// Reads a certificate with its chain, and its private key.
///
/// # Errors
/// A sentence that names the file; also if the key is not that of the certificate.
pub fn certified_key(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let chain = certificates(certificate)?;
    let read = PrivateKeyDer::from_pem_file(key);
    let read = read.map_err(|error| problem(key, "private key", &error))?;
    let signing = any_supported_type(&read)
        .map_err(|error| format!("{} holds no usable private key: {error}", key.display()))?;
    let pair = CertifiedKey::new(chain, signing);
    pair.keys_match().map_err(|error| match error {
        InconsistentKeys(_) => {
            format!("{} is not the key of {}", key.display(), certificate.display())
        }
        error => format!("{} holds no usable certificate: {error}", certificate.display()),
    })?;
    Ok(pair)
}

/// Unix time in seconds at which the first certificate of a chain expires. `None` if none says so in a
/// form that is known.
pub fn expiry(pair: &CertifiedKey) -> Option<i64> {
    pair.cert.iter().filter_map(|certificate| not_after(certificate)).min()
}

/// Gauge of [`expiry`].
///
/// # Panics
/// If its name is not valid, which is a bug.
pub fn expiry_gauge() -> IntGauge {
    let help = "Unix time at which a certificate of TLS_CERT_FILE or BACKEND_CERT_FILE expires, the first one of several.";
    IntGauge::new("spillway_certificate_expiry_timestamp_seconds", help)
        .expect("BUG: a constant name is valid")
}

/// Logs that the certificate of this file has expired, or will soon.
pub fn log_expiry(file: &Path, pair: &CertifiedKey) {
    let Some(expires) = expiry(pair) else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = expires.saturating_sub_unsigned(now.as_secs());
    let file = file.display();
    if left <= 0 {
        tracing::error!(%file, "a certificate has expired: those who check it refuse connections");
    } else if left.unsigned_abs() < EXPIRES_SOON.as_secs() {
        tracing::warn!(%file, hours = left / 3600, "a certificate expires soon");
    }
}

fn problem(file: &Path, kind: &str, error: &pem::Error) -> String {
    let file = file.display();
    match error {
        pem::Error::Io(error) => format!("cannot read {file}: {error}"),
        pem::Error::NoItemsFound => format!("{file} holds no PEM of a {kind}"),
        // Its own text may quote a line.
        _ => format!("{file} holds a damaged PEM of a {kind}"),
    }
}
