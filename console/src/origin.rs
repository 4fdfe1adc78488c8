//! Hosts under which the console is reached. A request for another host is refused, so that a site
//! whose name leads to this address (DNS rebinding) reads nothing. A change from another origin is
//! refused too (CSRF).

use std::net::SocketAddr;

use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};

use crate::problem::ProblemDetails;

/// Header by which a browser says where a request comes from. Source: Fetch Metadata.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Hosts under which the console is reached, with their ports, in lower case.
#[derive(Debug, Clone)]
pub struct AllowedHosts {
    hosts: Vec<String>,
    is_https_only: bool,
}

impl AllowedHosts {
    /// The address itself, with `localhost` for loopback, and further `hosts` such as
    /// `console.example.com`.
    pub fn new(address: SocketAddr, hosts: impl IntoIterator<Item = String>) -> Self {
        let mut allowed = vec![address.to_string()];
        if address.ip().is_loopback() {
            allowed.push(format!("localhost:{}", address.port()));
        }
        if [80, 443].contains(&address.port()) {
            // A browser leaves out the port that is the scheme's own.
            let named = allowed.clone();
            let without = named.iter().filter_map(|host| host.rsplit_once(':'));
            allowed.extend(without.map(|(host, _)| host.to_owned()));
        }
        allowed.extend(hosts.into_iter().map(|host| host.to_ascii_lowercase()));
        Self { hosts: allowed, is_https_only: false }
    }

    /// Takes no page of `http://` for one of ours.
    #[must_use]
    pub fn https_only(self) -> Self {
        Self { is_https_only: true, ..self }
    }

    /// Refuses a request for a host that is none of ours.
    ///
    /// # Errors
    /// The problem to answer with.
    pub fn ensure_host(&self, headers: &HeaderMap) -> Result<(), ProblemDetails> {
        let mut given = headers.get_all(HOST).into_iter();
        // With two of them, a proxy and we may read different ones.
        if let (Some(host), None) = (given.next(), given.next()) {
            let host = host.to_str().unwrap_or_default().to_ascii_lowercase();
            if self.hosts.contains(&host) {
                return Ok(());
            }
        }
        Err(ProblemDetails::forbidden(
            "the Host header names no host of this console: add it to CONSOLE_HOSTS",
        ))
    }

    /// Refuses a change that a page of another site made a browser send. A browser sends at least one of
    /// the two headers with every POST; so a request without both is refused as well.
    ///
    /// # Errors
    /// The problem to answer with.
    pub fn ensure_same_origin(&self, headers: &HeaderMap) -> Result<(), ProblemDetails> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_same = match (text(SEC_FETCH_SITE), text(ORIGIN.as_str())) {
            (Some(site), _) => site == "same-origin",
            (None, Some(origin)) => self.is_ours(origin),
            (None, None) => false,
        };
        if is_same {
            return Ok(());
        }
        Err(ProblemDetails::forbidden(
            "this change does not come from a page of the console: open the page again, or use an API token",
        ))
    }

    fn is_ours(&self, origin: &str) -> bool {
        let plain = || origin.strip_prefix("http://").filter(|_| !self.is_https_only);
        let host = origin.strip_prefix("https://").or_else(plain);
        host.is_some_and(|host| self.hosts.iter().any(|allowed| allowed == host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> AllowedHosts {
        let address = "127.0.0.1:9820".parse().unwrap();
        AllowedHosts::new(address, ["Console.example.com".to_owned()])
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_our_hosts_are_answered() {
        for host in ["127.0.0.1:9820", "localhost:9820", "LOCALHOST:9820", "console.example.com"] {
            assert!(hosts().ensure_host(&headers(&[("host", host)])).is_ok(), "{host}");
        }
        for host in ["evil.example:9820", "127.0.0.1:80", "127.0.0.1", ""] {
            assert!(hosts().ensure_host(&headers(&[("host", host)])).is_err(), "{host}");
        }
        assert!(hosts().ensure_host(&HeaderMap::new()).is_err());
        let mut two = headers(&[("host", "localhost:9820")]);
        two.append(HOST, "evil.example".parse().unwrap());
        assert!(hosts().ensure_host(&two).is_err());
        let standard = AllowedHosts::new("127.0.0.1:443".parse().unwrap(), []);
        for host in ["127.0.0.1", "127.0.0.1:443", "localhost"] {
            assert!(standard.ensure_host(&headers(&[("host", host)])).is_ok(), "{host}");
        }
    }

    #[test]
    fn a_change_comes_from_a_page_of_ours() {
        let is_ok =
            |pairs: &[(&'static str, &str)]| hosts().ensure_same_origin(&headers(pairs)).is_ok();
        assert!(is_ok(&[("sec-fetch-site", "same-origin")]));
        assert!(is_ok(&[("origin", "http://localhost:9820")]));
        assert!(is_ok(&[("origin", "https://console.example.com")]));
        assert!(!is_ok(&[("sec-fetch-site", "cross-site"), ("origin", "http://localhost:9820")]));
        assert!(!is_ok(&[("sec-fetch-site", "same-site")]));
        assert!(!is_ok(&[("origin", "null")]));
        assert!(!is_ok(&[("origin", "https://evil.example")]));
        assert!(!is_ok(&[]));
    }

    #[test]
    fn with_tls_a_page_without_it_is_not_ours() {
        let by_origin = |origin: &str| {
            hosts().https_only().ensure_same_origin(&headers(&[("origin", origin)])).is_ok()
        };
        assert!(by_origin("https://localhost:9820"));
        assert!(!by_origin("http://localhost:9820"));
    }
}
