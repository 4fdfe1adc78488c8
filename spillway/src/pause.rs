//! `spillway pause` and `resume`: pauses delivery by a consumer until it is resumed.
//!
//! A pause is stored in Redis, so it survives restarts and takeovers until `resume` ends it. The
//! consumer applies it within a second. Deliveries under way at that time are completed.

use std::process::ExitCode;

use clap::Args;
use spillway_queue::consumers::ConsumerKind;
use spillway_queue::controls::{self, Filter, Pause};
use spillway_queue::status::{self, ConsumerStatus};

use crate::audited::{Actor, ChangeOrder, audited};
use crate::failure::Failure;
use crate::filter::{FILTERS, FilterArguments};
use crate::out::{count, line, now_ms};
use crate::place::{CellArgs, ConsumerArgs, unknown};

/// Pauses of one consumer. Its leader looks at each of them for every webhook.
const PAUSES_MAX: usize = 1_000;

#[derive(Debug, Args)]
pub(crate) struct PauseArguments {
    #[command(flatten)]
    place: ConsumerArgs,

    #[command(flatten)]
    filter: FilterArguments,

    /// Pause the whole consumer if no filter is given
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArguments {
    #[command(flatten)]
    place: ConsumerArgs,

    #[command(flatten)]
    filter: FilterArguments,

    /// End all pauses of the consumer
    #[arg(long)]
    all: bool,
}

/// A pause that was ordered.
pub(crate) struct OrderedPause {
    /// False if exactly this was paused before.
    pub is_new: bool,
    /// True if a leader carries it out now; else the next one will.
    pub has_leader: bool,
}

/// Runs `spillway pause`: with `--all` alone, the whole consumer.
pub(crate) async fn pause(arguments: PauseArguments) -> Result<ExitCode, Failure> {
    let PauseArguments { place, filter, all } = arguments;
    let consumer = place.resolve_change().await?;
    let filter = filter.filter();
    if filter.is_empty() && !all {
        return Err(Failure::Usage(format!(
            "give a filter ({FILTERS}), or --all to pause everything for {consumer}"
        )));
    }
    let ordered = order_pause(&place.cell, &Actor::of_command(), &consumer, &filter).await?;
    let leader = match ordered.has_leader {
        true => "within a second; deliveries under way are completed",
        false => "as soon as it runs (it has no leader now)",
    };
    let same = if filter.is_empty() { "without a filter" } else { "with the same filter" };
    line(match ordered.is_new {
        true => format!(
            "{consumer} pauses {filter} {leader}. To end the pause: `spillway resume --consumer \
             {consumer}` {same}"
        ),
        false => format!("{consumer}: {filter} was already paused"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Pauses the webhooks of `consumer` that match the filter; with an empty one, the whole consumer.
pub(crate) async fn order_pause(
    cell: &CellArgs,
    actor: &Actor,
    consumer: &str,
    filter: &Filter,
) -> Result<OrderedPause, Failure> {
    let (redis, mut connection) = cell.connect().await?;
    let status = status::read(&redis, &mut connection).await?;
    let known = status.consumers.iter().find(|known| known.name == consumer);
    let by_name = || ConsumerKind::of_default_name(consumer).is_none_or(ConsumerKind::has_lanes);
    if !known.map_or_else(by_name, ConsumerStatus::has_lanes) && !filter.is_empty() {
        return Err(Failure::Usage(format!(
            "the consumer {consumer} keeps the order of all webhooks: pause it as a whole (--all)"
        )));
    }
    let known = known.ok_or_else(|| unknown(consumer, &status))?;
    if known.kind().is_none() && !filter.is_empty() {
        return Err(Failure::Usage(unknown_kind(consumer)));
    }
    let has_leader = known.leader.is_some();
    // What changes nothing is not recorded: repeating it must not fill the audit.
    if known.pauses.iter().any(|pause| pause.filter == *filter) {
        return Ok(OrderedPause { is_new: false, has_leader });
    }
    if known.pauses.len() >= PAUSES_MAX {
        return Err(Failure::Failed(format!(
            "{consumer} has {PAUSES_MAX} pauses, and no more are taken: end some of them, or pause more with one filter"
        )));
    }
    let order =
        ChangeOrder { verb: "pause", consumer: consumer.to_owned(), filter: filter.to_string() };
    let audit = connection.clone();
    audited(&redis, &audit, actor, order, async {
        let now = now_ms();
        let (is_new, _) = controls::pause(&redis, &mut connection, consumer, filter, now).await?;
        Ok((OrderedPause { is_new, has_leader }, u64::from(is_new)))
    })
    .await
}

/// Runs `spillway resume`: without a filter, it ends the pause of the whole consumer.
pub(crate) async fn resume(arguments: ResumeArguments) -> Result<ExitCode, Failure> {
    let ResumeArguments { place, filter, all } = arguments;
    let consumer = place.resolve_change().await?;
    let filter = filter.filter();
    let meant = (!all).then_some(&filter);
    let ended = order_resume(&place.cell, &Actor::of_command(), &consumer, meant).await?;
    let named: Vec<_> = ended.iter().map(ToString::to_string).collect();
    let number = count(u64::try_from(ended.len()).unwrap_or(u64::MAX), "pause");
    line(format_args!("{consumer} resumes {} ({number})", named.join("; ")))?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the pause of `consumer` with exactly this filter; without one, all its pauses. Returns the filters
/// of the pauses that it ended.
pub(crate) async fn order_resume(
    cell: &CellArgs,
    actor: &Actor,
    consumer: &str,
    filter: Option<&Filter>,
) -> Result<Vec<Filter>, Failure> {
    let (redis, mut connection) = cell.connect().await?;
    let status = status::read(&redis, &mut connection).await?;
    let known = status.consumers.iter().find(|known| known.name == consumer);
    let pauses = &known.ok_or_else(|| unknown(consumer, &status))?.pauses;
    let meant = |pause: &&Pause| filter.is_none_or(|filter| pause.filter == *filter);
    let ended: Vec<Filter> =
        pauses.iter().filter(meant).map(|pause| pause.filter.clone()).collect();
    if ended.is_empty() {
        let everything = Filter::default();
        let filter = filter.unwrap_or(&everything);
        return Err(Failure::Failed(not_paused(consumer, filter, pauses)));
    }
    let named: Vec<_> = ended.iter().map(ToString::to_string).collect();
    let order =
        ChangeOrder { verb: "resume", consumer: consumer.to_owned(), filter: named.join("; ") };
    let audit = connection.clone();
    audited(&redis, &audit, actor, order, async {
        let (number, _) = controls::resume(&redis, &mut connection, consumer, &ended).await?;
        Ok(((), number))
    })
    .await?;
    Ok(ended)
}

/// Message for a filter that would have no effect if the consumer is one of a Kafka producer.
fn unknown_kind(consumer: &str) -> String {
    format!(
        "no leader of the consumer {consumer} has said yet what kind it is, and a Kafka producer can only \
         be paused as a whole: start it first, or pause it as a whole (--all)"
    )
}

/// Message if no pause has this filter.
fn not_paused(consumer: &str, filter: &Filter, pauses: &[Pause]) -> String {
    if pauses.is_empty() {
        return format!("nothing is paused for {consumer}");
    }
    let named: Vec<_> = pauses.iter().map(|pause| pause.filter.to_string()).collect();
    let named = named.join("; ");
    match filter.is_empty() {
        true => format!(
            "{consumer} is not paused as a whole; paused: {named}. Give the same filter, or --all to \
             end every pause"
        ),
        false => format!("{filter} is not paused for {consumer}; paused: {named}"),
    }
}
