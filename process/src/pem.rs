//! Certificates and private keys in PEM files.

use std::path::Path;

use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

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
    pair.keys_match()
        .map_err(|_| format!("{} is not the key of {}", key.display(), certificate.display()))?;
    Ok(pair)
}

fn problem(file: &Path, kind: &str, error: &pem::Error) -> String {
    let file = file.display();
    match error {
        pem::Error::Io(error) => format!("cannot read {file}: {error}"),
        pem::Error::NoItemsFound => format!("{file} holds no PEM of a {kind}"),
        error => format!("{file} holds no PEM of a {kind}: {error}"),
    }
}
