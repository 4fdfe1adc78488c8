//! `spillway status --watch`: prints the status repeatedly, with the changes in between.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use spillway_process::settings::parse_duration;
use spillway_queue::status::{CellStatus, ConsumerStatus, read};
use spillway_webhook::freshness::rfc3339;

use super::text;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{float, line, now_ms};
use crate::place::CellArgs;

/// Moves the terminal's cursor to the top left and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Parses an interval. A minimum keeps the load of watching low.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(every) if every >= Duration::from_millis(100) => Ok(every),
        Ok(_) => Err("must be 100ms or more".to_owned()),
        Err(problem) => Err(problem),
    }
}

/// Prints until interrupted. If Redis goes away meanwhile, it prints the error and tries again.
pub(super) async fn run(
    place: &CellArgs,
    every: Duration,
    output: OutputArgs,
) -> Result<ExitCode, Failure> {
    let (redis, connection) = place.connect().await?;
    let mut connection = Some(connection);
    let mut before: Option<(Instant, CellStatus)> = None;
    loop {
        let looked = match &mut connection {
            Some(connection) => read(&redis, connection).await.map_err(Failure::from),
            None => place
                .connect()
                .await
                .map(|(_, fresh)| connection = Some(fresh))
                .and(Err(Failure::Failed("redis answers again".to_owned()))),
        };
        match looked {
            Ok(status) => {
                let at = Instant::now();
                let rates = Rates::between(before.as_ref(), at, &status);
                show(&status, &rates, output)?;
                before = Some((at, status));
            }
            Err(failure) => {
                connection = None;
                eprintln!("spillway: {failure}");
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Events per second between two looks.
#[derive(Debug, PartialEq)]
struct Rates {
    accepted: f64,
    /// Settled webhooks per second, by consumer.
    settled: Vec<(String, f64)>,
}

impl Rates {
    /// Computes the rates. All are zero if there was no look before.
    fn between(before: Option<&(Instant, CellStatus)>, at: Instant, now: &CellStatus) -> Self {
        let seconds = before.map_or(0.0, |(then, _)| at.duration_since(*then).as_secs_f64());
        let per_second = |more: u64| if seconds > 0.0 { float(more) / seconds } else { 0.0 };
        let since = |then: u64, now: u64| per_second(now.saturating_sub(then));
        let accepted =
            before.map_or(0.0, |(_, then)| since(then.queue.accepted, now.queue.accepted));
        let settled = now.consumers.iter().map(|consumer| {
            let then = before.and_then(|(_, then)| find(then, &consumer.name));
            (consumer.name.clone(), then.map_or(0.0, |then| since(then.settled, consumer.settled)))
        });
        Self { accepted, settled: settled.collect() }
    }
}

fn find<'a>(status: &'a CellStatus, name: &str) -> Option<&'a ConsumerStatus> {
    status.consumers.iter().find(|consumer| consumer.name == name)
}

fn show(status: &CellStatus, rates: &Rates, output: OutputArgs) -> Result<(), Failure> {
    if output.is_json() {
        let settled: serde_json::Map<_, _> =
            rates.settled.iter().map(|(name, rate)| (name.clone(), json!(rate))).collect();
        let mut object = json!(status);
        object["at"] = rfc3339(now_ms()).into();
        object["per_second"] = json!({ "accepted": rates.accepted, "settled": settled });
        return Ok(line(object)?);
    }
    let settled = rates.settled.iter().map(|(name, rate)| format!(", {name} settles {rate:.0}/s"));
    let rates = format!("{:.0}/s accepted{}", rates.accepted, settled.collect::<String>());
    let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
    Ok(line(format_args!("{clear}{}  {rates}\n\n{}\n", rfc3339(now_ms()), text(status, output)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_was_counted_in_between() {
        let status = |accepted, settled| {
            let mut status = CellStatus::default();
            status.queue.accepted = accepted;
            let name = "http".to_owned();
            status.consumers.push(ConsumerStatus { name, settled, ..ConsumerStatus::default() });
            status
        };
        let began = Instant::now();
        let then = status(100, 40);
        let now = status(300, 50);
        let at = began + Duration::from_secs(2);
        let rates = Rates::between(Some(&(began, then)), at, &now);
        assert_eq!(rates, Rates { accepted: 100.0, settled: vec![("http".to_owned(), 5.0)] });
        assert_eq!(Rates::between(None, at, &now).accepted, 0.0);
    }
}
