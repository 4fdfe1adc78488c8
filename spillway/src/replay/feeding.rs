//! The work of a replay: offers webhooks, writes steps, and looks at what is settled.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::json;
use spillway_archive::StoreError;
use spillway_queue::redactions;
use spillway_queue::replay::{FedWebhook, ReplayFeed, ReplayRefusal, ReplayStep};
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::{Position, StreamId};
use tokio_util::sync::CancellationToken;

use super::feeder::{FeedPass, FeedStep, Feeder, NextPass, Offer};
use super::lanes::SkippedWebhooks;
use super::link::RedisLink;
use super::passes::{PassReader, SkipCounts};
use super::plan::ReplayPlan;
use super::rate::RateBucket;
use super::redacted::PendingPeople;
use super::spec::ReplaySpec;
use crate::archive::OpenArchive;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::interruption::Interruption;
use crate::out::{Progress, count, line};

/// Time for which webhooks of a step wait for others: each step is a round trip and a sync of Redis.
const STEP_EVERY: Duration = Duration::from_millis(5);
/// Time after which progress is written that feeds nothing.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Shortest and longest time between two looks at what is settled. A backend that answers at once needs the first.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
const _: () = assert!(PAUSE.0.as_millis() < PAUSE.1.as_millis(), "pauses grow");
/// Replays for each of the shortest pauses: a look asks Redis for each of them.
const LOOKED_AT: usize = 256;
/// Longest time before another pass that is not the first one of its kind.
const PASS_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Webhooks that make a later pass worth it.
const PASS_WORTH: u64 = 1_000;
/// Time between two counts of the stream of replays.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Steps that may fail in a row because an object is gone.
const GONE_MAX: u32 = 5;
/// Time without progress after which the end of what is under way is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A replay that is fed.
pub(super) struct Feeding {
    reader: PassReader,
    feeder: Feeder<FedWebhook>,
    /// The record in Redis.
    pub feed: ReplayFeed,
    link: RedisLink,
    clock: FeedClock,
    rate: RateBucket,
    tally: FeedTally,
    progress: Progress,
}

/// Times of one process that feeds.
struct FeedClock {
    began: Instant,
    written: Instant,
    /// Time of the last count of the stream of replays.
    counted: Option<Instant>,
    pause: Duration,
    /// Time before the next pass that is not the first one.
    pass_pause: Duration,
}

/// Counts of a replay.
#[derive(Debug, Default)]
struct FeedTally {
    /// Webhooks that were fed, by all processes.
    fed: u64,
    /// Those that were fed when this pass began.
    fed_before_pass: u64,
    /// Webhooks that were passed over, by all processes.
    skipped: u64,
    /// Those that this process passed over.
    skipped_here: SkipCounts,
    /// Replays in the stream that are not of this replay.
    foreign: u64,
    /// Objects that were gone since the last step.
    gone: u32,
    after_written: Position,
}

/// Way in which the work ended.
enum FeedEnd {
    Done,
    Stopped,
    Refused(ReplayRefusal),
    /// An object is not there any more.
    Gone(StoreError),
}

impl Feeding {
    /// Takes over the record of the replay, and goes on from there.
    pub(super) async fn begin(
        archive: OpenArchive,
        mut link: RedisLink,
        mut feed: ReplayFeed,
        spec: ReplaySpec,
        plan: ReplayPlan,
        mut skips: SkippedWebhooks,
    ) -> Result<Self, Failure> {
        plan.tell_gaps(&ReplayPlan::default(), spec.after);
        skips.people = people(&mut link, &mut feed).await?;
        let taken = link.patiently(async |connection| feed.take(connection).await).await?;
        let (record, left) = taken.map_err(|refusal| Failure::Failed(refusal.to_string()))?;
        let open = link.patiently(async |connection| feed.open(connection).await).await?;
        let feeder = Feeder::new(spec.limits(), record.after, left, open, Duration::ZERO);
        let rate = RateBucket::new(spec.pace.rate, Duration::ZERO);
        let now = Instant::now();
        Ok(Self {
            reader: PassReader::new(archive, spec, plan, skips, record.after),
            feeder,
            feed,
            link,
            clock: FeedClock {
                began: now,
                written: now,
                counted: None,
                pause: PAUSE.0,
                pass_pause: Duration::ZERO,
            },
            rate,
            tally: FeedTally {
                fed: record.fed,
                skipped: record.skipped,
                after_written: record.after,
                ..FeedTally::default()
            },
            progress: Progress::new(),
        })
    }

