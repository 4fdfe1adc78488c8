//! Ways to the cell: how many reads of packs there are at once, work on threads of its own, and answers that are kept.

pub(super) mod kept;
pub(super) mod stories;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_console::ProblemDetails;
use spillway_console::model::doctor::DoctorReport;
use spillway_console::model::gaps::GapLine;
use spillway_console::model::lanes::LaneSummary;
use spillway_console::model::top::{TopGroup, TopList};
use spillway_webhook::StreamId;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::failure::Failure;
use kept::KeptAnswers;
use stories::StorySearches;

/// Reads of packs at once. Each holds a connection and some megabytes.
const READS_MAX: usize = 4;
/// Works apart at once. Each has a thread, and may wait for one more that decodes packs.
pub(super) const APART_MAX: usize = 64;
const _: () = assert!(READS_MAX < APART_MAX, "heavy reads leave room for others");
/// Time for which a request waits until there is room for its read.
const PATIENCE: Duration = Duration::from_secs(2);
/// Age up to which lanes are new.
const LANES_FRESH: Duration = Duration::from_secs(1);
/// Age up to which counts and findings are new.
const COUNTS_FRESH: Duration = Duration::from_secs(10);
/// Lists of gaps that are kept in mind: each may have some megabytes.
const GAP_LISTS_MAX: usize = 4;
/// Dead letters whose places are kept in mind: some megabytes.
const PLACES_MAX: usize = 20_000;

/// Room for works apart, in the whole process, as its threads are.
static APART: Semaphore = Semaphore::const_new(APART_MAX);

/// Ways to the cell, which all requests share.
pub(super) struct CellLinks {
    /// Room for reads of packs.
    pub gate: PackGate,
    /// Lanes of each consumer.
    pub lanes: KeptAnswers<String, KeptLanes>,
    /// Largest groups, by consumer, group and shop.
    pub tops: KeptAnswers<(String, TopGroup, Option<String>), TopList>,
    /// Gaps of all shops, by the time since which they are asked for.
    pub gaps: KeptAnswers<String, Vec<GapLine>>,
    /// Findings of the doctor.
    pub doctor: KeptAnswers<(), DoctorReport>,
    /// Searches for one webhook.
    pub stories: StorySearches,
    letters: Mutex<HashMap<LetterName, StreamId>>,
}

/// Lanes of a consumer.
pub(super) struct KeptLanes {
    /// Time at which they were read, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// All of them, those with most webhooks first.
    pub rows: Vec<LaneSummary>,
}

/// Consumer and Spillway-Id of a dead letter.
type LetterName = (String, String);

/// Room for a bounded number of reads of packs.
#[derive(Clone)]
pub(super) struct PackGate(Arc<Semaphore>);

impl CellLinks {
    /// Links that nobody used yet.
    pub(super) fn new() -> Self {
        Self {
            gate: PackGate(Arc::new(Semaphore::new(READS_MAX))),
            lanes: KeptAnswers::new(LANES_FRESH),
            tops: KeptAnswers::new(COUNTS_FRESH),
            gaps: KeptAnswers::bounded(COUNTS_FRESH, GAP_LISTS_MAX),
            doctor: KeptAnswers::new(COUNTS_FRESH),
            stories: StorySearches::new(),
            letters: Mutex::new(HashMap::new()),
        }
    }

    /// Notes the place of a dead letter that was listed: who lists it mostly opens it next.
    pub(super) fn note_letter(&self, consumer: &str, id: String, place: StreamId) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        if letters.len() >= PLACES_MAX {
            letters.clear();
        }
        letters.insert((consumer.to_owned(), id), place);
    }

    /// Place of a dead letter, if it was listed.
    pub(super) fn letter_place(&self, consumer: &str, id: &str) -> Option<StreamId> {
        let letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.get(&(consumer.to_owned(), id.to_owned())).copied()
    }
}

impl PackGate {
    /// Waits for room.
    pub(super) async fn enter(&self) -> Result<OwnedSemaphorePermit, ProblemDetails> {
        let room = timeout(PATIENCE, self.0.clone().acquire_owned()).await;
        let busy = || ProblemDetails::unavailable("busy with other searches: try again soon");
        room.map_err(|_| busy())?.map_err(|_| busy())
    }
}

/// Runs work on a thread of its own. A long one delays no other request, and is not cut off with its request. It must not
/// call this again: all could wait for room that they hold themselves.
pub(super) async fn apart<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>>,
{
    let runtime = Handle::current();
    let room = APART.acquire().await.expect("BUG: the semaphore is never closed");
    let ran = tokio::task::spawn_blocking(move || {
        let _room = room;
        runtime.block_on(work())
    })
    .await;
    ran.unwrap_or_else(|_| Err(Failure::Failed("BUG: a search panicked".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_letters_are_kept_and_bounded() {
        let links = CellLinks::new();
        for number in 0..=PLACES_MAX as u64 {
            links.note_letter("http", number.to_string(), StreamId { ms: number, seq: 0 });
        }
        let last = PLACES_MAX as u64;
        let place = links.letter_place("http", &last.to_string());
        assert_eq!(place, Some(StreamId { ms: last, seq: 0 }));
        assert_eq!(links.letter_place("kafka", &last.to_string()), None);
        assert_eq!(links.letter_place("http", "0"), None, "there is a bound");
    }

    #[tokio::test]
    async fn work_apart_returns_its_answer_and_a_panic_is_a_failure() {
        assert_eq!(apart(|| async { Ok(7) }).await.expect("an answer"), 7);
        let fails = || async {
            if true {
                panic!("in a test");
            }
            Ok(())
        };
        let failed = apart(fails).await;
        assert!(failed.is_err_and(|failure| failure.to_string().contains("BUG")));
    }

    #[tokio::test]
    async fn reads_of_packs_are_bounded() {
        let gate = PackGate(Arc::new(Semaphore::new(1)));
        let first = gate.enter().await.expect("there is room");
        let second = tokio::spawn({
            let gate = gate.clone();
            async move { gate.enter().await.is_ok() }
        });
        drop(first);
        assert!(second.await.expect("it ends"), "there is room again");
    }
}
