//! `spillway queue drop`: names the waiting webhooks that match, and orders the consumer to drop them.
//!
//! The consumer settles them; this command only names them. It reads every pack first, so it drops
//! exactly the webhooks that wait at that moment. Webhooks that come later stay. Then it watches
//! the consumer carry out the order.

use std::ops::ControlFlow;

use spillway_queue::QueueError;
use spillway_queue::audit::AuditEnd;
use spillway_queue::consumers::{StartAt, register};
use spillway_queue::controls::{self, Dropping, Filter};
use spillway_queue::history::{OutcomeRecord, RecordedOutcome};
use spillway_queue::lane::LaneRow;
use spillway_queue::status;
use spillway_webhook::fingerprint::{SetDigest, id_key};
use spillway_webhook::shopify::Headers;

use super::drop_watch::{DropProgress, OrderedDrop, watch};
use super::list::NOTHING;
use crate::audited::{Actor, ChangeCount, ChangeOrder, audited};
use crate::consent::{Consent, dry_run};
use crate::failure::Failure;
use crate::filter::{FILTERS, FilterArguments};
use crate::format::OutputArgs;
use crate::out::{Progress, count, line};
use crate::place::CellArgs;
use crate::walk::{Look, Met, Waiting};

/// Webhooks whose history records that their drop was ordered. This bounds the size of the order.
const RECORDED_MAX: usize = 200_000;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    consent: Consent,
    /// Do not wait until the consumer has carried out the order
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The webhooks to drop.
#[derive(Default)]
pub(crate) struct NamedWebhooks {
    /// Their names.
    pub dropping: Dropping,
    /// Records for the history.
    pub history: Vec<u8>,
    /// Number of webhooks.
    pub webhooks: u64,
    /// Webhooks that are meant, and kept because of their topic.
    pub compliance_kept: u64,
}

/// Choice of what becomes of a waiting webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropChoice {
    /// Not meant.
    Other,
    /// Meant, and kept because of its topic.
    Keep,
    /// Dropped.
    Drop,
}

/// A webhook found: its position, and its history record.
struct One {
    past: OutcomeRecord,
    replay: Option<spillway_webhook::StreamId>,
    is_kept: bool,
}

/// Drops the matching webhooks.
pub(super) async fn run(
    place: &CellArgs,
    consumer: &str,
    arguments: Arguments,
) -> Result<(), Failure> {
    let filter = arguments.filter.clone().filter();
    let consent = arguments.consent;
    if filter.is_empty() && !consent.all {
        return Err(Failure::Usage(format!("give a filter ({FILTERS}), or --all")));
    }
    let mut waiting = Waiting::for_consumer(place, consumer).await?;
    let keeps = move |topic: &str| consent.keeps(topic);
    let named = count_waiting(&mut waiting, &filter, keeps, |_| Ok(())).await?;
    consent.tell_kept(named.compliance_kept, "webhook");
    if named.webhooks == 0 || !consent.confirmation.yes {
        return tell_unchanged(consumer, named.webhooks, &arguments);
    }
    let webhooks = named.webhooks;
    let mut progress = Progress::new();
    let ordering = |so_far| progress.tell(|| format!("ordered the drop of {so_far} of {webhooks}"));
    let actor = Actor::of_command();
    let ordered = order_drop(&mut waiting, &actor, filter.to_string(), &named, ordering).await?;
    let so_far = match arguments.no_wait {
        true => DropProgress { dropped: 0, is_exact: true },
        false => watch(&mut waiting, ordered).await?,
    };
    tell(&mut waiting, webhooks, so_far, &arguments).await
}

/// Finds the waiting webhooks of a consumer that match. Those of topics that `keeps` names are only counted. `looked`
/// receives those found so far, and ends the search with a failure.
pub(crate) async fn count_waiting(
    waiting: &mut Waiting,
    filter: &Filter,
    keeps: impl Fn(&str) -> bool + Clone + Send + Sync + 'static,
    looked: impl FnMut(&NamedWebhooks) -> Result<(), Failure>,
) -> Result<NamedWebhooks, Failure> {
    let wanted = filter.clone();
    let choose = move |met: &Met<'_>| {
        if !met.is_meant(&wanted) {
            DropChoice::Other
        } else if keeps(&met.topic()) {
            DropChoice::Keep
        } else {
            DropChoice::Drop
        }
    };
    find(waiting, filter, |_| true, choose, looked).await
}

/// Orders the consumer to drop what was found. `filter` is what was meant, in words; `progress` receives the number
/// whose drop is ordered so far.
pub(crate) async fn order_drop(
    waiting: &mut Waiting,
    actor: &Actor,
    filter: String,
    named: &NamedWebhooks,
    mut progress: impl FnMut(u64),
) -> Result<OrderedDrop, Failure> {
    let redis = waiting.redis.clone();
    let consumer = waiting.consumer.clone();
    let order = ChangeOrder { verb: "queue drop", consumer: consumer.clone(), filter };
    let audit = waiting.connection().clone();
    let count = ChangeCount::default();
    audited(&redis, &audit, actor, order.counted(&count), async {
        if !waiting.is_registered {
            // An order is for a registered consumer. The downstreamer would register itself the same way.
            register(&redis, waiting.connection(), Some(&consumer), StartAt::Oldest).await?;
        }
        let tell = |so_far| {
            count.note(so_far);
            progress(so_far);
        };
        let order = give_order(waiting, named, tell).await?;
        Ok((order, AuditEnd::Ordered(order.webhooks)))
    })
    .await
}

