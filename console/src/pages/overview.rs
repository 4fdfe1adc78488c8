//! The overview: the cell at a glance, live.

use maud::{Markup, html};

use super::figures::{age, rate, size, thousands};
use super::frame::{ConsoleView, PageFrame};
use crate::access::Caller;
use crate::model::overview::{CellOverview, ConsumerOverview, QueueOverview};

/// Path of the events that replace the part.
pub const EVENTS: &str = "/events/overview";

/// The whole page.
pub fn page(caller: &Caller, overview: &CellOverview) -> Markup {
    let view = ConsoleView::Overview;
    let frame = PageFrame { title: "Overview", view: Some(view), caller: Some(caller) };
    frame.around(&html! {
        div data-live=(EVENTS) { (part(overview)) }
    })
}

/// The part that changes.
pub fn part(overview: &CellOverview) -> Markup {
    html! {
        section aria-labelledby="queue" {
            h2 #queue { "Queue" }
            (queue(&overview.queue))
        }
        section aria-labelledby="consumers" {
            h2 #consumers { "Consumers" }
            @if overview.consumers.is_empty() {
                p { "No consumer is registered: nothing is delivered or freed. Start a downstreamer." }
            } @else {
                (consumers(&overview.consumers))
            }
        }
    }
}

/// The part while the cell can't be read.
pub fn unknown(reason: &str) -> Markup {
    html! {
        p.bad role="status" { "The cell can't be read: " (reason) }
    }
}

fn queue(queue: &QueueOverview) -> Markup {
    let memory = match queue.percent_full() {
        Some(percent) => format!("{} ({percent} %)", size(queue.memory_bytes)),
        None => size(queue.memory_bytes),
    };
    html! {
        dl.figures {
            div { dt { "Accepted" } dd { (rate(queue.accepted_per_second)) } }
            div { dt { "Accepted so far" } dd { (thousands(queue.accepted)) } }
            div { dt { "Kept" } dd { (thousands(queue.webhooks)) } }
            div { dt { "Memory of Redis" } dd { (memory) } }
        }
    }
}

fn consumers(consumers: &[ConsumerOverview]) -> Markup {
    html! {
        // It can be scrolled, so it can be reached by keyboard.
        div.wide tabindex="0" role="region" aria-labelledby="consumers" {
            table {
                thead {
                    tr {
                        th scope="col" { "Consumer" }
                        th scope="col" { "State" }
                        th.number scope="col" { "Waiting" }
                        th.number scope="col" { "Oldest" }
                        th.number scope="col" { "Settled" }
                        th.number scope="col" { "Parked" }
                        th.number scope="col" { "Dead letters" }
                        th scope="col" { "Paused" }
                    }
                }
                tbody {
                    @for consumer in consumers { (row(consumer)) }
                }
            }
        }
    }
}

fn row(consumer: &ConsumerOverview) -> Markup {
    html! {
        tr {
            th scope="row" { (consumer.name) }
            td.bad[!consumer.has_live_leader] { (consumer.state) }
            td.number { (thousands(consumer.waiting)) }
            td.number { (consumer.oldest_age_seconds.map_or_else(|| "–".to_owned(), age)) }
            td.number { (rate(consumer.settled_per_second)) }
            td.number { (thousands(consumer.parked)) }
            td.number { (thousands(consumer.dead_letters)) }
            td {
                @for pause in &consumer.pauses { div { (pause.filter) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Credential, Role};
    use crate::model::overview::PauseOverview;

    #[test]
    fn the_page_shows_its_numbers_and_escapes_names() {
        let consumer = ConsumerOverview {
            name: "<b>http</b>".to_owned(),
            state: "ready".to_owned(),
            waiting: 1_234_567,
            oldest_age_seconds: Some(61.0),
            pauses: vec![PauseOverview { filter: "shop \"><img src=x>".to_owned(), since_ms: 1 }],
            ..ConsumerOverview::default()
        };
        let overview = CellOverview { consumers: vec![consumer], ..CellOverview::default() };
        let caller = Caller {
            name: "<i>mia</i>".to_owned(),
            role: Role::Viewer,
            sees_personal_data: false,
            credential: Credential::Ambient,
            session: None,
        };
        let text = page(&caller, &overview).into_string();
        for shown in ["1,234,567", "1m 1s", "&lt;b&gt;http", "&lt;img src=x&gt;", "&lt;i&gt;mia"] {
            assert!(text.contains(shown), "{shown} is missing: {text}");
        }
        assert!(
            text.contains(r#"aria-current="page""#) && text.contains(r#"class="bad""#),
            "{text}"
        );
        assert!(!text.contains("<b>") && !text.contains("<img"), "{text}");
    }

    #[test]
    fn a_cell_without_consumers_says_what_to_do() {
        let text = part(&CellOverview::default()).into_string();
        assert!(text.contains("Start a downstreamer"), "{text}");
    }
}
