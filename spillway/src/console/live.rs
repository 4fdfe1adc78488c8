//! Parts of pages that are sent again whenever they change: server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt as _};
use spillway_console::ProblemDetails;
use spillway_console::pages::job as page;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::state::ConsoleState;

/// Name of the event that replaces a part (`console/assets/console.js`).
const PART: &str = "part";
/// Time after which a stream ends. The browser connects again, and has to be known again: a session
/// that ended meanwhile sees no more.
const LIVE_FOR: Duration = Duration::from_secs(300);
/// Least time between two events of a job, whose count changes with each pack.
const JOB_EVERY: Duration = Duration::from_millis(500);

/// Events of the overview.
pub(super) async fn overview(State(console): State<ConsoleState>) -> impl IntoResponse {
    let parts = stream::unfold(console.overview.watch(), |mut latest| async move {
        loop {
            latest.changed().await.ok()?;
            let snapshot = latest.borrow_and_update().clone();
            if let Some(snapshot) = snapshot {
                let event = Event::default().event(PART).data(&snapshot.part);
                return Some((event, latest));
            }
        }
    });
    live(parts, console.stop.clone())
}

/// Events of a job. They end when the job is forgotten.
pub(super) async fn job(
    State(console): State<ConsoleState>,
    Path(id): Path<u64>,
) -> Result<impl IntoResponse, ProblemDetails> {
    let watched = console.jobs.watch(id);
    let mut watched = watched.ok_or_else(|| ProblemDetails::not_found("there is no such job"))?;
    // The first event comes at once: the job may have gone on since its page was made.
    watched.mark_changed();
    let parts = stream::unfold((watched, Duration::ZERO), |(mut watched, pause)| async move {
        sleep(pause).await;
        watched.changed().await.ok()?;
        let part = page::part(&watched.borrow_and_update()).into_string();
        Some((Event::default().event(PART).data(part), (watched, JOB_EVERY)))
    });
    Ok(live(parts, console.stop.clone()))
}

/// A stream of events, for some minutes or until the process stops.
fn live(
    parts: impl Stream<Item = Event> + Send + 'static,
    stop: CancellationToken,
) -> impl IntoResponse {
    let end = async move { timeout(LIVE_FOR, stop.cancelled_owned()).await };
    let events = parts.map(Ok::<_, Infallible>).take_until(end);
    Sse::new(events).keep_alive(KeepAlive::default())
}
