//! `spillway replay`: delivers again what an archive holds of a range of time.
//!
//! The running consumer delivers. This command reads the archive and feeds the consumer's stream of replays, with a
//! bounded number of webhooks that are not settled. Redis has a record of how far it is, so another process can
//! resume a replay whose process ended.
//!
//! The path: [`delivered`] (what the consumer has settled), [`spec`] (what is replayed), [`plan`] (objects that may hold it), [`lanes`] (what still waits), [`source`]
//! (its webhooks), [`feeder`] (which is fed next), [`passes`] (over the archive), [`redacted`] (who is to be forgotten), [`rate`] (speed), [`link`] (Redis, which may be away), [`feeding`] (the work), and
//! [`records`] (replays on record).

mod delivered;
mod feeder;
mod feeding;
mod lanes;
mod link;
mod passes;
mod plan;
mod rate;
mod records;
mod redacted;
mod source;
pub(crate) mod spec;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use spillway_archive::args::ArchiveArgs;
use spillway_queue::audit::AuditEnd;
use spillway_queue::replay::{ReplayFeed, ReplayRefusal};
use spillway_webhook::fingerprint::SetDigest;
use spillway_webhook::freshness::rfc3339;
use tokio_util::sync::CancellationToken;

use crate::archive::{self, OpenArchive};
use crate::audited::{Actor, ChangeOrder, audited};
use crate::consent::dry_run;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{count, line, size};
use crate::place::{CellArgs, ConsumerArgs};
use delivered::DeliveredWebhooks;
use feeding::Feeding;
use link::RedisLink;
use plan::ReplayPlan;
use spec::{AskedReplay, ReplaySpec, StartArguments};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: ConsumerArgs,

    #[command(flatten)]
    archive: ArchiveArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    start: StartArguments,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the replays of a consumer; one that ended is kept for 7 days
    List,
    /// Go on with a replay whose process ended, or take it over from another process
    Resume {
        /// Id of the replay, as `spillway replay list` prints it
        id: String,
    },
    /// End a replay; what was fed to the consumer by then is still delivered
    Cancel {
        /// Id of the replay, as `spillway replay list` prints it
        id: String,
    },
}

