//! Tests of jobs.

use std::sync::atomic::AtomicBool;

use spillway_console::Role;
use spillway_console::authenticate::{AnonymousAccess, Authenticate as _};
use tokio::time::advance;

use super::phase::next_phase;
use super::run::RECOUNT_AFTER;
use super::turns::{AT_ONCE, CALLER_MAX};
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Work that finds a number of webhooks, and notes what it changed.
struct Fake {
    number: u64,
    /// Number that it finds when it counts again.
    later: u64,
    made: Arc<AtomicBool>,
    fails: bool,
    is_slow: bool,
}

impl JobWork for Fake {
    type Found = u64;

    async fn count(&mut self, progress: JobProgress) -> Result<CountedJob<u64>, Failure> {
        progress.note(1);
        progress.hold(self.number)?;
        let digest = "same".to_owned();
        let number = std::mem::replace(&mut self.number, self.later);
        Ok(CountedJob { number, kept: 2, digest, found: number })
    }

    async fn make(&mut self, found: u64, progress: JobProgress) -> Result<MadeJob, Failure> {
        self.made.store(true, Ordering::Release);
        progress.note(found / 2);
        if self.is_slow {
            progress.end().cancelled().await;
            return Ok(MadeJob { is_cut: progress.is_undone(), ..made(1) });
        }
        let made = made(found);
        if self.fails { Err(Failure::Failed("no".to_owned())) } else { Ok(made) }
    }
}

fn made(done: u64) -> MadeJob {
    MadeJob { done, not_yet: 0, is_exact: true, is_cut: false }
}

async fn caller(name: &str, role: Role) -> Caller {
    let head = http::Request::new(()).into_parts().0;
    let found = AnonymousAccess::new(role).caller(&head).await.expect("everybody is known");
    Caller { name: name.to_owned(), ..found }
}

/// Runs a job, and returns it with the flag that says if it changed something.
fn begin(
    jobs: &Jobs,
    expected: Option<u64>,
    undo_for: Duration,
    fails: bool,
) -> (Arc<KeptJob>, Arc<AtomicBool>) {
    let made = Arc::new(AtomicBool::new(false));
    let work = Fake { fails, ..fake(&made) };
    let order = of(JobVerb::DeadReplay, "mia", expected.map(|number| counted(number, None)));
    (begin_with(jobs, order, undo_for, work), made)
}

/// Work that finds six webhooks and changes them at once.
fn fake(made: &Arc<AtomicBool>) -> Fake {
    Fake { number: 6, later: 6, made: made.clone(), fails: false, is_slow: false }
}

/// Work that goes on until its job is cancelled.
fn slow() -> Fake {
    Fake { is_slow: true, ..fake(&Arc::default()) }
}

fn is_ended(job: &JobStatus) -> bool {
    matches!(job.phase, JobPhase::Done | JobPhase::Failed(_))
}

fn counted(number: u64, digest: Option<&str>) -> ExpectedCount {
    ExpectedCount { number, digest: digest.map(str::to_owned) }
}

fn of(verb: JobVerb, actor: &str, expected: Option<ExpectedCount>) -> JobOrder {
    let (consumer, filter) = ("http".to_owned(), "everything".to_owned());
    JobOrder {
        verb,
        consumer,
        filter,
        selection: WebhookSelection::default(),
        actor: actor.to_owned(),
        expected,
        rate: None,
        force: false,
    }
}

/// Dry run of an order that no other one equals.
fn dry(actor: &str, number: usize) -> JobOrder {
    with_shop(of(JobVerb::Drop, actor, None), format!("shop-{number}.example"))
}

/// The same order for webhooks of this shop.
fn with_shop(order: JobOrder, shop: String) -> JobOrder {
    let selection = WebhookSelection { shop: Some(shop), ..WebhookSelection::default() };
    JobOrder { selection, ..order }
}

fn begin_with(jobs: &Jobs, order: JobOrder, undo_for: Duration, work: Fake) -> Arc<KeptJob> {
    let (job, is_new) = jobs.keep(order, &CancellationToken::new()).expect("there is room");
    assert!(is_new, "the job {} carries out the same order", job.id);
    let plan = JobPlan { undo_for, turns: jobs.turns.clone() };
    tokio::spawn(run(work, job.clone(), plan));
    job
}

async fn until(job: &KeptJob, is_it: impl FnMut(&JobStatus) -> bool) -> JobStatus {
    let mut latest = job.status.subscribe();
    latest.wait_for(is_it).await.expect("the job is kept").clone()
}

