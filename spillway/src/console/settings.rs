//! Settings of the console.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::HeaderName;
use axum::http::uri::Authority;
use clap::Args;
use spillway_console::authenticate::{AnonymousAccess, Authenticate, DirectAccess, FirstOf};
use spillway_console::login::{LoginDesk, SessionAccess};
use spillway_console::origin::AllowedHosts;
use spillway_console::proxy::{ProxyAccess, TrustedProxies};
use spillway_console::sessions::SessionCookie;
use spillway_console::tls::acceptor;
use spillway_console::tokens::BearerAccess;
use spillway_console::unread::UnreadFiles;
use spillway_console::users::Users;
use spillway_console::{ConsoleGate, Role};
use spillway_process::Checker;
use spillway_process::reload::FromFiles;
use spillway_process::telemetry::LogFormat;
use tokio_rustls::TlsAcceptor;

use super::files::{ConsoleCertificate, TokensFile, UsersFile};
use crate::audited;
use crate::failure::Failure;
use crate::place::CellArgs;

const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// Settings of the console, as given.
#[derive(Debug, Args)]
pub(super) struct ConsoleArgs {
    #[command(flatten)]
    place: CellArgs,

    /// Address on which the console listens. One that is not of loopback needs TLS
    #[arg(long, env = "CONSOLE_LISTEN", default_value = "127.0.0.1:9820")]
    listen: String,

    /// Hosts by which browsers reach the console, such as console.example.com, separated by commas,
    /// with the port if it is neither 80 nor 443. Its own address is always one of them
    #[arg(long, env = "CONSOLE_HOSTS", value_name = "HOSTS")]
    hosts: Option<String>,

    /// Role of everybody who comes, without a login: viewer, support, operator or admin. On loopback
    /// only, where everybody is on this machine: not with TRUSTED_PROXIES, TRUSTED_USER_HEADER or
    /// CONSOLE_USERS_FILE, and not by a proxy. Not set: nobody gets in without a login
    #[arg(long, env = "CONSOLE_ANONYMOUS_ROLE", value_name = "ROLE")]
    anonymous_role: Option<String>,

    #[command(flatten)]
    access: AccountArgs,

    #[command(flatten)]
    tls: ConsoleTlsArgs,

    /// Time for which the audit keeps its records of who changed what. The commands have this setting too: set it
    /// for all of them [1d to 3653d]
    #[arg(long, env = "AUDIT_KEEP", default_value = audited::KEEP_DEFAULT)]
    audit_keep: String,

    /// Format of the log on standard error: text or json. RUST_LOG sets the level, such as info or
    /// debug
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    log_format: String,
}

/// Users and tokens, as given.
#[derive(Debug, Args)]
pub(super) struct AccountArgs {
    /// File with the users, which `spillway console user add` writes; read again within 10 s of a change
    #[arg(long, env = "CONSOLE_USERS_FILE", value_name = "FILE", global = true)]
    pub users_file: Option<PathBuf>,

    /// File with the API tokens, which `spillway console token add` writes; read again within 10 s of a change
    #[arg(long, env = "CONSOLE_TOKENS_FILE", value_name = "FILE", global = true)]
    pub tokens_file: Option<PathBuf>,

    /// Header in which a proxy names its user, such as X-Forwarded-User. It is believed from the addresses
    /// of TRUSTED_PROXIES only, and the user has to be in the file of users
    #[arg(long, env = "TRUSTED_USER_HEADER", value_name = "HEADER")]
    trusted_user_header: Option<String>,

    /// Addresses and ranges of proxies in front of the console, such as 127.0.0.1 or 10.1.0.0/16, separated
    /// by commas. The address of a client is taken from their X-Forwarded-For. List every proxy: behind
    /// one that is not listed, all clients count as one
    #[arg(long, env = "TRUSTED_PROXIES", value_name = "ADDRESSES")]
    trusted_proxies: Option<String>,
}

/// TLS, as given.
#[derive(Debug, Args)]
pub(super) struct ConsoleTlsArgs {
    /// PEM file of the console's certificate, followed by its chain; read again within 10 s of a change
    #[arg(long, env = "CONSOLE_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,

    /// PEM file of the private key of that certificate
    #[arg(long, env = "CONSOLE_TLS_KEY_FILE", value_name = "FILE")]
    tls_key_file: Option<PathBuf>,

    /// Listen without TLS where others can reach it: true or false. Passwords and webhooks can be read on
    /// the way. For a private network with a proxy that speaks TLS
    #[arg(long, env = "CONSOLE_INSECURE", default_value = "false")]
    insecure: String,
}

