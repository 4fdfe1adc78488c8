//! Shops, topics and resources with the most waiting webhooks, and one shop's flow.

use maud::{Markup, html};

use super::figures::{age_since, counted, moment, thousands};
use super::frame::ConsoleView;
use super::gaps::rows as gap_rows;
use super::links;
use super::parts::{StateLevel, TableColumn, field, figure, hidden, list, state, table};
use crate::access::{Caller, Permission};
use crate::csrf;
use crate::model::dead::DeadList;
use crate::model::gaps::GapList;
use crate::model::lanes::LaneList;
use crate::model::top::{TopGroup, TopList, TopQuery, TopRow};

/// Everything about one shop that its page shows.
#[derive(Debug, Clone, Copy)]
pub struct ShopReport<'a> {
    /// Shop domain.
    pub shop: &'a str,
    /// Topics of the shop with waiting webhooks.
    pub topics: &'a TopList,
    /// Lanes of the shop.
    pub lanes: &'a LaneList,
    /// Oldest dead letters of the shop; `None` if the caller may not see them.
    pub dead: Option<&'a DeadList>,
    /// Gaps of the shop, silent topics among them; `None` if the caller may not see them, or they are not known.
    pub gaps: Option<&'a GapList>,
}

const LANES: [TableColumn<'static>; 4] = [
    TableColumn::text("Kind"),
    TableColumn::number("Waiting"),
    TableColumn::text("Circuit breaker"),
    TableColumn::text("Why"),
];
const LETTERS: [TableColumn<'static>; 4] = [
    TableColumn::text("Spillway-Id"),
    TableColumn::text("Topic"),
    TableColumn::text("Given up"),
    TableColumn::text("Why"),
];

/// The page with the largest groups.
pub fn page(caller: &Caller, top: &TopList, query: &TopQuery) -> Markup {
    let name = match query.by {
        TopGroup::Shop => "Shop",
        TopGroup::Topic => "Topic",
        TopGroup::Resource => "Shop and resource",
    };
    let columns = columns(name);
    let rows: Vec<_> = top.rows.iter().map(|row| top_row(top, query, row)).collect();
    ConsoleView::Shops.page(
        caller,
        &html! {
            (find())
            ul.tabs aria-label="Count by" {
                @for (by, label) in [
                    (TopGroup::Shop, "By shop"),
                    (TopGroup::Topic, "By topic"),
                    (TopGroup::Resource, "By resource"),
                ] {
                    li {
                        a href=(links::with_query("/shops", query, &[("by", word(by))]))
                            aria-current=[(by == query.by).then_some("true")] { (label) }
                    }
                }
            }
            (filter(top, query))
            section aria-labelledby="top" {
                h2 #top {
                    (counted(top.waiting, "webhook"))
                    @if let Some(shop) = &query.shop { " of " (shop) }
                    " waiting for " (top.consumer)
                }
                (exactness(top))
                @if rows.is_empty() {
                    p.notice { "No webhook waits. A shop is found by its domain, above." }
                } @else {
                    (list("Most waiting webhooks first", &columns, &rows))
                }
            }
        },
    )
}

/// The page of one shop.
pub fn shop_page(caller: &Caller, report: &ShopReport<'_>) -> Markup {
    ConsoleView::Shops.page_with_title(
        report.shop,
        caller,
        &html! {
            (numbers(report))
            section aria-labelledby="topics" {
                h2 #topics { "Waiting by topic" }
                (exactness(report.topics))
                @let rows: Vec<_> = report
                    .topics
                    .rows
                    .iter()
                    .map(|row| topic_row(report, row))
                    .collect();
                @if rows.is_empty() {
                    p.quiet { "No webhook of this shop waits." }
                } @else {
                    (table("Topics with waiting webhooks", &columns("Topic"), &rows))
                }
            }
            (lanes(report.shop, report.lanes))
            @if let Some(dead) = report.dead { (letters(report.shop, dead)) }
            @if let Some(gaps) = report.gaps { (silent(report.shop, gaps)) }
            @if caller.may(Permission::Operate) { (pause(caller, report)) }
        },
    )
}

