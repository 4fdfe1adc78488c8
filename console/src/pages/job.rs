//! One job: its progress, the confirmation of what a dry run counted, and the undo until it starts.

use maud::{Markup, html};

use super::figures::{counted, moment, thousands};
use super::forms::ChangeForm;
use super::frame::{ConsoleView, PageFrame};
use super::parts::{StateLevel, state};
use crate::access::{Caller, Permission};
use crate::csrf;
use crate::model::change::{JobPhase, JobStatus};

/// Path of the events that replace the part of a job, for the table of routes.
pub const EVENTS: &str = "/events/jobs/{id}";
/// Path of the list of all jobs.
pub const JOBS: &str = "/jobs";

/// Change that a job makes, by its command.
struct ConfirmPlan {
    verb: &'static str,
    /// Path of the form that orders it.
    action: &'static str,
    permission: Permission,
    /// Title of its page.
    title: &'static str,
    /// Word on the button that confirms it.
    confirm: &'static str,
    is_destructive: bool,
}

/// Command of a replay from the archive, whose count is the most that it replays.
const ARCHIVE_REPLAY: &str = "replay";

const PLANS: [ConfirmPlan; 4] = [
    ConfirmPlan {
        verb: "dead replay",
        action: "/dead/replay",
        permission: Permission::Replay,
        title: "Replay of dead letters",
        confirm: "Replay",
        is_destructive: false,
    },
    ConfirmPlan {
        verb: "dead drop",
        action: "/dead/drop",
        permission: Permission::Operate,
        title: "Drop of dead letters",
        confirm: "Drop for ever",
        is_destructive: true,
    },
    ConfirmPlan {
        verb: "queue drop",
        action: "/webhooks/drop",
        permission: Permission::Operate,
        title: "Drop of waiting webhooks",
        confirm: "Drop for ever",
        is_destructive: true,
    },
    ConfirmPlan {
        verb: ARCHIVE_REPLAY,
        action: "/archive/replay",
        permission: Permission::Operate,
        title: "Replay from the archive",
        confirm: "Replay",
        is_destructive: false,
    },
];

/// The whole page. `form` is the selection that a dry run has counted, to be sent again with the number.
pub fn page(caller: &Caller, job: &JobStatus, form: &ChangeForm) -> Markup {
    let plan = PLANS.iter().find(|plan| plan.verb == job.verb);
    let (name, _, is_over) = phase(&job.phase);
    let view = match plan.map(|plan| plan.action) {
        Some("/webhooks/drop") => ConsoleView::Webhooks,
        Some("/archive/replay") => ConsoleView::Archive,
        _ => ConsoleView::DeadLetters,
    };
    let frame = PageFrame {
        title: plan.map_or("Job", |plan| plan.title),
        view: Some(view),
        caller: Some(caller),
        is_refreshed: !is_over,
    };
    let events = EVENTS.replace("{id}", &job.id.to_string());
    frame.around(&html! {
        dl.facts {
            div { dt { "Command" } dd { (job.verb) } }
            div { dt { "Consumer" } dd { (job.consumer) } }
            div { dt { "Webhooks" } dd { (job.filter) } }
            div { dt { "Ordered by" } dd { (job.actor) } }
        }
        // A change of the phase changes the forms below: the script loads the page again then.
        div data-live=[(!is_over).then_some(events)] data-phase-of-page=(name) aria-live="polite" {
            (part(job))
        }
        @if caller.may(Permission::Replay) {
            @match &job.phase {
                JobPhase::Waiting(_) | JobPhase::Queued => { (undo(caller, job, "Undo")) },
                JobPhase::Running if is_replay(job) => { (undo(caller, job, "Cancel")) },
                _ => {}
            }
        }
        @if let (JobPhase::Counted, Some(plan)) = (&job.phase, plan) {
            (confirmation(caller, job, form, plan))
        }
        @if is_over {
            p {
                @if caller.may(view.permission()) { a href=(view.path()) { (view.label()) } " · " }
                a href="/audit" { "Audit" }
            }
        }
        p { a href=(JOBS) { "All jobs" } }
    })
}

/// The part that changes: the phase and the progress. The same for all who watch.
pub fn part(job: &JobStatus) -> Markup {
    let (name, level, is_over) = phase(&job.phase);
    html! {
        div.progress data-phase=(name) data-over[is_over] {
            p { (state(level, word(&job.phase))) " " (sentence(job)) }
            @if let (JobPhase::Running, Some(total)) = (&job.phase, job.total) {
                progress value=(job.done.min(total)) max=(total.max(1)) aria-label="Progress" {}
            }
            @if job.kept > 0 {
                p.quiet {
                    (counted(job.kept, "webhook")) " of compliance topics " (if job.kept == 1 { "is" } else { "are" })
                    " kept: they are a legal duty."
                }
            }
        }
    }
}

