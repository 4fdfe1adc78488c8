//! Lanes of a consumer: all rows are read in the background, at most once a second, and pages are cut from them.

use std::cmp::Reverse;
use std::sync::Arc;

use spillway_console::ProblemDetails;
use spillway_console::model::lanes::{LaneList, LaneQuery, LaneSummary};
use spillway_console::model::overview::PauseOverview;
use spillway_queue::controls::Pause;
use spillway_queue::lane::LaneRow;
use spillway_queue::read::StreamReader;

use super::{LIMIT, consumers, given, page_limit};
use crate::console::links::{KeptLanes, apart};
use crate::console::state::Console;
use crate::failure::Failure;
use crate::out::now_ms;
use crate::place::CellArgs;

/// Place of a lane among those with most webhooks.
type LanePlace = (Reverse<u64>, String);

/// A page of lanes, those with most webhooks first.
pub(in crate::console) async fn list(
    console: &Console,
    query: &LaneQuery,
) -> Result<LaneList, ProblemDetails> {
    let (consumer, status) = consumers::named(console, query.consumer.as_deref()).await?;
    let after = given(query.after.as_ref()).map(place_of).transpose()?;
    let all = rows(console, &consumer).await?;
    let known = consumers::find(&status, &consumer);
    let pauses = known.map(|known| known.pauses.as_slice()).unwrap_or_default();
    let limit = page_limit(query.limit, LIMIT);
    let shop = given(query.shop.as_ref());
    let (lanes, next) = cut(&all.rows, shop, after, limit);
    let lanes = lanes.into_iter().map(|lane| with_pause(lane, pauses)).collect();
    let total = u64::try_from(all.rows.len()).unwrap_or(u64::MAX);
    let waiting = waiting_in(&all.rows, shop);
    let pauses: Vec<PauseOverview> = consumers::pauses(&status, &consumer);
    Ok(LaneList { consumer, total, waiting, at_ms: all.at_ms, lanes, pauses, next })
}

async fn rows(console: &Console, consumer: &str) -> Result<Arc<KeptLanes>, ProblemDetails> {
    let ask = || {
        let place = console.place.clone();
        let consumer = consumer.to_owned();
        async move { apart(move || read(place, consumer)).await.map_err(ProblemDetails::from) }
    };
    console.links.lanes.get(consumer.to_owned(), ask).await
}

async fn read(place: CellArgs, consumer: String) -> Result<KeptLanes, Failure> {
    let at_ms = now_ms();
    let (redis, mut connection) = place.connect().await?;
    let rows = StreamReader::new(redis, &consumer).lane_rows(&mut connection).await?;
    let mut rows: Vec<LaneSummary> = rows.iter().map(summary).collect();
    rows.sort_by_cached_key(lane_place);
    Ok(KeptLanes { at_ms, rows })
}

fn summary(row: &LaneRow) -> LaneSummary {
    let reason = match (row.tripped, row.suspect) {
        (true, _) => "circuit breaker open: nothing of it succeeded lately",
        (false, true) => "its last attempt timed out or was cut off: one is sent at a time",
        (false, false) => "retried, or behind one that is",
    };
    LaneSummary {
        lane: format!("{:016x}", row.lane),
        shop: row.shop.clone(),
        kind: row.kind.clone(),
        waiting: row.waiting,
        oldest_ms: row.first.entry().ms,
        reason: reason.to_owned(),
        is_tripped: row.tripped,
    }
}

/// A pause is the first reason: nothing else helps as long as it lasts.
fn with_pause(mut lane: LaneSummary, pauses: &[Pause]) -> LaneSummary {
    let of_shop = |pause: &&Pause| pause.filter.shop.as_ref().is_none_or(|shop| *shop == lane.shop);
    let own: Vec<&Pause> = pauses.iter().filter(of_shop).collect();
    let is_whole =
        own.iter().any(|pause| pause.filter.is_empty() || pause.filter.only_shop().is_some());
    if is_whole {
        lane.reason = "paused".to_owned();
    } else if let Some(pause) = own.first() {
        lane.reason = format!("{}; paused in part: {}", lane.reason, pause.filter);
    }
    lane
}

fn lane_place(lane: &LaneSummary) -> LanePlace {
    (Reverse(lane.waiting), lane.lane.clone())
}

/// Reads a cursor: webhooks and id of the last lane.
fn place_of(cursor: &str) -> Result<LanePlace, ProblemDetails> {
    let parsed = cursor
        .split_once(':')
        .and_then(|(waiting, lane)| Some((Reverse(waiting.parse().ok()?), lane.to_owned())));
    parsed.ok_or_else(|| {
        ProblemDetails::bad_request(format!(
            "{cursor:?} is no cursor: take it from `next` of a page"
        ))
    })
}

