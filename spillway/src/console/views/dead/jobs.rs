//! The list of jobs, the page of one, its undo, and the orders of all forms that make one.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use spillway_console::model::change::JobStatus;
use spillway_console::pages::extract::{PagePath, PageQuery};
use spillway_console::pages::forms::ChangeForm;
use spillway_console::pages::problem::PageProblem;
use spillway_console::pages::{job, jobs, links};
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};
use spillway_queue::audit::AuditWay;
use spillway_webhook::freshness::rfc3339;

use crate::audited::Actor;
use crate::console::jobs::JobVerb;
use crate::console::live;
use crate::console::state::ConsoleState;
use crate::failure::Failure;
use crate::filter::moment_ms;
use crate::out::now_ms;

/// Routes of this area.
pub(super) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read(job::JOBS, Permission::Search, list),
        ConsoleRoute::read("/jobs/{id}", Permission::Search, one),
        ConsoleRoute::read(job::EVENTS, Permission::Search, live::job),
        ConsoleRoute::change("/jobs/{id}/undo", Permission::Replay, undo),
    ]
}

/// The caller of a page, as the one who makes a change.
pub(in crate::console::views) fn actor_of(caller: &Caller) -> Actor {
    Actor { name: caller.name.clone(), way: AuditWay::Console }
}

/// Orders the change of a form, and leads to the page of its job. Without the typed number it is a dry
/// run, and the page repeats the form.
pub(in crate::console::views) fn order(
    console: &ConsoleState,
    caller: &Caller,
    verb: JobVerb,
    form: &ChangeForm,
) -> Result<Redirect, ProblemDetails> {
    let form = &absolute(form)?;
    let request = form.change()?;
    if request.force && !caller.may(Permission::Administer) {
        let needed = Permission::Administer.description();
        return Err(ProblemDetails::forbidden(format!(
            "{} needs {needed} to drop webhooks of compliance topics",
            caller.name
        )));
    }
    let consumer = form.consumer()?;
    let is_dry_run = request.expected.is_none();
    let ordered = console.jobs.order(console.clone(), actor_of(caller), consumer, verb, request)?;
    let path = path_of(&ordered);
    // The job keeps the ids: with 200 of them, the path would be too long for a proxy.
    let to = if is_dry_run { links::with_query(&path, form, &[("ids", "")]) } else { path };
    Ok(Redirect::to(&to))
}

/// A form whose times are absolute, so that its page confirms the range that was counted.
fn absolute(form: &ChangeForm) -> Result<ChangeForm, Failure> {
    let now = now_ms();
    let moment = |name: &str, text: Option<&String>| {
        text.map(|text| moment_ms(name, text, now).map(rfc3339)).transpose()
    };
    let since = moment("since", form.since.as_ref())?;
    let until = moment("until", form.until.as_ref())?;
    Ok(ChangeForm { since, until, ..form.clone() })
}

async fn list(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
) -> Response {
    jobs::page(&caller, &console.jobs.list()).into_response()
}

async fn one(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PagePath(id): PagePath<u64>,
    PageQuery(form): PageQuery<ChangeForm>,
) -> Result<Response, PageProblem> {
    let status = console.jobs.status(id).ok_or_else(|| {
        ProblemDetails::not_found(
            "there is no such job: the console knows the last ones since its start; the audit has the others",
        )
    })?;
    let form = ChangeForm { ids: console.jobs.chosen(id), ..form };
    Ok(job::page(&caller, &status, &form).into_response())
}

async fn undo(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PagePath(id): PagePath<u64>,
) -> Result<Redirect, PageProblem> {
    let undone = console.jobs.undo(id, &caller)?;
    Ok(Redirect::to(&path_of(&undone)))
}

fn path_of(job: &JobStatus) -> String {
    format!("/jobs/{}", job.id)
}