#[test]
fn a_phase_follows_only_those_before_it() {
    let all = [
        JobPhase::Counting,
        JobPhase::Waiting(1),
        JobPhase::Queued,
        JobPhase::Running,
        JobPhase::Counted,
        JobPhase::Undone,
        JobPhase::Cancelled,
        JobPhase::Done,
        JobPhase::Failed("x".to_owned()),
    ];
    let failed = JobEvent::Failed("y".to_owned());
    for (event, from) in [
        (JobEvent::Counted, &all[..3]),
        (JobEvent::Delayed(1), &all[..3]),
        (JobEvent::Queued, &all[..3]),
        (JobEvent::Begun, &all[..3]),
        (JobEvent::Undone, &all[..3]),
        (JobEvent::Made, &all[3..4]),
        (JobEvent::Cut, &all[3..4]),
        (failed, &all[..4]),
    ] {
        for phase in &all {
            let is_followed = next_phase(phase, event.clone()).is_some();
            assert_eq!(is_followed, from.contains(phase), "{phase:?} {event:?}");
        }
    }
}

#[tokio::test]
async fn a_dry_run_counts_and_changes_nothing() {
    let (job, made) = begin(&Jobs::new(), None, Duration::ZERO, false);
    let status = until(&job, |job| job.phase == JobPhase::Counted).await;
    assert_eq!((status.total, status.done, status.kept), (Some(6), 6, 2));
    assert!(!made.load(Ordering::Acquire) && job.is_over());
}

#[tokio::test]
async fn another_number_than_the_expected_one_is_a_conflict() {
    let jobs = Jobs::new();
    let (job, made) = begin(&jobs, Some(5), Duration::ZERO, false);
    until(&job, |job| matches!(job.phase, JobPhase::Failed(_))).await;
    let problem = jobs.counted(job.id, HOUR).await.expect_err("6 match");
    assert!(problem.code == "conflict" && problem.detail.contains("6 match now, not 5"));
    assert!(!made.load(Ordering::Acquire));
}

#[tokio::test]
async fn a_job_waits_and_is_made() {
    let (job, made) = begin(&Jobs::new(), Some(6), Duration::from_millis(1), false);
    let status = until(&job, |job| job.phase == JobPhase::Done).await;
    assert_eq!(status.done, 6);
    assert!(made.load(Ordering::Acquire));
}

#[tokio::test]
async fn a_failure_ends_a_job_and_says_how_far_it_was() {
    let (job, _) = begin(&Jobs::new(), Some(6), Duration::ZERO, true);
    let status = until(&job, |job| matches!(job.phase, JobPhase::Failed(_))).await;
    assert_eq!((status.done, status.phase), (3, JobPhase::Failed("no".to_owned())));
}

#[tokio::test]
async fn a_job_that_waits_is_undone_by_its_caller_or_an_operator() {
    let jobs = Jobs::new();
    for (name, role, is_undone) in
        [("mia", Role::Support, true), ("tom", Role::Support, false), ("tom", Role::Operator, true)]
    {
        let made = Arc::new(AtomicBool::new(false));
        let order = of(JobVerb::DeadReplay, "mia", Some(counted(6, None)));
        let order = with_shop(order, format!("{name}-{role}.example"));
        let job = begin_with(&jobs, order, HOUR, fake(&made));
        until(&job, |job| matches!(job.phase, JobPhase::Waiting(_))).await;
        let undone = jobs.undo(job.id, &caller(name, role).await);
        assert_eq!(undone.is_ok(), is_undone, "{name} {role}");
        if let Ok(status) = undone {
            assert_eq!(status.phase, JobPhase::Undone);
            let again = jobs.undo(job.id, &caller(name, role).await).expect_err("it is over");
            assert_eq!(again.code, "conflict");
        }
        assert!(!made.load(Ordering::Acquire));
    }
    assert_eq!(
        jobs.undo(99, &caller("mia", Role::Admin).await).expect_err("none").code,
        "not_found"
    );
}