/// Webhooks in all lanes, or in all lanes of a shop.
fn waiting_in(all: &[LaneSummary], shop: Option<&str>) -> u64 {
    let own = all.iter().filter(|lane| shop.is_none_or(|shop| lane.shop == shop));
    own.map(|lane| lane.waiting).sum()
}

/// Lanes of a page, and the cursor of the next one. All lanes are sorted.
fn cut(
    all: &[LaneSummary],
    shop: Option<&str>,
    after: Option<LanePlace>,
    limit: usize,
) -> (Vec<LaneSummary>, Option<String>) {
    let first = after.map_or(0, |after| all.partition_point(|lane| lane_place(lane) <= after));
    let own = all[first..].iter().filter(|lane| shop.is_none_or(|shop| lane.shop == shop));
    let mut lanes: Vec<LaneSummary> = own.take(limit + 1).cloned().collect();
    let has_more = lanes.len() > limit;
    lanes.truncate(limit);
    let last = lanes.last().filter(|_| has_more);
    let next = last.map(|last| format!("{}:{}", last.waiting, last.lane));
    (lanes, next)
}

#[cfg(test)]
mod tests {
    use spillway_queue::controls::Filter;

    use super::*;

    fn lane(waiting: u64, name: &str, shop: &str) -> LaneSummary {
        let lane = name.to_owned();
        LaneSummary { lane, shop: shop.to_owned(), waiting, ..LaneSummary::default() }
    }

    #[test]
    fn pages_follow_one_another_although_lanes_change_between_them() {
        let mut all =
            vec![lane(9, "a", "x"), lane(5, "b", "y"), lane(5, "c", "x"), lane(1, "d", "x")];
        let names =
            |lanes: &[LaneSummary]| lanes.iter().map(|lane| lane.lane.clone()).collect::<String>();
        let (first, next) = cut(&all, None, None, 2);
        assert_eq!((names(&first).as_str(), next.as_deref()), ("ab", Some("5:b")));
        all.remove(1);
        let after = place_of("5:b").expect("a cursor");
        let (second, next) = cut(&all, None, Some(after), 2);
        assert_eq!((names(&second).as_str(), next), ("cd", None));
        let (of_shop, next) = cut(&all, Some("x"), None, 3);
        assert_eq!((names(&of_shop).as_str(), next), ("acd", None));
        let (first, next) = cut(&all, Some("x"), None, 1);
        assert_eq!((names(&first).as_str(), next.is_some()), ("a", true));
        assert_eq!(waiting_in(&all, Some("x")), 15, "of all its lanes, not of one page");
        assert_eq!(waiting_in(&all, Some("y")), 0);
        assert!(place_of("b").is_err() && place_of("x:b").is_err());
    }

    #[test]
    fn a_pause_is_the_reason_for_waiting() {
        let pause = |filter: Filter| Pause { filter, since_ms: 1 };
        let some = |text: &str| Some(text.to_owned());
        let reason = |filter: Filter| with_pause(lane(1, "a", "x"), &[pause(filter)]).reason;
        assert_eq!(reason(Filter::default()), "paused");
        assert_eq!(reason(Filter { shop: some("x"), ..Filter::default() }), "paused");
        assert_eq!(reason(Filter { shop: some("z"), ..Filter::default() }), "");
        let part = Filter { topic: some("orders/*"), ..Filter::default() };
        assert!(reason(part).contains("paused in part: topic orders/*"));
    }

    #[test]
    fn the_lane_of_a_cursor_that_is_still_there_is_not_repeated() {
        let all = [
            lane(9, "a", "x"),
            lane(5, "b", "y"),
            lane(5, "c", "x"),
            lane(5, "d", "x"),
            lane(1, "e", "x"),
        ];
        let seen = |shop: Option<&str>, limit: usize| {
            let mut seen = String::new();
            let mut after = None;
            for _ in &all {
                let (lanes, next) = cut(&all, shop, after.take(), limit);
                seen.extend(lanes.into_iter().map(|lane| lane.lane));
                let Some(next) = next else { break };
                after = Some(place_of(&next).expect("a cursor"));
            }
            seen
        };
        for limit in 1..=all.len() {
            assert_eq!(seen(None, limit), "abcde", "{limit} on a page");
            assert_eq!(seen(Some("x"), limit), "acde", "{limit} on a page");
            assert_eq!(seen(Some("y"), limit), "b", "{limit} on a page");
        }
    }
}
