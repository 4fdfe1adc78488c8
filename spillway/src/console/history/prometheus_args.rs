//! Settings of the Prometheus that has the metrics of the last hours.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use spillway_process::Checker;
use spillway_process::settings::check_port;

use super::promql::check_matchers;
use crate::http::HttpClient;

/// Path of the API below the base URL.
const QUERY_RANGE: &str = "/api/v1/query_range";

/// The Prometheus, as given.
#[derive(Debug, Clone, Args)]
pub(in crate::console) struct PrometheusArgs {
    /// Prometheus from which the metrics of the last hours are read, such as http://127.0.0.1:9090; with
    /// user:password@ before the host, percent-encoded, if it asks for a login. So a restart loses no curve, and they go
    /// back a month. Not set: 6 hours are kept in memory
    #[arg(
        id = "prometheus_url",
        long = "prometheus-url",
        env = "PROMETHEUS_URL",
        value_name = "URL",
        hide_env_values = true
    )]
    url: Option<String>,

    /// Label matchers that select this cell in the Prometheus, such as cell="one". Needed if it has several cells
    #[arg(
        id = "prometheus_selector",
        long = "prometheus-selector",
        env = "PROMETHEUS_SELECTOR",
        value_name = "MATCHERS"
    )]
    selector: Option<String>,

    /// File with a bearer token for the Prometheus; its first line is sent. It is read again for each question
    #[arg(
        id = "prometheus_token_file",
        long = "prometheus-token-file",
        env = "PROMETHEUS_TOKEN_FILE",
        value_name = "FILE"
    )]
    token_file: Option<PathBuf>,
}

/// The Prometheus, after the check.
pub(super) struct PrometheusPlace {
    /// Client for its scheme.
    pub client: HttpClient,
    /// Address of questions, without user and password.
    pub endpoint: Uri,
    /// Base URL as it may be shown.
    pub shown: String,
    /// User and password as a header.
    pub authorization: Option<HeaderValue>,
    /// File with a token.
    pub token_file: Option<PathBuf>,
    /// Matchers that select the cell; may be empty.
    pub matchers: String,
}

impl PrometheusArgs {
    /// Checks the settings; `None` if no Prometheus is set.
    pub(super) fn check(&self, checker: &mut Checker) -> Option<PrometheusPlace> {
        let matchers = given(self.selector.as_deref());
        let token_file = self.token_file.clone().filter(|file| !file.as_os_str().is_empty());
        let Some(url) = given(self.url.as_deref()) else {
            if matchers.is_some() {
                checker.mistake("PROMETHEUS_SELECTOR", "needs PROMETHEUS_URL");
            }
            if token_file.is_some() {
                checker.mistake("PROMETHEUS_TOKEN_FILE", "needs PROMETHEUS_URL");
            }
            return None;
        };
        if let Some(Err(form)) = matchers.map(check_matchers) {
            checker.mistake("PROMETHEUS_SELECTOR", form);
        }
        let place = PrometheusPlace::parse(url);
        let place = place.map_err(|problem| checker.mistake("PROMETHEUS_URL", problem)).ok()?;
        if token_file.is_some() && place.authorization.is_some() {
            let problem = "set it, or a password in PROMETHEUS_URL, not both";
            checker.mistake("PROMETHEUS_TOKEN_FILE", problem);
        }
        let matchers = matchers.unwrap_or_default().to_owned();
        Some(PrometheusPlace { token_file, matchers, ..place })
    }
}