/// Settings of the console, after the check.
pub(super) struct ConsoleSettings {
    /// The cell.
    pub place: CellArgs,
    /// Address on which the console listens.
    pub listen: SocketAddr,
    /// Checks that every route has in common.
    pub gate: ConsoleGate,
    /// Place where users log in, if there are any.
    pub desk: Option<Arc<LoginDesk>>,
    /// TLS, if there is a certificate.
    pub tls: Option<TlsAcceptor>,
    /// State that is read again when its files change.
    pub files: Vec<Arc<dyn FromFiles>>,
    /// Those of them that had a mistake.
    pub unread: UnreadFiles,
    /// Proxies in front.
    pub proxies: TrustedProxies,
    /// Format of the log.
    pub log_format: LogFormat,
}

/// Callers that are known, and the files that say who they are.
struct KnownCallers {
    known: Vec<Arc<dyn Authenticate>>,
    desk: Option<Arc<LoginDesk>>,
    files: Vec<Arc<dyn FromFiles>>,
    proxies: TrustedProxies,
}

impl ConsoleArgs {
    /// Checks the settings. `checker` may have mistakes of others, which are reported with them.
    pub(super) fn check(self, mut checker: Checker) -> Result<ConsoleSettings, Failure> {
        self.place.redis()?;
        let listen = checker.address("CONSOLE_LISTEN", &self.listen, "127.0.0.1:9820");
        let unread = UnreadFiles::default();
        let certificate = self.tls.certificate(&mut checker, &unread);
        let is_tls = certificate.is_some();
        self.tls.ensure_private(&mut checker, listen, is_tls);
        let hosts = self.hosts(&mut checker);
        let KnownCallers { mut known, desk, mut files, proxies } =
            self.access.check(&mut checker, is_tls, &unread);
        known.extend(self.anonymous(&mut checker, listen, &hosts));
        let hosts = AllowedHosts::new(listen, hosts);
        let hosts = Arc::new(if is_tls { hosts.https_only() } else { hosts });
        let gate = ConsoleGate { authenticator: Arc::new(FirstOf(known)), hosts };
        let tls = certificate.map(|certificate| {
            let tls = acceptor(certificate.shown.clone());
            files.push(Arc::new(certificate));
            tls
        });
        audited::check_keep(&mut checker, &self.audit_keep);
        let log_format = checker.choice("LOG_FORMAT", &self.log_format, &LOG_FORMATS);
        let place = self.place;
        Ok(checker.finish(ConsoleSettings {
            place,
            listen,
            gate,
            desk,
            tls,
            files,
            unread,
            proxies,
            log_format,
        })?)
    }

    /// Files of the users and of the tokens, for the commands that edit them.
    pub(super) fn account_files(&self) -> (Option<&Path>, Option<&Path>) {
        (self.access.users_file.as_deref(), self.access.tokens_file.as_deref())
    }

    /// Hosts beside the address.
    fn hosts(&self, checker: &mut Checker) -> Vec<String> {
        let hosts = given(self.hosts.as_deref()).into_iter().flat_map(|hosts| hosts.split(','));
        let hosts = hosts.map(str::trim).filter(|host| !host.is_empty());
        let hosts: Vec<String> = hosts.map(str::to_owned).collect();
        for host in &hosts {
            if host.contains(['/', '@']) || host.parse::<Authority>().is_err() {
                let form = "such as console.example.com or 192.0.2.1:9820";
                checker.mistake("CONSOLE_HOSTS", format_args!("{host:?} is no host {form}"));
            }
        }
        hosts
    }

    /// Everybody, if they have a role without a login. A host that is not of loopback means that others come, by way
    /// of a proxy.
    fn anonymous(
        &self,
        checker: &mut Checker,
        listen: SocketAddr,
        hosts: &[String],
    ) -> Option<Arc<dyn Authenticate>> {
        let role = given(self.anonymous_role.as_deref())?;
        let role = role.parse::<Role>().map_err(|problem| {
            checker.mistake("CONSOLE_ANONYMOUS_ROLE", problem);
        });
        let others = hosts.iter().find(|host| !is_loopback(host));
        if !listen.ip().is_loopback() {
            let problem = "is for loopback only: set CONSOLE_USERS_FILE instead";
            checker.mistake("CONSOLE_ANONYMOUS_ROLE", problem);
        } else if let Some(host) = others {
            checker.mistake(
                "CONSOLE_ANONYMOUS_ROLE",
                format_args!(
                    "is for loopback only, and {host} is not: set CONSOLE_USERS_FILE instead"
                ),
            );
        }
        if let Some(setting) = self.access.for_others() {
            let problem =
                format!("is for loopback only, and {setting} for others: set only one of the two");
            checker.mistake("CONSOLE_ANONYMOUS_ROLE", problem);
        }
        let access = |role| Arc::new(DirectAccess(AnonymousAccess::new(role)));
        role.ok().map(|role| access(role) as Arc<dyn Authenticate>)
    }
}