#[tokio::test]
async fn jobs_that_are_over_make_room_and_others_do_not() {
    let jobs = Jobs::new();
    let mut kept = Vec::new();
    let stop = CancellationToken::new();
    for number in 0..JOBS_KEPT {
        let actor = format!("caller {}", number / UNFINISHED_MAX);
        let expected = Some(counted(6, None));
        let order = JobOrder { expected, ..dry(&actor, number) };
        kept.push(begin_with(&jobs, order, HOUR, fake(&Arc::default())));
    }
    let order = || dry("mia", 0);
    assert!(jobs.keep(order(), &stop).is_err_and(|problem| problem.code == "unavailable"));
    let third = kept[2].id;
    jobs.undo(third, &caller("caller 0", Role::Support).await).expect("it has not begun");
    let (new, _) = jobs.keep(order(), &stop).expect("there is room");
    assert_eq!(jobs.status(third), None);
    assert_eq!(jobs.list().first().map(|job| job.id), Some(new.id), "the newest comes first");
    assert_eq!(jobs.list().len(), JOBS_KEPT);
}

#[tokio::test]
async fn as_many_others_than_the_counted_ones_are_a_conflict() {
    let jobs = Jobs::new();
    for (digest, is_made) in [("same", true), ("other", false)] {
        let made = Arc::new(AtomicBool::new(false));
        let order = of(JobVerb::DeadDrop, "mia", Some(counted(6, Some(digest))));
        let job = begin_with(&jobs, order, Duration::ZERO, fake(&made));
        let status = until(&job, is_ended).await;
        assert_eq!(made.load(Ordering::Acquire), is_made, "{digest}: {status:?}");
        assert_eq!(status.digest.as_deref(), Some("same"));
        assert_eq!(jobs.counted(job.id, HOUR).await.is_ok(), is_made, "{digest}");
    }
}

#[tokio::test]
async fn a_replay_that_runs_is_cancelled_and_a_drop_is_not() {
    let jobs = Jobs::new();
    for (verb, is_cancelled) in [(JobVerb::DeadReplay, true), (JobVerb::Drop, false)] {
        let order = of(verb, "mia", Some(counted(6, None)));
        let job = begin_with(&jobs, order, Duration::ZERO, slow());
        until(&job, |job| job.phase == JobPhase::Running).await;
        let undone = jobs.undo(job.id, &caller("mia", Role::Support).await);
        assert_eq!(undone.is_ok(), is_cancelled, "{verb:?}");
        if is_cancelled {
            let status = until(&job, |job| job.phase == JobPhase::Cancelled).await;
            assert_eq!(status.done, 1);
        }
    }
}

#[tokio::test]
async fn a_job_keeps_the_ids_of_its_letters() {
    let jobs = Jobs::new();
    let stop = CancellationToken::new();
    let order = of(JobVerb::DeadReplay, "mia", None);
    let (all, _) = jobs.keep(order.clone(), &stop).expect("there is room");
    let ids = ["one", "two"].map(str::to_owned).to_vec();
    let selection = WebhookSelection { ids: Some(ids), ..WebhookSelection::default() };
    let order = JobOrder { selection, ..order };
    let (some, _) = jobs.keep(order, &stop).expect("there is room");
    let chosen = Some("one two".to_owned());
    assert_eq!((jobs.chosen(all.id), jobs.chosen(some.id)), (None, chosen));
    assert_eq!(jobs.chosen(99), None);
}

#[tokio::test]
async fn unfinished_jobs_of_one_caller_are_bounded() {
    let jobs = Jobs::new();
    let stop = CancellationToken::new();
    for number in 0..UNFINISHED_MAX {
        jobs.keep(dry("mia", number), &stop).expect("there is room");
    }
    let refused = jobs.keep(dry("mia", UNFINISHED_MAX), &stop);
    assert!(refused.is_err_and(|problem| problem.detail.contains("jobs of mia are not over")));
    assert!(jobs.keep(dry("tom", 0), &stop).is_ok(), "another one's are counted apart");
}

#[tokio::test(start_paused = true)]
async fn the_same_order_again_is_the_same_job_until_that_is_over() {
    let jobs = Jobs::new();
    let stop = CancellationToken::new();
    let order = |digest| of(JobVerb::DeadReplay, "mia", Some(counted(6, Some(digest))));
    let again = |order: JobOrder| jobs.begin(order, fake(&Arc::default()), &stop).expect("a job");
    let first = again(order("same")).id;
    assert_eq!(again(order("same")).id, first, "a double click");
    let others = [
        order("other"),
        of(JobVerb::DeadReplay, "mia", Some(counted(6, None))),
        of(JobVerb::DeadReplay, "mia", None),
        JobOrder { actor: "tom".to_owned(), ..order("same") },
        with_shop(order("same"), "a.example".to_owned()),
        JobOrder { rate: Some(5), ..order("same") },
    ];
    let later = JobOrder { filter: "since a moment later".to_owned(), ..order("same") };
    assert_eq!(again(later).id, first, "a retry of an order whose time is how long ago");
    for other in others {
        assert_ne!(again(other.clone()).id, first, "{other:?}");
    }
    jobs.undo(first, &caller("mia", Role::Support).await).expect("it waits");
    assert_ne!(again(order("same")).id, first, "nobody undid the second one");
}

