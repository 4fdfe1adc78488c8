//! Output of `dev`: the processes and their addresses, the result of the sample, and what to try
//! next.

use std::path::Path;

use http::{HeaderMap, header};

use super::plan::DevPlan;
use super::sample::{SampleOutcome, SampleResult};
use super::state::CellDirectory;
use crate::failure::Failure;
use crate::out::{line, table};
use crate::send::webhook::{Occasion, SampleWebhook};

/// Default of `send --url`.
const DEFAULT_URL: &str = "http://127.0.0.1:8080/webhooks";
/// Shell expression for a new id in each call, so that no call is a duplicate.
const NEW_UUID: &str = "$(cat /proc/sys/kernel/random/uuid)";

/// Prints each process with its address and log.
pub(super) fn what_runs(plan: &DevPlan) -> Result<(), Failure> {
    let row = |name: &str, at: String, log: &str| [name.to_owned(), at, log.to_owned()];
    let admin = |address| format!("admin http://{address}/readyz and /metrics");
    let mut rows = vec![
        row(
            "redis",
            "run/redis.sock, private, synced before each answer".to_owned(),
            "run/redis.log",
        ),
        row("receiver", plan.receiver_url(), "run/receiver.log"),
        row("", admin(plan.receiver_admin), ""),
        row(
            "downstreamer",
            format!("delivers to {}", shown_url(&plan.backend_url)),
            "run/downstreamer.log",
        ),
        row("", admin(plan.downstreamer_admin), ""),
    ];
    if let Some(address) = plan.demo_listen {
        rows.push(row("demo backend", format!("http://{address}, prints each delivery"), "here"));
    }
    if let Some(address) = plan.console_listen {
        rows.push(row("console", format!("http://{address}"), "run/console.log"));
    }
    line(table(&["RUNS", "WHERE", "LOG"], rows))?;
    Ok(line("")?)
}

/// Describes the result of the sample in a sentence.
pub(super) fn sample(result: &SampleResult) -> String {
    let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1000.0;
    let end = match &result.outcome {
        SampleOutcome::Seen => "delivered",
        SampleOutcome::Settled => "settled, with all before it,",
        SampleOutcome::Dead { .. } => "given up",
    };
    let answered = ms(result.answered);
    let ended = ms(result.ended);
    let mut text = format!(
        "The signed sample (request.json) was answered 200 after {answered:.1} ms and {end} after \
         {ended:.1} ms"
    );
    if let SampleOutcome::Dead { spillway_id, reason } = &result.outcome {
        text.push_str(&format!(
            ": the backend did not accept it. It is a dead letter ({reason}); see `spillway dead show \
             --env-file run/spillway.env {spillway_id}`"
        ));
    }
    text
}

/// Prints commands to try next.
pub(super) fn what_to_try(
    plan: &DevPlan,
    state: &CellDirectory,
    webhook: &SampleWebhook,
) -> Result<(), Failure> {
    let spillway = std::env::args().next().unwrap_or_else(|| "spillway".to_owned());
    let url = plan.receiver_url();
    line("\nSend it yourself (its time is good for 72 h, unless MAX_EVENT_AGE is set):\n")?;
    line(curl(&url, &state.path("request.json"), &webhook.headers(&Occasion::new())))?;
    let from_file = if plan.has_own_secret {
        " --env-file run/spillway.env"
    } else if Path::new(".env").is_file() {
        " --env-file .env"
    } else {
        ""
    };
    let to = if url == DEFAULT_URL { String::new() } else { format!(" --url {url}") };
    line(format_args!(
        "\nor any number of them:\n\n  {spillway} send --count 1000{from_file}{to}"
    ))?;
    line("\nLook inside:\n")?;
    for command in ["status", "dead list", "doctor"] {
        line(format_args!("  {spillway} {command} --env-file run/spillway.env"))?;
    }
    if let (Some(console), Some(_)) = (plan.console_listen, plan.demo_listen) {
        line(format_args!(
            "\nIn a browser: http://{console}. On http://{console}/demo, tell the demo backend to fail, send \
             webhooks,\nand see retries, lanes and dead letters; then let it work again, and replay them."
        ))?;
    }
    Ok(line("\nCtrl-C stops everything; what is stored stays in ./run.\n")?)
}

/// A curl command that posts the sample again.
fn curl(url: &str, body: &Path, headers: &HeaderMap) -> String {
    let mut text = format!("  curl -i {url} --data-binary '@{}'", body.display());
    for (name, value) in headers {
        if is_curls_own(name) || name == "x-shopify-event-id" {
            continue;
        }
        let spelt = as_shopify_spells(name.as_str());
        let value = String::from_utf8_lossy(value.as_bytes());
        if name == "x-shopify-webhook-id" {
            text.push_str(&format!(" \\\n    -H \"{spelt}: {NEW_UUID}\""));
        } else {
            text.push_str(&format!(" \\\n    -H '{spelt}: {value}'"));
        }
    }
    text
}

/// Spells `x-shopify-topic` as `X-Shopify-Topic`.
fn as_shopify_spells(name: &str) -> String {
    let capital = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    name.split('-').map(capital).collect::<Vec<_>>().join("-")
}

fn is_curls_own(name: &header::HeaderName) -> bool {
    [header::USER_AGENT, header::CONTENT_LENGTH, header::ACCEPT, header::ACCEPT_ENCODING]
        .contains(name)
}

/// Returns the URL without its user name and password.
fn shown_url(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?.1))) {
        Some((scheme, rest)) => format!("{scheme}://{rest}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curl_line_signs_and_names_the_sample() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("user-agent", "x"), ("x-shopify-hmac-sha256", "abc="), ("x-shopify-webhook-id", "1")]
        {
            headers.insert(name, value.parse().unwrap());
        }
        let expected = format!(
            "  curl -i http://a/w --data-binary '@/r.json' \\\n    -H 'X-Shopify-Hmac-Sha256: \
             abc=' \\\n    -H \"X-Shopify-Webhook-Id: {NEW_UUID}\""
        );
        assert_eq!(curl("http://a/w", Path::new("/r.json"), &headers), expected);
    }

    #[test]
    fn a_sample_that_the_backend_refused_is_told_as_a_dead_letter_with_its_status() {
        let ms = std::time::Duration::from_millis;
        let told = |outcome| sample(&SampleResult { answered: ms(2), ended: ms(9), outcome });
        let settled = told(SampleOutcome::Settled);
        assert!(
            settled.ends_with("200 after 2.0 ms and settled, with all before it, after 9.0 ms")
        );
        let reason = "status 422".to_owned();
        let dead = told(SampleOutcome::Dead { spillway_id: "id".to_owned(), reason });
        assert!(dead.contains("is a dead letter (status 422)"), "{dead}");
        assert!(!dead.contains("settled") && !dead.contains("delivered"), "{dead}");
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(shown_url("http://u:p@h:1/x"), "http://h:1/x");
        assert_eq!(shown_url("http://h:1"), "http://h:1");
    }
}