impl AccountArgs {
    /// Reads the files. A bearer token comes first: a program that sends one means it.
    fn check(&self, checker: &mut Checker, is_tls: bool, unread: &UnreadFiles) -> KnownCallers {
        let proxies = given(self.trusted_proxies.as_deref()).map(TrustedProxies::parse);
        let proxies = proxies.transpose().unwrap_or_else(|problem| {
            checker.mistake("TRUSTED_PROXIES", problem);
            None
        });
        let proxies = proxies.unwrap_or_default();
        let mut callers = KnownCallers {
            known: Vec::new(),
            desk: None,
            files: Vec::new(),
            proxies: proxies.clone(),
        };
        if let Some(path) = file(self.tokens_file.as_ref()) {
            let file = TokensFile::read(path, unread.clone());
            callers.known.push(Arc::new(BearerAccess(file.tokens.clone())));
            callers.files.push(Arc::new(file));
        }
        let users = file(self.users_file.as_ref()).map(|path| {
            let file = UsersFile::read(path, unread.clone());
            let users = file.users.clone();
            let cookie = SessionCookie { is_tls };
            let desk = Arc::new(LoginDesk::new(users.clone(), cookie, proxies.clone()));
            callers.known.push(Arc::new(SessionAccess(desk.clone())));
            callers.desk = Some(desk);
            callers.files.push(Arc::new(file));
            users
        });
        callers.known.extend(self.by_proxy(checker, proxies, users));
        callers
    }

    /// The first setting that is of use only if others come than those on this machine.
    fn for_others(&self) -> Option<&'static str> {
        let settings = [
            ("TRUSTED_PROXIES", given(self.trusted_proxies.as_deref()).is_some()),
            ("TRUSTED_USER_HEADER", given(self.trusted_user_header.as_deref()).is_some()),
            ("CONSOLE_USERS_FILE", file(self.users_file.as_ref()).is_some()),
        ];
        settings.into_iter().find(|(_, is_set)| *is_set).map(|(setting, _)| setting)
    }

    fn by_proxy(
        &self,
        checker: &mut Checker,
        proxies: TrustedProxies,
        users: Option<Arc<Users>>,
    ) -> Option<Arc<dyn Authenticate>> {
        let header = given(self.trusted_user_header.as_deref())?;
        let Ok(header) = header.parse::<HeaderName>() else {
            checker.mistake(
                "TRUSTED_USER_HEADER",
                format_args!("{header:?} is no name of a header, such as X-Forwarded-User"),
            );
            return None;
        };
        if proxies.is_empty() {
            let problem = "needs TRUSTED_PROXIES: the addresses from which it is believed";
            checker.mistake("TRUSTED_USER_HEADER", problem);
        }
        let Some(users) = users else {
            let problem = "needs CONSOLE_USERS_FILE, which says what each user may";
            checker.mistake("TRUSTED_USER_HEADER", problem);
            return None;
        };
        Some(Arc::new(ProxyAccess::new(users, proxies, header)))
    }
}

impl ConsoleTlsArgs {
    fn certificate(
        &self,
        checker: &mut Checker,
        unread: &UnreadFiles,
    ) -> Option<ConsoleCertificate> {
        let files = (file(self.tls_cert_file.as_ref()), file(self.tls_key_file.as_ref()));
        match files {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                Some(ConsoleCertificate::read(certificate, key, unread.clone()))
            }
            _ => {
                let problem = "must be set together with CONSOLE_TLS_KEY_FILE, or not";
                checker.mistake("CONSOLE_TLS_CERT_FILE", problem);
                None
            }
        }
    }

    /// Refuses to send passwords and webhooks in the clear, unless it is asked for.
    fn ensure_private(&self, checker: &mut Checker, listen: SocketAddr, is_tls: bool) {
        let is_allowed = checker.flag("CONSOLE_INSECURE", &self.insecure);
        if !listen.ip().is_loopback() && !is_tls && !is_allowed {
            checker.mistake(
                "CONSOLE_LISTEN",
                format_args!(
                    "{listen} can be reached by others: set CONSOLE_TLS_CERT_FILE and CONSOLE_TLS_KEY_FILE, \
                     or CONSOLE_INSECURE=true if a proxy speaks TLS, and its network is private"
                ),
            );
        }
    }
}

