//! LISTEN_TLS, TLS_CERT_FILE and TLS_KEY_FILE.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use spillway_process::Checker;

use crate::tls::certificates::{CertificateFiles, CertificateSet};

/// The settings of HTTPS as given.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// Address to receive HTTPS on, in addition to LISTEN, such as 0.0.0.0:8443. Needs TLS_CERT_FILE and
    /// TLS_KEY_FILE
    #[arg(long, env = "LISTEN_TLS")]
    listen_tls: Option<String>,

    /// PEM file of the certificate for HTTPS, followed by its chain; several are comma separated. The
    /// server name that a client sends selects one; the first one is for all others. Read again on
    /// SIGHUP, and within 10 s of a change
    #[arg(long, env = "TLS_CERT_FILE")]
    tls_cert_file: Option<String>,

    /// PEM file of the private key; several are comma separated, in the order of TLS_CERT_FILE
    #[arg(long, env = "TLS_KEY_FILE")]
    tls_key_file: Option<String>,
}

/// The settings of HTTPS, checked.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// Address to receive on.
    pub listen: SocketAddr,
    /// Files of the certificates.
    pub files: Vec<CertificateFiles>,
    /// Certificates as read when the settings were checked.
    pub certificates: Arc<CertificateSet>,
}

impl TlsArgs {
    /// Checks the settings. Returns nothing if `LISTEN_TLS` is not set.
    pub fn check(&self, checker: &mut Checker) -> Option<TlsSettings> {
        let listen = self.listen_tls.as_deref().unwrap_or_default().trim();
        let certificates = list(self.tls_cert_file.as_deref());
        let keys = list(self.tls_key_file.as_deref());
        if listen.is_empty() {
            if !certificates.is_empty() || !keys.is_empty() {
                checker
                    .mistake("LISTEN_TLS", "is needed where TLS_CERT_FILE or TLS_KEY_FILE is set");
            }
            return None;
        }
        let listen = checker.address("LISTEN_TLS", listen, "0.0.0.0:8443");
        if certificates.is_empty() && keys.is_empty() {
            checker.mistake("LISTEN_TLS", "needs TLS_CERT_FILE and TLS_KEY_FILE");
            return None;
        }
        if certificates.len() != keys.len() {
            let named = certificates.len();
            let problem = "both must name as many files, a key for each certificate";
            checker.mistake(
                "TLS_CERT_FILE",
                format_args!("names {named} and TLS_KEY_FILE {}: {problem}", keys.len()),
            );
            return None;
        }
        let pair = |(certificate, key): (&str, &str)| CertificateFiles {
            certificate: certificate.into(),
            key: key.into(),
        };
        let files: Vec<_> = certificates.into_iter().zip(keys).map(pair).collect();
        match CertificateSet::read(&files) {
            Ok(set) => Some(TlsSettings { listen, files, certificates: Arc::new(set) }),
            Err(problem) => {
                checker.mistake("TLS_CERT_FILE", problem);
                None
            }
        }
    }
}

fn list(text: Option<&str>) -> Vec<&str> {
    let files = text.unwrap_or_default().split(',').map(str::trim);
    files.filter(|file| !file.is_empty()).collect()
}
