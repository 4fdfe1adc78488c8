//! Writes what came of the attacks where the other results are.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use stories::binaries::repository;
use stories::measure::percentile;

use crate::trial::Trial;

/// The medians of all rounds, in calm and under attack.
fn medians(trial: &Trial) -> (Duration, Duration) {
    let (calm, storm): (Vec<_>, Vec<_>) = trial.p99.iter().copied().unzip();
    (percentile(&calm, 0.5), percentile(&storm, 0.5))
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}

fn row(trial: &Trial) -> String {
    let (calm, storm) = medians(trial);
    let heard: Vec<_> =
        trial.heard.iter().map(|(status, count)| format!("{count} × {status}")).collect();
    let (before, most) = trial.memory_bytes;
    format!(
        "| {:?} | {} | {} | {:.2} ms | {:.2} ms | {:.2} | {} MiB | {} MiB | {} |\n",
        trial.attack,
        trial.strangers,
        trial.good,
        milliseconds(calm),
        milliseconds(storm),
        trial.growth(),
        before >> 20,
        most >> 20,
        if heard.is_empty() { "nothing".to_owned() } else { heard.join(", ") },
    )
}

fn value(trial: &Trial) -> Value {
    let rounds: Vec<_> =
        trial.p99.iter().map(|(calm, storm)| [milliseconds(*calm), milliseconds(*storm)]).collect();
    json!({
        "attack": format!("{:?}", trial.attack),
        "strangers": trial.strangers,
        "good_sent_meanwhile": trial.good,
        "p99_ms_calm_and_attack": rounds,
        "p99_ratio_median": trial.growth(),
        "memory_bytes_before": trial.memory_bytes.0,
        "memory_bytes_most": trial.memory_bytes.1,
        "memory_bytes_bound": trial.memory_bytes.0 + trial.memory_bytes_max(),
        "statuses": trial.heard.iter().map(|(status, count)| (status.to_string(), json!(count)))
            .collect::<serde_json::Map<_, _>>(),
    })
}

/// Writes `hostile.md` and `hostile.json` into the directory that `RESULTS` names.
pub fn write(trials: &[Trial], good: usize) {
    let mut page = format!(
        "# Good webhooks under attack\n\n`make hostile`: 500 good webhooks a second over 32 connections, \
         {good} in all, each answered 200; beside them, one attack after the other, {} rounds each of calm \
         and attack in turn. The ratio is the median over the rounds. The strangers run on the same cores, at \
         the lowest priority. As many connections as RLIMIT_NOFILE allows, 10,000 at most.\n\n\
         | attack | connections | good ones meanwhile | p99 in calm | p99 under it | ratio | memory before | \
         at most | answers |\n|---|---|---|---|---|---|---|---|---|\n",
        trials.first().map_or(0, |trial| trial.p99.len()),
    );
    for trial in trials {
        page.write_str(&row(trial)).expect("a string");
    }
    let trials: Vec<_> = trials.iter().map(value).collect();
    let all = json!({ "command": "make hostile", "good_webhooks": good, "attacks": trials });
    let directory = std::env::var_os("RESULTS").expect("RESULTS: where results are written");
    let directory = repository().join(directory);
    fs::write(directory.join("hostile.md"), page).expect("write the result");
    let json = serde_json::to_string_pretty(&all).expect("numbers and text");
    fs::write(directory.join("hostile.json"), json + "\n").expect("write the result");
}
