//! Webhooks that wait: the search, the list, and the drop of what it shows.

use maud::{Markup, html};

use super::figures::{counted, moment, size};
use super::forms::ChangeForm;
use super::frame::ConsoleView;
use super::links;
use super::parts::{TableColumn, field, list, pager};
use crate::access::{Caller, Permission};
use crate::csrf;
use crate::model::webhook::{WebhookList, WebhookQuery, WebhookSummary};

const COLUMNS: [TableColumn<'static>; 7] = [
    TableColumn::text("Spillway-Id"),
    TableColumn::text("Shop"),
    TableColumn::text("Topic"),
    TableColumn::text("Resource"),
    TableColumn::text("Accepted"),
    TableColumn::number("Size"),
    TableColumn::text("Waits in"),
];

/// The whole page.
pub fn page(caller: &Caller, webhooks: &WebhookList, query: &WebhookQuery) -> Markup {
    let rows: Vec<_> = webhooks.webhooks.iter().map(row).collect();
    ConsoleView::Webhooks.page(
        caller,
        &html! {
            (find())
            (filter(webhooks, query))
            section aria-labelledby="waiting" {
                h2 #waiting {
                    (counted(webhooks.total, "webhook")) " in all, waiting for " (webhooks.consumer)
                }
                @if rows.is_empty() && webhooks.next.is_none() {
                    p.notice { "No waiting webhook matches. One that was delivered is found by its id, above." }
                } @else {
                    (list("Waiting webhooks, the oldest first", &COLUMNS, &rows))
                }
                (pager("/webhooks", query, webhooks.next.as_deref(), rows.is_empty()))
            }
            @if caller.may(Permission::Operate) { (drop_form(caller, webhooks, query)) }
        },
    )
}

/// Search of one webhook by its id, whatever became of it.
fn find() -> Markup {
    html! {
        form.filter method="get" action="/webhooks" role="search" aria-label="Search by id" {
            div.field.wide {
                label for="find-id" { "Shopify webhook id or Spillway-Id" }
                input #find-id name="id" required autocomplete="off" spellcheck="false";
            }
            button type="submit" { "Find" }
        }
    }
}

fn filter(webhooks: &WebhookList, query: &WebhookQuery) -> Markup {
    let consumer = query.consumer.as_deref().unwrap_or(&webhooks.consumer);
    html! {
        form.filter method="get" action="/webhooks" role="search" aria-label="Filter of waiting webhooks" {
            (field("filter", "consumer", "Consumer", Some(consumer), "http"))
            (field("filter", "shop", "Shop", query.shop.as_deref(), "a.myshopify.com"))
            (field("filter", "topic", "Topic", query.topic.as_deref(), "orders/*"))
            (field("filter", "resource", "Resource", query.resource.as_deref(), "product/12"))
            (field("filter", "app", "App", query.app.as_deref(), ""))
            (field("filter", "since", "Accepted since", query.since.as_deref(), "2h"))
            (field("filter", "until", "Accepted until", query.until.as_deref(), "10m"))
            button type="submit" { "Show" }
        }
    }
}

fn row(webhook: &WebhookSummary) -> Vec<Markup> {
    let attempts = webhook.attempts.map(|attempts| counted(u64::from(attempts), "attempt"));
    vec![
        html! { a.id href=(links::webhook(&webhook.spillway_id)) { (webhook.spillway_id) } },
        html! { a href=(links::shop(&webhook.shop)) { (webhook.shop) } },
        html! { (webhook.topic) },
        html! { (webhook.resource) },
        moment(webhook.received_at_ms),
        html! { (size(webhook.bytes)) },
        html! {
            (webhook.place)
            @if let Some(attempts) = attempts { ", " (attempts) }
            @if !webhook.app.is_empty() { ", app " (webhook.app) }
        },
    ]
}

/// Form that counts what a drop would drop.
fn drop_form(caller: &Caller, webhooks: &WebhookList, query: &WebhookQuery) -> Markup {
    let form = ChangeForm {
        consumer: Some(webhooks.consumer.clone()),
        shop: query.shop.clone(),
        topic: query.topic.clone(),
        resource: query.resource.clone(),
        app: query.app.clone(),
        ..ChangeForm::default()
    };
    let has_times = query.since.is_some() || query.until.is_some();
    html! {
        section.danger aria-labelledby="drop" {
            h2 #drop { "Drop" }
            @if has_times {
                p { "A drop has no times: show the list without them first." }
            } @else {
                p { "A dropped webhook is never delivered to this consumer. They are counted first, and nothing is dropped yet." }
                form method="post" action="/webhooks/drop" {
                    (csrf::field(caller))
                    @if caller.may(Permission::Administer) {
                        div.check {
                            input #drop-force type="checkbox" name="force" value="true";
                            label for="drop-force" { "Also those of compliance topics, which are a legal duty" }
                        }
                    }
                    (form.or_all().hidden())
                    button.destructive type="submit" { "Count for a drop" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    fn webhooks() -> WebhookList {
        let webhook = WebhookSummary {
            spillway_id: hostile(),
            webhook_id: hostile(),
            shop: hostile(),
            topic: hostile(),
            resource: hostile(),
            app: hostile(),
            place: hostile(),
            attempts: Some(1),
            ..WebhookSummary::default()
        };
        let consumer = hostile();
        WebhookList { consumer, total: 1_000, webhooks: vec![webhook], next: Some(hostile()) }
    }

    #[test]
    fn hostile_webhooks_are_escaped_and_only_an_operator_drops() {
        let query = WebhookQuery { shop: Some(hostile()), ..WebhookQuery::default() };
        let of = |role| page(&caller(role), &webhooks(), &query).into_string();
        for role in Role::ALL {
            let text = of(role);
            assert_eq!(text.contains("/webhooks/drop"), role >= Role::Operator, "{role}");
            assert_eq!(text.contains("name=\"force\""), role == Role::Admin, "{role}");
            assert_hygiene(&text);
        }
        assert!(of(Role::Support).contains("1,000 webhooks in all"));
    }

    #[test]
    fn a_drop_of_everything_says_so() {
        let query = WebhookQuery::default();
        let text = page(&caller(Role::Operator), &webhooks(), &query).into_string();
        assert!(text.contains(r#"name="all" value="true""#), "{text}");
        let since = WebhookQuery { since: Some("2h".to_owned()), ..query };
        let text = page(&caller(Role::Operator), &webhooks(), &since).into_string();
        assert!(text.contains("A drop has no times") && !text.contains("/webhooks/drop"), "{text}");
    }
}
