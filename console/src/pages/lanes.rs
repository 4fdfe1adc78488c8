//! Lanes: who waits outside the main stream and why, with pause and resume.

use maud::{Markup, html};

use super::figures::{counted, moment, thousands};
use super::forms::ChangeForm;
use super::frame::ConsoleView;
use super::links;
use super::parts::{StateLevel, TableColumn, field, list, pager, state, table};
use crate::access::{Caller, Permission};
use crate::csrf;
use crate::model::lanes::{LaneList, LaneQuery, LaneSummary};
use crate::model::overview::PauseOverview;

const LANES: [TableColumn<'static>; 7] = [
    TableColumn::text("Shop"),
    TableColumn::text("Kind"),
    TableColumn::number("Waiting"),
    TableColumn::text("Oldest"),
    TableColumn::text("Circuit breaker"),
    TableColumn::text("Why"),
    TableColumn::text("Action"),
];

const PAUSES: [TableColumn<'static>; 3] =
    [TableColumn::text("Paused"), TableColumn::text("Since"), TableColumn::text("Action")];

/// The whole page. `told` is the code of the change that led to it: `paused` or `resumed`.
pub fn page(caller: &Caller, lanes: &LaneList, query: &LaneQuery, told: Option<&str>) -> Markup {
    let may = caller.may(Permission::Operate);
    ConsoleView::Lanes.page(
        caller,
        &html! {
            @match told {
                Some("paused") => {
                    p.notice role="status" { "Paused, within a second. Deliveries under way are completed." }
                },
                Some("resumed") => { p.notice role="status" { "Resumed, within a second." } },
                _ => {},
            }
            p { "A lane holds the webhooks of one shop and kind that can't go now. The others pass them." }
            (filter(lanes, query))
            (pauses(caller, lanes))
            section aria-labelledby="lanes" {
                h2 #lanes { (counted(lanes.total, "lane")) " of " (lanes.consumer) }
                p.quiet {
                    (counted(lanes.waiting, "webhook"))
                    @if let Some(shop) = &query.shop { " of " (shop) }
                    " in lanes, read at " (moment(lanes.at_ms)) " UTC"
                }
                @if lanes.lanes.is_empty() && lanes.next.is_none() {
                    p.notice { "No webhook waits in a lane." }
                } @else {
                    @let rows: Vec<_> =
                        lanes.lanes.iter().map(|lane| row(caller, lanes, lane, may)).collect();
                    (list("Lanes, those with most waiting webhooks first", &columns(may), &rows))
                }
                (pager("/lanes", query, lanes.next.as_deref(), lanes.lanes.is_empty()))
            }
        },
    )
}

/// Without the action, where the caller may not act.
fn columns(may: bool) -> Vec<TableColumn<'static>> {
    let number = if may { LANES.len() } else { LANES.len() - 1 };
    LANES[..number].to_vec()
}

fn filter(lanes: &LaneList, query: &LaneQuery) -> Markup {
    let consumer = query.consumer.as_deref().unwrap_or(&lanes.consumer);
    html! {
        form.filter method="get" action="/lanes" role="search" aria-label="Filter of lanes" {
            (field("filter", "consumer", "Consumer", Some(consumer), "http"))
            (field("filter", "shop", "Shop", query.shop.as_deref(), "a.myshopify.com"))
            button type="submit" { "Show" }
        }
    }
}

fn row(caller: &Caller, lanes: &LaneList, lane: &LaneSummary, may: bool) -> Vec<Markup> {
    let waiting = links::with(
        "/webhooks",
        &[("consumer", lanes.consumer.as_str()), ("shop", lane.shop.as_str())],
    );
    let breaker = match lane.is_tripped {
        true => state(StateLevel::Bad, "open"),
        false => state(StateLevel::Ok, "closed"),
    };
    let mut cells = vec![
        html! { a href=(links::shop(&lane.shop)) { (lane.shop) } },
        html! { (lane.kind) },
        html! { a href=(waiting) { (thousands(lane.waiting)) } },
        moment(lane.oldest_ms),
        breaker,
        html! { (lane.reason) },
    ];
    if may {
        let form = ChangeForm {
            consumer: Some(lanes.consumer.clone()),
            shop: Some(lane.shop.clone()),
            ..ChangeForm::default()
        };
        cells.push(button(caller, "/lanes/pause", &form, "Pause shop", &lane.shop));
    }
    cells
}

