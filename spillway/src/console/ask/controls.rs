//! Pauses, and their ends.

use spillway_console::ProblemDetails;
use spillway_console::model::change::{PauseChange, PauseRequest};

use super::{consumers, filter_of, needs_all};
use crate::audited::Actor;
use crate::console::links::apart;
use crate::console::state::Console;
use crate::pause::{order_pause, order_resume};

/// Pauses webhooks of a consumer.
pub(in crate::console) async fn pause(
    console: &Console,
    actor: &Actor,
    consumer: &str,
    request: &PauseRequest,
) -> Result<PauseChange, ProblemDetails> {
    let filter = filter_of(&request.selection)?;
    if filter.is_empty() && !request.selection.all {
        return Err(needs_all());
    }
    consumers::ensure_known(console, consumer).await?;
    let place = console.place.clone();
    let actor = actor.clone();
    let consumer = consumer.to_owned();
    let change = apart(move || async move {
        let ordered = order_pause(&place, &actor, &consumer, &filter).await?;
        let changed = if ordered.is_new { vec![filter.to_string()] } else { Vec::new() };
        Ok(PauseChange { changed })
    });
    Ok(change.await?)
}

/// Ends pauses of a consumer: with `all`, each of them; else the one of exactly this selection, which is the pause of the
/// whole consumer if it is empty.
pub(in crate::console) async fn resume(
    console: &Console,
    actor: &Actor,
    consumer: &str,
    request: &PauseRequest,
) -> Result<PauseChange, ProblemDetails> {
    let filter = filter_of(&request.selection)?;
    consumers::ensure_known(console, consumer).await?;
    let is_every = request.selection.all && filter.is_empty();
    let place = console.place.clone();
    let actor = actor.clone();
    let consumer = consumer.to_owned();
    // A request that is cut off does not cut off its change.
    let change = apart(move || async move {
        let meant = (!is_every).then_some(&filter);
        let ended = order_resume(&place, &actor, &consumer, meant).await?;
        Ok(PauseChange { changed: ended.iter().map(ToString::to_string).collect() })
    });
    Ok(change.await?)
}
