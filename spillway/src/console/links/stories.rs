//! Searches for one webhook. Each runs in the background, because it may read all that waits, and a request is answered
//! with what it found so far.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use spillway_console::ProblemDetails;
use spillway_console::model::webhook::{ConsumerStory, StoryFact, WebhookStory};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::apart;
use crate::console::problem::problem_of;
use crate::explain::{self, ConsumerFacts, Fact};
use crate::failure::Failure;
use crate::place::CellArgs;

/// Searches that read at once: each reads as fast as Redis answers.
const SEARCHES_AT_ONCE: usize = 1;
/// Searches that wait or read.
const SEARCHES_MAX: usize = 16;
/// Time for which the result of a search is kept.
const KEEP: Duration = Duration::from_secs(10);
/// Time for which the first request of a search waits. Most searches are over by then.
const FIRST_WAIT: Duration = Duration::from_millis(150);
/// Time for which a later request waits for the end.
const NEXT_WAIT: Duration = Duration::from_secs(1);

/// Searches by the id that they are for.
pub(in crate::console) struct StorySearches {
    searches: Mutex<HashMap<String, StorySearch>>,
    turns: Arc<Semaphore>,
}

#[derive(Clone)]
struct StorySearch {
    state: watch::Sender<StoryState>,
}

/// Findings so far.
#[derive(Clone, Default)]
struct StoryState {
    story: WebhookStory,
    problem: Option<ProblemDetails>,
    ended: Option<Instant>,
}

impl StorySearches {
    /// No searches yet.
    pub(super) fn new() -> Self {
        Self {
            searches: Mutex::new(HashMap::new()),
            turns: Arc::new(Semaphore::new(SEARCHES_AT_ONCE)),
        }
    }

    /// Findings about a webhook so far. Begins a search, unless there is one. `is_next` is true for a request that has
    /// seen a part.
    pub(in crate::console) async fn story(
        &self,
        place: &CellArgs,
        id: &str,
        is_next: bool,
    ) -> Result<WebhookStory, ProblemDetails> {
        let search = self.search(place, id)?;
        let mut latest = search.state.subscribe();
        let wait = if is_next { NEXT_WAIT } else { FIRST_WAIT };
        drop(timeout(wait, latest.wait_for(|state| state.ended.is_some())).await);
        let state = latest.borrow().clone();
        match state.problem {
            Some(problem) => Err(problem),
            None => Ok(state.story),
        }
    }

    fn search(&self, place: &CellArgs, id: &str) -> Result<StorySearch, ProblemDetails> {
        let mut searches = self.searches.lock().unwrap_or_else(PoisonError::into_inner);
        searches.retain(|_, search| {
            search.state.borrow().ended.is_none_or(|ended| ended.elapsed() < KEEP)
        });
        if let Some(known) = searches.get(id) {
            return Ok(known.clone());
        }
        if searches.values().filter(|one| one.state.borrow().ended.is_none()).count()
            >= SEARCHES_MAX
        {
            return Err(ProblemDetails::unavailable("busy with other searches: try again soon"));
        }
        let next = Some("0".to_owned());
        let story = WebhookStory { id: id.to_owned(), next, ..WebhookStory::default() };
        let state = watch::Sender::new(StoryState { story, ..StoryState::default() });
        let search = StorySearch { state };
        searches.insert(id.to_owned(), search.clone());
        let found = search.clone();
        let turns = self.turns.clone();
        let place = place.clone();
        let id = id.to_owned();
        tokio::spawn(async move {
            let turn = turns.acquire_owned().await;
            let finding = found.clone();
            let ended = apart(move || async move { finding.find(&place, &id).await }).await;
            drop(turn);
            found.end(ended);
        });
        Ok(search)
    }
}

impl StorySearch {
    async fn find(&self, place: &CellArgs, id: &str) -> Result<(), Failure> {
        for consumer in &explain::consumers(place).await? {
            let facts = explain::of_consumer(place, consumer, id).await?;
            self.state.send_modify(|state| {
                state.story.consumers.push(consumer_story(facts));
                state.story.next = Some(state.story.consumers.len().to_string());
            });
        }
        Ok(())
    }

    fn end(&self, ended: Result<(), Failure>) {
        self.state.send_modify(|state| {
            state.problem = ended.err().map(|failure| problem_of(&failure));
            state.story.is_complete = true;
            state.story.next = None;
            state.ended = Some(Instant::now());
        });
    }
}

fn consumer_story(known: ConsumerFacts) -> ConsumerStory {
    let fact = |fact: Fact| StoryFact {
        spillway_id: fact.spillway_id,
        state: fact.state.to_owned(),
        at_ms: fact.at_ms,
        text: fact.text,
    };
    let facts: Vec<StoryFact> = known.facts.into_iter().map(fact).collect();
    let gap = if facts.is_empty() { known.gap } else { String::new() };
    ConsumerStory { consumer: known.consumer, facts, gap }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_search_that_fails_says_why_and_is_kept() {
        let place = CellArgs::new("unix:///nonexistent/redis.sock".to_owned(), "x:".to_owned());
        let searches = StorySearches::new();
        let mut told = searches.story(&place, "d-1", false).await;
        while told.is_ok() {
            told = searches.story(&place, "d-1", true).await;
        }
        assert!(told.is_err_and(|problem| problem.code == "unavailable"));
        assert_eq!(searches.searches.lock().expect("nobody panicked").len(), 1);
    }
}
