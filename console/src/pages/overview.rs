//! The overview: the cell at a glance, live.

use maud::{Markup, html};

use super::charts;
use super::figures::{age, counted, moment, rate, size, thousands, value};
use super::frame::ConsoleView;
use super::links;
use super::parts::{StateLevel, TableColumn, figure, state, table};
use crate::access::Caller;
use crate::model::history::MetricHistory;
use crate::model::overview::{
    CellOverview, ConsumerOverview, ProcessOverview, ProcessState, QueueOverview,
};

/// Path of the events that replace the part.
pub const EVENTS: &str = "/events/overview";

/// Percentage of Redis' memory from which the overview warns. Source: `docs/alerts`.
const MEMORY_WARNING: u64 = 70;
/// Percentage from which it is bad: the receiver refuses webhooks soon.
const MEMORY_BAD: u64 = 90;
/// Name of the process that takes webhooks, as the console gives it.
const RECEIVER: &str = "receiver";
/// Age of the oldest webhook that waits, from which the overview warns.
const OLDEST_WARNING_SECONDS: f64 = 300.0;

const COLUMNS: [TableColumn<'static>; 8] = [
    TableColumn::text("Consumer"),
    TableColumn::text("State"),
    TableColumn::number("Waiting"),
    TableColumn::number("Oldest"),
    TableColumn::number("Settled per second"),
    TableColumn::number("In lanes"),
    TableColumn::number("Dead letters"),
    TableColumn::text("Paused"),
];

const PROCESSES: [TableColumn<'static>; 7] = [
    TableColumn::text("Process"),
    TableColumn::text("State"),
    TableColumn::number("End to end, p50"),
    TableColumn::number("p99"),
    TableColumn::number("Concurrency, of its limit"),
    TableColumn::number("Lanes that wait"),
    TableColumn::number("On disk (overflow)"),
];

/// The whole page.
pub fn page(caller: &Caller, overview: &CellOverview, history: &MetricHistory) -> Markup {
    ConsoleView::Overview.page(
        caller,
        &html! {
            div data-live=(EVENTS) { (part(overview)) }
            (charts::section(history))
        },
    )
}

/// The part that changes.
pub fn part(overview: &CellOverview) -> Markup {
    html! {
        (verdict(overview))
        (headline(overview))
        section aria-labelledby="consumers" {
            h2 #consumers { "Consumers" }
            @if overview.consumers.is_empty() {
                p.notice { "No consumer is registered: nothing is delivered or freed. Start a downstreamer." }
            } @else {
                (consumers(&overview.consumers))
            }
        }
        (processes(&overview.processes))
        section aria-labelledby="queue" {
            h2 #queue { "Queue" }
            (queue(&overview.queue))
        }
        p.quiet.small { "State of the cell at " (moment(overview.at_ms)) " UTC" }
    }
}

/// The part while the cell can't be read.
pub fn unknown(reason: &str) -> Markup {
    html! {
        p.verdict.bad role="status" { strong { "The cell can't be read" } " " (reason) }
    }
}

/// One line that says if somebody has to do something, and the reasons.
fn verdict(overview: &CellOverview) -> Markup {
    let concerns = concerns(overview);
    let Some(worst) = concerns.iter().map(|(level, _, _)| *level).max() else {
        return no_concern(has_receiver(overview));
    };
    let word = if worst == StateLevel::Bad { "Needs attention" } else { "Worth a look" };
    html! {
        div.verdict.warning[worst == StateLevel::Warning].bad[worst == StateLevel::Bad] {
            strong { (state(worst, word)) }
            ul {
                @for (level, text, href) in &concerns {
                    li { (state(*level, "")) a href=(href) { (text) } }
                }
            }
        }
    }
}

