//! Shops, topics and resources with the most waiting webhooks: counted in the background, and kept for some seconds.

use std::time::Duration;

use spillway_console::ProblemDetails;
use spillway_console::model::top::{TopGroup, TopList, TopQuery, TopRow};
use spillway_queue::controls::Filter;

use super::{LIMIT_MAX, consumers, given, page_limit};
use crate::console::links::apart;
use crate::console::state::Console;
use crate::failure::Failure;
use crate::out::now_ms;
use crate::place::CellArgs;
use crate::top::{By, TopQuestion, shop_and_resource, tally};

/// Time after which numbers are estimates.
const BUDGET: Duration = Duration::from_millis(1_500);
/// Groups of an answer, if nobody says it.
const GROUPS: u32 = 20;

/// The largest groups.
pub(in crate::console) async fn list(
    console: &Console,
    query: &TopQuery,
) -> Result<TopList, ProblemDetails> {
    let (consumer, _) = consumers::named(console, query.consumer.as_deref()).await?;
    let shop = given(query.shop.as_ref()).map(str::to_owned);
    let key = (consumer.clone(), query.by, shop.clone());
    let by = query.by;
    let ask = || {
        let place = console.place.clone();
        let gate = console.links.gate.clone();
        async move {
            let room = gate.enter().await?;
            let found = apart(move || async move {
                // The read goes on if the caller leaves, so it keeps its room.
                let _room = room;
                count(place, consumer, by, shop).await
            });
            found.await.map_err(ProblemDetails::from)
        }
    };
    let all = console.links.tops.get(key, ask).await?;
    let mut list = TopList::clone(&all);
    list.rows.truncate(page_limit(query.limit, GROUPS));
    Ok(list)
}

async fn count(
    place: CellArgs,
    consumer: String,
    group: TopGroup,
    shop: Option<String>,
) -> Result<TopList, Failure> {
    let by = match group {
        TopGroup::Shop => By::Shop,
        TopGroup::Topic => By::Topic,
        TopGroup::Resource => By::Resource,
    };
    let is_of_shop = shop.is_some();
    let filter = Filter { shop, ..Filter::default() };
    let question = TopQuestion { by, filter, budget: Some(BUDGET) };
    let found = tally(&place, &consumer, &question).await?;
    let rows = found.rows(page_limit(None, LIMIT_MAX)).into_iter().map(|row| {
        let paused_by = found.pauses_of(by, &row.name);
        let (shop, name) = match by {
            By::Resource => {
                let (shop, resource) = shop_and_resource(&row.name);
                (Some(shop.to_owned()), resource.to_owned())
            }
            By::Shop | By::Topic => (None, row.name),
        };
        TopRow {
            name,
            shop,
            waiting: row.waiting,
            off_by: row.off_by,
            oldest_ms: row.oldest_ms,
            paused_by,
        }
    });
    Ok(TopList {
        rows: rows.collect(),
        consumer,
        at_ms: now_ms(),
        is_exact: found.is_exact(),
        // The consumer's own count is exact, and knows no filter.
        waiting: if is_of_shop { found.total() } else { found.waiting.count },
        oldest_ms: found.oldest_ms(),
    })
}
