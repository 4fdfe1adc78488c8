//! Writes the results of the attacks to the directory of the other results.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use stories::binaries::{are_released, repository};
use stories::hostile::attack::Attack;

use super::trial::{GROWTH_MAX, Round, Stretch, Trial};

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}

fn row(trial: &Trial) -> String {
    let heard: Vec<_> =
        trial.heard.iter().map(|(status, count)| format!("{count} × {status}")).collect();
    let (before, most) = trial.memory_bytes;
    format!(
        "| {:?} | {} | {:.2} ms | {:.2} ms | **{:.2}** | {:.2} | {:.2} | {:.2} | {:.0} → {:.0} % | {} MiB | {} MiB | {} |\n",
        trial.attack,
        trial.strangers,
        milliseconds(trial.calm()),
        milliseconds(trial.attacked()),
        trial.growth(),
        trial.growth_elsewhere(),
        trial.own_growth(),
        trial.noise(),
        100.0 * trial.cpu(|round| round.calm),
        100.0 * trial.cpu(|round| round.attack),
        before >> 20,
        most >> 20,
        if heard.is_empty() { "nothing".to_owned() } else { heard.join(", ") },
    )
}

fn value(trial: &Trial) -> Value {
    let all = |of: fn(&Round) -> Option<Stretch>| -> Vec<_> {
        let stretches = trial.rounds.iter().filter_map(of);
        let one = |stretch: Stretch| {
            json!({
                "p50_ms": milliseconds(stretch.p50),
                "p99_ms": milliseconds(stretch.p99),
                "good": stretch.good,
                "receiver_cores": (stretch.cpu * 1000.0).round() / 1000.0,
            })
        };
        stretches.map(one).collect()
    };
    json!({
        "attack": format!("{:?}", trial.attack),
        "strangers": trial.strangers,
        "calm": all(|round| Some(round.calm)),
        "receiver_attacked": all(|round| Some(round.attack)),
        "calm_again": all(|round| Some(round.elsewhere?[0])),
        "bare_server_attacked": all(|round| Some(round.elsewhere?[1])),
        "p99_ratio": trial.growth(),
        "p99_ratio_bare_server_attacked": trial.growth_elsewhere(),
        "p99_ratio_own": trial.own_growth(),
        "p99_ratio_calm_to_calm": trial.noise(),
        "memory_bytes_before": trial.memory_bytes.0,
        "memory_bytes_most": trial.memory_bytes.1,
        "memory_bytes_bound": trial.memory_bytes.0 + trial.memory_bytes_max(),
        "statuses": trial.heard.iter().map(|(status, count)| (status.to_string(), json!(count)))
            .collect::<serde_json::Map<_, _>>(),
    })
}

fn heading(trials: &[Trial], good: usize) -> String {
    let build = if are_released() { "release" } else { "debug" };
    let rounds = trials.first().map_or(0, |trial| trial.rounds.len());
    let place = if std::env::temp_dir().starts_with("/dev/shm") {
        "The queue lies in memory, where a sync costs nothing: on a shared disk a single slow one decides a p99, \
         by more than any attack does. So p99 in calm is about half of what it is with a disk, and a fifth of it \
         is as much less."
    } else {
        "The queue lies on a disk, with a sync before each answer."
    };
    format!(
        "# Good webhooks under attack\n\n`make hostile`, {build} builds: 500 good webhooks a second over 32 \
         connections, {good} in all, each answered 200; beside them, one attack after the other.\n\n\
         - In each of {rounds} rounds: calm, the attack on the receiver, calm, the same attack on the bare server \
         of `make bench`, each watched for a second once the attack is in full swing. p99 is the good ones', the \
         median over the rounds.\n\
         - **ratio**: p99 under attack to p99 in calm. *Bare server*: p99 while that one is attacked in the \
         receiver's stead, to p99 in calm. No good webhook goes through it, so this is what the strangers, the \
         kernel and any server at all cost these cores. *Own*: p99 under attack to the higher of the other two: \
         what the receiver itself adds. *Calm*: the one half of the calm to the other, so what the figures vary \
         by themselves, as does the row Nothing.\n\
         - *CPU* is the receiver's own, of one core, in calm and under attack.\n\
         - The strangers run on the same cores, in the class SCHED_IDLE; each writes 16 KiB a millisecond at \
         most. As many connections as RLIMIT_NOFILE allows, 10,000 at most; idle ones are all there before it \
         counts. The bare server has no time-outs, so slow ones never have to come back to it.\n\
         - {place}\n\n\
         | attack | connections | p99 in calm | p99 under it | ratio | bare server | own | calm | CPU | memory \
         before | at most | answers |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    )
}

/// Sentence about the attacks that stayed within the limit, and those that exceeded it.
fn verdict(trials: &[Trial]) -> String {
    let attacks: Vec<_> = trials.iter().filter(|trial| trial.attack != Attack::Nothing).collect();
    let held = |what: &str, ratio: fn(&Trial) -> f64| {
        let beyond = attacks.iter().filter(|trial| ratio(trial) > GROWTH_MAX);
        let beyond: Vec<_> =
            beyond.map(|trial| format!("{:?} ({:.2})", trial.attack, ratio(trial))).collect();
        let within = attacks.len() - beyond.len();
        let rest =
            if beyond.is_empty() { String::new() } else { format!(", but {}", beyond.join(", ")) };
        format!("- {what} within {GROWTH_MAX}: {within} of {}{rest}.\n", attacks.len())
    };
    format!(
        "\n{}{}\n`make hostile` fails where the ratio is beyond; the receiver's own says whose doing that is.\n",
        held("The ratio is", Trial::growth),
        held("The receiver's own is", Trial::own_growth),
    )
}

/// Writes `hostile.md` and `hostile.json` into the directory named by `RESULTS`.
pub(crate) fn write(trials: &[Trial], good: usize) {
    let mut page = heading(trials, good);
    for trial in trials {
        page.write_str(&row(trial)).expect("a string");
    }
    page += &verdict(trials);
    let trials: Vec<_> = trials.iter().map(value).collect();
    let all = json!({ "command": "make hostile", "good_webhooks": good, "attacks": trials });
    let directory = std::env::var_os("RESULTS").expect("RESULTS: where results are written");
    let directory = repository().join(directory);
    fs::write(directory.join("hostile.md"), page).expect("write the result");
    let json = serde_json::to_string_pretty(&all).expect("numbers and text");
    fs::write(directory.join("hostile.json"), json + "\n").expect("write the result");
}
