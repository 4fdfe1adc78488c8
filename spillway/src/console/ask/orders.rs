//! Orders of jobs: checked, described in words, and begun.

use spillway_console::ProblemDetails;
use spillway_console::model::change::{
    ArchiveReplayRequest, ChangeRequest, JobStatus, WebhookSelection,
};
use spillway_queue::dead::Take;
use spillway_webhook::freshness::{millis, rfc3339};

use super::work::{ArchiveWork, DeadWork, DropWork, JobTarget};
use super::{ensure_filled, ensure_no_ids, filter_of, flags_of, given, needs_all, needs_letters};
use crate::audited::Actor;
use crate::console::jobs::{ExpectedCount, JobOrder, JobVerb, Jobs};
use crate::console::state::ConsoleState;
use crate::dead::filter::{DeadFilter, DeadTimes};
use crate::failure::Failure;
use crate::filter::moment_ms;
use crate::out::now_ms;
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
        let ChangeRequest { selection, expected, digest, rate, force } = request;
        let expected = expected.map(|number| ExpectedCount { number, digest });
        let consumer = consumer.to_owned();
        let target = JobTarget {
            place: console.place.clone(),
            consumer: consumer.clone(),
            actor: actor.clone(),
            stop: console.stop.clone(),
        };
        let is_confirmed = expected.is_some();
        let as_given = selection.clone();
        let order = |filter: String| JobOrder {
            verb,
            consumer,
            filter,
            selection: as_given,
            actor: actor.name,
            expected,
            rate,
            force,
        };
        let stop = &console.stop;
        match verb {
            JobVerb::DeadReplay | JobVerb::DeadDrop => {
                let which = flags_of(&selection);
                let times = DeadTimes { since: selection.since, until: selection.until };
                let ids = selection.ids.as_deref().unwrap_or_default();
                let filter = DeadFilter::of(which, times)?.among(ids)?;
                ensure_meant(filter.is_empty(), selection.all, needs_letters)?;
                let how = if verb == JobVerb::DeadReplay { Take::Replay } else { Take::Drop };
                let order = order(filter.to_string());
                self.begin(order, DeadWork { target, filter, how, rate, force }, stop)
            }
            JobVerb::Drop => {
                let filter = filter_of(&selection)?;
                ensure_meant(filter.is_empty(), selection.all, needs_all)?;
                let order = order(filter.to_string());
                self.begin(order, DropWork { target, filter, force }, stop)
            }
            JobVerb::ArchiveReplay => {
                ensure_no_ids(&selection)?;
                let filter = flags_of(&selection).checked()?;
                ensure_meant(filter.is_empty(), selection.all, needs_all)?;
                let range = range_of(&selection, is_confirmed)?;
                let told = format!("{filter}, from {} to {}", range.from, range.to);
                let asked = AskedReplay::of(range, filter, rate)?;
                let archive = console.parts.archive.clone();
                self.begin(order(told), ArchiveWork { target, archive, asked }, stop)
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
        let ArchiveReplayRequest { since, until, mut selection, expected, digest, rate } = request;
        if given(selection.since.as_ref()).or(given(selection.until.as_ref())).is_some() {
            let told = "give since and until beside the selection, not in it";
            return Err(ProblemDetails::bad_request(told));
        }
        selection.since = Some(since);
        selection.until = until;
        let request = ChangeRequest { selection, expected, digest, rate, force: false };
        self.order(console, actor, consumer, JobVerb::ArchiveReplay, request)
    }
}

/// Checks that everything of a consumer is meant only if the caller says so.
fn ensure_meant(
    is_everything: bool,
    is_all: bool,
    refusal: fn() -> ProblemDetails,
) -> Result<(), ProblemDetails> {
    if is_everything && !is_all { Err(refusal()) } else { Ok(()) }
}

/// Checks that the times of a replay that is confirmed are those that were counted. A time that is how long ago is another
/// one in each request, so no digest would fit, and a retry would be another order.
fn ensure_absolute(selection: &WebhookSelection) -> Result<(), ProblemDetails> {
    for (name, text) in [("since", &selection.since), ("until", &selection.until)] {
        let text = given(text.as_ref()).unwrap_or_default();
        if millis(text.as_bytes()).is_none() {
            return Err(ProblemDetails::bad_request(format!(
                "{name} of a replay that is confirmed is an RFC 3339 time, such as 2026-01-01T12:00:00.000Z: give both times \
                 as the filter of the dry run's job has them"
            )));
        }
    }
    Ok(())
}

/// Range of a selection, in RFC 3339. It ends now if nobody says it.
fn range_of(
    selection: &WebhookSelection,
    is_confirmed: bool,
) -> Result<AskedRange, ProblemDetails> {
    if is_confirmed {
        ensure_absolute(selection)?;
    }
    let now = now_ms();
    let moment = |name: &str, text: Option<&String>| -> Result<Option<String>, Failure> {
        given(text).map(|text| moment_ms(name, text, now).map(rfc3339)).transpose()
    };
    let Some(from) = moment("since", selection.since.as_ref())? else {
        return Err(ProblemDetails::bad_request("give since: when the range begins"));
    };
    let to = moment("until", selection.until.as_ref())?;
    Ok(AskedRange { from, to: to.unwrap_or_else(|| rfc3339(now)) })
}

/// Checks that a request asks for nothing that its verb does not have.
fn ensure_fitting(verb: JobVerb, request: &ChangeRequest) -> Result<(), ProblemDetails> {
    ensure_filled(&request.selection)?;
    let is_replay = matches!(verb, JobVerb::DeadReplay | JobVerb::ArchiveReplay);
    if request.expected == Some(0) {
        return Err(ProblemDetails::bad_request("expected is 0: there is nothing to do"));
    }
    if request.digest.is_some() && request.expected.is_none() {
        return Err(ProblemDetails::bad_request("a digest goes with expected: give both, or none"));
    }
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
        let digest = Some("a".to_owned());
        for (expected, digest, is_fitting) in
            [(Some(1), digest.clone(), true), (Some(0), None, false), (None, digest, false)]
        {
            let request = ChangeRequest { expected, digest, ..ChangeRequest::default() };
            assert_eq!(ensure_fitting(JobVerb::Drop, &request).is_ok(), is_fitting, "{request:?}");
        }
    }

    #[test]
    fn a_range_is_absolute() {
        let times = |since: Option<&str>| WebhookSelection {
            since: since.map(str::to_owned),
            ..WebhookSelection::default()
        };
        let range = range_of(&times(Some("2h")), false).expect("a range");
        assert!(range.from.ends_with('Z') && range.to.ends_with('Z'), "{range:?}");
        assert!(range.from < range.to, "it ends now: {range:?}");
        for wrong in [None, Some("soon")] {
            assert!(range_of(&times(wrong), false).is_err(), "{wrong:?}");
        }
        let counted = |since: &str, until: Option<&str>| {
            let until = until.map(str::to_owned);
            range_of(&WebhookSelection { until, ..times(Some(since)) }, true)
        };
        let same = counted(&range.from, Some(&range.to)).expect("as the dry run told it");
        assert_eq!((same.from, same.to), (range.from.clone(), range.to.clone()));
        for (since, until, name) in [
            ("2h", Some(range.to.as_str()), "since"),
            (range.from.as_str(), Some("5m"), "until"),
            (range.from.as_str(), None, "until"),
        ] {
            let problem = counted(since, until).expect_err("a retry would be another order");
            assert!(
                problem.code == "bad_request" && problem.detail.starts_with(name),
                "{problem:?}"
            );
        }
    }
}