/// Gives the order to drop what was found, without a record in the audit.
pub(crate) async fn give_order(
    waiting: &mut Waiting,
    named: &NamedWebhooks,
    mut progress: impl FnMut(u64),
) -> Result<OrderedDrop, Failure> {
    let redis = waiting.redis.clone();
    let consumer = waiting.consumer.clone();
    let first = controls::carried_out(&redis, waiting.connection(), &consumer).await?;
    let has_names = controls::names_exist(&redis, waiting.connection(), &consumer).await?;
    let before = controls::carried_out(&redis, waiting.connection(), &consumer).await?;
    let NamedWebhooks { dropping, history, webhooks, .. } = named;
    let mut ordered = 0;
    let report = |so_far| {
        ordered = so_far;
        progress(so_far);
    };
    let connection = waiting.connection();
    let order = controls::drop(&redis, connection, &consumer, dropping, history, report).await;
    let orders = u64::try_from(dropping.orders()).unwrap_or(u64::MAX);
    let version = order.map_err(|error| partly_ordered(error, ordered, *webhooks))?;
    // Pauses count as orders too: they drop nothing, and leave no names.
    let is_alone = first.ordered == before.ordered
        && version == before.ordered.saturating_add(orders)
        && (!has_names || before.version >= before.ordered);
    Ok(OrderedDrop { version, webhooks: *webhooks, before, is_alone })
}

fn partly_ordered(error: QueueError, ordered: u64, webhooks: u64) -> Failure {
    if ordered == 0 {
        return error.into();
    }
    Failure::Failed(format!(
        "{error}. The drop of at least {ordered} of {webhooks} is ordered, the oldest first and replays \
         last: run the same command again for the rest"
    ))
}

/// Reads everything that waits: replays, the main stream, and the lanes that may match `filter` and for which
/// `may_hold` returns true. Names what `choose` chooses. `looked` receives those named so far, and ends the search
/// with a failure.
pub(crate) async fn find(
    waiting: &mut Waiting,
    filter: &Filter,
    may_hold: impl Fn(&LaneRow) -> bool,
    choose: impl Fn(&Met<'_>) -> DropChoice + Clone + Send + Sync + 'static,
    mut looked: impl FnMut(&NamedWebhooks) -> Result<(), Failure>,
) -> Result<NamedWebhooks, Failure> {
    let mut named = NamedWebhooks::default();
    let mut checked = Ok(());
    let look = move |look: &Look<'_>| {
        let chosen = look.webhooks().map(|met| (choose(&met), met));
        let meant = chosen.filter(|(choice, _)| *choice != DropChoice::Other);
        meant.map(|(choice, met)| One::of(&met, choice)).collect::<Vec<One>>()
    };
    let mut progress = Progress::new();
    let mut seen = 0;
    let packs = waiting.packs;
    waiting
        .main(look.clone(), |found| {
            seen += 1;
            progress.tell(|| format!("read {seen} of {} packs", packs));
            named.take(found);
            checked = looked(&named);
            unless_failed(&checked)
        })
        .await?;
    checked?;
    let mut checked = Ok(());
    // Read last: webhooks that leave the main stream while it is read would otherwise be missed.
    let mut lanes = waiting.lanes(filter).await?;
    lanes.retain(may_hold);
    let take = |found| {
        named.take(found);
        checked = looked(&named);
        unless_failed(&checked)
    };
    waiting.aside(&lanes, look, take).await?;
    checked.map(|()| named)
}