/// True if a host is this machine, for a browser on it.
fn is_loopback(host: &str) -> bool {
    let name =
        host.parse::<Authority>().map_or_else(|_| host.to_owned(), |host| host.host().to_owned());
    let name = name.trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An empty path counts as not set.
fn file(path: Option<&PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty()).cloned()
}

/// An empty variable counts as not set.
fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        console: ConsoleArgs,
    }

    fn mistakes(flags: &[&str]) -> String {
        let command = Command::parse_from([&["x"], flags].concat());
        let checked = command.console.check(Checker::default());
        checked.err().map_or(String::new(), |failure| failure.to_string())
    }

    #[test]
    fn what_others_can_reach_is_refused_without_tls_or_a_word() {
        assert_eq!(mistakes(&["--listen", "[::1]:9820"]), "");
        let told = mistakes(&["--listen", "0.0.0.0:9820"]);
        assert!(told.contains("CONSOLE_LISTEN: 0.0.0.0:9820 can be reached by others"), "{told}");
        let insecure = ["--listen", "192.0.2.1:9820", "--insecure", "true"];
        assert_eq!(mistakes(&insecure), "");
        let told = mistakes(&[&insecure[..], &["--anonymous-role", "viewer"]].concat());
        assert!(told.contains("CONSOLE_ANONYMOUS_ROLE: is for loopback only"), "{told}");
    }

    #[test]
    fn nobody_is_anonymous_behind_a_proxy() {
        let with = |host| mistakes(&["--anonymous-role", "viewer", "--hosts", host]);
        assert_eq!(with("localhost:8000, 127.0.0.1:8000,[::1]:8000"), "");
        assert!(with("console.example.com").contains("console.example.com is not"));
        assert!(with("a.example/path").contains("is no host"));
        assert!(with("http://localhost").contains("is no host"));
    }

    #[test]
    fn nobody_is_anonymous_where_others_come() {
        for other in [
            ["--trusted-proxies", "127.0.0.1"],
            ["--trusted-user-header", "X-User"],
            ["--users-file", "/nonexistent/file"],
        ] {
            let told = mistakes(&[&["--anonymous-role", "viewer"][..], &other].concat());
            assert!(told.contains("CONSOLE_ANONYMOUS_ROLE: is for loopback only"), "{told}");
        }
    }

    #[test]
    fn a_trusted_header_needs_addresses_and_users() {
        let told = mistakes(&["--trusted-user-header", "X-User"]);
        assert!(
            told.contains("needs TRUSTED_PROXIES") && told.contains("needs CONSOLE_USERS_FILE")
        );
        let users = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(users.path(), "mia:support:*\n").expect("write");
        let file = users.path().to_str().expect("a plain path");
        let good = ["--users-file", file, "--trusted-user-header", "X-User"];
        let with = |proxies: &str| mistakes(&[&good[..], &["--trusted-proxies", proxies]].concat());
        assert_eq!(with("127.0.0.1, 10.1.0.0/16"), "");
        assert!(with("0.0.0.0/0").contains("TRUSTED_PROXIES: "));
    }

    #[test]
    fn files_that_are_missing_do_not_end_the_process_and_a_pair_without_its_half_does() {
        let none = "/nonexistent/file";
        let files = ["--users-file", none, "--tokens-file", none, "--tls-cert-file", none];
        let told = mistakes(&files);
        assert!(told.contains("CONSOLE_TLS_CERT_FILE: must"), "{told}");
        let flags = [&["x"][..], &files, &["--tls-key-file", none]].concat();
        let console = Command::parse_from(flags).console;
        let settings = console.check(Checker::default()).expect("no mistake");
        for setting in ["CONSOLE_USERS_FILE", "CONSOLE_TOKENS_FILE", "CONSOLE_TLS_CERT_FILE"] {
            assert!(settings.unread.contains(setting), "{setting}");
        }
        assert_eq!(settings.files.len(), 3);
    }

    #[test]
    fn an_unknown_role_is_refused_with_those_that_exist() {
        assert_eq!(mistakes(&["--anonymous-role", "viewer"]), "");
        assert_eq!(mistakes(&["--anonymous-role", ""]), "");
        let told = mistakes(&["--anonymous-role", "root"]);
        assert!(told.contains("CONSOLE_ANONYMOUS_ROLE") && told.contains("support"), "{told}");
    }
}
