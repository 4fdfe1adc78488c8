//! Parts of pages that are sent again whenever they change: server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::state::ConsoleState;

/// Name of the event that replaces a part (`console/assets/console.js`).
const PART: &str = "part";
/// Time after which a stream ends. The browser connects again, and has to be known again: a session
/// that ended meanwhile sees no more.
const LIVE_FOR: Duration = Duration::from_secs(300);

/// Events of the overview.
pub(super) async fn overview(State(console): State<ConsoleState>) -> impl IntoResponse {
    let parts = stream::unfold(console.overview.watch(), |mut latest| async move {
        loop {
            latest.changed().await.ok()?;
            let snapshot = latest.borrow_and_update().clone();
            if let Some(snapshot) = snapshot {
                let event = Event::default().event(PART).data(&snapshot.part);
                return Some((Ok::<_, Infallible>(event), latest));
            }
        }
    });
    let stop = console.stop.clone();
    let end = async move { timeout(LIVE_FOR, stop.cancelled()).await };
    Sse::new(parts.take_until(end)).keep_alive(KeepAlive::default())
}
