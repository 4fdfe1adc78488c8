//! Files of the console that are read again when they change: users, API tokens, certificate.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_console::tls::ShownCertificate;
use spillway_console::tokens::{ApiTokens, TokenList};
use spillway_console::unread::UnreadFiles;
use spillway_console::users::{UserList, Users};
use spillway_process::pem;
use spillway_process::reload::FromFiles;

/// Bit of a mode by which everybody may write a file.
const OTHERS_WRITE: u32 = 0o002;
/// Settings that name the files.
const USERS: &str = "CONSOLE_USERS_FILE";
const TOKENS: &str = "CONSOLE_TOKENS_FILE";
const CERTIFICATE: &str = "CONSOLE_TLS_CERT_FILE";

/// File of the users.
pub(super) struct UsersFile {
    path: PathBuf,
    unread: UnreadFiles,
    /// Users as they were read.
    pub users: Arc<Users>,
}

/// File of the API tokens.
pub(super) struct TokensFile {
    path: PathBuf,
    unread: UnreadFiles,
    /// Tokens as they were read.
    pub tokens: Arc<ApiTokens>,
}

/// Files of the console's certificate and its key.
pub(super) struct ConsoleCertificate {
    certificate: PathBuf,
    key: PathBuf,
    unread: UnreadFiles,
    /// Certificate as it was read.
    pub shown: Arc<ShownCertificate>,
}

impl UsersFile {
    /// Reads it. With a mistake in it there is no user yet, and it is noted as unread.
    pub(super) fn read(path: PathBuf, unread: UnreadFiles) -> Self {
        let list = first(users(&path), USERS, &unread).unwrap_or_default();
        Self { path, unread, users: Arc::new(Users::new(list)) }
    }
}

impl TokensFile {
    /// Reads it. With a mistake in it there is no token yet, and it is noted as unread.
    pub(super) fn read(path: PathBuf, unread: UnreadFiles) -> Self {
        let list = first(tokens(&path), TOKENS, &unread).unwrap_or_default();
        Self { path, unread, tokens: Arc::new(ApiTokens::new(list)) }
    }
}

impl ConsoleCertificate {
    /// Reads both. With a mistake in one there is no certificate yet, and they are noted as unread.
    pub(super) fn read(certificate: PathBuf, key: PathBuf, unread: UnreadFiles) -> Self {
        let pair = first(pem::certified_key(&certificate, &key), CERTIFICATE, &unread);
        Self { certificate, key, unread, shown: Arc::new(ShownCertificate::new(pair)) }
    }
}

impl FromFiles for UsersFile {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn reload(&self) -> bool {
        let read = users(&self.path).map(|list| {
            tracing::info!(count = list.0.len(), "CONSOLE_USERS_FILE read again");
            self.users.replace(list);
        });
        is_read(read, USERS, &self.unread)
    }

    fn is_unread(&self) -> bool {
        self.unread.contains(USERS)
    }
}

impl FromFiles for TokensFile {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn reload(&self) -> bool {
        let read = tokens(&self.path).map(|list| {
            tracing::info!(count = list.0.len(), "CONSOLE_TOKENS_FILE read again");
            self.tokens.replace(list);
        });
        is_read(read, TOKENS, &self.unread)
    }

    fn is_unread(&self) -> bool {
        self.unread.contains(TOKENS)
    }
}

impl FromFiles for ConsoleCertificate {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.certificate.clone(), self.key.clone()]
    }

    fn reload(&self) -> bool {
        let read = pem::certified_key(&self.certificate, &self.key).map(|pair| {
            pem::log_expiry(&self.certificate, &pair);
            tracing::info!("CONSOLE_TLS_CERT_FILE read again");
            self.shown.replace(pair);
        });
        is_read(read, CERTIFICATE, &self.unread)
    }

    fn is_unread(&self) -> bool {
        self.unread.contains(CERTIFICATE)
    }
}

/// Contents that were read at the start. A mistake does not end the process: in a pod, it would take the receiver along.
fn first<T>(read: Result<T, String>, setting: &'static str, unread: &UnreadFiles) -> Option<T> {
    read.map_err(|problem| unread.insert(setting, problem)).ok()
}