fn find() -> Markup {
    html! {
        form.filter method="get" action="/shops" role="search" aria-label="Shop by its domain" {
            div.field.wide {
                label for="find-name" { "Shop domain" }
                input #find-name name="name" required autocomplete="off" spellcheck="false"
                    placeholder="a.myshopify.com";
            }
            button type="submit" { "Open" }
        }
    }
}

fn filter(top: &TopList, query: &TopQuery) -> Markup {
    let consumer = query.consumer.as_deref().unwrap_or(&top.consumer);
    html! {
        form.filter method="get" action="/shops" role="search" aria-label="Filter of the count" {
            (hidden("by", Some(word(query.by))))
            (field("filter", "consumer", "Consumer", Some(consumer), "http"))
            (field("filter", "shop", "Only of shop", query.shop.as_deref(), "a.myshopify.com"))
            button type="submit" { "Show" }
        }
    }
}

/// Sentence about the count: when it was made, and if it is an estimate.
fn exactness(top: &TopList) -> Markup {
    html! {
        p.quiet {
            @if top.at_ms == 0 { "They are being counted: load the page again in a few seconds." }
            @else if top.is_exact { "Counted at " (moment(top.at_ms)) " UTC" }
            @else { "Estimates of a sample, made at " (moment(top.at_ms)) " UTC" }
        }
    }
}

fn columns(name: &str) -> [TableColumn<'_>; 4] {
    [
        TableColumn::text(name),
        TableColumn::number("Waiting"),
        TableColumn::text("Oldest"),
        TableColumn::text("Paused by"),
    ]
}

/// A row, whose number links to the webhooks that it counts.
fn top_row(top: &TopList, query: &TopQuery, row: &TopRow) -> Vec<Markup> {
    let consumer = ("consumer", top.consumer.as_str());
    let shop = match query.by {
        TopGroup::Shop => None,
        TopGroup::Topic => query.shop.as_deref(),
        TopGroup::Resource => row.shop.as_deref(),
    };
    let shop = ("shop", shop.unwrap_or_default());
    let waiting = links::with("/webhooks", &[consumer, shop, (word(query.by), row.name.as_str())]);
    let name = match (query.by, &row.shop) {
        (TopGroup::Shop, _) => html! { a href=(links::shop(&row.name)) { (row.name) } },
        (TopGroup::Resource, Some(shop)) => {
            html! { a href=(links::shop(shop)) { (shop) } " " (row.name) }
        }
        (TopGroup::Topic | TopGroup::Resource, _) => html! { (row.name) },
    };
    cells(name, &waiting, row)
}

fn topic_row(report: &ShopReport<'_>, row: &TopRow) -> Vec<Markup> {
    let consumer = ("consumer", report.topics.consumer.as_str());
    let waiting =
        links::with("/webhooks", &[consumer, ("shop", report.shop), ("topic", row.name.as_str())]);
    cells(html! { (row.name) }, &waiting, row)
}

fn cells(name: Markup, waiting: &str, row: &TopRow) -> Vec<Markup> {
    let paused = row.paused_by.join("; ");
    vec![
        name,
        html! {
            a href=(waiting) { (thousands(row.waiting)) }
            @if row.off_by > 0 { " ± " (thousands(row.off_by)) }
        },
        moment(row.oldest_ms),
        html! { @if paused.is_empty() { "–" } @else { a href="/lanes" { (paused) } } },
    ]
}

/// The shop's numbers, large. Each links to what it counts.
fn numbers(report: &ShopReport<'_>) -> Markup {
    let consumer = ("consumer", report.topics.consumer.as_str());
    let of = |path: &str| links::with(path, &[consumer, ("shop", report.shop)]);
    let oldest = age_since(report.topics.oldest_ms, report.topics.at_ms);
    html! {
        dl.figures.large {
            (figure("Waiting", &thousands(report.topics.waiting), &of("/webhooks"), None))
            (figure("Oldest", &oldest, &of("/webhooks"), None))
            (figure("In lanes", &thousands(report.lanes.waiting), &of("/lanes"), None))
            @if let Some(dead) = report.dead {
                @let more = if dead.next.is_some() { "+" } else { "" };
                @let number = u64::try_from(dead.letters.len()).unwrap_or(u64::MAX);
                (figure("Dead letters", &format!("{}{more}", thousands(number)), &of("/dead"), None))
            }
        }
    }
}

