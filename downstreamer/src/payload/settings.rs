//! Settings of fetching: the hosts that payloads may come from, and their size.

use clap::Args;
use http::Uri;
use http::uri::{Authority, Scheme};
use rustls::pki_types::ServerName;
use spillway_process::Checker;
use spillway_webhook::Stub;

use super::PayloadResult;

/// Largest `PAYLOAD_MAX`, in bytes.
const SIZE_MAX: u64 = 1 << 30;

/// Settings of fetching as given.
#[derive(Debug, Args)]
pub(crate) struct PayloadArgs {
    /// Deliver the payload in place of the stub of an oversize Event: on or off
    #[arg(long, env = "FETCH_PAYLOADS", default_value = "off")]
    fetch_payloads: String,

    /// Hosts that payloads are fetched from, comma separated, such as payloads.example.com or
    /// *.example.com; needed with FETCH_PAYLOADS=on. Another port: host:8443; without TLS: http://host
    #[arg(long, env = "PAYLOAD_HOSTS")]
    payload_hosts: Option<String>,

    /// Maximum size of a fetched payload; all together take at most four times as much memory [1KiB
    /// to 1GiB]
    #[arg(long, env = "PAYLOAD_MAX", default_value = "32MiB")]
    payload_max: String,
}

/// Checked settings of fetching.
#[derive(Debug, Clone)]
pub struct PayloadSettings {
    /// Hosts that payloads may be fetched from.
    pub hosts: Vec<PayloadHost>,
    /// Most bytes of one payload.
    pub bytes_max: usize,
}

/// A host that payloads may be fetched from, or all hosts below a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadHost {
    scheme: Scheme,
    /// Host in lower case, without the `*.` of a domain.
    name: String,
    /// True for all hosts below a domain, and not the domain itself.
    is_domain: bool,
    port: u16,
}

impl PayloadArgs {
    /// Checks the settings. `None` if payloads are not fetched.
    pub(crate) fn check(&self, checker: &mut Checker) -> Option<PayloadSettings> {
        const KEY: &str = "PAYLOAD_HOSTS";
        let is_on =
            checker.choice("FETCH_PAYLOADS", &self.fetch_payloads, &[("off", false), ("on", true)]);
        let names = self.payload_hosts.as_deref().unwrap_or_default().split(',').map(str::trim);
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        if is_on && names.is_empty() {
            checker
                .mistake(KEY, "is required with FETCH_PAYLOADS=on: name the hosts of payload_url");
        }
        let host = |name: &str| {
            let parsed = PayloadHost::parse(name);
            parsed.map_err(|problem| checker.mistake(KEY, format_args!("{name} {problem}"))).ok()
        };
        let hosts = names.into_iter().filter_map(host).collect();
        let bytes = checker.size("PAYLOAD_MAX", &self.payload_max, 1024..=SIZE_MAX);
        let bytes_max = usize::try_from(bytes).expect("BUG: the range ends below 2^31");
        is_on.then_some(PayloadSettings { hosts, bytes_max })
    }
}

impl PayloadHost {
    /// Parses `payloads.example.com`, `*.example.com` or `http://127.0.0.1:8080`. Without a scheme
    /// it is https, and without a port that of the scheme.
    ///
    /// # Errors
    /// The form that is expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "must be a host such as payloads.example.com or *.example.com, with \
                            another port as host:8443; without TLS: http://host";
        let (scheme, rest) = match text.split_once("://") {
            None => (Scheme::HTTPS, text),
            Some(("https", rest)) => (Scheme::HTTPS, rest),
            Some(("http", rest)) => (Scheme::HTTP, rest),
            Some(_) => return Err(FORM),
        };
        let domain = rest.strip_prefix("*.");
        let authority: Authority = domain.unwrap_or(rest).parse().map_err(|_| FORM)?;
        let host = authority.host();
        let name = ServerName::try_from(host.trim_matches(['[', ']'])).map_err(|_| FORM)?;
        let is_name = matches!(name, ServerName::DnsName(_));
        // `*.com` would be everybody's.
        if domain.is_some() && !(is_name && host.contains('.')) {
            return Err(FORM);
        }
        let port = match authority.port_u16() {
            Some(0) => return Err(FORM),
            Some(port) => port,
            None if authority.as_str() == host => default_port(&scheme),
            None => return Err(FORM),
        };
        Ok(Self { scheme, name: host.to_ascii_lowercase(), is_domain: domain.is_some(), port })
    }

    /// True if this host serves the URL.
    fn is_of(&self, url: &Uri) -> bool {
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        let port = url.port_u16().unwrap_or_else(|| default_port(&self.scheme));
        let is_named = match host.strip_suffix(&self.name) {
            Some("") => !self.is_domain,
            Some(below) => self.is_domain && below.len() > 1 && below.ends_with('.'),
            None => false,
        };
        is_named && port == self.port && url.scheme() == Some(&self.scheme)
    }
}

