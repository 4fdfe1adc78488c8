//! Answers that cost much: found in the background, once for all who ask, and kept for a while.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_console::ProblemDetails;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Age up to which an answer is shown at once, while a new one is found.
const STALE: Duration = Duration::from_secs(60);
/// Age up to which a problem is returned again. What was busy may not be any more.
const PROBLEM_FRESH: Duration = Duration::from_secs(1);
/// Time for which a request waits for the first answer.
const WITHIN: Duration = Duration::from_secs(5);
/// Questions whose answers are kept unless another number is given.
const QUESTIONS_MAX: usize = 256;

/// Answers to questions of one kind.
pub(in crate::console) struct KeptAnswers<K, V> {
    fresh: Duration,
    /// Questions whose answers are kept.
    room: usize,
    slots: Mutex<HashMap<K, Arc<KeptSlot<V>>>>,
}

/// The answer to one question.
struct KeptSlot<V> {
    latest: watch::Sender<Option<Arc<KeptAnswer<V>>>>,
    is_asked: AtomicBool,
}

struct KeptAnswer<V> {
    at: Instant,
    answer: Result<Arc<V>, ProblemDetails>,
}

impl<K: Hash + Eq, V: Send + Sync + 'static> KeptAnswers<K, V> {
    /// No answers yet. One is new up to the age `fresh`.
    pub(in crate::console) fn new(fresh: Duration) -> Self {
        Self::bounded(fresh, QUESTIONS_MAX)
    }

    /// As [`Self::new`], for answers that are large: those to so many questions are kept.
    pub(in crate::console) fn bounded(fresh: Duration, room: usize) -> Self {
        Self { fresh, room, slots: Mutex::new(HashMap::new()) }
    }

    /// The answer to a question. `ask` finds it, in the background, unless there is a new one.
    pub(in crate::console) async fn get<F>(
        &self,
        question: K,
        ask: impl FnOnce() -> F,
    ) -> Result<Arc<V>, ProblemDetails>
    where
        F: Future<Output = Result<V, ProblemDetails>> + Send + 'static,
    {
        let slot = self.slot(question);
        let mut latest = slot.latest.subscribe();
        let known = latest.borrow_and_update().clone();
        let is_fresh = known.as_ref().is_some_and(|known| known.is_fresh(self.fresh));
        if !is_fresh && !slot.is_asked.swap(true, Ordering::AcqRel) {
            let asked = ask();
            tokio::spawn(async move {
                let answer = asked.await.map(Arc::new);
                let answer = KeptAnswer { at: Instant::now(), answer };
                // Who sees the answer may ask again.
                slot.is_asked.store(false, Ordering::Release);
                slot.latest.send_replace(Some(Arc::new(answer)));
            });
        }
        if let Some(known) = known {
            let is_good = known.answer.is_ok() && known.at.elapsed() < STALE;
            if is_fresh || is_good {
                return known.answer.clone();
            }
        }
        let waited = timeout(WITHIN, latest.changed()).await;
        let slow = || ProblemDetails::unavailable("this takes longer than usual: try again soon");
        waited.map_err(|_| slow())?.map_err(|_| slow())?;
        let found = latest.borrow().clone();
        found.ok_or_else(slow)?.answer.clone()
    }

    fn slot(&self, question: K) -> Arc<KeptSlot<V>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= self.room && !slots.contains_key(&question) {
            slots.retain(|_, slot| slot.is_asked.load(Ordering::Acquire));
        }
        let slot = slots.entry(question).or_insert_with(|| {
            let latest = watch::Sender::new(None);
            Arc::new(KeptSlot { latest, is_asked: AtomicBool::new(false) })
        });
        slot.clone()
    }
}

impl<V> KeptAnswer<V> {
    /// True if it needs no other in its place. An answer is new up to the age `fresh`.
    fn is_fresh(&self, fresh: Duration) -> bool {
        let fresh = if self.answer.is_ok() { fresh } else { fresh.min(PROBLEM_FRESH) };
        self.at.elapsed() < fresh
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::time::advance;

    use super::*;

    #[tokio::test]
    async fn a_new_answer_is_kept_and_an_old_one_is_shown_while_another_is_found() {
        let kept = KeptAnswers::new(Duration::from_secs(3600));
        assert_eq!(*kept.get("a", || ready(Ok(1))).await.expect("the first"), 1);
        assert_eq!(*kept.get("a", || ready(Ok(2))).await.expect("kept"), 1);
        assert_eq!(*kept.get("b", || ready(Ok(3))).await.expect("another question"), 3);
        let stale = KeptAnswers::new(Duration::ZERO);
        assert_eq!(*stale.get("a", || ready(Ok(1))).await.expect("the first"), 1);
        assert_eq!(*stale.get("a", || ready(Ok(2))).await.expect("at once"), 1);
        while *stale.get("a", || ready(Ok(2))).await.expect("at once") != 2 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_problem_is_asked_again() {
        let kept = KeptAnswers::new(Duration::ZERO);
        let problem = || ready(Err::<u8, _>(ProblemDetails::unavailable("not now")));
        assert!(kept.get("a", problem).await.is_err());
        assert_eq!(kept.get("a", || ready(Ok(7))).await.map(|found| *found), Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_problem_is_not_told_as_long_as_an_answer_is_kept() {
        let kept = KeptAnswers::new(Duration::from_secs(3600));
        let busy = || ready(Err::<u8, _>(ProblemDetails::unavailable("busy")));
        assert!(kept.get("a", busy).await.is_err());
        assert!(kept.get("a", || ready(Ok(7))).await.is_err(), "the same for all who ask at once");
        advance(PROBLEM_FRESH).await;
        assert_eq!(kept.get("a", || ready(Ok(7))).await.map(|found| *found), Ok(7));
        advance(Duration::from_secs(60)).await;
        assert_eq!(kept.get("a", busy).await.map(|found| *found), Ok(7));
    }
}
