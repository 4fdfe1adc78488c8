//! The view of the archive: dry run and replay of a range of time.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use spillway_console::pages::archive;
use spillway_console::pages::extract::{PageForm, PageQuery};
use spillway_console::pages::forms::ChangeForm;
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};
use spillway_webhook::freshness::rfc3339;

use super::dead::jobs::order;
use crate::console::ask;
use crate::console::jobs::JobVerb;
use crate::console::state::{Console, ConsoleState};
use crate::out::now_ms;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/archive", Permission::Operate, form),
        ConsoleRoute::change("/archive/replay", Permission::Operate, replay),
    ]
}

/// The form, with the values of the query.
async fn form(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageQuery(given): PageQuery<ChangeForm>,
) -> Response {
    let consumer = match given.consumer {
        Some(consumer) => Some(consumer),
        // With several consumers, or without Redis, nobody is proposed.
        None => ask::consumers::named(&console, None).await.ok().map(|(name, _)| name),
    };
    let given = ChangeForm { consumer, ..given };
    archive::page(&caller, has_archive(&console), &given).into_response()
}

async fn replay(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageForm(form): PageForm<ChangeForm>,
) -> Result<Redirect, PageProblem> {
    if !has_archive(&console) {
        let told = "this console knows no archive: set ARCHIVE_URL, and start it again";
        return Err(ProblemDetails::bad_request(told).into());
    }
    // What is confirmed ends at the same time as what was counted.
    let until = form.until.or_else(|| Some(rfc3339(now_ms())));
    let form = ChangeForm { until, ..form };
    Ok(order(&console, &caller, JobVerb::ArchiveReplay, &form)?)
}

/// True if the console has the address of an archive.
fn has_archive(console: &Console) -> bool {
    let url = console.parts.archive.archive_url.as_deref();
    url.is_some_and(|url| !url.trim().is_empty())
}
