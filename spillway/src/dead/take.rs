//! `spillway dead replay` and `drop`: remove dead letters in the order in which they were accepted.
//! Each step takes a small batch, so no step blocks Redis for long and an interrupted command
//! leaves a consistent state.

use std::time::{Duration, Instant};

use clap::Args;
use spillway_queue::audit::AuditEnd;
use spillway_queue::dead::{Take, take};
use spillway_webhook::fingerprint::SetDigest;
use spillway_webhook::{StreamId, WebhookId};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::absent;
use super::filter::{DeadFilter, WrittenFilter, told_ids};
use super::walk::Walk;
use crate::audited::{Actor, ChangeCount, ChangeOrder, audited};
use crate::consent::{Confirmation, Consent, dry_run};
use crate::failure::Failure;
use crate::filter::FILTERS;
use crate::interruption::Interruption;
use crate::out::{Progress, count, float, line};
use crate::place::CellArgs;

/// Dead letters that one script moves. At 5 KB each they have about the size of a pack.
const BATCH: usize = 64;

#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    #[command(flatten)]
    filter: WrittenFilter,
    /// Replay all of them if no filter is given
    #[arg(long)]
    all: bool,
    /// Number per second; default: as fast as they are taken
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    #[command(flatten)]
    confirmation: Confirmation,
}

#[derive(Debug, Args)]
pub(super) struct DropArguments {
    #[command(flatten)]
    filter: WrittenFilter,
    #[command(flatten)]
    consent: Consent,
}

/// Dead letters to take, in the order in which they were accepted.
#[derive(Debug, Default)]
pub(crate) struct FoundLetters {
    letters: Vec<(WebhookId, StreamId)>,
    /// Dead letters that match, and are kept because of their topic.
    pub compliance_kept: u64,
    /// Ids that were chosen, and that no dead letter has that matches.
    missing: usize,
}

/// Order to take dead letters away.
#[derive(Debug, Clone)]
pub(crate) struct TakeOrder {
    /// Consumer whose dead letters they are.
    pub consumer: String,
    /// Action on them.
    pub how: Take,
    /// Dead letters that are meant, in words.
    pub filter: String,
    /// Number per second; `None`: as fast as they are taken.
    pub rate: Option<u32>,
    /// Cancelled to stop between two batches.
    pub stop: CancellationToken,
}

/// Dead letters that were taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TakenLetters {
    /// Number of those that were still there.
    pub taken: u64,
    /// Number that was left because the work was stopped.
    pub left: u64,
}

/// Queues the matching dead letters for delivery again.
pub(super) async fn replay(
    place: &CellArgs,
    consumer: &str,
    arguments: ReplayArguments,
) -> Result<(), Failure> {
    let filter = some_filter(arguments.filter, arguments.all)?;
    let found = count_letters(place, consumer, &filter, |_| false, |_| Ok(())).await?;
    let number = found.number();
    if number == 0 {
        if !filter.ids().is_empty() {
            return Err(absent(consumer, &told_ids(filter.ids())));
        }
        return Ok(line(filter.nothing())?);
    }
    found.tell_missing();
    if !arguments.confirmation.yes {
        let effect = format!("{} would be replayed", count(number, "dead letter"));
        return Ok(line(dry_run(&effect, "replay them"))?);
    }
    let order = TakeOrder {
        consumer: consumer.to_owned(),
        how: Take::Replay,
        filter: filter.to_string(),
        rate: arguments.rate,
        stop: CancellationToken::new(),
    };
    take_and_tell(place, order, &found, "replayed").await
}

