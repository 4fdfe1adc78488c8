//! Work of jobs: each verb counts first, and then changes what it counted.

use spillway_archive::args::ArchiveArgs;
use spillway_queue::controls::Filter;
use spillway_queue::dead::Take;
use spillway_webhook::shopify::is_compliance;
use tokio_util::sync::CancellationToken;

use crate::audited::Actor;
use crate::console::jobs::{CountedJob, HELD_BYTES, JobProgress, JobWork, MadeJob};
use crate::console::links::apart;
use crate::dead::filter::DeadFilter;
use crate::dead::take::{FoundLetters, TakeOrder, TakenLetters, count_letters, take_letters};
use crate::failure::Failure;
use crate::place::CellArgs;
use crate::queue::drop::{NamedWebhooks, count_waiting, order_drop};
use crate::queue::drop_watch::{DropProgress, watch};
use crate::replay::spec::AskedReplay;
use crate::replay::{PlannedReplay, order_replay, plan_replay};
use crate::walk::Waiting;

/// Cell and consumer that a job changes, and the one who ordered it.
#[derive(Clone)]
pub(super) struct JobTarget {
    /// The cell.
    pub place: CellArgs,
    /// Name of the consumer.
    pub consumer: String,
    /// The one who ordered it.
    pub actor: Actor,
    /// Cancelled when the process stops.
    pub stop: CancellationToken,
}

/// Replay or drop of dead letters.
pub(super) struct DeadWork {
    /// Target of the job.
    pub target: JobTarget,
    /// Dead letters that are meant.
    pub filter: DeadFilter,
    /// Action on them.
    pub how: Take,
    /// Number per second.
    pub rate: Option<u32>,
    /// True to drop compliance topics too.
    pub force: bool,
}

/// Drop of webhooks that wait.
pub(super) struct DropWork {
    /// Target of the job.
    pub target: JobTarget,
    /// Webhooks that are meant.
    pub filter: Filter,
    /// True to drop compliance topics too.
    pub force: bool,
}

/// Replay of archived webhooks.
pub(super) struct ArchiveWork {
    /// Target of the job.
    pub target: JobTarget,
    /// The archive.
    pub archive: ArchiveArgs,
    /// Webhooks that are meant.
    pub asked: AskedReplay,
}

/// Waiting webhooks of a consumer that is registered. The command registers one that is not, which this process may not do.
async fn waiting_for(place: &CellArgs, consumer: &str) -> Result<Waiting, Failure> {
    let waiting = Waiting::for_consumer(place, consumer).await?;
    if !waiting.is_registered {
        return Err(Failure::Failed(format!(
            "no consumer {consumer} is registered yet, so nobody can drop anything: start it once, or run `spillway \
             consumers add {consumer}` on a machine"
        )));
    }
    Ok(waiting)
}

/// Ids that as much memory would hold as the names and the records of these webhooks take.
fn held_by(named: &NamedWebhooks) -> u64 {
    let ids = named.dropping.names() + named.history.len() / HELD_BYTES;
    u64::try_from(ids).unwrap_or(u64::MAX)
}

impl JobWork for DeadWork {
    type Found = FoundLetters;

    async fn count(&mut self, progress: JobProgress) -> Result<CountedJob<FoundLetters>, Failure> {
        let target = self.target.clone();
        let filter = self.filter.clone();
        let keeps_compliance = self.how == Take::Drop && !self.force;
        apart(move || async move {
            let keeps = |topic: &str| keeps_compliance && is_compliance(topic.as_bytes());
            let looked = |number| {
                progress.note(number);
                progress.hold(number)
            };
            let found =
                count_letters(&target.place, &target.consumer, &filter, keeps, looked).await?;
            let digest = found.digest();
            Ok(CountedJob { number: found.number(), kept: found.compliance_kept, digest, found })
        })
        .await
    }