fn unless_failed(checked: &Result<(), Failure>) -> ControlFlow<()> {
    if checked.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

impl One {
    fn of(met: &Met<'_>, choice: DropChoice) -> Self {
        let key = met.view.shopify("webhook-id").map_or(0, id_key);
        let attempts = met.aside.map_or(0, |aside| aside.attempts);
        Self {
            past: OutcomeRecord {
                key,
                entry: met.id.entry,
                index: met.id.index,
                outcome: RecordedOutcome::Dropped,
                attempts: u8::try_from(attempts).unwrap_or(u8::MAX),
            },
            replay: met.aside.and_then(|aside| aside.replay),
            is_kept: choice == DropChoice::Keep,
        }
    }
}

impl NamedWebhooks {
    /// Digest of the webhooks to drop.
    pub(crate) fn digest(&self) -> String {
        let mut digest = SetDigest::default();
        let mut main: Vec<_> = self.dropping.main.iter().collect();
        main.sort_unstable();
        for (entry, bits) in main {
            digest.add(entry.to_string().as_bytes());
            // A longer row of bits may end with empty ones.
            let len = bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            digest.add(&bits[..len]);
        }
        let mut replays: Vec<_> = self.dropping.replays.iter().collect();
        replays.sort_unstable();
        for id in replays {
            digest.add(format!("replay {id}").as_bytes());
        }
        digest.text()
    }

    fn take(&mut self, found: Vec<One>) {
        for One { past, replay, is_kept } in found {
            if is_kept {
                self.compliance_kept += 1;
                continue;
            }
            if self.dropping.is_named(past.entry, past.index) {
                // The webhook left the main stream after it was found there.
                self.dropping.replays.extend(replay);
                continue;
            }
            self.webhooks += 1;
            match replay {
                None => self.dropping.name(past.entry, past.index),
                Some(id) => {
                    self.dropping.replays.insert(id);
                }
            }
            if self.webhooks as usize <= RECORDED_MAX {
                past.write(&mut self.history);
            }
        }
    }
}

/// Reports a dry run, or that nothing matches.
fn tell_unchanged(consumer: &str, matched: u64, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.output.is_json() {
        return Ok(line(object(consumer, matched, Some(0), arguments))?);
    }
    if matched == 0 {
        return Ok(line(NOTHING)?);
    }
    let matched = count(matched, "webhook");
    let effect = format!("{matched} would be dropped for {consumer}, for good");
    Ok(line(dry_run(&effect, "drop them"))?)
}

/// The result as JSON. `dropped` is null if it is not known.
fn object(
    consumer: &str,
    matched: u64,
    dropped: Option<u64>,
    arguments: &Arguments,
) -> serde_json::Value {
    let is_dry_run = !arguments.consent.confirmation.yes;
    let left = |dropped: u64| if is_dry_run { 0 } else { matched.saturating_sub(dropped) };
    serde_json::json!({
        "consumer": consumer, "dry_run": is_dry_run, "matched": matched, "dropped": dropped,
        "not_yet": dropped.map(left),
    })
}

async fn tell(
    waiting: &mut Waiting,
    wanted: u64,
    so_far: DropProgress,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let DropProgress { dropped, is_exact } = so_far;
    let consumer = waiting.consumer.clone();
    if arguments.output.is_json() {
        let dropped = is_exact.then_some(dropped);
        return Ok(line(object(&consumer, wanted, dropped, arguments))?);
    }
    if !is_exact {
        let wanted = count(wanted, "webhook");
        return Ok(line(format_args!(
            "ordered the drop of {wanted}; how many are dropped by now is not known: another order to {consumer} came \
             between"
        ))?);
    }
    let left = wanted.saturating_sub(dropped);
    if left == 0 {
        return Ok(line(format_args!("dropped {}", count(dropped, "webhook")))?);
    }
    let redis = waiting.redis.clone();
    let status = status::read(&redis, waiting.connection()).await?;
    let is_owned =
        status.consumers.iter().any(|known| known.name == consumer && known.leader.is_some());
    let why = match is_owned {
        true => "under way, and dropped if that fails, or still to be read by the consumer",
        false => "to be dropped as soon as the consumer runs: it has no leader",
    };
    Ok(line(format_args!("dropped {}; {left} more: {why}", count(dropped, "webhook")))?)
}

#[cfg(test)]
mod tests {
    use spillway_webhook::StreamId;

    use super::*;

    fn entry(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    /// Webhooks of the main stream, each by its entry and index, and replays. They are named in this order.
    fn named(main: &[(u64, u32)], replays: &[u64]) -> NamedWebhooks {
        let mut dropping = Dropping::default();
        for (ms, index) in main {
            dropping.name(entry(*ms), *index);
        }
        dropping.replays.extend(replays.iter().map(|ms| entry(*ms)));
        NamedWebhooks { dropping, ..NamedWebhooks::default() }
    }

    #[test]
    fn the_digest_tells_sets_of_one_size_apart_and_knows_no_order() {
        let digest = |main: &[(u64, u32)], replays: &[u64]| named(main, replays).digest();
        let set = digest(&[(1, 0), (1, 9), (2, 3)], &[5, 6]);
        assert_eq!(digest(&[(2, 3), (1, 9), (1, 0)], &[6, 5]), set);
        let differs = |main: &[(u64, u32)], replays: &[u64]| {
            assert_ne!(digest(main, replays), set, "{main:?} {replays:?}");
        };
        differs(&[(1, 0), (1, 9), (3, 3)], &[5, 6]);
        differs(&[(1, 0), (1, 8), (2, 3)], &[5, 6]);
        differs(&[(1, 0), (2, 9), (2, 3)], &[5, 6]);
        differs(&[(1, 0), (1, 9), (2, 3)], &[5, 7]);
        differs(&[(1, 0), (1, 9)], &[2, 5, 6]);
    }

    #[test]
    fn empty_bits_at_the_end_of_a_row_do_not_change_the_digest() {
        let short = named(&[(1, 0)], &[]);
        let mut long = named(&[(1, 0)], &[]);
        long.dropping.main.insert(entry(1), vec![1, 0, 0]);
        assert_eq!(long.digest(), short.digest());
        long.dropping.main.insert(entry(1), vec![0, 1]);
        assert_ne!(long.digest(), short.digest());
    }
}
