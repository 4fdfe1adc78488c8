//! A certificate authority for one test, made with the openssl command in the test's directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority: the files `NAME.pem` and `NAME.key` in its directory.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
    name: String,
}

impl Authority {
    /// Creates an authority.
    pub fn new(directory: &Path, name: &str) -> Self {
        let authority = Self { directory: directory.to_path_buf(), name: name.to_owned() };
        let key = format!("{name}.key");
        authority.issue(name, 2, "basicConstraints=critical,CA:TRUE", &["-signkey", &key]);
        authority
    }

    /// Creates `HOST.pem` and `HOST.key` in the directory of the authority.
    pub fn certify(&self, host: &str) {
        self.certify_for(host, 2);
    }

    /// Same as [`certify`](Self::certify), valid for so many days. With a negative number, it has
    /// expired.
    pub fn certify_for(&self, host: &str, days: i32) {
        let extensions = format!("basicConstraints=CA:FALSE\nsubjectAltName=DNS:{host}");
        let (certificate, key) = (format!("{}.pem", self.name), format!("{}.key", self.name));
        let signer = ["-CA", &certificate, "-CAkey", &key, "-CAcreateserial"];
        self.issue(host, days, &extensions, &signer);
    }

    /// Replaces `TO.pem` and `TO.key` by copies of those of `from`, each by a rename.
    pub fn install(&self, from: &str, to: &str) {
        let file = |name: &str, ending: &str| self.directory.join(format!("{name}.{ending}"));
        for ending in ["pem", "key"] {
            let new = file(to, "new");
            fs::copy(file(from, ending), &new).expect("copy");
            fs::rename(new, file(to, ending)).expect("rename");
        }
    }

    /// Path of its certificate, in the form of `SSL_CERT_FILE`.
    pub fn certificate(&self) -> String {
        let path = self.directory.join(format!("{}.pem", self.name));
        path.to_str().expect("a plain path").to_owned()
    }

    fn issue(&self, subject: &str, days: i32, extensions: &str, signer: &[&str]) {
        let file = |ending: &str| format!("{subject}.{ending}");
        let (key, request, wanted) = (file("key"), file("csr"), file("extensions"));
        let named = format!("/CN={subject}");
        let days = days.to_string();
        fs::write(self.directory.join(&wanted), extensions).expect("write the extensions");
        self.openssl(&[
            &["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
            &["-subj", &named, "-keyout", &key, "-out", &request],
        ]);
        self.openssl(&[
            &["x509", "-req", "-days", &days, "-in", &request, "-extfile", &wanted],
            &["-out", &file("pem")],
            signer,
        ]);
    }

    fn openssl(&self, arguments: &[&[&str]]) {
        let ended = Command::new("openssl")
            .args(arguments.concat())
            .current_dir(&self.directory)
            .output()
            .expect("openssl is missing; install it with: apt-get install openssl");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}
