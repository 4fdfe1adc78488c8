//! Walks over the dead letters of a consumer, page by page, oldest first.

use std::time::Instant;

use spillway_queue::dead::{DeadLetter, list};
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;

use super::filter::DeadFilter;
use crate::failure::Failure;
use crate::walk::cursor::LookBudget;

/// Dead letters per page. A page is held in memory here and in Redis' output buffer, with a body
/// for each dead letter.
const PAGE: usize = 32;

/// A walk and its position.
pub(super) struct Walk<'a> {
    redis: &'a Redis,
    connection: &'a mut Connection,
    consumer: &'a str,
    after: StreamId,
    is_over: bool,
}

impl<'a> Walk<'a> {
    /// Starts a walk at the oldest dead letter.
    pub(super) fn new(redis: &'a Redis, connection: &'a mut Connection, consumer: &'a str) -> Self {
        Self { redis, connection, consumer, after: StreamId::ZERO, is_over: false }
    }

    /// Goes on after this id.
    pub(super) fn starting_after(self, after: StreamId) -> Self {
        Self { after, ..self }
    }

    /// Returns the next matching dead letters up to `limit`, and the id after which the next page goes on, or
    /// none at the end. A page ends early where the budget is spent.
    pub(super) async fn page(
        mut self,
        filter: &DeadFilter,
        limit: usize,
        mut budget: LookBudget,
    ) -> Result<(Vec<DeadLetter>, Option<StreamId>), Failure> {
        self.after = self.after.max(filter.first_after());
        let mut found = Vec::new();
        loop {
            let page = list(self.redis, self.connection, self.consumer, self.after, PAGE).await?;
            let is_last = page.len() < PAGE;
            for letter in page {
                if filter.is_past(&letter) {
                    return Ok((found, None));
                }
                budget.spend(1, letter.pack.len());
                self.after = letter.id;
                if filter.matches(&letter) {
                    found.push(letter);
                }
                if found.len() == limit {
                    return Ok((found, Some(self.after)));
                }
            }
            if is_last {
                return Ok((found, None));
            }
            if budget.is_spent(Instant::now()) {
                return Ok((found, Some(self.after)));
            }
        }
    }

    /// Returns the next matching dead letters, possibly none, and `None` at the end.
    pub(super) async fn next(
        &mut self,
        filter: &DeadFilter,
    ) -> Result<Option<Vec<DeadLetter>>, Failure> {
        if self.is_over {
            return Ok(None);
        }
        let mut page = list(self.redis, self.connection, self.consumer, self.after, PAGE).await?;
        match page.last() {
            None => return Ok(None),
            Some(last) => {
                self.after = last.id;
                self.is_over = page.len() < PAGE || filter.is_past(last);
            }
        }
        page.retain(|letter| filter.matches(letter));
        Ok(Some(page))
    }
}