fn lanes(shop: &str, lanes: &LaneList) -> Markup {
    let all = links::with("/lanes", &[("consumer", lanes.consumer.as_str()), ("shop", shop)]);
    let rows: Vec<_> = lanes
        .lanes
        .iter()
        .map(|lane| {
            let waiting = links::with(
                "/webhooks",
                &[("consumer", lanes.consumer.as_str()), ("shop", lane.shop.as_str())],
            );
            let breaker = match lane.is_tripped {
                true => state(StateLevel::Bad, "open"),
                false => state(StateLevel::Ok, "closed"),
            };
            vec![
                html! { (lane.kind) },
                html! { a href=(waiting) { (thousands(lane.waiting)) } },
                breaker,
                html! { (lane.reason) },
            ]
        })
        .collect();
    html! {
        section aria-labelledby="lanes" {
            h2 #lanes { "Lanes" }
            @if rows.is_empty() {
                p.quiet { "Nothing of this shop waits outside the main stream." }
            } @else {
                (table("Lanes of this shop, those with most waiting webhooks first", &LANES, &rows))
                @if lanes.next.is_some() { p { a href=(all) { "All lanes of this shop" } } }
            }
        }
    }
}

fn letters(shop: &str, dead: &DeadList) -> Markup {
    let rows: Vec<_> = dead
        .letters
        .iter()
        .map(|letter| {
            let href = links::letter(&dead.consumer, &letter.spillway_id);
            vec![
                html! { a.id href=(href) { (letter.spillway_id) } },
                html! { (letter.topic) },
                moment(letter.dead_at_ms),
                html! { (letter.reason) },
            ]
        })
        .collect();
    let all = links::with("/dead", &[("consumer", dead.consumer.as_str()), ("shop", shop)]);
    html! {
        section aria-labelledby="letters" {
            h2 #letters { "Dead letters" }
            @if rows.is_empty() && dead.next.is_none() {
                p.quiet { "Nothing of this shop was given up." }
            } @else {
                (table("Oldest dead letters of this shop", &LETTERS, &rows))
                p { a href=(all) { "All of them, to replay or to drop" } }
            }
        }
    }
}

fn silent(shop: &str, gaps: &GapList) -> Markup {
    html! {
        section aria-labelledby="gaps" {
            h2 #gaps { "Silent topics and other gaps" }
            @if gaps.gaps.is_empty() {
                p.quiet { "No gap is known in the last day." }
            } @else {
                (table("Times in which webhooks may be missing", &super::gaps::COLUMNS, &gap_rows(gaps)))
            }
            p { a href=(links::with("/gaps", &[("shop", shop)])) { "Gaps of a longer time" } }
        }
    }
}

fn pause(caller: &Caller, report: &ShopReport<'_>) -> Markup {
    html! {
        section aria-labelledby="pause" {
            h2 #pause { "Pause" }
            p { "Webhooks of a paused shop wait, and those of others go on." }
            form.filter method="post" action="/lanes/pause" {
                (csrf::field(caller))
                (hidden("consumer", Some(&report.topics.consumer)))
                (hidden("shop", Some(report.shop)))
                button type="submit" { "Pause this shop" }
                button type="submit" formaction="/lanes/resume" { "Resume this shop" }
            }
        }
    }
}

