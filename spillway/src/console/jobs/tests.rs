//! Tests of jobs.

use spillway_console::Role;
use spillway_console::authenticate::{AnonymousAccess, Authenticate as _};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Work that finds a number of webhooks, and notes what it changed.
struct Fake {
    number: u64,
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
        Ok(CountedJob { number: self.number, kept: 2, digest, found: self.number })
    }

    async fn make(&mut self, found: u64, progress: JobProgress) -> Result<MadeJob, Failure> {
        self.made.store(true, Ordering::Release);
        progress.note(found / 2);
        if self.is_slow {
            progress.end().cancelled().await;
            return Ok(MadeJob { done: 1, is_cut: progress.is_undone(), ..MadeJob::default() });
        }
        let made = MadeJob { done: found, ..MadeJob::default() };
        if self.fails { Err(Failure::Failed("no".to_owned())) } else { Ok(made) }
    }
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
    let work = Fake { number: 6, made: made.clone(), fails, is_slow: false };
    let order = of(JobVerb::DeadReplay, "mia", expected.map(|number| counted(number, None)));
    (begin_with(jobs, order, undo_for, work), made)
}

fn is_ended(job: &JobStatus) -> bool {
    matches!(job.phase, JobPhase::Done | JobPhase::Failed(_))
}

fn counted(number: u64, digest: Option<&str>) -> ExpectedCount {
    ExpectedCount { number, digest: digest.map(str::to_owned) }
}

fn of(verb: JobVerb, actor: &str, expected: Option<ExpectedCount>) -> JobOrder {
    let (consumer, filter) = ("http".to_owned(), "everything".to_owned());
    JobOrder { verb, consumer, filter, actor: actor.to_owned(), chosen: None, expected }
}

fn begin_with(jobs: &Jobs, order: JobOrder, undo_for: Duration, work: Fake) -> Arc<KeptJob> {
    let expected = order.expected.clone();
    let job = jobs.keep(order, &CancellationToken::new()).expect("there is room");
    let plan = JobPlan { expected, undo_for, turns: jobs.turns.clone() };
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
        JobPhase::Running,
        JobPhase::Counted,
        JobPhase::Undone,
        JobPhase::Cancelled,
        JobPhase::Done,
        JobPhase::Failed("x".to_owned()),
    ];
    let failed = JobEvent::Failed("y".to_owned());
    for (event, from) in [
        (JobEvent::Counted, &all[..2]),
        (JobEvent::Delayed(1), &all[..2]),
        (JobEvent::Begun, &all[..2]),
        (JobEvent::Undone, &all[..2]),
        (JobEvent::Made, &all[2..3]),
        (JobEvent::Cut, &all[2..3]),
        (failed, &all[..3]),
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
        let (job, made) = begin(&jobs, Some(6), HOUR, false);
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
        let order = of(JobVerb::DeadReplay, &actor, Some(counted(6, None)));
        let made = Arc::new(AtomicBool::new(false));
        let work = Fake { number: 6, made, fails: false, is_slow: false };
        kept.push(begin_with(&jobs, order, HOUR, work));
    }
    let order = || of(JobVerb::Drop, "mia", None);
    assert!(jobs.keep(order(), &stop).is_err_and(|problem| problem.code == "unavailable"));
    let third = kept[2].id;
    jobs.undo(third, &caller("caller 0", Role::Support).await).expect("it has not begun");
    let new = jobs.keep(order(), &stop).expect("there is room");
    assert_eq!(jobs.status(third), None);
    assert_eq!(jobs.list().first().map(|job| job.id), Some(new.id), "the newest comes first");
    assert_eq!(jobs.list().len(), JOBS_KEPT);
}

#[tokio::test]
async fn as_many_others_than_the_counted_ones_are_a_conflict() {
    let jobs = Jobs::new();
    for (digest, is_made) in [("same", true), ("other", false)] {
        let made = Arc::new(AtomicBool::new(false));
        let work = Fake { number: 6, made: made.clone(), fails: false, is_slow: false };
        let order = of(JobVerb::DeadDrop, "mia", Some(counted(6, Some(digest))));
        let job = begin_with(&jobs, order, Duration::ZERO, work);
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
        let made = Arc::new(AtomicBool::new(false));
        let work = Fake { number: 6, made, fails: false, is_slow: true };
        let order = of(verb, "mia", Some(counted(6, None)));
        let job = begin_with(&jobs, order, Duration::ZERO, work);
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
    let all = jobs.keep(order.clone(), &stop).expect("there is room");
    let chosen = Some("one two".to_owned());
    let order = JobOrder { chosen: chosen.clone(), ..order };
    let some = jobs.keep(order, &stop).expect("there is room");
    assert_eq!((jobs.chosen(all.id), jobs.chosen(some.id)), (None, chosen));
    assert_eq!(jobs.chosen(99), None);
}

#[tokio::test]
async fn unfinished_jobs_of_one_caller_are_bounded() {
    let jobs = Jobs::new();
    let stop = CancellationToken::new();
    for _ in 0..UNFINISHED_MAX {
        jobs.keep(of(JobVerb::Drop, "mia", None), &stop).expect("there is room");
    }
    let refused = jobs.keep(of(JobVerb::Drop, "mia", None), &stop);
    assert!(refused.is_err_and(|problem| problem.detail.contains("jobs of mia are not over")));
    assert!(
        jobs.keep(of(JobVerb::Drop, "tom", None), &stop).is_ok(),
        "another one's are counted apart"
    );
}