    /// Feeds everything as a command: until a signal, and with a report of the end.
    pub(super) async fn run(&mut self, output: OutputArgs) -> Result<(), Failure> {
        let interruption = Interruption::catch()?;
        if !output.is_json() {
            line(format_args!("replay {}", self.feed.id()))?;
        }
        let fed = self.feed(&interruption.stop, |_| {}).await;
        interruption.finish(fed.and_then(|_| self.tell(output)))
    }

    /// Feeds everything, and waits a while for what is under way. `progress` receives the number fed so far.
    pub(super) async fn feed(
        &mut self,
        stop: &CancellationToken,
        progress: impl FnMut(u64),
    ) -> Result<u64, Failure> {
        let go_on = format!("`spillway replay resume {}` goes on", self.feed.id());
        match self.feed_all(stop, progress).await {
            Ok(FeedEnd::Done) => {}
            Ok(FeedEnd::Stopped) => return Err(Failure::Failed(format!("stopped; {go_on}"))),
            Ok(FeedEnd::Refused(refusal)) => return Err(Failure::Failed(refusal.to_string())),
            Ok(FeedEnd::Gone(error)) => {
                eprintln!("spillway: the replay has not ended; {go_on}");
                return Err(error.into());
            }
            Err(failure) => {
                eprintln!("spillway: the replay has not ended; {go_on}");
                return Err(failure);
            }
        }
        self.wait_for_last(stop).await?;
        Ok(self.tally.fed)
    }

    /// Feeds everything. Begins again from the record if what is in memory is not to be fed any more.
    async fn feed_all(
        &mut self,
        stop: &CancellationToken,
        mut progress: impl FnMut(u64),
    ) -> Result<FeedEnd, Failure> {
        self.look().await?;
        loop {
            progress(self.tally.fed);
            let Some(end) = self.turn(stop).await? else { continue };
            match end {
                FeedEnd::Refused(ReplayRefusal::Redacted) => {}
                FeedEnd::Refused(ReplayRefusal::Older) => {
                    eprintln!(
                        "spillway: redis came back with older data than it had confirmed: going on from that"
                    );
                }
                FeedEnd::Gone(_) if self.tally.gone < GONE_MAX => self.tally.gone += 1,
                end => return Ok(end),
            }
            if let Some(end) = self.begin_again().await? {
                return Ok(end);
            }
        }
    }

    /// Offers one webhook, and writes or waits if that is due. Returns the end, if it is one.
    async fn turn(&mut self, stop: &CancellationToken) -> Result<Option<FeedEnd>, Failure> {
        if stop.is_cancelled() {
            let refusal = self.write().await?;
            return Ok(Some(refusal.map_or(FeedEnd::Stopped, FeedEnd::Refused)));
        }
        self.tell_progress();
        let offer = match self.feeder.pass() {
            FeedPass::Between => Ok(Offer::EndPass),
            FeedPass::Front | FeedPass::Again => {
                self.reader.offer(&mut self.feeder, self.clock.now()).await
            }
        };
        let offer = match offer {
            Err(error @ StoreError::Missing(_)) => return Ok(Some(FeedEnd::Gone(error))),
            offer => offer?,
        };
        if offer != Offer::Taken || self.is_write_due() {
            if let Some(refusal) = self.write().await? {
                return Ok(Some(FeedEnd::Refused(refusal)));
            }
            self.look().await?;
        }
        match offer {
            Offer::Taken => {}
            Offer::Wait => self.wait(stop).await,
            Offer::EndPass => match self.next_pass() {
                NextPass::Wait => self.wait(stop).await,
                NextPass::Read { from } => match self.begin_pass(from, stop).await {
                    Err(error @ StoreError::Missing(_)) => return Ok(Some(FeedEnd::Gone(error))),
                    begun => begun?,
                },
                NextPass::Done => return self.finish().await.map(Some),
            },
        }
        Ok(None)
    }

    /// Writes what is left, and ends the replay.
    async fn finish(&mut self) -> Result<FeedEnd, Failure> {
        loop {
            if let Some(refusal) = self.write().await? {
                return Ok(FeedEnd::Refused(refusal));
            }
            if self.feeder.is_written() {
                break;
            }
        }
        let feed = &mut self.feed;
        let ended = self.link.patiently(async |connection| feed.finish(connection).await).await?;
        Ok(ended.map_or_else(FeedEnd::Refused, |()| FeedEnd::Done))
    }