/// True for a job that can be cancelled while it runs.
fn is_replay(job: &JobStatus) -> bool {
    job.verb.ends_with("replay")
}

/// Code of a phase, its level, and true if it is the last one.
pub(super) fn phase(phase: &JobPhase) -> (&'static str, StateLevel, bool) {
    match phase {
        JobPhase::Counting => ("counting", StateLevel::Warning, false),
        JobPhase::Counted => ("counted", StateLevel::Ok, true),
        JobPhase::Waiting(_) => ("waiting", StateLevel::Warning, false),
        JobPhase::Queued => ("queued", StateLevel::Warning, false),
        JobPhase::Undone => ("undone", StateLevel::Ok, true),
        JobPhase::Running => ("running", StateLevel::Warning, false),
        JobPhase::Cancelled => ("cancelled", StateLevel::Warning, true),
        JobPhase::Done => ("done", StateLevel::Ok, true),
        JobPhase::Failed(_) => ("failed", StateLevel::Bad, true),
    }
}

/// A phase in words.
pub(super) fn word(phase: &JobPhase) -> &'static str {
    match phase {
        JobPhase::Counting => "Counting",
        JobPhase::Counted => "Counted",
        JobPhase::Waiting(_) => "Waiting to start",
        JobPhase::Queued => "Waiting for its turn",
        JobPhase::Undone => "Undone",
        JobPhase::Running => "Under way",
        JobPhase::Cancelled => "Cancelled",
        JobPhase::Done => "Done",
        JobPhase::Failed(_) => "Failed",
    }
}

fn sentence(job: &JobStatus) -> Markup {
    let done = thousands(job.done);
    let total = job.total.map(|total| counted(total, "webhook"));
    let total = total.as_deref().unwrap_or("an unknown number");
    html! {
        @match &job.phase {
            JobPhase::Counting => { (done) " found so far." },
            JobPhase::Counted if job.verb == ARCHIVE_REPLAY => { "At most " (total) " match. Nothing was changed." },
            JobPhase::Counted => { (total) " matched. Nothing was changed." },
            JobPhase::Waiting(until_ms) => {
                (total) " will be taken. It starts at " (moment(*until_ms)) " UTC, and can be undone until then."
            },
            JobPhase::Queued => {
                (total) " matched. Other jobs are under way: it starts after one of them, and can be undone until then. "
                "If that takes long, it counts again, and changes nothing if others match by then."
            },
            JobPhase::Undone => { "Nothing was changed." },
            JobPhase::Running => { (done) " of " (total) "." },
            JobPhase::Cancelled => { (done) " of " (total) " changed before. What was taken by then is still delivered." },
            JobPhase::Done if !job.is_exact => {
                "The drop of " (total) " is ordered. How many are dropped by now is not known: another order to this \
                consumer came between."
            },
            JobPhase::Done if job.not_yet > 0 => {
                (done) " dropped; " (thousands(job.not_yet))
                " more are ordered: delivered since the count, or under way, and dropped if that fails, or dropped as soon as \
                the consumer comes to them."
            },
            JobPhase::Done => { (done) " changed." },
            JobPhase::Failed(reason) => { (reason) " (" (done) " changed before)" },
        }
    }
}

fn undo(caller: &Caller, job: &JobStatus, word: &str) -> Markup {
    html! {
        form method="post" action={ "/jobs/" (job.id) "/undo" } {
            (csrf::field(caller))
            button type="submit" { (word) }
        }
    }
}

