//! Orders of jobs: checked, described in words, and begun.

use spillway_console::ProblemDetails;
use spillway_console::model::change::{ArchiveReplayRequest, ChangeRequest, JobStatus};
use spillway_queue::dead::Take;

use super::work::{ArchiveWork, DeadWork, DropWork, JobTarget};
use super::{filter_of, flags_of, given, needs_all};
use crate::audited::Actor;
use crate::console::jobs::{JobOrder, JobVerb, Jobs};
use crate::console::state::ConsoleState;
use crate::dead::filter::{DeadFilter, DeadTimes};
use crate::replay::spec::{AskedRange, AskedReplay};

impl Jobs {
    /// Orders a job. Of a replay from the archive, the times of the selection are those of the range.
    pub(in crate::console) fn order(
        &self,
        console: ConsoleState,
        actor: Actor,
        consumer: &str,
        verb: JobVerb,
        request: ChangeRequest,
    ) -> Result<JobStatus, ProblemDetails> {
        ensure_fitting(verb, &request)?;
        let ChangeRequest { selection, expected, rate, force } = request;
        let has_times =
            given(selection.since.as_ref()).is_some() || given(selection.until.as_ref()).is_some();
        let consumer = consumer.to_owned();
        let target = JobTarget {
            place: console.place.clone(),
            consumer: consumer.clone(),
            actor: actor.clone(),
        };
        let order =
            |filter: String| JobOrder { verb, consumer, filter, actor: actor.name, expected };
        let stop = console.stop.clone();
        match verb {
            JobVerb::DeadReplay | JobVerb::DeadDrop => {
                let which = flags_of(&selection);
                let times = DeadTimes { since: selection.since, until: selection.until };
                let filter = DeadFilter::of(which, times)?;
                if filter.is_empty() && !selection.all {
                    return Err(needs_all());
                }
                let how = if verb == JobVerb::DeadReplay { Take::Replay } else { Take::Drop };
                let order = order(filter.to_string());
                self.begin(order, DeadWork { target, filter, how, rate, force }, stop)
            }
            JobVerb::Drop => {
                let filter = filter_of(&selection)?;
                if filter.is_empty() && !selection.all {
                    return Err(needs_all());
                }
                let order = order(filter.to_string());
                self.begin(order, DropWork { target, filter, force }, stop)
            }
            JobVerb::ArchiveReplay => {
                if !has_times {
                    return Err(ProblemDetails::bad_request("give since: when the range begins"));
                }
                let filter = flags_of(&selection).checked()?;
                if filter.is_empty() && !selection.all {
                    return Err(needs_all());
                }
                let from = selection.since.unwrap_or_default();
                let until = given(selection.until.as_ref());
                let told = format!("{filter}, from {from} to {}", until.unwrap_or("now"));
                let range = AskedRange { from: from.clone(), to: until.map(str::to_owned) };
                let asked = AskedReplay::of(range, filter, rate)?;
                let archive = console.parts.archive.clone();
                let work = ArchiveWork { target, archive, asked, stop: stop.clone() };
                self.begin(order(told), work, stop)
            }
        }
    }

    /// Orders a replay from the archive.
    pub(in crate::console) fn order_archive(
        &self,
        console: ConsoleState,
        actor: Actor,
        consumer: &str,
        request: ArchiveReplayRequest,
    ) -> Result<JobStatus, ProblemDetails> {
        let ArchiveReplayRequest { since, until, mut selection, expected, rate } = request;
        if given(selection.since.as_ref()).or(given(selection.until.as_ref())).is_some() {
            let told = "give since and until beside the selection, not in it";
            return Err(ProblemDetails::bad_request(told));
        }
        selection.since = Some(since);
        selection.until = until;
        let request = ChangeRequest { selection, expected, rate, force: false };
        self.order(console, actor, consumer, JobVerb::ArchiveReplay, request)
    }
}

/// Checks that a request asks for nothing that its verb does not have.
fn ensure_fitting(verb: JobVerb, request: &ChangeRequest) -> Result<(), ProblemDetails> {
    let is_replay = matches!(verb, JobVerb::DeadReplay | JobVerb::ArchiveReplay);
    if request.rate == Some(0) {
        return Err(ProblemDetails::bad_request("rate is at least 1: leave it out for no bound"));
    }
    if request.rate.is_some() && !is_replay {
        return Err(ProblemDetails::bad_request("a drop has no rate: leave it out"));
    }
    if request.force && is_replay {
        return Err(ProblemDetails::bad_request("a replay has no force: leave it out"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_fits_its_verb() {
        let with = |rate, force| ChangeRequest { rate, force, ..ChangeRequest::default() };
        for (verb, request, is_fitting) in [
            (JobVerb::DeadReplay, with(Some(5), false), true),
            (JobVerb::DeadReplay, with(Some(0), false), false),
            (JobVerb::DeadReplay, with(None, true), false),
            (JobVerb::Drop, with(None, true), true),
            (JobVerb::DeadDrop, with(Some(5), false), false),
        ] {
            assert_eq!(ensure_fitting(verb, &request).is_ok(), is_fitting, "{verb:?} {request:?}");
        }
    }
}
