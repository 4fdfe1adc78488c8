//! All jobs that are kept: who ordered them, and how far they are.

use maud::{Markup, html};

use super::figures::thousands;
use super::frame::ConsoleView;
use super::job::{phase, word};
use super::parts::{TableColumn, state, table};
use crate::access::Caller;
use crate::model::change::JobStatus;

const COLUMNS: [TableColumn<'static>; 8] = [
    TableColumn::number("Job"),
    TableColumn::text("Phase"),
    TableColumn::text("Command"),
    TableColumn::text("Consumer"),
    TableColumn::text("Webhooks"),
    TableColumn::text("Ordered by"),
    TableColumn::number("So far"),
    TableColumn::number("Matched"),
];

/// The whole page.
pub fn page(caller: &Caller, jobs: &[JobStatus]) -> Markup {
    let rows: Vec<_> = jobs.iter().map(row).collect();
    ConsoleView::DeadLetters.page_with_title(
        "Jobs",
        caller,
        &html! {
            @if rows.is_empty() {
                p.notice { "There was no job since the console started." }
            } @else {
                (table("Jobs, the newest first", &COLUMNS, &rows))
            }
            p.quiet { "The last jobs since the start of the console. " a href="/audit" { "The audit" } " has what was changed before." }
        },
    )
}

fn row(job: &JobStatus) -> Vec<Markup> {
    let (_, level, _) = phase(&job.phase);
    let number = |number: Option<u64>| number.map_or_else(|| "–".to_owned(), thousands);
    vec![
        html! { a href={ "/jobs/" (job.id) } { (job.id) } },
        state(level, word(&job.phase)),
        html! { (job.verb) },
        html! { (job.consumer) },
        html! { (job.filter) },
        html! { (job.actor) },
        html! { (number(job.is_exact.then_some(job.done))) },
        html! { (number(job.total)) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::model::change::JobPhase;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    #[test]
    fn each_job_is_listed_with_its_phase() {
        let job = |id, phase| JobStatus {
            id,
            verb: "dead replay".to_owned(),
            consumer: hostile(),
            filter: hostile(),
            actor: hostile(),
            phase,
            done: 1_000,
            not_yet: 0,
            is_exact: true,
            total: Some(2_345),
            digest: None,
            kept: 0,
        };
        let jobs = [job(8, JobPhase::Queued), job(7, JobPhase::Failed(hostile()))];
        let text = page(&caller(Role::Support), &jobs).into_string();
        assert_hygiene(&text);
        for part in [r#"href="/jobs/8""#, r#"href="/jobs/7""#, "Waiting for its turn", "2,345"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(page(&caller(Role::Support), &[]).into_string().contains("There was no job"));
    }
}
