//! Certificates and their keys, by the names that they hold.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
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

/// The certificates in force, and the files from which they are read again.
#[derive(Debug)]
pub struct Certificates {
    files: Vec<CertificateFiles>,
    loaded: ArcSwap<CertificateSet>,
    expiry: IntGauge,
}

/// Certificates as read from their files.
#[derive(Debug)]
pub struct CertificateSet {
    /// In the order of the files. The first one serves clients that send no name, or an unknown one.
    all: Vec<Arc<CertifiedKey>>,
    /// By DNS name in lower case, such as `a.example.com` or `*.example.com`.
    by_name: HashMap<String, Arc<CertifiedKey>>,
}

impl Certificates {
    /// Starts with the set that was read from these files.
    pub fn new(files: Vec<CertificateFiles>, loaded: Arc<CertificateSet>) -> Self {
        let certificates =
            Self { files, loaded: ArcSwap::new(loaded), expiry: pem::expiry_gauge() };
        certificates.show();
        certificates
    }

    /// Gauge of the time at which the first of them expires.
    pub fn expiry(&self) -> &IntGauge {
        &self.expiry
    }

    fn show(&self) {
        let loaded = self.loaded.load();
        for (files, pair) in self.files.iter().zip(&loaded.all) {
            pem::log_expiry(&files.certificate, pair);
        }
        let first = loaded.all.iter().filter_map(|pair| pem::expiry(pair)).min();
        self.expiry.set(first.unwrap_or(i64::MAX));
    }
}

impl FromFiles for Certificates {
    fn files(&self) -> Vec<PathBuf> {
        let both = |of: &CertificateFiles| [of.certificate.clone(), of.key.clone()];
        self.files.iter().flat_map(both).collect()
    }

