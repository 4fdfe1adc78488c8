//! Certificates and their keys, by the names that they hold.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use spillway_process::pem;
use spillway_process::reload::FromFiles;
use webpki::EndEntityCert;

/// A PEM file of a certificate with its chain, and that of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// `TLS_CERT_FILE`.
    pub certificate: PathBuf,
    /// `TLS_KEY_FILE`.
    pub key: PathBuf,
}

/// The certificates in force.
#[derive(Debug)]
pub struct Certificates {
    files: Vec<CertificateFiles>,
    loaded: ArcSwap<CertificateSet>,
}

/// Certificates as read from their files.
#[derive(Debug)]
pub struct CertificateSet {
    /// Serves clients that send no name, or an unknown one.
    first: Arc<CertifiedKey>,
    /// By lower-case DNS name, such as `a.example.com` or `*.example.com`.
    by_name: HashMap<String, Arc<CertifiedKey>>,
}

impl Certificates {
    /// Starts with the set that was read from these files.
    pub fn new(files: Vec<CertificateFiles>, loaded: Arc<CertificateSet>) -> Self {
        Self { files, loaded: ArcSwap::new(loaded) }
    }
}

impl FromFiles for Certificates {
    fn files(&self) -> Vec<PathBuf> {
        let both = |of: &CertificateFiles| [of.certificate.clone(), of.key.clone()];
        self.files.iter().flat_map(both).collect()
    }

    fn reload(&self) {
        match CertificateSet::read(&self.files) {
            Ok(set) => {
                self.loaded.store(Arc::new(set));
                tracing::info!(files = self.files.len(), "certificates read again");
            }
            Err(problem) => {
                tracing::error!(problem, "the certificates stay as they were");
            }
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.loaded.load().select(hello.server_name()))
    }
}

impl CertificateSet {
    /// Reads certificates and keys.
    ///
    /// # Errors
    /// A sentence that names the file, if one can't be read, holds nothing of the kind, or if a key is
    /// not that of its certificate.
    pub fn read(files: &[CertificateFiles]) -> Result<Self, String> {
        let mut by_name = HashMap::new();
        let mut first = None;
        for files in files {
            let (key, names) = read_pair(files)?;
            let key = Arc::new(key);
            // Of several with the same name, the first one counts.
            names.into_iter().for_each(|name| {
                by_name.entry(name).or_insert_with(|| key.clone());
            });
            first.get_or_insert(key);
        }
        let first = first.ok_or_else(|| "no certificate is given".to_owned())?;
        Ok(Self { first, by_name })
    }

    fn select(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let found = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let any = || Some(format!("*.{}", name.split_once('.')?.1));
            self.by_name.get(&name).or_else(|| self.by_name.get(&any()?))
        });
        found.unwrap_or(&self.first).clone()
    }
}

fn read_pair(files: &CertificateFiles) -> Result<(CertifiedKey, Vec<String>), String> {
    let pair = pem::certified_key(&files.certificate, &files.key)?;
    let certificate = EndEntityCert::try_from(&pair.cert[0]).map_err(|error| {
        format!("{} holds no usable certificate: {error}", files.certificate.display())
    })?;
    let names = certificate.valid_dns_names().map(str::to_ascii_lowercase).collect();
    Ok((pair, names))
}