    /// Drops what is in memory, and begins again from the record: as a process does that resumes the replay.
    async fn begin_again(&mut self) -> Result<Option<FeedEnd>, Failure> {
        let people = people(&mut self.link, &mut self.feed).await?;
        let feed = &mut self.feed;
        let read =
            self.link.patiently(async |connection| feed.read_again(connection).await).await?;
        let (record, left) = match read {
            Ok(read) => read,
            Err(refusal) => return Ok(Some(FeedEnd::Refused(refusal))),
        };
        let feed = &self.feed;
        let open = self.link.patiently(async |connection| feed.open(connection).await).await?;
        let limits = self.reader.spec().limits();
        self.feeder = Feeder::new(limits, record.after, left, open, self.clock.now());
        self.reader.begin_again(record.after, people).await?;
        self.tally.fed = record.fed;
        self.tally.skipped = record.skipped;
        self.tally.after_written = record.after;
        self.tally.fed_before_pass = self.tally.fed_before_pass.min(record.fed);
        self.look().await?;
        Ok(None)
    }

    fn is_write_due(&self) -> bool {
        let since = self.clock.written.elapsed();
        self.feeder.is_step_due()
            || (self.feeder.step_len() > 0 && since >= STEP_EVERY)
            || since >= WRITE_EVERY
    }