/// Replays of one caller that run until they are cancelled, as many as it may have at once.
async fn slow_replays(jobs: &Jobs, actor: &str) {
    for number in 0..CALLER_MAX {
        let expected = Some(counted(6, None));
        let verb = JobVerb::DeadReplay;
        let order = JobOrder { verb, expected, ..dry(actor, number) };
        let job = begin_with(jobs, order, Duration::ZERO, slow());
        until(&job, |job| job.phase == JobPhase::Running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_replays_of_one_caller_delay_neither_drops_nor_replays_of_others() {
    let jobs = Jobs::new();
    slow_replays(&jobs, "sue").await;
    let confirmed = || Some(counted(6, None));
    for (verb, actor, is_delayed) in [
        (JobVerb::DeadReplay, "sue", true),
        (JobVerb::ArchiveReplay, "tom", false),
        (JobVerb::DeadDrop, "sue", false),
        (JobVerb::Drop, "sue", false),
    ] {
        let order = of(verb, actor, confirmed());
        let job = begin_with(&jobs, order, Duration::ZERO, fake(&Arc::default()));
        let status = until(&job, |job| is_ended(job) || job.phase == JobPhase::Queued).await;
        let expected = if is_delayed { JobPhase::Queued } else { JobPhase::Done };
        assert_eq!(status.phase, expected, "{verb:?} of {actor}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_its_turn_is_undone() {
    let jobs = Jobs::new();
    for number in 0..AT_ONCE / CALLER_MAX {
        slow_replays(&jobs, &format!("caller {number}")).await;
    }
    let made = Arc::new(AtomicBool::new(false));
    let order = of(JobVerb::DeadReplay, "mia", Some(counted(6, None)));
    let job = begin_with(&jobs, order, Duration::ZERO, fake(&made));
    until(&job, |job| job.phase == JobPhase::Queued).await;
    let undone = jobs.undo(job.id, &caller("mia", Role::Support).await).expect("not begun");
    assert_eq!(undone.phase, JobPhase::Undone);
    assert!(!made.load(Ordering::Acquire));
}

#[tokio::test(start_paused = true)]
async fn after_a_long_wait_for_its_turn_a_job_counts_again() {
    for (wait, later, is_made) in
        [(RECOUNT_AFTER / 2, 7, true), (RECOUNT_AFTER, 6, true), (RECOUNT_AFTER, 7, false)]
    {
        let jobs = Jobs::new();
        slow_replays(&jobs, "mia").await;
        let made = Arc::new(AtomicBool::new(false));
        let order = of(JobVerb::DeadReplay, "mia", Some(counted(6, Some("same"))));
        let work = Fake { later, ..fake(&made) };
        let job = begin_with(&jobs, order, Duration::ZERO, work);
        until(&job, |job| job.phase == JobPhase::Queued).await;
        advance(wait).await;
        jobs.undo(1, &caller("mia", Role::Support).await).expect("a replay that runs");
        let status = until(&job, is_ended).await;
        assert_eq!(made.load(Ordering::Acquire), is_made, "{wait:?} {later}: {status:?}");
        let is_conflict = jobs.counted(job.id, HOUR).await.is_err();
        assert_eq!(is_conflict, !is_made, "{wait:?} {later}");
    }
}

#[tokio::test(start_paused = true)]
async fn drops_of_waiting_webhooks_of_one_consumer_come_one_after_the_other() {
    let jobs = Jobs::new();
    let drop_of = |actor: &str, consumer: &str, work: Fake| {
        let order = of(JobVerb::Drop, actor, Some(counted(6, None)));
        let order = JobOrder { consumer: consumer.to_owned(), ..order };
        begin_with(&jobs, order, Duration::ZERO, work)
    };
    let first = drop_of("mia", "http", slow());
    until(&first, |job| job.phase == JobPhase::Running).await;
    let second = drop_of("tom", "http", fake(&Arc::default()));
    until(&second, |job| job.phase == JobPhase::Queued).await;
    let other = drop_of("tom", "kafka", fake(&Arc::default()));
    until(&other, |job| job.phase == JobPhase::Done).await;
    first.end.cancel();
    until(&second, |job| job.phase == JobPhase::Done).await;
}
