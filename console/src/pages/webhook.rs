//! One webhook: its timeline for each consumer, and its content for those who may see personal data.

use maud::{Markup, html};

use super::figures::moment;
use super::frame::ConsoleView;
use super::links;
use super::parts::{StateLevel, TableColumn, state, table};
use crate::access::{Caller, Permission};
use crate::model::webhook::{ConsumerStory, StoryFact, WebhookContent, WebhookStory};

/// Trigger of the link that goes on with a search: by itself. Each answer has everything that was found so far.
const AGAIN: &str = "load delay:700ms, click";

/// The page with the timeline.
pub fn page(caller: &Caller, story: &WebhookStory) -> Markup {
    let facts = story.consumers.iter().flat_map(|consumer| &consumer.facts);
    // Content is found by the Spillway-Id only. All facts of one webhook have the same.
    let known = facts.map(|fact| fact.spillway_id.as_str()).find(|id| !id.is_empty());
    let next = story.next.as_deref().filter(|_| !story.is_complete);
    let further = |next: &str| links::with(&links::webhook(&story.id), &[("after", next)]);
    ConsoleView::Webhooks.page_with_title(
        "Webhook",
        caller,
        &html! {
            p.id { (story.id) }
            @if let (true, Some(id)) = (caller.may(Permission::Personal), known) {
                p { a href=(links::content(id)) { "Headers and body, as they were received" } }
            }
            div #story {
                @for consumer in &story.consumers { (timeline(consumer)) }
                @if story.consumers.is_empty() && next.is_none() {
                    p.notice { "Nothing is known about this id." }
                }
            }
            div #pager {
                @if let Some(next) = next {
                    p role="status" { "The search is not complete: older webhooks are still looked at." }
                    a #more.button href=(further(next)) hx-get=(further(next))
                        hx-trigger=(AGAIN)
                        hx-target="#story" hx-select="#story" hx-swap="outerHTML"
                        hx-select-oob="#pager" { "Search on" }
                }
            }
        },
    )
}

fn timeline(consumer: &ConsumerStory) -> Markup {
    html! {
        section {
            h2 { "For " (consumer.consumer) }
            @if consumer.facts.is_empty() {
                p.quiet { (consumer.gap) }
            } @else {
                ol.timeline {
                    @for fact in &consumer.facts { (step(consumer, fact)) }
                }
            }
        }
    }
}

fn step(consumer: &ConsumerStory, fact: &StoryFact) -> Markup {
    let level = match fact.state.as_str() {
        "delivered" | "produced" | "archived" => StateLevel::Ok,
        "dead" | "given_up" => StateLevel::Bad,
        _ => StateLevel::Warning,
    };
    html! {
        li {
            div { (moment(fact.at_ms)) " " (state(level, &fact.state)) }
            p { (fact.text) }
            @if fact.state == "dead" {
                p { a href=(links::letter(&consumer.consumer, &fact.spillway_id)) { "The dead letter" } }
            }
        }
    }
}

/// The page with the headers and the body.
pub fn content_page(caller: &Caller, content: &WebhookContent) -> Markup {
    let columns = [TableColumn::text("Name"), TableColumn::text("Value")];
    let headers = content.headers.iter();
    let rows: Vec<_> =
        headers.map(|header| vec![html! { (header.name) }, html! { (header.value) }]).collect();
    ConsoleView::Webhooks.page_with_title(
        "Content of a webhook",
        caller,
        &html! {
            p.id { a href=(links::webhook(&content.spillway_id)) { (content.spillway_id) } }
            p.notice { "This is personal data of a shop's customers. Do not copy it elsewhere." }
            p { "Request for " code { (content.target) } }
            section aria-labelledby="headers" {
                h2 #headers { "Headers" }
                (table("Headers, as they were received", &columns, &rows))
            }
            section aria-labelledby="body" {
                h2 #body { "Body" }
                @if !content.is_exact {
                    p.quiet { "Some bytes are no text: they are shown as �." }
                }
                pre tabindex="0" role="region" aria-label="Text of the body" { (content.body) }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::model::webhook::ContentHeader;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    fn story() -> WebhookStory {
        let fact = StoryFact {
            spillway_id: hostile(),
            state: "dead".to_owned(),
            at_ms: 1_767_268_800_000,
            text: hostile(),
        };
        let odd = StoryFact { state: hostile(), ..fact.clone() };
        let told = ConsumerStory { consumer: hostile(), facts: vec![fact, odd], gap: hostile() };
        let none = ConsumerStory { consumer: hostile(), facts: Vec::new(), gap: hostile() };
        let next = Some(hostile());
        WebhookStory { id: hostile(), consumers: vec![told, none], is_complete: false, next }
    }

    #[test]
    fn a_timeline_is_escaped_and_leads_to_the_dead_letter() {
        let text = page(&caller(Role::Support), &story()).into_string();
        assert!(text.contains("2026-01-01 12:00:00") && text.contains("/dead/%27"), "{text}");
        assert!(!text.contains("/content"), "a body is for those who may see it: {text}");
        assert_hygiene(&text);
        let text = page(&caller(Role::Admin), &story()).into_string();
        assert!(text.contains("/content"), "{text}");
    }

    #[test]
    fn a_search_without_facts_goes_on_by_itself() {
        let next = Some("1-0".to_owned());
        let story = WebhookStory { id: "7".to_owned(), next, ..WebhookStory::default() };
        let text = page(&caller(Role::Support), &story).into_string();
        assert!(text.contains(r#"hx-trigger="load delay:700ms, click""#), "{text}");
        assert!(!text.contains("Nothing is known"), "{text}");
    }

    #[test]
    fn a_body_is_text() {
        let content = WebhookContent {
            spillway_id: hostile(),
            target: hostile(),
            headers: vec![ContentHeader { name: hostile(), value: hostile() }],
            body: hostile(),
            is_exact: false,
        };
        assert_hygiene(&content_page(&caller(Role::Admin), &content).into_string());
    }
}