    /// Writes what was decided since the last step.
    async fn write(&mut self) -> Result<Option<ReplayRefusal>, Failure> {
        self.clock.written = Instant::now();
        let FeedStep { after, webhooks, left } = self.feeder.take_step();
        let skipped = self.reader.take_skipped();
        let is_new = after != self.tally.after_written || skipped.sum() > 0 || !left.is_empty();
        if webhooks.is_empty() && !is_new {
            return Ok(None);
        }
        let (shops, webhooks): (Vec<_>, Vec<_>) = webhooks.into_iter().unzip();
        let step = ReplayStep { after, webhooks, left, skipped: skipped.sum() };
        let feed = &mut self.feed;
        let applied =
            self.link.patiently(async |connection| feed.apply(connection, &step).await).await?;
        let ids = match applied {
            Ok(ids) => ids,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let fed = ids.len() as u64;
        self.tally.fed += fed;
        self.rate.take(fed);
        self.tally.skipped += skipped.sum();
        self.tally.skipped_here.add(skipped);
        self.tally.gone = 0;
        self.tally.after_written = after;
        self.feeder.on_written(shops.into_iter().zip(ids), self.clock.now());
        if fed > 0 {
            self.clock.pause = PAUSE.0;
        }
        Ok(None)
    }

    /// Looks at what is settled, and feeds what is held and has room.
    async fn look(&mut self) -> Result<(), Failure> {
        let ids = self.feeder.open_ids();
        if !ids.is_empty() {
            let feed = &self.feed;
            let unsettled =
                self.link.patiently(async |connection| feed.unsettled(connection, &ids).await);
            let unsettled: HashSet<StreamId> = unsettled.await?.into_iter().collect();
            if unsettled.len() < ids.len() {
                self.clock.pause = PAUSE.0;
            }
            self.feeder.on_unsettled(&unsettled, self.clock.now());
        }
        self.count_foreign().await?;
        let due = self.rate.due(self.clock.now());
        self.feeder.set_budget(due.saturating_sub(self.feeder.step_len()));
        self.feeder.look(self.clock.now());
        Ok(())
    }

    /// Counts the replays that the consumer has beside these, now and then.
    async fn count_foreign(&mut self) -> Result<(), Failure> {
        if self.clock.counted.is_some_and(|counted| counted.elapsed() < COUNT_EVERY) {
            return Ok(());
        }
        let feed = &self.feed;
        let all = self.link.patiently(async |connection| feed.count(connection).await).await?;
        self.tally.foreign = all.saturating_sub(self.feeder.open_ids().len() as u64);
        self.clock.counted = Some(Instant::now());
        Ok(())
    }

    fn next_pass(&mut self) -> NextPass {
        let is_whole = self.feeder.pass() == FeedPass::Front && self.reader.is_over();
        let end = is_whole.then(|| self.reader.spec().end());
        self.feeder.next_pass(end)
    }

    /// Begins a pass. Later ones that feed little come at growing intervals, because each reads the archive.
    async fn begin_pass(
        &mut self,
        from: Position,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        if self.feeder.pass() == FeedPass::Again {
            let is_worth_it = self.tally.fed - self.tally.fed_before_pass >= PASS_WORTH;
            let pause = if is_worth_it { Duration::ZERO } else { self.clock.pass_pause };
            self.clock.pass_pause = (2 * pause).clamp(Duration::from_secs(1), PASS_PAUSE_MAX);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.tally.fed_before_pass = self.tally.fed;
        self.reader.begin(from, &self.feeder).await
    }

    /// Waits until it is worth to look again. What was held and is fed now does not wait.
    async fn wait(&mut self, stop: &CancellationToken) {
        if self.feeder.step_len() > 0 {
            return;
        }
        let looks = 1 + self.feeder.open_ids().len() / LOOKED_AT;
        let pause = self.clock.pause * u32::try_from(looks).unwrap_or(u32::MAX);
        self.clock.pause = (2 * self.clock.pause).min(PAUSE.1);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Waits until what was fed is settled, as long as there is progress.
    async fn wait_for_last(&mut self, stop: &CancellationToken) -> Result<(), Failure> {
        let mut open = usize::MAX;
        let mut moved = Instant::now();
        while open > 0 && !stop.is_cancelled() && moved.elapsed() < PATIENCE {
            self.look().await?;
            let now_open = self.feeder.open_ids().len();
            if now_open < open {
                moved = Instant::now();
            }
            open = now_open;
            if open > 0 {
                self.wait(stop).await;
            }
        }
        Ok(())
    }

    fn tell_progress(&mut self) {
        let Self { progress, feeder, tally, .. } = self;
        progress.tell(|| {
            let left = match feeder.shops_left() {
                0 => String::new(),
                left => format!(", {} left for later", count(left as u64, "shop")),
            };
            let waits = match feeder.pass() {
                FeedPass::Between => ": waiting for shops that take nothing",
                FeedPass::Front | FeedPass::Again => "",
            };
            let at = rfc3339(feeder.after().ms);
            let open = feeder.open_ids().len();
            let foreign = match tally.foreign {
                0 => String::new(),
                foreign => format!(", beside {foreign} of dead letters or other replays"),
            };
            format!("fed {} up to {at}, {open} under way{foreign}{left}{waits}", tally.fed)
        });
    }

    fn tell(&self, output: OutputArgs) -> Result<(), Failure> {
        let FeedTally { fed, skipped, skipped_here, .. } = &self.tally;
        let SkipCounts { redacted, kept_back, .. } = *skipped_here;
        let (needed, read) = self.reader.objects();
        let open = self.feeder.open_ids().len();
        let corrupt = self.reader.corrupt();
        if output.is_json() {
            return Ok(line(json!({
                "replay": self.feed.id(), "dry_run": false, "fed": fed, "skipped": skipped,
                "redacted": redacted, "kept_back": kept_back,
                "under_way": open, "objects": needed, "objects_read": read,
                "corrupt_packs": corrupt,
            }))?);
        }
        let mut told = format!("fed {}", count(*fed, "webhook"));
        if *skipped > 0 {
            told.push_str(&format!(
                "; passed over {skipped} that the consumer does not deliver, that still wait, that were erased, or that \
                 are left out"
            ));
        }
        if redacted > 0 {
            told.push_str(&format!("; {redacted} of them of people who are to be forgotten"));
        }
        if kept_back > 0 {
            told.push_str(&format!(
                "; {kept_back} of them of a compliance topic or app/uninstalled, which --topic or --force replays"
            ));
        }
        if open > 0 {
            told.push_str(&format!("; {open} are still under way"));
        }
        if corrupt > 0 {
            told.push_str(&format!("; {} cannot be decoded", count(corrupt, "pack")));
        }
        Ok(line(format_args!("{told}; read {read} objects, {needed} hold what matches"))?)
    }
}

impl FeedClock {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Reads who is to be forgotten. The feed notes it first, so that a later redaction has a step refused.
async fn people(link: &mut RedisLink, feed: &mut ReplayFeed) -> Result<PendingPeople, Failure> {
    link.patiently(async |connection| feed.note_redactions(connection).await).await?;
    let redis = link.redis().clone();
    let pending =
        link.patiently(async |connection| redactions::pending(&redis, connection).await).await?;
    Ok(PendingPeople::of(&pending))
}