/// Drops the matching dead letters.
pub(super) async fn drop(
    place: &CellArgs,
    consumer: &str,
    arguments: DropArguments,
) -> Result<(), Failure> {
    let DropArguments { filter, consent } = arguments;
    let filter = some_filter(filter, consent.all)?;
    let found =
        count_letters(place, consumer, &filter, |topic| consent.keeps(topic), |_| Ok(())).await?;
    let number = found.number();
    consent.tell_kept(found.compliance_kept, "dead letter");
    found.tell_missing();
    if number == 0 {
        let is_one_kept = found.compliance_kept > 0;
        let text = if is_one_kept { "no other dead letter matches" } else { filter.nothing() };
        return Ok(line(text)?);
    }
    if !consent.confirmation.yes {
        let number = count(number, "dead letter");
        let effect = format!("{number} would be dropped for {consumer}, for good");
        return Ok(line(dry_run(&effect, "drop them"))?);
    }
    let order = TakeOrder {
        consumer: consumer.to_owned(),
        how: Take::Drop,
        filter: filter.to_string(),
        rate: None,
        stop: CancellationToken::new(),
    };
    take_and_tell(place, order, &found, "dropped").await
}

/// Checks that there is a filter, or that `--all` was given.
fn some_filter(filter: WrittenFilter, all: bool) -> Result<DeadFilter, Failure> {
    let filter = filter.checked()?;
    if filter.is_empty() && !all {
        return Err(Failure::Usage(format!(
            "give Spillway-Ids or a filter ({FILTERS}, --since, --until), or --all"
        )));
    }
    Ok(filter)
}

