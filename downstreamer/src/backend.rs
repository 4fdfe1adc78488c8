//! The backend and its parsed URL.

use std::fmt;

use http::Uri;
use http::uri::{Authority, Scheme};
use rustls::pki_types::ServerName;
use spillway_process::Checker;
use spillway_process::settings::check_port;

/// Longest base path.
const PATH_BYTES_MAX: usize = 1024;

/// The backend that webhooks are delivered to.
#[derive(Debug, Clone)]
pub enum Backend {
    /// No backend: webhooks are accepted, counted and dropped.
    Discard,
    /// A server.
    Http {
        /// http or https.
        scheme: Scheme,
        /// Host and port.
        authority: Authority,
        /// Base path of every request, without a slash at its end.
        path: String,
        /// Value of the Host header.
        host: String,
        /// TLS server name.
        server_name: ServerName<'static>,
    },
}

/// Shows the base URL. It holds no user or password.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Discard => f.write_str("discard:"),
            Self::Http { scheme, authority, path, .. } => write!(f, "{scheme}://{authority}{path}"),
        }
    }
}

impl Backend {
    /// Checks `DOWNSTREAM_APP_URL` and `DOWNSTREAM_HOST`.
    pub(crate) fn check(url: Option<&str>, host: Option<&str>, checker: &mut Checker) -> Self {
        const KEY: &str = "DOWNSTREAM_APP_URL";
        let Some(url) = url.map(str::trim) else {
            checker.mistake(KEY, "is required, such as http://127.0.0.1:3000");
            return Self::Discard;
        };
        if url == "discard:" {
            return Self::Discard;
        }
        if let Some(host) = host
            && let Err(problem) = server_name(host)
        {
            checker.mistake("DOWNSTREAM_HOST", problem);
            return Self::Discard;
        }
        Self::http(url, host).unwrap_or_else(|problem| {
            checker.mistake(KEY, problem);
            Self::Discard
        })
    }

    /// Server at a base URL, with another host name if `host` is given.
    ///
    /// # Errors
    /// The mistake in the URL or the host.
    pub fn http(url: &str, host: Option<&str>) -> Result<Self, &'static str> {
        const FORM: &str = "must be http://host:port/base, https://host/base or discard:";
        // http::Uri keeps the path byte for byte. URL crates would rewrite it.
        let uri: Uri = url.parse().map_err(|_| FORM)?;
        let scheme = uri.scheme().ok_or(FORM)?.clone();
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(FORM);
        }
        let authority = uri.authority().ok_or(FORM)?.clone();
        if authority.as_str().contains('@') {
            return Err("must not hold a user or password: they would show in logs");
        }
        check_port(&authority)?;
        if uri.query().is_some() {
            return Err("must not have a query: a webhook's own is appended");
        }
        let host = host.unwrap_or(authority.as_str()).to_owned();
        let server_name = server_name(&host)?;
        let path = uri.path().trim_end_matches('/').to_owned();
        if path.len() > PATH_BYTES_MAX {
            return Err(
                "the base path is too long: with a webhook's own it would be no path any more",
            );
        }
        Ok(Self::Http { scheme, authority, path, host, server_name })
    }
}

/// TLS server name of a host, which may have a port.
///
/// # Errors
/// The form that is expected.
fn server_name(host: &str) -> Result<ServerName<'static>, &'static str> {
    const FORM: &str = "must be a host name such as app.example, with a port if need be";
    let named: Authority = host.parse().map_err(|_| FORM)?;
    if named.as_str().contains('@') {
        return Err(FORM);
    }
    check_port(&named)?;
    ServerName::try_from(named.host().trim_matches(['[', ']']).to_owned())
        .map_err(|_| "the host is neither a DNS name nor an address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_shown_as_its_base_url() {
        for (url, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("https://app.example/base/", "https://app.example/base"),
        ] {
            assert_eq!(Backend::http(url, Some("other")).unwrap().to_string(), shown);
        }
        assert_eq!(Backend::Discard.to_string(), "discard:");
    }

    #[test]
    fn a_backend_is_a_base_that_paths_are_appended_to() {
        let parts = |url, host| match Backend::http(url, host) {
            Ok(Backend::Http { authority, path, host, .. }) => {
                Ok(format!("{authority} {path} {host}"))
            }
            Ok(Backend::Discard) => Ok("discard".to_owned()),
            Err(problem) => Err(problem),
        };
        assert_eq!(parts("http://a:80", None).unwrap(), "a:80  a:80");
        assert_eq!(parts("https://a/base/", Some("b")).unwrap(), "a /base b");
        assert_eq!(parts("http://[::1]", None).unwrap(), "[::1]  [::1]");
        assert_eq!(parts("http://[::1]:80", Some("c:81")).unwrap(), "[::1]:80  c:81");
        for url in ["http://127.0.0.1:99999", "https://a:70000", "http://a:0", "http://[::1]:99999"]
        {
            let problem = parts(url, None).unwrap_err();
            assert!(problem.contains("a port from 1 to 65535"), "{url}: {problem}");
        }
        for host in ["c:99999", "c:abc", "c:0", "c:", "[::1]:99999", "u@c", "a b", ""] {
            assert!(parts("http://a", Some(host)).is_err(), "{host}");
            let mut checker = Checker::default();
            Backend::check(Some("http://a"), Some(host), &mut checker);
            let told = checker.finish(()).unwrap_err().to_string();
            assert!(told.contains("DOWNSTREAM_HOST"), "{host}: {told}");
            assert_eq!(told.lines().count(), 1, "{host}: {told}");
        }
        for url in ["a:80", "ftp://a", "http://", "http://u:p@a", "http://a/?q", "/x", ""] {
            assert!(parts(url, None).is_err(), "{url}");
        }
    }
}
