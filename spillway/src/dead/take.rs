//! `spillway dead replay` and `drop`: takes dead letters away, in the order they were accepted, a
//! small batch at a time, so that no step holds Redis for long and stopping half-way is safe.

use std::time::{Duration, Instant};

use clap::Args;
use spillway_queue::dead::{Take, take};
use spillway_queue::{Connection, Redis};
use spillway_webhook::{StreamId, WebhookId};

use super::filter::{Filter, WrittenFilter};
use super::walk::Walk;
use crate::consent::Consent;
use crate::failure::Failure;
use crate::out::{Progress, count, line};
use crate::place::Place;

/// Letters moved by one script: at 5 KB each about as many bytes as a pack has.
const BATCH: usize = 64;
/// Said where there is nothing to take.
pub const NOTHING: &str = "no dead letter matches";

/// Of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArguments {
    #[command(flatten)]
    filter: WrittenFilter,
    /// Without a filter: all of them
    #[arg(long)]
    all: bool,
    /// How many a second; default: as fast as they are taken
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Only say how many there are
    #[arg(long)]
    dry_run: bool,
}

/// Of `drop`.
#[derive(Debug, Args)]
pub struct DropArguments {
    #[command(flatten)]
    filter: WrittenFilter,
    #[command(flatten)]
    consent: Consent,
}

/// What is to be taken, in the order accepted.
#[derive(Debug, Default)]
struct Found {
    letters: Vec<(WebhookId, StreamId)>,
    compliance_kept: u64,
}

/// Has what matches delivered again.
pub async fn replay(place: &Place, drain: &str, arguments: ReplayArguments) -> Result<(), Failure> {
    let filter = some_filter(arguments.filter, arguments.all)?;
    let (redis, mut connection) = place.connect().await?;
    let found = find(&redis, &mut connection, drain, &filter, |_| false).await?;
    let number = found.letters.len() as u64;
    if number == 0 {
        return Ok(line(NOTHING)?);
    }
    if arguments.dry_run {
        return Ok(line(format_args!("{} would be replayed", count(number, "dead letter")))?);
    }
    let mut work = Work { redis, connection, drain, how: Take::Replay, rate: arguments.rate };
    let taken = work.take(&found.letters, "replayed").await?;
    told("replayed", taken, number)
}

/// Drops what matches.
pub async fn drop(place: &Place, drain: &str, arguments: DropArguments) -> Result<(), Failure> {
    let DropArguments { filter, consent } = arguments;
    let filter = some_filter(filter, consent.all)?;
    let (redis, mut connection) = place.connect().await?;
    let keeps = |topic: &str| consent.keeps(topic);
    let found = find(&redis, &mut connection, drain, &filter, keeps).await?;
    let number = found.letters.len() as u64;
    consent.tell_kept(found.compliance_kept, "dead letter");
    if number == 0 {
        return Ok(line(NOTHING)?);
    }
    consent.given(number, "dead letter", drain)?;
    let mut work = Work { redis, connection, drain, how: Take::Drop, rate: None };
    let taken = work.take(&found.letters, "dropped").await?;
    told("dropped", taken, number)
}

/// A filter, or the express wish for everything.
fn some_filter(filter: WrittenFilter, all: bool) -> Result<Filter, Failure> {
    let filter = filter.checked()?;
    if filter.is_empty() && !all {
        return Err(Failure::Usage(
            "give an id or a filter (--shop, --topic, --resource, --webhook-id, --since, --until), \
             or --all"
                .to_owned(),
        ));
    }
    Ok(filter)
}

async fn find(
    redis: &Redis,
    connection: &mut Connection,
    drain: &str,
    filter: &Filter,
    keeps: impl Fn(&str) -> bool,
) -> Result<Found, Failure> {
    let mut found = Found::default();
    let mut walk = Walk::new(redis, connection, drain);
    while let Some(page) = walk.next(filter).await? {
        for letter in page {
            if keeps(&letter.topic) {
                found.compliance_kept += 1;
            } else {
                found.letters.push((letter.webhook, letter.id));
            }
        }
    }
    // A letter that died late may have been accepted early: ids sort in accepted order.
    found.letters.sort_unstable();
    Ok(found)
}

struct Work<'a> {
    redis: Redis,
    connection: Connection,
    drain: &'a str,
    how: Take,
    rate: Option<u32>,
}

impl Work<'_> {
    async fn take(
        &mut self,
        letters: &[(WebhookId, StreamId)],
        verb: &str,
    ) -> Result<u64, Failure> {
        let started = Instant::now();
        let mut progress = Progress::new();
        let (mut taken, mut done) = (0, 0usize);
        for batch in letters.chunks(batch_size(self.rate)) {
            if let Some(rate) = self.rate {
                let due = started + Duration::from_secs_f64(done as f64 / f64::from(rate));
                tokio::time::sleep_until(due.into()).await;
            }
            let ids: Vec<StreamId> = batch.iter().map(|(_, id)| *id).collect();
            taken += take(&self.redis, &mut self.connection, self.drain, self.how, &ids).await?;
            done += batch.len();
            progress.tell(|| format!("{verb} {done} of {}", letters.len()));
        }
        Ok(taken)
    }
}

/// At a low rate in smaller batches, ten a second, so that it is a rate and not a row of bursts.
fn batch_size(rate: Option<u32>) -> usize {
    rate.map_or(BATCH, |rate| (rate as usize / 10).clamp(1, BATCH))
}

fn told(verb: &str, taken: u64, wanted: u64) -> Result<(), Failure> {
    let gone = match wanted.saturating_sub(taken) {
        0 => String::new(),
        gone => format!("; {gone} were gone already"),
    };
    Ok(line(format_args!("{verb} {}{gone}", count(taken, "dead letter")))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_follow_the_rate() {
        for (rate, expected) in [(None, 64), (Some(1), 1), (Some(100), 10), (Some(100_000), 64)] {
            assert_eq!(batch_size(rate), expected, "{rate:?}");
        }
    }
}