fn word(by: TopGroup) -> &'static str {
    match by {
        TopGroup::Shop => "shop",
        TopGroup::Topic => "topic",
        TopGroup::Resource => "resource",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::model::dead::DeadSummary;
    use crate::model::gaps::{GapCause, GapLine};
    use crate::model::lanes::LaneSummary;
    use crate::pages::testing::{assert_hygiene, assert_numbers_link, caller, hostile};

    fn top() -> TopList {
        let row = TopRow {
            name: hostile(),
            waiting: 2_000,
            off_by: 10,
            oldest_ms: 1_767_268_830_000,
            paused_by: vec![hostile()],
            shop: Some("a.example".to_owned()),
        };
        TopList {
            consumer: hostile(),
            at_ms: 1_767_268_861_000,
            is_exact: false,
            waiting: 3_000,
            // The oldest is of none of the rows.
            oldest_ms: Some(1_767_268_800_000),
            rows: vec![row],
        }
    }

    #[test]
    fn groups_are_escaped_and_their_numbers_link() {
        for by in [TopGroup::Shop, TopGroup::Topic, TopGroup::Resource] {
            let query = TopQuery { by, shop: Some(hostile()), ..TopQuery::default() };
            let text = page(&caller(Role::Viewer), &top(), &query).into_string();
            assert!(text.contains("2,000</a> ± 10") && text.contains("Estimates"), "{text}");
            assert!(text.contains(&format!("&amp;{}=%27", word(by))), "{text}");
            assert_hygiene(&text);
        }
    }

    #[test]
    fn a_number_links_to_the_webhooks_of_its_shop() {
        let list = |by, of: Option<&str>| {
            let row =
                TopRow { name: "x/y".to_owned(), shop: of.map(str::to_owned), ..TopRow::default() };
            let top =
                TopList { consumer: "http".to_owned(), rows: vec![row], ..TopList::default() };
            let query = TopQuery { by, shop: Some("b.example".to_owned()), ..TopQuery::default() };
            page(&caller(Role::Viewer), &top, &query).into_string()
        };
        let topics = list(TopGroup::Topic, None);
        let href = r#"href="/webhooks?consumer=http&amp;shop=b.example&amp;topic=x%2Fy""#;
        assert!(topics.contains(href), "{topics}");
        let resources = list(TopGroup::Resource, Some("b.example"));
        let href = r#"href="/webhooks?consumer=http&amp;shop=b.example&amp;resource=x%2Fy""#;
        assert!(resources.contains(href), "{resources}");
        assert!(resources.contains("0 webhooks of b.example waiting for http"), "{resources}");
    }

    #[test]
    fn one_shop_shows_what_the_caller_may_see() {
        let lane =
            LaneSummary { shop: hostile(), kind: hostile(), waiting: 7, ..LaneSummary::default() };
        let lanes = LaneList {
            consumer: hostile(),
            lanes: vec![lane],
            waiting: 4_321,
            next: Some(hostile()),
            ..LaneList::default()
        };
        let letter =
            DeadSummary { spillway_id: hostile(), reason: hostile(), ..DeadSummary::default() };
        let dead = DeadList { consumer: hostile(), letters: vec![letter], ..DeadList::default() };
        let gap = GapLine {
            shop: hostile(),
            topic: hostile(),
            from_ms: 1,
            to_ms: 2,
            cause: GapCause::Silent,
        };
        let gaps = GapList { gaps: vec![gap], next: None };
        let shop = hostile();
        let top = top();
        let report = ShopReport {
            shop: &shop,
            topics: &top,
            lanes: &lanes,
            dead: Some(&dead),
            gaps: Some(&gaps),
        };
        let text = shop_page(&caller(Role::Operator), &report).into_string();
        for shown in ["3,000", "1m 1s", "4,321", "Pause this shop", "silent", "/dead?consumer="] {
            assert!(text.contains(shown), "{shown} is missing: {text}");
        }
        assert_hygiene(&text);
        assert_numbers_link(&text);
        let less = ShopReport { dead: None, gaps: None, ..report };
        let text = shop_page(&caller(Role::Viewer), &less).into_string();
        assert!(!text.contains("/dead") && !text.contains("Pause this shop"), "{text}");
        assert_hygiene(&text);
    }
}
