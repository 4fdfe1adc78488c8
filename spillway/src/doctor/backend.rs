//! Checks that the backend can be reached and, with `--probe`, that it accepts a webhook.

use std::time::Duration;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderValue, Uri, header};
use spillway_process::settings::check_port;
use tokio::net::TcpStream;

use super::finding::Finding;
use crate::failure::Failure;
use crate::http::HttpClient;
use crate::secret::SecretArguments;
use crate::send::webhook::{SAMPLE, SAMPLE_EVENT, SampleWebhook};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Settings of the backend, as the downstreamer has them.
#[derive(Debug, clap::Args)]
pub(super) struct BackendArguments {
    /// Base URL of the backend, as in the downstreamer's settings
    #[arg(long, env = "DOWNSTREAM_APP_URL", value_name = "URL", hide_env_values = true)]
    downstream_app_url: Option<String>,

    /// Host and TLS name, as in the downstreamer's settings
    #[arg(long, env = "DOWNSTREAM_HOST", value_name = "HOST")]
    downstream_host: Option<String>,

    /// Post a signed test product (products/update of example.myshopify.com) to this path of the
    /// backend; needs the client secret
    #[arg(long, value_name = "PATH")]
    probe: Option<String>,

    /// With --probe: post an Event (Product/update) in place of a classic webhook
    #[arg(long, requires = "probe")]
    probe_events: bool,
}

/// Checks the backend.
pub(super) async fn examine(
    arguments: &BackendArguments,
    secret: &SecretArguments,
) -> Result<Vec<Finding>, Failure> {
    let Some(url) = &arguments.downstream_app_url else {
        if arguments.probe.is_some() {
            return Err(Failure::Usage("--probe needs DOWNSTREAM_APP_URL".to_owned()));
        }
        let fix = "set DOWNSTREAM_APP_URL here as for the downstreamer";
        return Ok(vec![Finding::warning("the backend was not checked", fix)]);
    };
    if url.starts_with("discard:") {
        return Ok(vec![Finding::ok("the backend is discard: everything is counted and dropped")]);
    }
    let Some(base) = url.parse().ok().filter(|uri: &Uri| uri.scheme().is_some()) else {
        let fix = "it is of the form https://app.example or http://127.0.0.1:3000";
        return Ok(vec![Finding::problem("DOWNSTREAM_APP_URL is not a base URL", fix)]);
    };
    if let Some(Err(form)) = base.authority().map(check_port) {
        let fix = format!("it {form}; without one it is 80, or 443 with https");
        return Ok(vec![Finding::problem("DOWNSTREAM_APP_URL has a port that is none", fix)]);
    }
    let host = arguments.downstream_host.as_deref();
    let named = host.map(|host| host.parse::<Authority>().ok());
    if named.is_some_and(|named| named.is_none_or(|named| check_port(&named).is_err())) {
        let fix = "it is a host name such as app.example, with a port from 1 to 65535 if need be";
        return Ok(vec![Finding::problem("DOWNSTREAM_HOST is not a host", fix)]);
    }
    let mut findings = vec![reach(&base).await];
    if let Some(path) = &arguments.probe {
        let webhook = test_product(arguments.probe_events, secret)?;
        findings.push(probe(&base, path, host, &webhook).await?);
    }
    Ok(findings)
}

async fn reach(base: &Uri) -> Finding {
    let host = base.host().unwrap_or_default();
    let is_tls = base.scheme_str() == Some("https");
    let port = base.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let address = (host.trim_matches(['[', ']']), port);
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let error = match connected {
        Ok(Ok(_)) => return Finding::ok(format!("the backend at {host}:{port} can be reached")),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
    };
    let fix = "start it, or fix DOWNSTREAM_APP_URL; until then webhooks wait in the queue";
    Finding::problem(format!("the backend at {host}:{port} cannot be reached: {error}"), fix)
}

