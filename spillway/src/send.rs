//! `spillway send`: posts signed webhooks, as Shopify would.

pub(crate) mod many;
pub(crate) mod webhook;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use http::Uri;
use spillway_process::settings::check_port;

use crate::failure::Failure;
use crate::http::HttpClient;
use crate::out::{line, printable};
use crate::secret::SecretArguments;
use webhook::{SAMPLE, SAMPLE_EVENT, SampleWebhook};

/// File that is read if none is named and it exists.
const DEFAULT_FILE: &str = "request.json";
/// The same for an Event.
const DEFAULT_EVENT_FILE: &str = "request-events.json";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Body of the webhook; '-' is standard input. Default: ./request.json, else a built-in product
    file: Option<PathBuf>,

    /// Topic of a classic webhook; not with --events
    #[arg(short, long, default_value = "products/update", conflicts_with = "events")]
    topic: String,

    /// Send an Event, with the topic, action and handle of its body. Default: ./request-events.json,
    /// else a built-in product
    #[arg(long)]
    events: bool,

    /// Shop domain
    #[arg(short, long, default_value = "example.myshopify.com")]
    shop: String,

    #[command(flatten)]
    secret: SecretArguments,

    /// URL to post to
    #[arg(long, default_value = "http://127.0.0.1:8080/webhooks")]
    url: String,

    /// Number of webhooks, each with new ids and a new time
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,

    /// Number per second; default: as fast as they are answered
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

/// Posts the webhooks. The exit code is 0 if all were answered 200, else 1.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let secrets = arguments.secret.checked()?;
    let uri = target(&arguments.url)?;
    let shop = &arguments.shop;
    let file = arguments.file.as_deref();
    let webhook = if arguments.events {
        SampleWebhook::event(shop, read_body(file, DEFAULT_EVENT_FILE, SAMPLE_EVENT)?, &secrets)?
    } else {
        let body = read_body(file, DEFAULT_FILE, SAMPLE)?;
        SampleWebhook::classic(&arguments.topic, shop, body, &secrets)?
    };
    let client = HttpClient::for_uri(&uri, None)?;
    let all_stored = if arguments.count == 1 {
        one(&client, &uri, &webhook).await?
    } else {
        many::run(&client, &uri, &webhook, arguments.count, arguments.rate).await?
    };
    Ok(if all_stored { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn one(client: &HttpClient, uri: &Uri, webhook: &SampleWebhook) -> Result<bool, Failure> {
    let answer = client.send(webhook.request(uri)).await;
    let answer = answer.map_err(|error| Failure::Failed(unanswered(uri, &error)))?;
    line(answer.status)?;
    if !answer.body.is_empty() {
        line(printable(&answer.body).trim_end())?;
    }
    Ok(answer.status == http::StatusCode::OK)
}

/// Message for a request without an answer.
fn unanswered(uri: &Uri, error: &str) -> String {
    let place = uri.authority().map_or("", |authority| authority.as_str());
    let place = place.rsplit('@').next().unwrap_or(place);
    format!("{uri}: {error}; is the receiver running at {place}?")
}

fn target(url: &str) -> Result<Uri, Failure> {
    let uri: Option<Uri> = url.parse().ok();
    let is_whole = |uri: &Uri| {
        uri.authority().is_some_and(|authority| check_port(authority).is_ok())
            && matches!(uri.scheme_str(), Some("http" | "https"))
    };
    let wrong = || Failure::Usage(format!("--url {url:?} is not like http://127.0.0.1:8080/path"));
    uri.filter(is_whole).ok_or_else(wrong)
}

/// Reads `file`, else `usual` if it exists. Otherwise the body is `sample`.
fn read_body(
    file: Option<&Path>,
    usual: &'static str,
    sample: &'static str,
) -> Result<Bytes, Failure> {
    let file = match file {
        Some(file) => file,
        None if Path::new(usual).is_file() => Path::new(usual),
        None => return Ok(Bytes::from_static(sample.as_bytes())),
    };
    let read = if file == Path::new("-") {
        let mut body = Vec::new();
        std::io::stdin().read_to_end(&mut body).map(|_| body)
    } else {
        std::fs::read(file)
    };
    let unreadable = |error| Failure::Failed(format!("cannot read {}: {error}", file.display()));
    read.map(Bytes::from).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_whole() {
        for good in ["http://127.0.0.1:8080/webhooks", "https://x.example", "http://[::1]:1/?a"] {
            assert!(target(good).is_ok(), "{good}");
        }
        for bad in ["", "/webhooks", "127.0.0.1:8080", "ftp://x/", "http://", "http://a:99999/"] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }
}
