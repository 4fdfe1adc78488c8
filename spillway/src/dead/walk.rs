//! Walks over the dead letters of a consumer, page by page, oldest first.

use spillway_queue::dead::{DeadLetter, list};
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;

use super::filter::DeadFilter;
use crate::failure::Failure;

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
