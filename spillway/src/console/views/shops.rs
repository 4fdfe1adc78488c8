//! The view of shops, and of one shop.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use spillway_console::model::dead::{DeadList, DeadQuery};
use spillway_console::model::gaps::{GapList, GapQuery};
use spillway_console::model::lanes::LaneQuery;
use spillway_console::model::top::{TopGroup, TopQuery};
use spillway_console::pages::extract::{PagePath, PageQuery};
use spillway_console::pages::forms::ViewQuery;
use spillway_console::pages::links;
use spillway_console::pages::problem::PageProblem;
use spillway_console::pages::shops::{self, ShopReport};
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::ask;
use crate::console::state::{Console, ConsoleState};

/// Lanes, dead letters and gaps on the page of one shop. Links lead to all of them.
const SHOWN: u32 = 20;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/shops", Permission::Look, list),
        ConsoleRoute::read("/shops/{shop}", Permission::Look, one),
    ]
}

/// The largest groups; with a name, it leads to that shop.
async fn list(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageQuery(query): PageQuery<TopQuery>,
    PageQuery(view): PageQuery<ViewQuery>,
) -> Result<Response, PageProblem> {
    if let Some(name) = &view.name {
        return Ok(Redirect::to(&links::shop(name)).into_response());
    }
    let found = ask::top::list(&console, &query).await?;
    Ok(shops::page(&caller, &found, &query).into_response())
}

async fn one(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PagePath(shop): PagePath<String>,
    PageQuery(view): PageQuery<ViewQuery>,
) -> Result<Response, PageProblem> {
    let consumer = view.consumer;
    let topics = TopQuery {
        consumer: consumer.clone(),
        by: TopGroup::Topic,
        shop: Some(shop.clone()),
        limit: None,
    };
    let lanes = LaneQuery {
        consumer: consumer.clone(),
        shop: Some(shop.clone()),
        after: None,
        limit: Some(SHOWN),
    };
    let topics = ask::top::list(&console, &topics).await?;
    let lanes = ask::lanes::list(&console, &lanes).await?;
    let may_search = caller.may(Permission::Search);
    let dead = if may_search { dead_of(&console, consumer, &shop).await } else { None };
    let gaps = if may_search { gaps_of(&console, &shop).await } else { None };
    let report = ShopReport {
        shop: &shop,
        topics: &topics,
        lanes: &lanes,
        dead: dead.as_ref(),
        gaps: gaps.as_ref(),
    };
    Ok(shops::shop_page(&caller, &report).into_response())
}

/// Dead letters of a shop; none if they can't be read now, as the rest of the page is worth reading.
async fn dead_of(console: &Console, consumer: Option<String>, shop: &str) -> Option<DeadList> {
    let shop = Some(shop.to_owned());
    let query = DeadQuery { consumer, shop, limit: Some(SHOWN), ..DeadQuery::default() };
    ask::dead::list(console, &query).await.ok()
}

/// Gaps of a shop in the last day; none if they can't be read now.
async fn gaps_of(console: &Console, shop: &str) -> Option<GapList> {
    let shop = Some(shop.to_owned());
    let query = GapQuery { shop, limit: Some(SHOWN), ..GapQuery::default() };
    ask::gaps::list(console, &query).await.ok()
}
