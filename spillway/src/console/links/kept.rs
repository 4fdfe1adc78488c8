//! Answers that cost much: found in the background, once for all who ask, and kept for a while.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_console::ProblemDetails;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Times its `fresh` up to which an answer is shown at once, while a new one is found.
const STALE: u32 = 2;
/// Longest time for which an answer is new because it took so long.
const SLOW_MAX: Duration = Duration::from_secs(30);
/// Age up to which a problem is returned again. What was busy may not be any more.
const PROBLEM_FRESH: Duration = Duration::from_secs(1);
/// Age up to which an answer is shown if a new one takes longer than a request waits.
const KEPT_MAX: Duration = Duration::from_secs(600);
/// Time for which a request waits for an answer.
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
    /// Age up to which it is new.
    fresh: Duration,
    answer: Result<Arc<V>, ProblemDetails>,
}

impl<V> KeptAnswer<V> {
    /// An answer that is there now. One that took longer than it is new is new for as long as it took: else it would be old
    /// before anybody comes again.
    fn now(answer: Result<Arc<V>, ProblemDetails>, fresh: Duration, took: Duration) -> Self {
        let fresh = match answer.is_ok() {
            true => fresh.max(took.min(SLOW_MAX)),
            false => fresh.min(PROBLEM_FRESH),
        };
        Self { at: Instant::now(), fresh, answer }
    }

    fn is_fresh(&self) -> bool {
        self.at.elapsed() < self.fresh
    }

    /// True if it is good enough to be shown while a new one is found.
    fn is_shown(&self) -> bool {
        self.answer.is_ok() && self.at.elapsed() < self.fresh * STALE
    }
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

    /// The answer to a question. `ask` finds it, in the background, unless there is a new one. An old one is shown only if
    /// it is not much older; else this waits for the new one.
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
        let is_fresh = known.as_ref().is_some_and(|known| known.is_fresh());
        if !is_fresh && !slot.is_asked.swap(true, Ordering::AcqRel) {
            let asked = ask();
            let fresh = self.fresh;
            tokio::spawn(async move {
                let began = Instant::now();
                let answer = asked.await.map(Arc::new);
                let answer = KeptAnswer::now(answer, fresh, began.elapsed());
                // Who sees the answer may ask again.
                slot.is_asked.store(false, Ordering::Release);
                slot.latest.send_replace(Some(Arc::new(answer)));
            });
        }
        if let Some(known) = known.as_ref().filter(|known| is_fresh || known.is_shown()) {
            return known.answer.clone();
        }
        let is_found = timeout(WITHIN, latest.changed()).await.is_ok_and(|changed| changed.is_ok());
        // An old answer says how old it is, and none at all helps nobody.
        let old = known.filter(|known| known.answer.is_ok() && known.at.elapsed() < KEPT_MAX);
        let found = if is_found { latest.borrow().clone() } else { old };
        let slow = || ProblemDetails::unavailable("this takes longer than usual: try again soon");
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

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::task::yield_now;
    use tokio::time::{advance, sleep};

    use super::*;

    #[tokio::test]
    async fn a_new_answer_is_kept() {
        let kept = KeptAnswers::new(Duration::from_secs(3600));
        assert_eq!(*kept.get("a", || ready(Ok(1))).await.expect("the first"), 1);
        assert_eq!(*kept.get("a", || ready(Ok(2))).await.expect("kept"), 1);
        assert_eq!(*kept.get("b", || ready(Ok(3))).await.expect("another question"), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_answer_is_shown_for_a_while_and_then_a_new_one_is_waited_for() {
        let second = Duration::from_secs(1);
        let kept = KeptAnswers::new(second);
        assert_eq!(*kept.get("a", || ready(Ok(1))).await.expect("the first"), 1);
        advance(second * 3 / 2).await;
        assert_eq!(*kept.get("a", || ready(Ok(2))).await.expect("at once"), 1);
        while *kept.get("a", || ready(Ok(2))).await.expect("at once") != 2 {
            yield_now().await;
        }
        advance(second * 2).await;
        let found = kept.get("a", || ready(Ok(3))).await.expect("it is waited for");
        assert_eq!(*found, 3, "two seconds are too old");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_long_lasts_as_long() {
        let kept = KeptAnswers::new(Duration::from_secs(1));
        let ask = |number: u8| async move {
            sleep(Duration::from_secs(4)).await;
            Ok(number)
        };
        assert_eq!(*kept.get("a", || ask(1)).await.expect("the first"), 1);
        advance(Duration::from_secs(3)).await;
        assert_eq!(*kept.get("a", || ask(2)).await.expect("at once"), 1);
        advance(Duration::from_secs(6)).await;
        assert_eq!(*kept.get("a", || ask(3)).await.expect("it is waited for"), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_answer_is_better_than_none() {
        let kept = KeptAnswers::new(Duration::from_secs(1));
        let slow = |number: u8| async move {
            sleep(WITHIN * 2).await;
            Ok(number)
        };
        assert!(kept.get("a", || slow(1)).await.is_err(), "there is none yet");
        advance(WITHIN * 2).await;
        yield_now().await;
        assert_eq!(*kept.get("a", || slow(2)).await.expect("found meanwhile"), 1);
        advance(SLOW_MAX * 2).await;
        assert_eq!(*kept.get("a", || slow(3)).await.expect("the old one"), 1);
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