/// Finds the matching dead letters. Those of topics that `keeps` names are only counted. `looked` is called with
/// the number found so far, and ends the search if it fails.
pub(crate) async fn count_letters(
    place: &CellArgs,
    consumer: &str,
    filter: &DeadFilter,
    keeps: impl Fn(&str) -> bool,
    mut looked: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<FoundLetters, Failure> {
    let (redis, mut connection) = place.connect().await?;
    let mut found = FoundLetters::default();
    let mut next = Some(filter.clone());
    while let Some(filter) = next.take() {
        found = FoundLetters::default();
        let mut sought = filter.ids().clone();
        let first = filter.first_after();
        let mut walk = Walk::new(&redis, &mut connection, consumer).starting_after(first);
        while let Some(page) = walk.next(&filter).await? {
            for letter in page {
                sought.remove(&letter.webhook);
                if keeps(&letter.topic) {
                    found.compliance_kept += 1;
                } else {
                    found.letters.push((letter.webhook, letter.id));
                }
            }
            // A webhook may have several dead letters, so the walk does not end with the last id that is chosen.
            looked(found.number())?;
        }
        found.missing = sought.len();
        if !sought.is_empty() || (found.number() == 0 && found.compliance_kept == 0) {
            next = filter.thorough();
        }
    }
    // A dead letter that was given up late may have been accepted early. Ids sort in accepted
    // order.
    found.letters.sort_unstable();
    Ok(found)
}

/// Takes dead letters away, and reports the number so far to `progress`. It ends early, between two batches, if the order's
/// token is cancelled.
pub(crate) async fn take_letters(
    place: &CellArgs,
    actor: &Actor,
    order: TakeOrder,
    found: &FoundLetters,
    mut progress: impl FnMut(u64),
) -> Result<TakenLetters, Failure> {
    let TakeOrder { consumer, how, filter, rate, stop } = order;
    let verb = match how {
        Take::Drop => "dead drop",
        Take::Replay => "dead replay",
    };
    let (redis, mut connection) = place.connect().await?;
    let change = ChangeOrder { verb, consumer: consumer.clone(), filter };
    let audit = connection.clone();
    let count = ChangeCount::default();
    audited(&redis, &audit, actor, change.counted(&count), async {
        let started = Instant::now();
        let mut taken = 0;
        let mut done = 0usize;
        for batch in found.letters.chunks(batch_size(rate)) {
            if let Some(rate) = rate {
                let due = started + Duration::from_secs_f64(float(done) / f64::from(rate));
                stop.run_until_cancelled(sleep_until(due.into())).await;
            }
            if stop.is_cancelled() {
                break;
            }
            let ids: Vec<StreamId> = batch.iter().map(|(_, id)| *id).collect();
            taken += take(&redis, &mut connection, &consumer, how, &ids).await?;
            done += batch.len();
            count.note(taken);
            progress(taken);
        }
        let left = u64::try_from(found.letters.len() - done).unwrap_or(u64::MAX);
        let end = if left > 0 { AuditEnd::Stopped(taken) } else { AuditEnd::Done(taken) };
        Ok((TakenLetters { taken, left }, end))
    })
    .await
}

/// Takes dead letters away as a command, until a signal: the number of those that were taken is recorded then.
async fn take_and_tell(
    place: &CellArgs,
    order: TakeOrder,
    found: &FoundLetters,
    verb: &str,
) -> Result<(), Failure> {
    let interruption = Interruption::catch()?;
    let order = TakeOrder { stop: interruption.stop.clone(), ..order };
    let mut progress = Progress::new();
    let all = found.number();
    let tell = |taken| progress.tell(|| format!("{verb} {taken} of {all}"));
    let taken = take_letters(place, &Actor::of_command(), order, found, tell).await;
    interruption.finish(taken.and_then(|taken| told(verb, taken, all)))
}

impl FoundLetters {
    /// Number of dead letters to take.
    pub(crate) fn number(&self) -> u64 {
        u64::try_from(self.letters.len()).unwrap_or(u64::MAX)
    }

    /// Reports chosen ids without a dead letter.
    fn tell_missing(&self) {
        if self.missing > 0 {
            eprintln!("ids without a dead letter that matches: {}", self.missing);
        }
    }

    /// Digest of the dead letters to take.
    pub(crate) fn digest(&self) -> String {
        let mut digest = SetDigest::default();
        let mut letters: Vec<_> = self.letters.iter().collect();
        letters.sort_unstable();
        for (webhook, id) in letters {
            digest.add(format!("{webhook} {id}").as_bytes());
        }
        digest.text()
    }
}

/// Size of one batch. A low rate uses smaller batches, ten per second, to avoid bursts.
fn batch_size(rate: Option<u32>) -> usize {
    rate.map_or(BATCH, |rate| (rate as usize / 10).clamp(1, BATCH))
}

fn told(verb: &str, taken: TakenLetters, wanted: u64) -> Result<(), Failure> {
    let TakenLetters { taken, left } = taken;
    if left > 0 {
        return Err(Failure::Failed(format!(
            "stopped: {verb} {}; {left} are left: run the same command again for the rest",
            count(taken, "dead letter")
        )));
    }
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

    #[test]
    fn a_command_that_was_stopped_fails_and_says_how_many_are_left() {
        let stopped = told("replayed", TakenLetters { taken: 40, left: 60 }, 100);
        let stopped = stopped.expect_err("it is not done").to_string();
        assert!(stopped.contains("replayed 40 dead letters; 60 are left"), "{stopped}");
        assert!(told("replayed", TakenLetters { taken: 99, left: 0 }, 100).is_ok());
    }

    #[test]
    fn the_digest_tells_sets_of_one_size_apart_and_knows_no_order() {
        // Each by the index of its webhook, and its own id.
        let digest = |letters: &[(u32, u64)]| {
            let letter = |(index, ms): &(u32, u64)| {
                let entry = StreamId { ms: 1, seq: 0 };
                let webhook = WebhookId { cell: 7, entry, index: *index };
                (webhook, StreamId { ms: *ms, seq: 0 })
            };
            let letters = letters.iter().map(letter).collect();
            FoundLetters { letters, ..FoundLetters::default() }.digest()
        };
        let set = digest(&[(1, 10), (2, 20)]);
        assert_eq!(digest(&[(2, 20), (1, 10)]), set);
        for other in [[(1, 10), (3, 20)], [(1, 10), (2, 21)], [(1, 20), (2, 10)]] {
            assert_ne!(digest(&other), set, "{other:?}");
        }
    }
}