fn test_product(is_event: bool, secret: &SecretArguments) -> Result<SampleWebhook, Failure> {
    const SHOP: &str = "example.myshopify.com";
    let secrets = secret.checked()?;
    if is_event {
        return SampleWebhook::event(SHOP, Bytes::from_static(SAMPLE_EVENT.as_bytes()), &secrets);
    }
    let body = Bytes::from_static(SAMPLE.as_bytes());
    SampleWebhook::classic("products/update", SHOP, body, &secrets)
}

async fn probe(
    base: &Uri,
    path: &str,
    host: Option<&str>,
    webhook: &SampleWebhook,
) -> Result<Finding, Failure> {
    let target = joined(base, path).ok_or_else(|| {
        Failure::Usage(format!("--probe {path:?} is not a path such as /webhooks"))
    })?;
    let mut request = webhook.request(&target);
    if let Some(host) = host {
        let host = HeaderValue::from_str(host);
        let host = host.map_err(|_| Failure::Usage("DOWNSTREAM_HOST is not a host".to_owned()))?;
        request.headers_mut().insert(header::HOST, host);
    }
    let client = HttpClient::for_uri(&target, host)?;
    let status = async |request| client.send(request).await.map(|answer| answer.status.as_u16());
    let first = status(request.clone()).await;
    if !matches!(first, Ok(300..=399)) {
        return Ok(match first {
            Ok(status) => judged(status),
            Err(error) => unanswered(&error),
        });
    }
    // Most likely the backend requires TLS and trusts the header of the proxy in front of it.
    request.headers_mut().insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    let second = status(request).await;
    Ok(match second {
        Ok(status @ 200..=299) => Finding::warning(
            format!(
                "the backend answered the probe {status}, and redirects where it is not told \
                     X-Forwarded-Proto: https"
            ),
            "let the proxy in front of the receiver set it, as ops/nginx/spillway.conf does",
        ),
        Ok(status) => judged(status),
        Err(error) => unanswered(&error),
    })
}

fn unanswered(error: &str) -> Finding {
    Finding::problem(format!("the probe got no answer: {error}"), "look at the backend's log")
}

fn joined(base: &Uri, path: &str) -> Option<Uri> {
    if !path.starts_with('/') {
        return None;
    }
    let scheme = base.scheme_str()?;
    let authority = base.authority()?;
    let before = base.path().trim_end_matches('/');
    format!("{scheme}://{authority}{before}{path}").parse().ok()
}

fn judged(status: u16) -> Finding {
    let what = format!("the backend answered the probe {status}");
    match status {
        200..=299 => Finding::ok(what),
        401 | 403 => Finding::problem(
            what,
            "give both the same SHOPIFY_CLIENT_SECRET; the backend verifies the raw body",
        ),
        300..=399 => Finding::problem(
            what,
            "no redirect is followed; let the backend take it where it is posted to",
        ),
        404 | 405 => Finding::problem(what, "probe the path that Shopify posts to"),
        408 | 425 | 429 | 500..=599 => {
            Finding::problem(what, "look at the backend's log; such webhooks are retried")
        }
        _ => Finding::problem(what, "the backend refuses it: such webhooks end as dead letters"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn the_path_is_appended_to_the_base() {
        let join = |base: &str, path| joined(&base.parse().unwrap(), path).map(|u| u.to_string());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(join("http://a:1", "/w"), some("http://a:1/w"));
        assert_eq!(join("https://a/base/", "/w?x=1"), some("https://a/base/w?x=1"));
        assert_eq!(join("https://a", "w"), None);
    }

    #[test]
    fn only_a_success_is_ok() {
        for (status, level) in [(200, Severity::Ok), (204, Severity::Ok), (302, Severity::Problem)]
        {
            assert_eq!(judged(status).level, level);
        }
        assert!(judged(401).fix.contains("SHOPIFY_CLIENT_SECRET"));
    }
}
