//! Gaps: read in the background, once for all who ask, and kept for some seconds.

use std::sync::Arc;

use spillway_console::ProblemDetails;
use spillway_console::model::gaps::{GapLine, GapList, GapQuery};

use super::given;
use crate::console::links::apart;
use crate::console::state::Console;
use crate::gaps;

/// A page of gaps, the newest first.
pub(in crate::console) async fn list(
    console: &Console,
    query: &GapQuery,
) -> Result<GapList, ProblemDetails> {
    Ok(gaps::page_of(&all(console, query).await?, query)?)
}

/// All gaps of a query, whatever its limit, as comma-separated values.
pub(in crate::console) async fn csv(
    console: &Console,
    query: &GapQuery,
) -> Result<String, ProblemDetails> {
    let found = all(console, query).await?;
    let shop = given(query.shop.as_ref()).map(str::to_owned);
    let text = apart(move || async move { Ok(gaps::csv_of(&found, shop.as_deref())) }).await;
    text.map_err(ProblemDetails::from)
}

/// Gaps of all shops since the time that is asked for: the pages of all shops share them.
async fn all(console: &Console, query: &GapQuery) -> Result<Arc<Vec<GapLine>>, ProblemDetails> {
    let since = given(query.since.as_ref()).unwrap_or(gaps::SINCE).to_owned();
    let ask = || {
        let place = console.place.clone();
        let gate = console.links.gate.clone();
        let since = since.clone();
        async move {
            let room = gate.enter().await?;
            let found = apart(move || async move { gaps::find(&place, &since).await }).await;
            drop(room);
            found.map_err(ProblemDetails::from)
        }
    };
    console.links.gaps.get(since.clone(), ask).await
}