/// All is well only if the receiver was looked at too: the state of the consumers does not tell if it takes webhooks.
fn no_concern(is_receiver_seen: bool) -> Markup {
    html! {
        @if is_receiver_seen {
            div.verdict.ok {
                strong { (state(StateLevel::Ok, "All is well")) }
                span { "The receiver answers, every consumer has a leader, nothing is paused, and nothing is late." }
            }
        } @else {
            div.verdict {
                strong { "Nothing is wrong that is known here" }
                span {
                    "Every consumer has a leader, nothing is paused, and nothing is late. The receiver was not seen: "
                    "start the console with its admin address (" code { "RECEIVER_ADMIN_LISTEN" } ")."
                }
            }
        }
    }
}

fn has_receiver(overview: &CellOverview) -> bool {
    let mut processes = overview.processes.iter();
    processes.any(|process| process.name == RECEIVER && process.state == ProcessState::Answers)
}

/// Things that somebody should know, each with its level and a link to it.
fn concerns(overview: &CellOverview) -> Vec<(StateLevel, String, String)> {
    let mut found = Vec::new();
    if overview.consumers.is_empty() {
        let text = "no consumer is registered".to_owned();
        found.push((StateLevel::Bad, text, "/doctor".to_owned()));
    }
    if let Some(percent) = overview.queue.percent_full().filter(|full| *full >= MEMORY_WARNING) {
        let level = if percent >= MEMORY_BAD { StateLevel::Bad } else { StateLevel::Warning };
        let text = format!("Redis has used {percent} % of its memory");
        found.push((level, text, "/doctor".to_owned()));
    }
    found.extend(overview.processes.iter().flat_map(concerns_of_process));
    for consumer in &overview.consumers {
        let name = &consumer.name;
        let of = |path: &str| links::with(path, &[("consumer", name.as_str())]);
        if !consumer.has_live_leader {
            found.push((StateLevel::Bad, format!("{name} has no leader"), "/doctor".to_owned()));
        } else if level_of(consumer) != StateLevel::Ok {
            let text = format!("{name}: {}", consumer.state);
            found.push((level_of(consumer), text, "/doctor".to_owned()));
        }
        let oldest = consumer.oldest_age_seconds.unwrap_or_default();
        if oldest >= OLDEST_WARNING_SECONDS {
            let text = format!("{name}: the oldest webhook has waited {}", age(oldest));
            found.push((StateLevel::Warning, text, of("/webhooks")));
        }
        if !consumer.pauses.is_empty() {
            let number = u64::try_from(consumer.pauses.len()).unwrap_or(u64::MAX);
            let text = format!("{name}: {} in force", counted(number, "pause"));
            found.push((StateLevel::Warning, text, of("/lanes")));
        }
        if consumer.dead_letters > 0 {
            let text = format!("{name}: {}", counted(consumer.dead_letters, "dead letter"));
            found.push((StateLevel::Warning, text, of("/dead")));
        }
    }
    found
}

/// A process that is gone, and webhooks that are on the receiver's disk in place of the queue.
fn concerns_of_process(process: &ProcessOverview) -> Vec<(StateLevel, String, String)> {
    let name = &process.name;
    let is_away = process.state == ProcessState::Away;
    let spilled = process.spilled.filter(|spilled| *spilled > 0.0);
    let away = is_away.then(|| {
        let text = format!("the {name} does not answer any more at its admin address");
        (StateLevel::Bad, text, "/doctor".to_owned())
    });
    let spilled = spilled.map(|spilled| {
        let number = value(Some(spilled), "count");
        let text = format!("{name}: webhooks on disk (overflow): {number}");
        (StateLevel::Warning, text, "/doctor".to_owned())
    });
    away.into_iter().chain(spilled).collect()
}

