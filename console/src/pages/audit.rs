//! The audit: who changed what.

use maud::{Markup, html};

use super::figures::{moment, thousands};
use super::frame::ConsoleView;
use super::links;
use super::parts::{StateLevel, TableColumn, field, list, pager, state};
use crate::access::Caller;
use crate::model::audit::{AuditLine, AuditList, AuditQuery};

/// Path of the same records as CSV.
const CSV: &str = "/audit.csv";

const COLUMNS: [TableColumn<'static>; 7] = [
    TableColumn::text("Began"),
    TableColumn::text("Who"),
    TableColumn::text("Command"),
    TableColumn::text("Consumer"),
    TableColumn::text("Webhooks"),
    TableColumn::number("Number"),
    TableColumn::text("End"),
];

/// The whole page.
pub fn page(caller: &Caller, audit: &AuditList, query: &AuditQuery) -> Markup {
    let rows: Vec<_> = audit.records.iter().map(|line| row(query, line)).collect();
    ConsoleView::Audit.page(
        caller,
        &html! {
            p {
                "Every change of the cell, by the console, the API or the command, and every look at the headers and the "
                "body of a webhook (read content). Other looks are not recorded."
            }
            form.filter method="get" action="/audit" role="search" aria-label="Filter of the audit" {
                (field("filter", "actor", "Who", query.actor.as_deref(), "mia"))
                (field("filter", "verb", "Command", query.verb.as_deref(), "dead replay"))
                (field("filter", "since", "Since", query.since.as_deref(), "7d"))
                (field("filter", "until", "Until", query.until.as_deref(), "2026-01-31T12:00:00Z"))
                button type="submit" { "Show" }
            }
            @if rows.is_empty() && audit.next.is_none() {
                p.notice { "No record matches." }
            } @else {
                p { a.button href=(links::with_query(CSV, query, &[("after", ""), ("limit", "")])) download {
                    "Download as CSV"
                } }
                (list("Changes, the newest first. Times are in UTC", &COLUMNS, &rows))
            }
            (pager("/audit", query, audit.next.as_deref(), rows.is_empty()))
        },
    )
}

fn row(query: &AuditQuery, line: &AuditLine) -> Vec<Markup> {
    let select = |name: &str, value: &str| {
        let href = links::with_query("/audit", query, &[(name, value), ("after", "")]);
        html! { a href=(href) { (value) } }
    };
    let number = line.count.map_or_else(|| "–".to_owned(), thousands);
    vec![
        moment(line.began_ms),
        html! { (select("actor", &line.actor)) " " span.quiet { "by " (line.way) } },
        select("verb", &line.verb),
        html! { (line.consumer) },
        html! { (line.filter) },
        html! { (number) },
        end(line),
    ]
}

fn end(line: &AuditLine) -> Markup {
    match (&line.failure, line.outcome.as_deref()) {
        (Some(failure), _) => html! { (state(StateLevel::Bad, "failed")) " " (failure) },
        (None, Some("stopped")) => state(StateLevel::Warning, "stopped"),
        (None, Some(made)) => state(StateLevel::Ok, made),
        (None, None) => state(StateLevel::Warning, "under way, or cut off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    #[test]
    fn records_are_escaped_and_show_their_end() {
        let failed = AuditLine {
            id: hostile(),
            began_ms: 1_767_268_800_000,
            actor: hostile(),
            way: hostile(),
            verb: hostile(),
            consumer: hostile(),
            filter: hostile(),
            outcome: Some(hostile()),
            count: None,
            failure: Some(hostile()),
        };
        let done = AuditLine { count: Some(1_234), failure: None, ..failed.clone() };
        let begun = AuditLine { count: None, outcome: None, ..done.clone() };
        let stopped = AuditLine { outcome: Some("stopped".to_owned()), ..done.clone() };
        let records = vec![failed, done, begun, stopped];
        let audit = AuditList { records, next: Some(hostile()) };
        let query = AuditQuery {
            actor: Some(hostile()),
            since: Some("7d".to_owned()),
            after: Some("7".to_owned()),
            ..AuditQuery::default()
        };
        let text = page(&caller(Role::Support), &audit, &query).into_string();
        for shown in ["failed", "1,234", "under way", "stopped", "/audit?", "/audit.csv?"] {
            assert!(text.contains(shown), "{shown} is missing: {text}");
        }
        assert_hygiene(&text);
    }

    #[test]
    fn the_audit_offers_nothing_that_a_role_may_not() {
        let one = AuditLine {
            id: "1-0".to_owned(),
            began_ms: 1_767_268_800_000,
            actor: "ada".to_owned(),
            way: "console".to_owned(),
            verb: "queue drop".to_owned(),
            consumer: "http".to_owned(),
            filter: "shop a.example".to_owned(),
            outcome: Some("done".to_owned()),
            count: Some(1),
            failure: None,
        };
        let audit = AuditList { records: vec![one], next: None };
        for role in Role::ALL.into_iter().filter(|role| *role >= Role::Support) {
            let text = page(&caller(role), &audit, &AuditQuery::default()).into_string();
            let (_, main) = text.split_once("<main").expect("the main part");
            assert!(!main.contains("method=\"post\""), "a change for {role}: {main}");
            let links =
                main.match_indices("href=\"").map(|(place, mark)| &main[place + mark.len()..]);
            let other: Vec<_> = links
                .filter(|link| !link.starts_with("/audit?") && !link.starts_with("/audit.csv"))
                .collect();
            assert!(other.is_empty(), "{role}: {other:?}");
        }
    }
}
