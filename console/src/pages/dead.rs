//! Dead letters: filter, list, one letter, and the forms that count them for a replay or a drop: all that match, or those
//! whose boxes are checked.

use maud::{Markup, html};

use super::figures::{counted, moment, thousands};
use super::forms::{ChangeForm, IDS};
use super::frame::ConsoleView;
use super::job::JOBS;
use super::links;
use super::parts::{TableColumn, field, hidden, list, pager};
use crate::access::{Caller, Permission};
use crate::csrf;
use crate::model::change::CHOSEN_MAX;
use crate::model::dead::{DeadList, DeadQuery, DeadSummary};

/// Id of the form that the boxes of the list belong to, wherever their rows are.
const CHOSEN_FORM: &str = "chosen";

const COLUMNS: [TableColumn<'static>; 7] = [
    TableColumn::text("Spillway-Id"),
    TableColumn::text("Shop"),
    TableColumn::text("Topic"),
    TableColumn::text("Resource"),
    TableColumn::text("Given up"),
    TableColumn::text("Why"),
    TableColumn::number("Attempts"),
];

/// The whole page.
pub fn page(caller: &Caller, dead: &DeadList, query: &DeadQuery) -> Markup {
    let can_choose = caller.may(Permission::Replay);
    let rows: Vec<_> =
        dead.letters.iter().map(|letter| row(dead, query, letter, can_choose)).collect();
    let is_empty = rows.is_empty() && dead.next.is_none();
    ConsoleView::DeadLetters.page(
        caller,
        &html! {
            (filter(dead, query))
            section aria-labelledby="letters" {
                h2 #letters { (counted(dead.total, "dead letter")) " in all, of " (dead.consumer) }
                @if is_empty {
                    p.notice { "No dead letter matches: nothing was given up." }
                } @else {
                    (list("Dead letters, the oldest first", &COLUMNS, &rows))
                }
                (pager("/dead", query, dead.next.as_deref(), rows.is_empty()))
            }
            @if !is_empty {
                @if can_choose { (chosen(caller, &dead.consumer)) }
                (changes(caller, &of_query(dead, query)))
            }
            p { a href=(JOBS) { "Jobs" } ": counts, replays and drops, and how far they are." }
        },
    )
}

/// The page of one dead letter of a consumer.
pub fn letter_page(caller: &Caller, consumer: &str, letter: &DeadSummary) -> Markup {
    let form = ChangeForm {
        consumer: Some(consumer.to_owned()),
        webhook_id: Some(letter.spillway_id.clone()),
        ..ChangeForm::default()
    };
    ConsoleView::DeadLetters.page_with_title(
        "Dead letter",
        caller,
        &html! {
            p.id { a href=(links::webhook(&letter.spillway_id)) { (letter.spillway_id) } }
            dl.facts {
                div { dt { "Why" } dd { (letter.reason) (status(letter)) } }
                div { dt { "Attempts" } dd { (thousands(u64::from(letter.attempts))) } }
                div { dt { "Given up" } dd { (moment(letter.dead_at_ms)) " UTC" } }
                div { dt { "Shop" } dd { a href=(links::shop(&letter.shop)) { (letter.shop) } } }
                div { dt { "Topic" } dd { (letter.topic) } }
                div { dt { "Resource" } dd { (letter.resource) } }
                @if !letter.app.is_empty() { div { dt { "App" } dd { (letter.app) } } }
                div { dt { "Webhook id of Shopify" } dd.id { (letter.webhook_id) } }
            }
            @if caller.may(Permission::Personal) {
                p { a href=(links::letter_content(consumer, &letter.spillway_id)) { "Headers and body, as they were received" } }
            }
            (changes(caller, &form))
        },
    )
}

fn filter(dead: &DeadList, query: &DeadQuery) -> Markup {
    let consumer = query.consumer.as_deref().unwrap_or(&dead.consumer);
    html! {
        form.filter method="get" action="/dead" role="search" aria-label="Filter of dead letters" {
            (field("filter", "consumer", "Consumer", Some(consumer), "http"))
            (field("filter", "shop", "Shop", query.shop.as_deref(), "a.myshopify.com"))
            (field("filter", "topic", "Topic", query.topic.as_deref(), "orders/*"))
            (field("filter", "resource", "Resource", query.resource.as_deref(), "product/12"))
            (field("filter", "app", "App", query.app.as_deref(), ""))
            (field("filter", "since", "Given up since", query.since.as_deref(), "2h"))
            (field("filter", "until", "Given up until", query.until.as_deref(), "10m"))
            button type="submit" { "Show" }
        }
    }
}

