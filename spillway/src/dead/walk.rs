//! Goes over a drain's dead letters, page by page, oldest first.

use spillway_queue::dead::{DeadLetter, list};
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;

use super::filter::Filter;
use crate::failure::Failure;

/// A page is held in memory here and in Redis' output buffer, at up to a body each.
const PAGE: usize = 32;

/// Where a walk stands.
pub struct Walk<'a> {
    redis: &'a Redis,
    connection: &'a mut Connection,
    drain: &'a str,
    after: StreamId,
    is_over: bool,
}

impl<'a> Walk<'a> {
    /// Begins with the oldest.
    pub fn new(redis: &'a Redis, connection: &'a mut Connection, drain: &'a str) -> Self {
        Self { redis, connection, drain, after: StreamId::ZERO, is_over: false }
    }

    /// The next letters that match, perhaps none; `None` at the end.
    pub async fn next(&mut self, filter: &Filter) -> Result<Option<Vec<DeadLetter>>, Failure> {
        if self.is_over {
            return Ok(None);
        }
        let mut page = list(self.redis, self.connection, self.drain, self.after, PAGE).await?;
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