    async fn make(
        &mut self,
        found: FoundLetters,
        progress: JobProgress,
    ) -> Result<MadeJob, Failure> {
        let JobTarget { place, consumer, actor, stop } = self.target.clone();
        let filter = self.filter.to_string();
        let how = self.how;
        // What was taken so far stays so. A drop is cut only when the process stops: it takes no time.
        let stop = match how {
            Take::Replay => progress.end().clone(),
            Take::Drop => stop,
        };
        let order = TakeOrder { consumer, how, filter, rate: self.rate, stop };
        apart(move || async move {
            let note = |taken| progress.note(taken);
            let taken = take_letters(&place, &actor, order, &found, note).await?;
            let TakenLetters { taken: done, left } = taken;
            Ok(MadeJob { done, not_yet: 0, is_exact: true, is_cut: left > 0 })
        })
        .await
    }
}

impl JobWork for DropWork {
    type Found = NamedWebhooks;

    async fn count(&mut self, progress: JobProgress) -> Result<CountedJob<NamedWebhooks>, Failure> {
        let target = self.target.clone();
        let filter = self.filter.clone();
        let force = self.force;
        apart(move || async move {
            let mut waiting = waiting_for(&target.place, &target.consumer).await?;
            let keeps = move |topic: &str| !force && is_compliance(topic.as_bytes());
            let looked = |named: &NamedWebhooks| {
                progress.note(named.webhooks);
                progress.hold(held_by(named))
            };
            let named = count_waiting(&mut waiting, &filter, keeps, looked).await?;
            let NamedWebhooks { webhooks: number, compliance_kept: kept, .. } = named;
            Ok(CountedJob { number, kept, digest: named.digest(), found: named })
        })
        .await
    }

    async fn make(
        &mut self,
        named: NamedWebhooks,
        progress: JobProgress,
    ) -> Result<MadeJob, Failure> {
        let JobTarget { place, consumer, actor, stop } = self.target.clone();
        let filter = self.filter.to_string();
        apart(move || async move {
            let mut waiting = waiting_for(&place, &consumer).await?;
            let wanted = named.webhooks;
            let tell = |ordered| progress.note(ordered);
            let ordered = order_drop(&mut waiting, &actor, filter, &named, tell).await?;
            // What is under way is dropped later, if it fails: the order stays.
            let watched =
                stop.run_until_cancelled(watch(&mut waiting, ordered)).await.transpose()?;
            let unknown = DropProgress { dropped: 0, is_exact: false };
            let DropProgress { dropped: done, is_exact } = watched.unwrap_or(unknown);
            let not_yet = wanted.saturating_sub(done);
            Ok(MadeJob { done, not_yet, is_exact, is_cut: false })
        })
        .await
    }
}

impl JobWork for ArchiveWork {
    type Found = PlannedReplay;

    async fn count(&mut self, progress: JobProgress) -> Result<CountedJob<PlannedReplay>, Failure> {
        let target = self.target.clone();
        let archive = self.archive.clone();
        let asked = self.asked.clone();
        apart(move || async move {
            let planning = plan_replay(&target.place, &archive, &target.consumer, asked);
            let planned = progress.end().run_until_cancelled(planning).await.transpose()?;
            let planned = planned.ok_or_else(|| Failure::Failed("the job is over".to_owned()))?;
            progress.hold(planned.held())?;
            progress.note(planned.webhooks());
            let digest = planned.digest();
            Ok(CountedJob { number: planned.webhooks(), kept: 0, digest, found: planned })
        })
        .await
    }

    async fn make(
        &mut self,
        found: PlannedReplay,
        progress: JobProgress,
    ) -> Result<MadeJob, Failure> {
        let JobTarget { place, actor, .. } = self.target.clone();
        apart(move || async move {
            let note = |fed| progress.note(fed);
            let is_cancelled = || progress.is_undone();
            let end = progress.end();
            let made = order_replay(&place, &actor, found, end, note, is_cancelled).await;
            made.map(|(done, is_cut)| MadeJob { done, not_yet: 0, is_exact: true, is_cut })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use spillway_webhook::StreamId;

    use super::*;

    #[test]
    fn records_for_the_history_count_as_ids_that_are_held() {
        let mut named = NamedWebhooks::default();
        assert_eq!(held_by(&named), 0);
        named.history = vec![0; 100 * HELD_BYTES];
        assert_eq!(held_by(&named), 100);
        named.dropping.name(StreamId { ms: 1, seq: 0 }, 0);
        assert_eq!(held_by(&named), 101);
    }
}