/// A row, whose shop, topic and resource select those like it. Its box belongs to the form of the chosen ones.
fn row(dead: &DeadList, query: &DeadQuery, letter: &DeadSummary, can_choose: bool) -> Vec<Markup> {
    let select = |name: &str, value: &str| {
        let href = links::with_query("/dead", query, &[(name, value), ("after", "")]);
        html! { a href=(href) aria-label={ "Select " (name) " " (value) } { (value) } }
    };
    vec![
        html! {
            @if can_choose { (choice(letter)) }
            a.id href=(links::letter(&dead.consumer, &letter.spillway_id)) { (letter.spillway_id) }
        },
        select("shop", &letter.shop),
        select("topic", &letter.topic),
        select("resource", &letter.resource),
        moment(letter.dead_at_ms),
        html! { (letter.reason) (status(letter)) },
        html! { (thousands(u64::from(letter.attempts))) },
    ]
}

/// Box that chooses a dead letter.
fn choice(letter: &DeadSummary) -> Markup {
    let id = format!("choose-{}", letter.spillway_id);
    html! {
        div.check {
            input id=(id) type="checkbox" name=(IDS) value=(letter.spillway_id) form=(CHOSEN_FORM)
                aria-label={ "Choose " (letter.spillway_id) };
            label for=(id) { "Choose" }
        }
    }
}

/// Form of the boxes that are checked. Each of its buttons counts first.
fn chosen(caller: &Caller, consumer: &str) -> Markup {
    html! {
        section aria-labelledby="chosen-title" {
            h2 #chosen-title { "Chosen dead letters" }
            p {
                "Those whose boxes are checked in the list, at most " (CHOSEN_MAX)
                ". They are counted first, and nothing is changed yet."
            }
            form.filter id=(CHOSEN_FORM) method="post" {
                (csrf::field(caller))
                (hidden("consumer", Some(consumer)))
                button type="submit" formaction="/dead/replay" { "Count the chosen for a replay" }
                @if caller.may(Permission::Operate) {
                    button.destructive type="submit" formaction="/dead/drop" {
                        "Count the chosen for a drop"
                    }
                }
                @if caller.may(Permission::Administer) {
                    button.destructive type="submit" formaction="/dead/drop" name="force" value="true" {
                        "The same, with compliance topics"
                    }
                }
            }
        }
    }
}

fn status(letter: &DeadSummary) -> Markup {
    html! { @if let Some(status) = letter.status { " (status " (status) ")" } }
}

/// Selection of what the list shows.
fn of_query(dead: &DeadList, query: &DeadQuery) -> ChangeForm {
    let form = ChangeForm {
        consumer: Some(dead.consumer.clone()),
        shop: query.shop.clone(),
        topic: query.topic.clone(),
        resource: query.resource.clone(),
        app: query.app.clone(),
        since: query.since.clone(),
        until: query.until.clone(),
        ..ChangeForm::default()
    };
    form.or_all()
}