/// Form in which the counted number is typed.
fn confirmation(caller: &Caller, job: &JobStatus, form: &ChangeForm, plan: &ConfirmPlan) -> Markup {
    let total = job.total.unwrap_or_default();
    html! {
        @if !caller.may(plan.permission) {
            p.notice { "You may not confirm this." }
        } @else if total == 0 {
            p.notice { "Nothing matches: there is nothing to do." }
        } @else {
            section.danger[plan.is_destructive] aria-labelledby="confirm" {
                h2 #confirm { "Confirm" }
                p { "You order this:" }
                (form.description())
                form.filter method="post" action=(plan.action) {
                    (csrf::field(caller))
                    (form.hidden())
                    @if let Some(digest) = &job.digest { input type="hidden" name="digest" value=(digest); }
                    div.field {
                        label for="confirm-expected" { "Type the number of webhooks: " (thousands(total)) }
                        input #confirm-expected name="expected" inputmode="numeric" required
                            pattern="[0-9, ]+" autocomplete="off" aria-describedby="confirm-why";
                    }
                    button.destructive[plan.is_destructive] type="submit" { (plan.confirm) }
                    p #confirm-why.quiet {
                        "If others match by then, even as many, nothing is changed."
                        @if !plan.is_destructive {
                            " It starts after ten seconds, and can be undone until then, and cancelled while it runs."
                        }
                    }
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

    fn job(verb: &str, phase: JobPhase) -> JobStatus {
        JobStatus {
            id: 7,
            verb: verb.to_owned(),
            consumer: hostile(),
            filter: hostile(),
            actor: hostile(),
            phase,
            done: 1_000,
            not_yet: 0,
            is_exact: true,
            total: Some(2_345),
            digest: Some("0a1b".to_owned()),
            kept: 1,
        }
    }

    fn form() -> ChangeForm {
        ChangeForm { consumer: Some(hostile()), shop: Some(hostile()), ..ChangeForm::default() }
    }

    fn of(role: Role, verb: &str, phase: JobPhase) -> String {
        let text = page(&caller(role), &job(verb, phase), &form()).into_string();
        assert_hygiene(&text);
        text
    }

    #[test]
    fn a_count_is_confirmed_by_typing_the_number() {
        for (verb, action) in [
            ("dead replay", "/dead/replay"),
            ("dead drop", "/dead/drop"),
            ("queue drop", "/webhooks/drop"),
            ("replay", "/archive/replay"),
        ] {
            let text = of(Role::Operator, verb, JobPhase::Counted);
            assert!(text.contains(&format!(r#"action="{action}""#)), "{verb}: {text}");
            assert!(text.contains(r#"name="expected""#) && text.contains("2,345"), "{text}");
            assert!(text.contains(r#"name="digest" value="0a1b""#), "{text}");
        }
        let archive = of(Role::Operator, "replay", JobPhase::Counted);
        assert!(archive.contains("At most 2,345 webhooks match"), "{archive}");
        assert!(archive.contains(r#"href="/archive" aria-current="page""#), "{archive}");
        for verb in ["dead drop", "replay"] {
            assert!(of(Role::Support, verb, JobPhase::Counted).contains("may not confirm"));
        }
        let mut none = job("queue drop", JobPhase::Counted);
        none.total = Some(0);
        let text = page(&caller(Role::Operator), &none, &form()).into_string();
        assert!(!text.contains("expected") && text.contains("nothing to do"), "{text}");
    }

    #[test]
    fn a_job_is_undone_while_it_waits_only() {
        let waiting = JobPhase::Waiting(1_767_268_800_000);
        for begins_later in [waiting.clone(), JobPhase::Queued] {
            assert!(of(Role::Support, "dead replay", begins_later).contains("/jobs/7/undo"));
        }
        assert!(of(Role::Operator, "queue drop", JobPhase::Queued).contains("/jobs/7/undo"));
        assert!(!of(Role::Viewer, "dead replay", waiting).contains("/undo"));
        for phase in [JobPhase::Cancelled, JobPhase::Done, JobPhase::Undone, JobPhase::Counting] {
            assert!(!of(Role::Admin, "dead replay", phase).contains("/undo"));
        }
        for verb in ["dead replay", "replay"] {
            assert!(of(Role::Support, verb, JobPhase::Running).contains("Cancel</button>"));
        }
        assert!(!of(Role::Admin, "queue drop", JobPhase::Running).contains("/undo"));
    }

    #[test]
    fn a_drop_says_what_is_ordered_and_not_carried_out_yet() {
        let mut done = job("queue drop", JobPhase::Done);
        assert!(part(&done).into_string().contains("1,000 changed."));
        done.not_yet = 1_345;
        let text = part(&done).into_string();
        assert!(text.contains("1,000 dropped; 1,345 more are ordered"), "{text}");
        (done.done, done.not_yet, done.is_exact) = (0, 2_345, false);
        let text = part(&done).into_string();
        assert!(text.contains("The drop of 2,345 webhooks is ordered."), "{text}");
        assert!(text.contains("is not known") && !text.contains("0 dropped"), "{text}");
    }

    #[test]
    fn chosen_letters_are_sent_again_with_the_number() {
        let form = ChangeForm { ids: Some("one two \"><script>".to_owned()), ..form() };
        let job = job("dead drop", JobPhase::Counted);
        let text = page(&caller(Role::Operator), &job, &form).into_string();
        assert!(text.contains(r#"name="ids" value="one two &quot;&gt;&lt;script&gt;""#), "{text}");
        assert!(text.contains("<dt>Selected</dt><dd>3 dead letters</dd>"), "{text}");
        assert_hygiene(&text);
    }

    #[test]
    fn a_running_job_has_progress_and_the_end_is_not_loaded_again() {
        let running = of(Role::Support, "dead replay", JobPhase::Running);
        assert!(running.contains(r#"<progress value="1000" max="2345""#), "{running}");
        assert!(running.contains("/events/jobs/7") && running.contains("http-equiv"), "{running}");
        let failed = of(Role::Support, "dead replay", JobPhase::Failed(hostile()));
        assert!(failed.contains("data-over") && !failed.contains("http-equiv"), "{failed}");
        assert!(!failed.contains("data-live"), "{failed}");
    }
}
