//! All kinds of faults under load. What was answered 200 arrives unchanged and in order: once in
//! Kafka, and rarely twice at the backend.
//!
//! The suite makes some dozens of faults. `make chaos` makes more than two thousand, and runs one
//! cell for half an hour with a fault every minute.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use stories::binaries::repository;
use stories::cell::Cell;
use stories::chaos::episode::{Shown, play};
use stories::chaos::fault::Kind;
use stories::chaos::plan::{self, Plan};
use stories::chaos::report::Run;
use stories::disk::SmallDisk;
use stories::report::say;
use stories::seed::seed;
use stories::settlements::Duplicates;
use stories::size::size;
use tokio::task::{JoinSet, LocalSet};

/// Number of cells at a time. Each one mostly waits.
const AT_ONCE: usize = 3;

/// Number of faults from which a run must contain every kind.
const ALL_KINDS_FROM: usize = 500;

/// Number of faults: `FAULTS` if it is set, or the default of the suite.
fn faults() -> usize {
    match std::env::var("FAULTS") {
        Ok(text) => text.parse().expect("FAULTS must be a whole number"),
        Err(_) => size(42, 2_080),
    }
}

/// Executes the plans in order, several at a time.
async fn play_all(plans: Vec<Plan>) -> Vec<Shown> {
    // Held while any of the cells runs.
    let _cell = Cell::busy();
    let plans = Rc::new(RefCell::new(VecDeque::from(plans)));
    let (here, mut players) = (LocalSet::new(), JoinSet::new());
    for _ in 0..AT_ONCE {
        let plans = Rc::clone(&plans);
        let player = async move {
            let mut shown = Vec::new();
            loop {
                let Some(plan) = plans.borrow_mut().pop_front() else { return shown };
                shown.push(play(plan, Cell::beside()).await);
                shown.iter().for_each(Shown::expect_sound);
            }
        };
        players.spawn_local_on(player, &here);
    }
    here.run_until(players.join_all()).await.into_iter().flatten().collect()
}

/// Directory of the results under `make chaos`.
fn results() -> Option<PathBuf> {
    std::env::var_os("RESULTS").map(PathBuf::from).filter(|_| size(false, true))
}

fn write(name: &str, heading: &str, seed: u64, began: Instant, run: &Run) {
    let text = format!(
        "# {heading}\n\n`make chaos`, SEED={seed} FAULTS={}, {:.0?}, debug build, {AT_ONCE} cells at a time at \
         most.\n\n{}\n\nMost memory held: {}.\n\n{}",
        faults(),
        began.elapsed(),
        run.summary(),
        run.memory(),
        run.table()
    );
    say(&text);
    if let Some(results) = results() {
        fs::write(repository().join(results).join(name), text).expect("write the results");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_invented_or_disordered_by_any_fault() {
    let seed = seed("chaos", 71);
    let (faults, faults_each) = (faults(), size(14, 26));
    let plans =
        plan::draw(seed, faults.div_ceil(faults_each), faults_each, SmallDisk::is_allowed());
    let began = Instant::now();
    let run = Run { shown: play_all(plans).await };
    write("chaos.md", "Faults", seed, began, &run);
    assert!(run.faults() >= faults);
    let Duplicates { sent, refused, firsts, moves, chunks, .. } = run.duplicates();
    for (what, count) in [
        ("sent", sent),
        ("refused", refused),
        ("first of a leader", firsts),
        ("that write chunks", moves),
        ("of chunks", chunks),
    ] {
        assert!(count > 0, "no duplicates of settlements {what}: {:?}", run.duplicates());
    }
    if faults >= ALL_KINDS_FROM && SmallDisk::is_allowed() {
        let made = |kind: &Kind| {
            let felt = run.shown.iter().flat_map(|shown| &shown.felt);
            felt.filter(|felt| felt.kinds.contains(kind)).count()
        };
        assert!(Kind::ALL.iter().all(|kind| made(kind) > 0), "not every kind was made");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_with_everything_stands_a_fault_each_minute() {
    if !size(false, true) {
        // The other test makes the same faults in smaller cells.
        return;
    }
    let seed = seed("chaos, soak", 72);
    let plan = plan::soak(seed, 30, Duration::from_secs(60), SmallDisk::is_allowed());
    let began = Instant::now();
    let run = Run { shown: play_all(vec![plan]).await };
    write("soak.md", "Half an hour, a fault each minute", seed, began, &run);
}