    fn reload(&self) -> bool {
        match CertificateSet::read(&self.files) {
            Ok(set) => {
                self.loaded.store(Arc::new(set));
                self.show();
                tracing::info!(files = self.files.len(), "certificates read again");
                true
            }
            Err(problem) => {
                tracing::error!(%problem, "the certificates could not be read again; the old ones stay in force");
                false
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
        let mut all = Vec::new();
        for pair in files {
            let (key, names) = read_pair(pair)?;
            let key = Arc::new(key);
            for name in names {
                // Of several with the same name, the first one counts.
                by_name.entry(name).or_insert_with(|| key.clone());
            }
            all.push(key);
        }
        if all.is_empty() {
            return Err("no certificate is given".to_owned());
        }
        Ok(Self { all, by_name })
    }

    fn select(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let found = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            // A wildcard stands for one label (RFC 6125, section 6.4.3).
            let any = || Some(format!("*.{}", name.split_once('.')?.1));
            self.by_name.get(&name).or_else(|| self.by_name.get(&any()?))
        });
        found.unwrap_or(&self.all[0]).clone()
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A certificate and its key, without the lines around them. Made by `openssl req -x509 -newkey ec
    /// -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9300 -subj /CN=a -addext subjectAltName=` with
    /// `DNS:A.example,DNS:*.b.example`, and with `DNS:a.example,DNS:c.example`.
    const ONE: [&str; 2] = [
        "MIIBkjCCATigAwIBAgIUIznzAgSJayfD6eKio/xmpm7yOPcwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAgFw0yNjExMjkwOTUwMDNaGA8yMDUyMDUxNjA5NTAwM1ow
DDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFEWBRO4bYlf
6/fuwLaCX//12o22gZQ3wl155QZLf5+VqoC/yXM1kBCYxtUGdynawoAQBwNC1gEs
7OKBFlj7QEujdjB0MB0GA1UdDgQWBBQQXQ8cjkIiifJ5DAuRsDcqpA/ZqjAfBgNV
HSMEGDAWgBQQXQ8cjkIiifJ5DAuRsDcqpA/ZqjAPBgNVHRMBAf8EBTADAQH/MCEG
A1UdEQQaMBiCCUEuZXhhbXBsZYILKi5iLmV4YW1wbGUwCgYIKoZIzj0EAwIDSAAw
RQIgO7cy3DgqVGdm2nXIPRJNFwJK5ZG/RPeCKwGMcSpTomACIQDZnTF3q/+w00Xa
EyDuT4CKebpWrG2aXlejoGwshjUREA==",
        "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgG8viRLGS43jUTlxs
hpLMjgcZn4eKsTeNAgjjBZWSDNKhRANCAARRFgUTuG2JX+v37sC2gl//9dqNtoGU
N8JdeeUGS3+flaqAv8lzNZAQmMbVBncp2sKAEAcDQtYBLOzigRZY+0BL",
    ];
    const TWO: [&str; 2] = [
        "MIIBkTCCATagAwIBAgIUS+IpnknETx16dYreBVl+3tkBzwEwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAgFw0yNjExMjkwOTUwMDNaGA8yMDUyMDUxNjA5NTAwM1ow
DDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABF8B9RBqg+Lv
oR7lRF+UOWETN8waxknm6rOXKN8JcYnwUyJSkO++kf+MOurSmxX1O2l9UVIpILp6
LYruD4r7BvOjdDByMB0GA1UdDgQWBBS1SgZJ3tZr8H0HmOvj2Y3wddDYvDAfBgNV
HSMEGDAWgBS1SgZJ3tZr8H0HmOvj2Y3wddDYvDAPBgNVHRMBAf8EBTADAQH/MB8G
A1UdEQQYMBaCCWEuZXhhbXBsZYIJYy5leGFtcGxlMAoGCCqGSM49BAMCA0kAMEYC
IQCv6x0NkxMJW0R87wYi3F5DMV87CIj506/BSNNdsq2y7QIhAJxkWmyCh7sY/buL
Y7856TPaa3H4cLlXXRY9Z0/JYIDY",
        "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQglneo7G9PNQh/YD5b
TqKv4OOP0t6870vvCbt+nlWIWXihRANCAARfAfUQaoPi76Ee5URflDlhEzfMGsZJ
5uqzlyjfCXGJ8FMiUpDvvpH/jDrq0psV9TtpfVFSKSC6ei2K7g+K+wbz",
    ];

    fn write(directory: &Path, name: &str, [certificate, key]: [&str; 2]) -> CertificateFiles {
        let path = |ending| directory.join(name).with_extension(ending);
        let files = CertificateFiles { certificate: path("pem"), key: path("key") };
        let text = |kind, body| format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n");
        fs::write(&files.certificate, text("CERTIFICATE", certificate)).expect("write");
        fs::write(&files.key, text("PRIVATE KEY", key)).expect("write");
        files
    }

    #[test]
    fn a_name_selects_a_certificate_and_the_first_one_serves_all_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = [write(directory.path(), "one", ONE), write(directory.path(), "two", TWO)];
        let set = CertificateSet::read(&files).expect("they are good");
        let is_two = |name| !Arc::ptr_eq(&set.select(name), &set.all[0]);
        for name in ["c.example", "C.Example"] {
            assert!(is_two(Some(name)), "{name}");
        }
        // The second one holds the first of these, too.
        for name in ["a.example", "x.b.example", "b.example", "x.y.b.example", "z", ""] {
            assert!(!is_two(Some(name)), "{name}");
        }
        assert!(!is_two(None));
        let [one, two] = files;
        let turned = CertificateSet::read(&[two, one]).expect("they are good");
        for (name, index) in [("x.b.example", 1), ("x.y.b.example", 0), ("b.example", 0)] {
            assert!(Arc::ptr_eq(&turned.select(Some(name)), &turned.all[index]), "{name}");
        }
    }

    #[test]
    fn a_mistake_leaves_the_old_certificates_in_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = vec![write(directory.path(), "one", ONE)];
        let set = Arc::new(CertificateSet::read(&files).expect("they are good"));
        let certificates = Certificates::new(files.clone(), set.clone());
        assert!(certificates.expiry().get() > 2_500_000_000);
        for pair in [[ONE[0], TWO[1]], [TWO[0], ONE[1]], ["", ONE[1]], [ONE[0], ""], [ONE[1]; 2]] {
            write(directory.path(), "one", pair);
            assert!(!certificates.reload(), "{pair:?}");
            assert!(Arc::ptr_eq(&set, &certificates.loaded.load()));
        }
        let problem = || CertificateSet::read(&files).expect_err("it is wrong");
        write(directory.path(), "one", [ONE[0], TWO[1]]);
        assert!(problem().contains("one.key is not the key of"), "{}", problem());
        fs::write(&files[0].key, "-----BEGIN PRIVATE KEY-----\nMIGH").expect("write");
        assert!(problem().ends_with("one.key holds a damaged PEM of a private key"));
        fs::write(&files[0].certificate, "nonsense").expect("write");
        assert!(problem().ends_with("one.pem holds no PEM of a certificate"));
        write(directory.path(), "one", TWO);
        assert!(certificates.reload());
        assert!(!Arc::ptr_eq(&set, &certificates.loaded.load()));
        assert!(CertificateSet::read(&[]).is_err());
    }
}