/// The numbers that a wall screen is for. Of several consumers, the worst or the sum.
fn headline(overview: &CellOverview) -> Markup {
    let consumers = &overview.consumers;
    let waiting = consumers.iter().map(|consumer| consumer.waiting).max().unwrap_or_default();
    let dead: u64 = consumers.iter().map(|consumer| consumer.dead_letters).sum();
    let settled = consumers.iter().filter_map(|consumer| consumer.settled_per_second);
    let settled = settled.reduce(f64::min);
    let oldest = consumers.iter().filter_map(|consumer| consumer.oldest_age_seconds);
    let oldest = oldest.reduce(f64::max).map_or_else(|| "–".to_owned(), age);
    html! {
        section aria-label="Now" {
            dl.figures.large {
                (figure("Accepted per second", &rate(overview.queue.accepted_per_second), "#flow",
                    Some("accepted_per_second")))
                (figure("Settled per second", &rate(settled), "#flow", Some("settled_per_second")))
                (figure("Waiting", &thousands(waiting), "/webhooks", Some("waiting")))
                (figure("Oldest", &oldest, "/webhooks", Some("oldest_seconds")))
                (figure("Dead letters", &thousands(dead), "/dead", Some("dead_letters")))
            }
        }
    }
}

/// Numbers that the processes tell of themselves. Nothing before the first look at them.
fn processes(processes: &[ProcessOverview]) -> Markup {
    let rows: Vec<_> = processes.iter().map(process_row).collect();
    html! {
        @if !rows.is_empty() {
            section aria-labelledby="processes" {
                h2 #processes { "Processes" }
                (table("Processes at their admin addresses", &PROCESSES, &rows))
            }
        }
    }
}

fn process_row(process: &ProcessOverview) -> Vec<Markup> {
    let link = |href: &str, known: Option<f64>, unit: &str| {
        html! {
            @if known.is_some() { a href=(href) { (value(known, unit)) } } @else { "–" }
        }
    };
    let seen = match process.state {
        ProcessState::Answers => state(StateLevel::Ok, "answers"),
        ProcessState::Away => state(StateLevel::Bad, "does not answer any more"),
        ProcessState::NotSeen => html! { "not seen" },
    };
    vec![
        html! { (process.name) },
        seen,
        link("#latency", process.p50_seconds, "seconds"),
        link("#latency", process.p99_seconds, "seconds"),
        html! {
            (link("#concurrency", process.concurrency, "count"))
            @if process.concurrency_limit.is_some() {
                " of " (value(process.concurrency_limit, "count"))
            }
        },
        link("/lanes", process.lanes_blocked, "count"),
        link("/doctor", process.spilled, "count"),
    ]
}

fn queue(queue: &QueueOverview) -> Markup {
    let memory = match queue.percent_full() {
        Some(percent) => format!("{} ({percent} %)", size(queue.memory_bytes)),
        None => size(queue.memory_bytes),
    };
    html! {
        dl.figures {
            (figure("Accepted so far", &thousands(queue.accepted), "#flow", None))
            (figure("Kept webhooks", &thousands(queue.webhooks), "/webhooks", None))
            (figure("Kept packs", &thousands(queue.packs), "/webhooks", None))
            (figure("Memory of Redis", &memory, "/doctor", None))
        }
    }
}

fn consumers(consumers: &[ConsumerOverview]) -> Markup {
    let rows: Vec<_> = consumers.iter().map(row).collect();
    table("Consumers of the queue, and how far each is", &COLUMNS, &rows)
}

fn level_of(consumer: &ConsumerOverview) -> StateLevel {
    match (consumer.has_live_leader, consumer.state.as_str()) {
        (false, _) => StateLevel::Bad,
        (true, "ready" | "-") => StateLevel::Ok,
        (true, _) => StateLevel::Warning,
    }
}