/// Form of one button that acts on a selection. `about` tells a screen reader which row it is.
fn button(caller: &Caller, action: &str, form: &ChangeForm, label: &str, about: &str) -> Markup {
    html! {
        form method="post" action=(action) {
            (csrf::field(caller))
            (form.hidden())
            button.small type="submit" aria-label={ (label) ": " (about) } { (label) }
        }
    }
}

fn pauses(caller: &Caller, lanes: &LaneList) -> Markup {
    let may = caller.may(Permission::Operate);
    let rows: Vec<_> =
        lanes.pauses.iter().map(|pause| pause_row(caller, &lanes.consumer, pause)).collect();
    let columns = if may { &PAUSES[..] } else { &PAUSES[..PAUSES.len() - 1] };
    html! {
        section aria-labelledby="pauses" {
            h2 #pauses { "Pauses" }
            @if rows.is_empty() {
                p.quiet { "Nothing is paused for " (lanes.consumer) "." }
            } @else {
                (table("Pauses in force", columns, &rows))
            }
            @if may { (orders(caller, &lanes.consumer)) }
        }
    }
}

fn pause_row(caller: &Caller, consumer: &str, pause: &PauseOverview) -> Vec<Markup> {
    let form = ChangeForm::of_pause(consumer, &pause.filter);
    let action = html! {
        @if let Some(form) = &form {
            (button(caller, "/lanes/resume", form, "Resume", &pause.filter))
        } @else { "Resume it with its fields, below" }
    };
    vec![html! { (pause.filter) }, moment(pause.since_ms), action]
}

/// Form to pause or to resume what is typed.
fn orders(caller: &Caller, consumer: &str) -> Markup {
    html! {
        details {
            summary { "Pause or resume by shop, topic or resource" }
            form.filter method="post" action="/lanes/pause" {
                (csrf::field(caller))
                (field("pause", "consumer", "Consumer", Some(consumer), "http"))
                (field("pause", "shop", "Shop", None, "a.myshopify.com"))
                (field("pause", "topic", "Topic", None, "orders/*"))
                (field("pause", "resource", "Resource", None, "product/12"))
                div.check {
                    input #pause-all type="checkbox" name="all" value="true";
                    label for="pause-all" { "Everything, if no other field is filled in: the whole consumer, or every pause" }
                }
                button type="submit" { "Pause" }
                button type="submit" formaction="/lanes/resume" { "Resume" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    fn lanes() -> LaneList {
        let lane = LaneSummary {
            lane: hostile(),
            shop: hostile(),
            kind: hostile(),
            waiting: 12_345,
            oldest_ms: 1_767_268_800_000,
            reason: hostile(),
            is_tripped: true,
        };
        let words = |filter: &str| PauseOverview { filter: filter.to_owned(), since_ms: 1 };
        LaneList {
            consumer: hostile(),
            total: 1,
            waiting: 23_456,
            at_ms: 1_767_268_861_000,
            lanes: vec![lane],
            pauses: vec![words("shop a.example"), words("everything"), words(&hostile())],
            next: Some(hostile()),
        }
    }

    #[test]
    fn an_operator_can_act_and_a_viewer_can_look() {
        let query = LaneQuery { shop: Some(hostile()), ..LaneQuery::default() };
        let of = |role| page(&caller(role), &lanes(), &query, Some(&hostile())).into_string();
        let operator = of(Role::Operator);
        assert!(operator.contains(r#"action="/lanes/pause""#), "{operator}");
        assert!(operator.contains(r#"action="/lanes/resume""#), "{operator}");
        let viewer = of(Role::Viewer);
        assert!(!viewer.contains("/lanes/pause") && !viewer.contains("/lanes/resume"));
        assert!(viewer.contains("12,345</a>") && viewer.contains("state bad"), "{viewer}");
        assert!(viewer.contains("23,456 webhooks of") && viewer.contains("12:01:01"), "{viewer}");
        for text in [operator, viewer] {
            assert_hygiene(&text);
        }
    }
}
