//! Gaps: times in which webhooks may be missing, for the app's own reconciliation.

use maud::{Markup, html};

use super::figures::moment;
use super::frame::ConsoleView;
use super::links;
use super::parts::{StateLevel, TableColumn, field, list, pager, state};
use crate::access::Caller;
use crate::model::gaps::{GapCause, GapLine, GapList, GapQuery};

/// Path of the same gaps as CSV.
const CSV: &str = "/gaps.csv";

pub(super) const COLUMNS: [TableColumn<'static>; 5] = [
    TableColumn::text("Shop"),
    TableColumn::text("Topic"),
    TableColumn::text("From (UTC)"),
    TableColumn::text("To (UTC)"),
    TableColumn::text("Cause"),
];

/// The whole page.
pub fn page(caller: &Caller, gaps: &GapList, query: &GapQuery) -> Markup {
    let is_empty = gaps.gaps.is_empty();
    ConsoleView::Gaps.page(
        caller,
        &html! {
            p {
                "Between these times, webhooks may be missing: they were refused, they may be lost, nothing came for "
                "much longer than usual, or no receiver accepted any. Ask Shopify for what changed then."
            }
            form.filter method="get" action="/gaps" role="search" aria-label="Filter of gaps" {
                (field("filter", "since", "Since", query.since.as_deref(), "1d"))
                (field("filter", "shop", "Shop", query.shop.as_deref(), "a.myshopify.com"))
                button type="submit" { "Show" }
            }
            @if is_empty && gaps.next.is_none() {
                p.notice { "No gap is known for this time." }
            } @else {
                p { a.button href=(links::with_query(CSV, query, &[("after", ""), ("limit", "")])) download {
                    "Download as CSV"
                } }
                (list("Gaps", &COLUMNS, &rows(gaps)))
            }
            (pager("/gaps", query, gaps.next.as_deref(), is_empty))
        },
    )
}

/// Rows of a table with [`COLUMNS`].
pub(super) fn rows(gaps: &GapList) -> Vec<Vec<Markup>> {
    gaps.gaps.iter().map(row).collect()
}

fn row(gap: &GapLine) -> Vec<Markup> {
    let cause = match gap.cause {
        GapCause::Refused => state(StateLevel::Bad, "refused"),
        GapCause::Lost => state(StateLevel::Bad, "may be lost"),
        GapCause::Silent => state(StateLevel::Warning, "silent"),
        GapCause::Down => state(StateLevel::Bad, "no receiver"),
    };
    vec![
        html! {
            @if gap.shop.is_empty() { "any shop" }
            @else { a href=(links::shop(&gap.shop)) { (gap.shop) } }
        },
        html! { @if gap.topic.is_empty() { "any topic" } @else { (gap.topic) } },
        moment(gap.from_ms),
        moment(gap.to_ms),
        cause,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    #[test]
    fn gaps_are_escaped_and_can_be_downloaded() {
        let gap = |shop: String, cause| GapLine {
            topic: shop.clone(),
            shop,
            from_ms: 1,
            to_ms: 2,
            cause,
        };
        let all = vec![
            gap(hostile(), GapCause::Refused),
            gap(String::new(), GapCause::Lost),
            gap("b.example".to_owned(), GapCause::Down),
        ];
        let gaps = GapList { gaps: all, next: Some(hostile()) };
        let query = GapQuery {
            shop: Some("a.example".to_owned()),
            after: Some("7".to_owned()),
            ..GapQuery::default()
        };
        let text = page(&caller(Role::Support), &gaps, &query).into_string();
        assert!(text.contains("any shop") && text.contains("may be lost"), "{text}");
        assert!(text.contains("no receiver"), "{text}");
        assert!(text.contains(r#"href="/gaps.csv?shop=a.example""#), "{text}");
        assert_hygiene(&text);
    }
}