fn row(consumer: &ConsumerOverview) -> Vec<Markup> {
    let of = |path: &str| links::with(path, &[("consumer", consumer.name.as_str())]);
    let number = |path: &str, count: u64| {
        html! { a href=(of(path)) { (thousands(count)) } }
    };
    let level = level_of(consumer);
    let word = if consumer.state == "-" { "leads" } else { consumer.state.as_str() };
    let oldest = consumer.oldest_age_seconds.map_or_else(|| "–".to_owned(), age);
    vec![
        html! { (consumer.name) },
        state(level, word),
        number("/webhooks", consumer.waiting),
        html! { a href=(of("/webhooks")) { (oldest) } },
        html! { a href="#flow" { (rate(consumer.settled_per_second)) } },
        number("/lanes", consumer.in_lanes),
        number("/dead", consumer.dead_letters),
        html! {
            @for pause in &consumer.pauses {
                div { a href=(of("/lanes")) { (pause.filter) } }
            }
            @if consumer.pauses.is_empty() { "–" }
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::model::history::MetricSeries;
    use crate::model::overview::PauseOverview;
    use crate::pages::testing::{assert_hygiene, assert_numbers_link, caller, hostile};

    #[test]
    fn the_page_shows_its_numbers_and_escapes_names() {
        let consumer = ConsumerOverview {
            name: hostile(),
            state: hostile(),
            waiting: 1_234_567,
            oldest_age_seconds: Some(3661.0),
            pauses: vec![PauseOverview { filter: hostile(), since_ms: 1 }],
            ..ConsumerOverview::default()
        };
        let process = ProcessOverview {
            name: hostile(),
            p99_seconds: Some(0.25),
            concurrency: Some(12.0),
            concurrency_limit: Some(40.0),
            ..ProcessOverview::default()
        };
        let overview = CellOverview {
            consumers: vec![consumer],
            processes: vec![process],
            ..CellOverview::default()
        };
        let series = MetricSeries {
            name: hostile(),
            consumer: hostile(),
            unit: hostile(),
            values: vec![Some(1.0)],
        };
        let history =
            MetricHistory { at_ms: vec![1], series: vec![series], ..MetricHistory::default() };
        let text = page(&caller(Role::Viewer), &overview, &history).into_string();
        for shown in ["1,234,567", "1h 1m", "has no leader", "1 pause in force", "250 ms", " of 40"]
        {
            assert!(text.contains(shown), "{shown} is missing: {text}");
        }
        assert!(text.contains(r#"aria-current="page""#) && text.contains("state bad"), "{text}");
        assert_hygiene(&text);
        assert_numbers_link(&text);
    }

    #[test]
    fn every_number_of_a_consumer_links_to_what_it_counts() {
        let consumer = ConsumerOverview {
            name: "http".to_owned(),
            state: "ready".to_owned(),
            has_live_leader: true,
            ..ConsumerOverview::default()
        };
        let overview = CellOverview { consumers: vec![consumer], ..CellOverview::default() };
        let text = part(&overview).into_string();
        for path in ["/webhooks", "/lanes", "/dead"] {
            assert!(text.contains(&format!(r#"href="{path}?consumer=http""#)), "{path}: {text}");
        }
    }

    #[test]
    fn all_is_well_only_if_the_receiver_and_every_consumer_were_seen_so() {
        let shown = |state: ProcessState, spilled: Option<f64>, of_leader: &str| {
            let name = "receiver".to_owned();
            let receiver = ProcessOverview { name, state, spilled, ..ProcessOverview::default() };
            let consumer = ConsumerOverview {
                name: "http".to_owned(),
                state: of_leader.to_owned(),
                has_live_leader: true,
                ..ConsumerOverview::default()
            };
            let overview = CellOverview {
                consumers: vec![consumer],
                processes: vec![receiver],
                ..CellOverview::default()
            };
            let text = part(&overview).into_string();
            assert_hygiene(&text);
            let is_well = text.contains("All is well");
            (is_well, text)
        };
        let (is_well, text) = shown(ProcessState::Answers, Some(0.0), "ready");
        assert!(is_well && text.contains("The receiver answers"), "{text}");
        let (is_well, text) = shown(ProcessState::Away, None, "ready");
        assert!(!is_well && text.contains("Needs attention"), "{text}");
        assert!(text.contains("the receiver does not answer any more"), "{text}");
        let (is_well, text) = shown(ProcessState::NotSeen, None, "ready");
        assert!(!is_well && text.contains("not seen") && !text.contains("state bad"), "{text}");
        let (is_well, text) = shown(ProcessState::Answers, Some(12.0), "ready");
        assert!(!is_well && text.contains("on disk (overflow): 12"), "{text}");
        let (is_well, text) = shown(ProcessState::Answers, None, "redis_unavailable");
        assert!(!is_well && text.contains("http: redis_unavailable"), "{text}");
    }

    #[test]
    fn a_cell_without_consumers_says_what_to_do() {
        let text = part(&CellOverview::default()).into_string();
        assert!(text.contains("Start a downstreamer") && text.contains("Needs attention"));
        assert!(unknown(&hostile()).into_string().contains("&lt;img"));
    }

    #[test]
    fn each_large_figure_links_to_its_own_page_or_chart() {
        let text = part(&CellOverview::default()).into_string();
        let figures = text.split("<dt>").skip(1).map(|figure| {
            let (label, rest) = figure.split_once("</dt>").expect("the end of a label");
            let (_, rest) = rest.split_once(r#"<a class="value" href=""#).expect("a link");
            let (href, _) = rest.split_once('"').expect("the end of the link");
            (label, href)
        });
        let expected = [
            ("Accepted per second", "#flow"),
            ("Settled per second", "#flow"),
            ("Waiting", "/webhooks"),
            ("Oldest", "/webhooks"),
            ("Dead letters", "/dead"),
            ("Accepted so far", "#flow"),
            ("Kept webhooks", "/webhooks"),
            ("Kept packs", "/webhooks"),
            ("Memory of Redis", "/doctor"),
        ];
        assert_eq!(figures.collect::<Vec<_>>(), expected);
    }

    /// Concerns of a healthy cell with this memory in use, and a webhook that has waited for so long.
    fn concerns_at(queue: QueueOverview, oldest_seconds: f64) -> Vec<(StateLevel, String, String)> {
        let consumer = ConsumerOverview {
            name: "http".to_owned(),
            state: "ready".to_owned(),
            has_live_leader: true,
            oldest_age_seconds: Some(oldest_seconds),
            ..ConsumerOverview::default()
        };
        concerns(&CellOverview { queue, consumers: vec![consumer], ..CellOverview::default() })
    }

    #[test]
    fn memory_warns_from_70_percent_and_is_bad_from_90() {
        let memory = |memory_bytes, memory_limit_bytes| {
            let queue =
                QueueOverview { memory_bytes, memory_limit_bytes, ..QueueOverview::default() };
            let mut found = concerns_at(queue, 0.0).into_iter();
            let first = found.next();
            assert_eq!(found.next(), None, "only the memory");
            first
        };
        let expected = |level: StateLevel, percent: u64| {
            let text = format!("Redis has used {percent} % of its memory");
            Some((level, text, "/doctor".to_owned()))
        };
        assert_eq!(memory(699, Some(1000)), None);
        assert_eq!(memory(700, Some(1000)), expected(StateLevel::Warning, 70));
        assert_eq!(memory(899, Some(1000)), expected(StateLevel::Warning, 89));
        assert_eq!(memory(900, Some(1000)), expected(StateLevel::Bad, 90));
        assert_eq!(memory(1000, Some(1000)), expected(StateLevel::Bad, 100));
        assert_eq!(memory(1000, None), None, "without a limit");
    }

    #[test]
    fn the_oldest_webhook_warns_after_five_minutes() {
        let oldest = |seconds: f64| concerns_at(QueueOverview::default(), seconds);
        assert!(oldest(299.9).is_empty());
        let text = "http: the oldest webhook has waited 5m".to_owned();
        let href = "/webhooks?consumer=http".to_owned();
        assert_eq!(oldest(300.0), [(StateLevel::Warning, text, href)]);
    }
}