impl PrometheusPlace {
    /// Reads a base URL. The error never holds a password.
    fn parse(url: &str) -> Result<Self, String> {
        const FORM: &str =
            "must be a URL such as http://127.0.0.1:9090 or https://metrics.example/prometheus";
        if url.contains(['?', '#']) {
            return Err(format!("{FORM}, without ? and #; in a password, write %3F and %23"));
        }
        let uri: Uri = url.parse().map_err(|_| FORM)?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
        let scheme = scheme.ok_or(FORM)?;
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or(FORM)?;
        check_port(authority)?;
        let (user, host) = match authority.as_str().rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority.as_str()),
        };
        let authorization = user.map(basic).transpose()?;
        let shown = format!("{scheme}://{host}{}", uri.path().trim_end_matches('/'));
        let endpoint: Uri = format!("{shown}{QUERY_RANGE}").parse().map_err(|_| FORM)?;
        let client = HttpClient::for_uri(&endpoint, None).map_err(|failure| failure.to_string())?;
        let matchers = String::new();
        Ok(Self { client, endpoint, shown, authorization, token_file: None, matchers })
    }
}

/// Header of a user and password, both percent-encoded.
fn basic(user: &str) -> Result<HeaderValue, String> {
    if !user.contains(':') {
        return Err("must have a user and a password before the @, as in user:password@".to_owned());
    }
    let credentials: Vec<u8> = percent_decode_str(user).collect();
    let mut header = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(credentials)))
        .expect("BUG: base64 is good in a header");
    header.set_sensitive(true);
    Ok(header)
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
        prometheus: PrometheusArgs,
    }

    fn checked(flags: &[&str]) -> Result<Option<PrometheusPlace>, String> {
        let command = Command::parse_from([&["x"], flags].concat());
        let mut checker = Checker::default();
        let place = command.prometheus.check(&mut checker);
        checker.finish(place).map_err(|mistakes| mistakes.to_string())
    }

    fn mistakes(flags: &[&str]) -> String {
        checked(flags).err().unwrap_or_default()
    }

    #[test]
    fn a_password_goes_into_a_header_and_is_not_shown() {
        let url = "http://me:a%40b%3Ac@[::1]:9090/prometheus/";
        let flags = ["--prometheus-url", url, "--prometheus-selector", r#"cell="one""#];
        let place = checked(&flags).expect("no mistake").expect("it is set");
        assert_eq!(place.shown, "http://[::1]:9090/prometheus");
        assert_eq!(place.endpoint, "http://[::1]:9090/prometheus/api/v1/query_range");
        // "me:a@b:c"
        assert_eq!(place.authorization, Some(HeaderValue::from_static("Basic bWU6YUBiOmM=")));
        assert_eq!(place.matchers, r#"cell="one""#);
        assert!(checked(&[]).expect("no mistake").is_none());
        assert!(checked(&["--prometheus-url", ""]).expect("no mistake").is_none());
    }

    #[test]
    fn a_url_that_is_none_is_refused_without_its_password() {
        for url in [
            "prometheus:9090",
            "127.0.0.1:9090",
            "ftp://me:hush@a",
            "http://",
            "http://me:hush@",
            "http://me:hush@a:99999",
            "http://me:hush@a/?query=up",
            "http://me:hush@a/#graph",
            "http://hush@a",
            "http://me:hu sh@a",
        ] {
            let told = mistakes(&["--prometheus-url", url]);
            assert!(told.starts_with("PROMETHEUS_URL: "), "{url}: {told}");
            assert!(!told.contains("hush") && !told.contains("hu sh"), "{url}: {told}");
        }
    }

    #[test]
    fn what_belongs_to_a_prometheus_needs_one() {
        let told = mistakes(&["--prometheus-selector", "x", "--prometheus-token-file", "/x"]);
        assert!(told.contains("PROMETHEUS_SELECTOR: needs PROMETHEUS_URL"), "{told}");
        assert!(told.contains("PROMETHEUS_TOKEN_FILE: needs PROMETHEUS_URL"), "{told}");
        let url = ["--prometheus-url", "http://a"];
        let told = mistakes(&[&url[..], &["--prometheus-selector", "{a}"]].concat());
        assert!(told.contains("PROMETHEUS_SELECTOR: must be label matchers"), "{told}");
        let both = ["--prometheus-url", "http://me:x@a", "--prometheus-token-file", "/x"];
        assert!(mistakes(&both).contains("PROMETHEUS_TOKEN_FILE: set it, or"));
    }
}
