//! Pauses, and their ends.

use spillway_console::ProblemDetails;
use spillway_console::model::change::{PauseChange, PauseRequest};

use super::{consumers, ensure_filled, filter_of, needs_all};
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
    ensure_filled(&request.selection)?;
    let filter = filter_of(&request.selection)?;
    if filter.is_empty() && !request.selection.all && !request.whole {
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

/// Ends pauses of a consumer: with `all`, each of them; with `whole`, that of the whole consumer; else the one of exactly
/// this selection.
pub(in crate::console) async fn resume(
    console: &Console,
    actor: &Actor,
    consumer: &str,
    request: &PauseRequest,
) -> Result<PauseChange, ProblemDetails> {
    ensure_filled(&request.selection)?;
    let filter = filter_of(&request.selection)?;
    if filter.is_empty() && !request.selection.all && !request.whole {
        let told = "give the selection of a pause, \"whole\": true for the pause of the whole consumer, or \"all\": true \
                    in the selection for every pause";
        return Err(ProblemDetails::bad_request(told));
    }
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