fn default_port(scheme: &Scheme) -> u16 {
    if *scheme == Scheme::HTTPS { 443 } else { 80 }
}

impl PayloadSettings {
    /// True if a host uses TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.hosts.iter().any(|host| host.scheme == Scheme::HTTPS)
    }

    /// URL to fetch the payload of a stub from at `now_ms`, or the reason for which the stub itself
    /// is delivered.
    pub(super) fn url(&self, stub: &Stub, now_ms: u64) -> Result<Uri, PayloadResult> {
        if stub.has_expired(now_ms) {
            return Err(PayloadResult::Expired);
        }
        let url: Uri = stub.payload_url.parse().map_err(|_| PayloadResult::OtherHost)?;
        let has_user = url.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if has_user || !self.hosts.iter().any(|host| host.is_of(&url)) {
            return Err(PayloadResult::OtherHost);
        }
        let bytes_max = u64::try_from(self.bytes_max).unwrap_or(u64::MAX);
        if stub.payload_bytes.is_some_and(|bytes| bytes > bytes_max) {
            return Err(PayloadResult::TooLarge);
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(hosts: &str, url: &str) -> bool {
        let hosts = hosts.split(',').map(|host| PayloadHost::parse(host).unwrap()).collect();
        let settings = PayloadSettings { hosts, bytes_max: 100 };
        settings.url(&stub(url), 1).is_ok()
    }

    fn stub(url: &str) -> Stub {
        Stub { payload_url: url.to_owned(), payload_bytes: None, expires_at_ms: None }
    }

    #[test]
    fn a_payload_is_fetched_only_from_a_host_that_is_named() {
        let hosts =
            "a.example.com,*.Shop.example,h.example:8443,http://127.0.0.1:8080,http://[::1]";
        let good = "https://a.example.com/1?b=c https://A.example.com:443/1 https://b.shop.example/1 \
                    https://c.b.shop.example/1 https://h.example:8443/ http://127.0.0.1:8080/1 \
                    http://[::1]/1";
        for url in good.split(' ') {
            assert!(is_allowed(hosts, url), "{url}");
        }
        let bad = "http://a.example.com/1 https://a.example.com:8443/1 https://b.a.example.com/1 \
                   https://shop.example/1 https://.shop.example/1 https://evilshop.example/1 \
                   https://b.shop.example.evil.example/1 https://b.shop.example./1 \
                   https://a.example.com@evil.example/1 https://user@a.example.com/1 \
                   https://evil.example/a.example.com https://evil.example#a.example.com \
                   https://evil.example?a.example.com https://h.example/ https://127.0.0.1:8080/1 \
                   http://127.0.0.1/1 http://127.1:8080/1 http://[::1]:8080/1 \
                   https://169.254.169.254/1 file:///etc/passwd ftp://a.example.com/1 \
                   a.example.com/1 /1 https://a.example.com\\@evil.example/1";
        for url in bad.split(' ').chain([" https://a.example.com/1", ""]) {
            assert!(!is_allowed(hosts, url), "{url}");
        }
    }

    #[test]
    fn a_host_that_is_none_is_a_mistake() {
        let bad = "* *.com *.10.0.0.1 *.[::1] a.*.example https:// ftp://a.example a.example/path \
                   a.example: a.example:99999 user@a.example https://a.example?b";
        for host in bad.split(' ').chain(["", "a b"]) {
            assert!(PayloadHost::parse(host).is_err(), "{host}");
        }
        let plain = PayloadHost::parse("http://a.example").unwrap();
        assert_eq!(plain, PayloadHost::parse("http://A.example:80").unwrap());
        assert_ne!(plain, PayloadHost::parse("a.example:80").unwrap());
        assert_eq!(PayloadHost::parse("https://a.example"), PayloadHost::parse("a.example:443"));
    }

    #[test]
    fn what_has_expired_or_is_too_large_is_not_fetched() {
        let hosts = vec![PayloadHost::parse("a.example").unwrap()];
        let settings = PayloadSettings { hosts, bytes_max: 100 };
        let url = |payload_bytes, expires_at_ms, now_ms| {
            let stub = Stub { payload_bytes, expires_at_ms, ..stub("https://a.example/1") };
            settings.url(&stub, now_ms).err()
        };
        assert_eq!(url(Some(100), Some(1_001), 1_000), None);
        assert_eq!(url(None, Some(1_000), 1_000), Some(PayloadResult::Expired));
        assert_eq!(url(Some(101), None, 1_000), Some(PayloadResult::TooLarge));
        let elsewhere = Stub { payload_bytes: Some(101), ..stub("https://b.example/1") };
        assert_eq!(settings.url(&elsewhere, 1).err(), Some(PayloadResult::OtherHost));
    }
}