/// Forms for a replay and for a drop. Both count first.
fn changes(caller: &Caller, form: &ChangeForm) -> Markup {
    html! {
        @if caller.may(Permission::Replay) {
            section aria-labelledby="replay" {
                h2 #replay { "Replay" }
                p { "They are counted first. Nothing is delivered before you have confirmed their number." }
                (form.description())
                form.filter method="post" action="/dead/replay" {
                    (csrf::field(caller))
                    (form.hidden())
                    (field("replay", "rate", "Most per second", None, "as fast as they go"))
                    button type="submit" { "Count for a replay" }
                }
            }
        }
        @if caller.may(Permission::Operate) {
            section.danger aria-labelledby="drop" {
                h2 #drop { "Drop" }
                p { "A dropped dead letter is gone. They are counted first, and nothing is dropped yet." }
                form method="post" action="/dead/drop" {
                    (csrf::field(caller))
                    (form.hidden())
                    @if caller.may(Permission::Administer) {
                        div.check {
                            input #drop-force type="checkbox" name="force" value="true";
                            label for="drop-force" { "Also those of compliance topics, which are a legal duty" }
                        }
                    }
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

    fn letter() -> DeadSummary {
        DeadSummary {
            spillway_id: hostile(),
            webhook_id: hostile(),
            shop: hostile(),
            topic: hostile(),
            resource: hostile(),
            app: hostile(),
            reason: hostile(),
            status: Some(500),
            attempts: 7,
            dead_at_ms: 1_767_268_800_000,
        }
    }

    fn dead() -> DeadList {
        let next = Some(hostile());
        DeadList { consumer: hostile(), total: 100_000, letters: vec![letter()], next }
    }

    #[test]
    fn each_role_sees_the_forms_that_it_may_send() {
        for role in Role::ALL {
            let list = page(&caller(role), &dead(), &DeadQuery::default()).into_string();
            let one = letter_page(&caller(role), &hostile(), &letter()).into_string();
            for text in [&list, &one] {
                assert_eq!(text.contains("/dead/replay"), role >= Role::Support, "{role}");
                assert_eq!(text.contains("/dead/drop"), role >= Role::Operator, "{role}");
                assert_eq!(text.contains("name=\"force\""), role == Role::Admin, "{role}");
                assert_hygiene(text);
            }
            assert!(list.contains(r#"href="/jobs""#), "{role}");
            assert!(list.contains("100,000 dead letters") && one.contains("status 500"));
        }
    }

    #[test]
    fn a_box_belongs_to_the_form_of_the_chosen_and_its_value_stays_a_value() {
        for role in [Role::Support, Role::Operator, Role::Admin] {
            let text = page(&caller(role), &dead(), &DeadQuery::default()).into_string();
            let boxes: Vec<_> = text.match_indices(r#"type="checkbox" name="ids""#).collect();
            assert_eq!(boxes.len(), 1, "{text}");
            let value = r#"value="'&quot;&gt;&lt;/a&gt;&lt;/script&gt;"#;
            let (_, input) = text.split_at(boxes[0].0);
            let (input, _) = input.split_once('>').expect("the end of the tag");
            assert!(input.contains(value) && input.contains(r#"form="chosen""#), "{input}");
            let (_, form) = text.split_once(r#"id="chosen""#).expect("the form");
            let (form, _) = form.split_once("</form>").expect("its end");
            assert!(form.contains(r#"formaction="/dead/replay""#), "{form}");
            let has_drop = form.contains(r#"formaction="/dead/drop""#);
            assert_eq!(has_drop, role >= Role::Operator, "{role}: {form}");
            assert!(form.contains(r#"name="consumer" value="'&quot;&gt;"#), "{form}");
            assert_hygiene(&text);
        }
        let text = page(&caller(Role::Viewer), &dead(), &DeadQuery::default()).into_string();
        assert!(!text.contains("checkbox") && !text.contains("chosen"), "{text}");
    }

    #[test]
    fn a_click_selects_those_like_it() {
        let plain = DeadSummary { shop: "a.example".to_owned(), ..letter() };
        let dead = DeadList { letters: vec![plain], ..dead() };
        let query = DeadQuery {
            topic: Some("orders/*".to_owned()),
            after: Some("1-0".to_owned()),
            ..DeadQuery::default()
        };
        let text = page(&caller(Role::Support), &dead, &query).into_string();
        assert!(text.contains(r#"href="/dead?topic=orders%2F%2A&amp;shop=a.example""#), "{text}");
        assert!(text.contains(r#"name="topic" value="orders/*""#), "{text}");
        assert!(!text.contains(r#"name="all""#), "{text}");
    }

    #[test]
    fn without_a_filter_all_are_meant_and_said_to_be() {
        let text = page(&caller(Role::Support), &dead(), &DeadQuery::default()).into_string();
        assert!(text.contains(r#"name="all" value="true""#), "{text}");
        assert!(text.contains("<dt>Webhooks</dt><dd>all</dd>"), "{text}");
    }

    #[test]
    fn only_who_sees_personal_data_gets_the_link_to_headers_and_body() {
        let letter = DeadSummary { spillway_id: "7-1-0-2".to_owned(), ..letter() };
        for role in Role::ALL {
            for sees_personal_data in [false, true] {
                let caller = Caller { sees_personal_data, ..caller(role) };
                let text = letter_page(&caller, "http", &letter).into_string();
                let link = r#"href="/webhooks/7-1-0-2/content?consumer=http""#;
                assert_eq!(text.contains(link), sees_personal_data, "{role}: {text}");
                assert_eq!(text.contains("/content"), sees_personal_data, "{role}: {text}");
                assert_hygiene(&text);
            }
        }
    }
}