fn is_read(read: Result<(), String>, setting: &str, unread: &UnreadFiles) -> bool {
    match &read {
        Ok(()) => unread.remove(setting),
        Err(problem) if unread.contains(setting) => {
            tracing::error!(%problem, "{setting} can't be read: the console answers 503 until it can");
        }
        Err(problem) => {
            tracing::error!(%problem, "{setting} could not be read again; what was read before stays in force");
        }
    }
    read.is_ok()
}

fn users(path: &Path) -> Result<UserList, String> {
    UserList::parse(&text(path)?).map_err(|problem| format!("{}, {problem}", path.display()))
}

fn tokens(path: &Path) -> Result<TokenList, String> {
    TokenList::parse(&text(path)?).map_err(|problem| format!("{}, {problem}", path.display()))
}

/// Reads a file that decides who gets in. Everybody who may write it gets in.
pub(super) fn text(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let unread = |error| format!("cannot read {shown}: {error}");
    let mode = fs::metadata(path).map_err(unread)?.permissions().mode();
    if mode & OTHERS_WRITE != 0 {
        return Err(format!("every user of this machine may write {shown}: `chmod o-w {shown}`"));
    }
    fs::read_to_string(path).map_err(unread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate and its key, without the lines around them. Made by `openssl req -x509 -newkey ec
    /// -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9300 -subj /CN=a`.
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

    fn write(file: &Path, kind: &str, body: &str) {
        let text = format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n");
        fs::write(file, text).expect("write");
    }

    #[test]
    fn another_certificate_is_shown_and_one_without_its_key_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let certificate = directory.path().join("tls.pem");
        let key = directory.path().join("tls.key");
        let install = |[one, other]: [&str; 2]| {
            write(&certificate, "CERTIFICATE", one);
            write(&key, "PRIVATE KEY", other);
        };
        install(ONE);
        let unread = UnreadFiles::default();
        let read = ConsoleCertificate::read(certificate.clone(), key.clone(), unread);
        let current = || read.shown.current().expect("a pair");
        let first = current();
        install([TWO[0], ONE[1]]);
        assert!(!read.reload());
        assert_eq!(current().cert, first.cert, "the old one stays");
        install(TWO);
        assert!(read.reload());
        assert_ne!(current().cert, first.cert);
        assert_eq!(read.files(), [certificate.as_path(), key.as_path()]);
    }

    #[test]
    fn a_file_with_a_mistake_leaves_the_users_as_they_were() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "mia:viewer:*\n").expect("write");
        let read = UsersFile::read(file.path().to_owned(), UnreadFiles::default());
        assert!(!read.is_unread());
        fs::write(file.path(), "mia:boss:*\n").expect("write");
        assert!(!read.reload() && !read.is_unread(), "the old ones stay");
        let told = users(file.path()).expect_err("a mistake");
        assert!(told.contains(", line 1: mia: \"boss\" is no role"), "{told}");
        fs::write(file.path(), "").expect("write");
        assert!(read.reload(), "nobody is a choice too");
        assert_eq!(read.files(), [file.path()]);
    }

    #[test]
    fn files_with_a_mistake_at_the_start_are_unread_until_they_are_good() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let unread = UnreadFiles::default();
        let users = UsersFile::read(path("users"), unread.clone());
        let tokens = TokensFile::read(path("tokens"), unread.clone());
        let certificate = ConsoleCertificate::read(path("tls.pem"), path("tls.key"), unread);
        assert!(users.is_unread() && tokens.is_unread() && certificate.is_unread());
        assert!(certificate.shown.current().is_none());
        assert!(!users.reload() && users.is_unread(), "there is no such file");
        fs::write(path("users"), "mia:viewer:*\n").expect("write");
        fs::write(path("tokens"), "").expect("write");
        write(&path("tls.pem"), "CERTIFICATE", ONE[0]);
        write(&path("tls.key"), "PRIVATE KEY", ONE[1]);
        assert!(users.reload() && tokens.reload() && certificate.reload());
        assert!(!users.is_unread() && !tokens.is_unread() && !certificate.is_unread());
        assert!(certificate.shown.current().is_some());
    }

    #[test]
    fn a_file_that_everybody_may_write_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o606)).expect("chmod");
        let told = text(file.path()).expect_err("refused");
        assert!(told.contains("chmod o-w"), "{told}");
    }
}