/// Runs `spillway replay`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, archive, output, start, action } = arguments;
    if action.is_some() && !start.is_empty() {
        let told = "the flags of a new replay, such as --from, go with no subcommand";
        return Err(Failure::Usage(told.to_owned()));
    }
    match action {
        None => begin(&place, &archive, output, start).await?,
        Some(Action::List) => {
            let consumer = place.resolve().await?;
            records::list(&place.cell, &consumer, output).await?;
        }
        Some(Action::Resume { id }) => resume(&place, &archive, output, id).await?,
        Some(Action::Cancel { id }) => {
            let consumer = place.resolve_change().await?;
            records::cancel(&place.cell, &consumer, &id, output).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A replay that is planned: nothing is changed yet.
pub(crate) struct PlannedReplay {
    archive: OpenArchive,
    delivered: DeliveredWebhooks,
    spec: ReplaySpec,
    plan: ReplayPlan,
    /// Sentences about a range that ends early.
    capped: Vec<String>,
}

impl PlannedReplay {
    /// Webhooks that are replayed, at most.
    pub(crate) fn webhooks(&self) -> u64 {
        self.plan.webhooks
    }

    /// Ids that as much memory would hold as this plan takes.
    pub(crate) fn held(&self) -> u64 {
        self.plan.held()
    }

    /// Digest of the range, the filter and the objects that are read. The range ends with these objects: a consumer that
    /// goes on since then makes no other replay of it.
    pub(crate) fn digest(&self) -> String {
        let mut digest = SetDigest::default();
        let ReplaySpec { cell, after, through, filter, .. } = &self.spec;
        let last = self.plan.objects.iter().map(|object| object.name.last).max();
        let through = last.unwrap_or_default().min(*through);
        digest.add(format!("{cell:08x} {after} {through} {filter}").as_bytes());
        for object in &self.plan.objects {
            digest.add(object.name.to_string().as_bytes());
        }
        digest.text()
    }

    /// Webhooks that are meant, in words.
    pub(crate) fn filter(&self) -> String {
        replay_filter(&self.spec)
    }
}

/// Plans a replay: which objects of the archive may hold what is meant.
pub(crate) async fn plan_replay(
    cell: &CellArgs,
    archive: &ArchiveArgs,
    consumer: &str,
    asked: AskedReplay,
) -> Result<PlannedReplay, Failure> {
    let archive = archive::open(archive)?;
    let delivered = DeliveredWebhooks::of(cell, consumer).await?;
    let (spec, capped) = asked.spec(&delivered, &archive).await?;
    let plan = ReplayPlan::new(&archive.store, &archive.keys, &spec).await?;
    Ok(PlannedReplay { archive, delivered, spec, plan, capped })
}

/// Begins a replay that is planned, and feeds it until it ends or `stop` is cancelled. `progress` receives the number
/// fed so far. Returns the number fed, and true if it was cancelled: one that was stopped can be resumed, unless
/// `is_cancelled` says that it is to end.
pub(crate) async fn order_replay(
    cell: &CellArgs,
    actor: &Actor,
    planned: PlannedReplay,
    stop: &CancellationToken,
    mut progress: impl FnMut(u64),
    is_cancelled: impl Fn() -> bool,
) -> Result<(u64, bool), Failure> {
    let consumer = planned.delivered.consumer.clone();
    let mut feeding = start(cell, actor, planned).await?;
    let mut so_far = 0;
    let tell = |fed| {
        so_far = fed;
        progress(fed);
    };
    let fed = feeding.feed(stop, tell).await;
    match fed {
        Ok(fed) => Ok((fed, false)),
        Err(_) if is_cancelled() => {
            records::end(cell, actor, &consumer, feeding.feed.id()).await?;
            Ok((so_far, true))
        }
        Err(failure) => Err(failure),
    }
}

fn change(verb: &'static str, consumer: &str, filter: String) -> ChangeOrder {
    ChangeOrder { verb, consumer: consumer.to_owned(), filter }
}

fn replay_filter(spec: &ReplaySpec) -> String {
    let from = rfc3339(spec.after.next().ms);
    format!("{}, stored from {from} to {}", spec.filter, rfc3339(spec.through.ms))
}

/// Starts a replay. Feeding may take hours, in which Redis may be away: the audit has its start, and the number that is
/// planned.
async fn start(cell: &CellArgs, actor: &Actor, planned: PlannedReplay) -> Result<Feeding, Failure> {
    let filter = planned.filter();
    let PlannedReplay { archive, delivered, spec, plan, .. } = planned;
    let consumer = delivered.consumer.clone();
    let skips = delivered.skips(cell, &spec).await?;
    let mut link = RedisLink::new(cell.redis()?);
    let mut feed = ReplayFeed::new(link.redis(), &consumer);
    let (redis, audit) = cell.connect().await?;
    audited(&redis, &audit, actor, change("replay", &consumer, filter), async {
        let json = spec.to_json();
        let first = spec.first();
        let started =
            link.patiently(async |connection| feed.start(connection, &json, first).await).await?;
        started.map_err(refused)?;
        let planned = AuditEnd::Planned(plan.webhooks);
        let feeding = Feeding::begin(archive, link, feed, spec, plan, skips).await?;
        Ok((feeding, planned))
    })
    .await
}

/// Begins a new replay, or only reports what it would do.
async fn begin(
    place: &ConsumerArgs,
    archive: &ArchiveArgs,
    output: OutputArgs,
    start_arguments: StartArguments,
) -> Result<(), Failure> {
    let is_meant = start_arguments.is_meant();
    let asked = start_arguments.checked()?;
    archive::open(archive)?;
    let consumer = place.resolve_change().await?;
    let planned = plan_replay(&place.cell, archive, &consumer, asked).await?;
    let PlannedReplay { spec, plan, capped, .. } = &planned;
    if !output.is_json() {
        capped.iter().try_for_each(line)?;
    }
    if plan.objects.is_empty() {
        plan.tell_gaps(&ReplayPlan::default(), spec.after);
        return tell_nothing(&consumer, output);
    }
    if !is_meant {
        return tell_plan(&consumer, spec, plan, output);
    }
    if !output.is_json() {
        line(plan.told())?;
    }
    let mut feeding = start(&place.cell, &Actor::of_command(), planned).await?;
    feeding.run(output).await
}

/// Goes on with a replay on record.
async fn resume(
    place: &ConsumerArgs,
    archive: &ArchiveArgs,
    output: OutputArgs,
    id: String,
) -> Result<(), Failure> {
    let archive = archive::open(archive)?;
    let consumer = place.resolve_change().await?;
    let delivered = DeliveredWebhooks::of(&place.cell, &consumer).await?;
    let link = RedisLink::new(place.cell.redis()?);
    let feed = ReplayFeed::of(link.redis(), &consumer, id);
    let spec = records::spec(&place.cell, &consumer, feed.id()).await?;
    let plan = ReplayPlan::new(&archive.store, &archive.keys, &spec).await?;
    let skips = delivered.skips(&place.cell, &spec).await?;
    let (redis, audit) = place.cell.connect().await?;
    let change = change("replay resume", &consumer, replay_filter(&spec));
    let mut feeding = audited(&redis, &audit, &Actor::of_command(), change, async {
        let planned = AuditEnd::Planned(plan.webhooks);
        let feeding = Feeding::begin(archive, link, feed, spec, plan, skips).await?;
        Ok((feeding, planned))
    })
    .await?;
    feeding.run(output).await
}

fn refused(refusal: ReplayRefusal) -> Failure {
    Failure::Failed(refusal.to_string())
}

fn tell_nothing(consumer: &str, output: OutputArgs) -> Result<(), Failure> {
    if output.is_json() {
        let told = serde_json::json!({ "consumer": consumer, "objects": 0, "webhooks_at_most": 0 });
        return Ok(line(told)?);
    }
    Ok(line("the archive holds nothing that matches in this range")?)
}

fn tell_plan(
    consumer: &str,
    spec: &ReplaySpec,
    plan: &ReplayPlan,
    output: OutputArgs,
) -> Result<(), Failure> {
    if output.is_json() {
        let mut told = plan.json();
        told["consumer"] = consumer.into();
        told["dry_run"] = true.into();
        told["replay"] = spec.json();
        return Ok(line(told)?);
    }
    plan.tell_gaps(&ReplayPlan::default(), spec.after);
    let effect = format!(
        "what was stored from {} to {}:\n{} of {} would be read\n{}{} would be delivered again to {consumer}",
        rfc3339(spec.after.next().ms),
        rfc3339(spec.through.ms),
        count(plan.objects.len() as u64, "object"),
        size(plan.bytes),
        if plan.is_exact { "" } else { "at most " },
        count(plan.webhooks, "webhook"),
    );
    Ok(line(dry_run(&effect, "replay them"))?)
}
