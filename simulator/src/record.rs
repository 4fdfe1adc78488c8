//! Record of a run: one row per tenth of a second, and every latency.

use std::time::Duration;

use crate::scenario::Answer;

/// Length of a row.
pub const ROW: Duration = Duration::from_millis(100);

/// Counts and state of one tenth of a second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row {
    /// Number of requests sent.
    pub sent: u32,
    /// Number of answers with 200.
    pub done: u32,
    /// Number of answers with 429.
    pub overloaded: u32,
    /// Number of requests that got 503 or 500, timed out or broke.
    pub failed: u32,
    /// Limit at the end of the row.
    pub limit: usize,
    /// Requests in flight at the end of the row.
    pub in_flight: usize,
    /// Capacity of the backend, in requests per second.
    pub capacity: f64,
    /// Mean latency of a single request, in seconds.
    pub base: f64,
    /// Median latency of a single request, in seconds.
    pub base_p50: f64,
}

/// Record of a whole run.
#[derive(Debug, Default)]
pub struct Record {
    /// Rows in order, from the start.
    pub rows: Vec<Row>,
    /// End time and latency of each successful request, in seconds.
    pub latencies: Vec<(f32, f32)>,
    open: Row,
}

impl Record {
    /// Counts a sent request.
    pub fn sent(&mut self) {
        self.open.sent += 1;
    }

    /// Counts a request that ended.
    pub fn ended(&mut self, answer: Answer, latency: Duration, now: Duration) {
        match answer {
            Answer::Done => {
                self.open.done += 1;
                self.latencies.push((now.as_secs_f32(), latency.as_secs_f32()));
            }
            Answer::Overloaded => self.open.overloaded += 1,
            Answer::Failed | Answer::Unavailable | Answer::Broken | Answer::TimedOut => {
                self.open.failed += 1;
            }
        }
    }

    /// Time at which the open row ends.
    pub fn row_ends(&self) -> Duration {
        ROW * (u32::try_from(self.rows.len()).unwrap_or(u32::MAX) + 1)
    }

    /// Ends the open row. `state` fills in the state at its end.
    pub fn close(&mut self, state: impl FnOnce(&mut Row)) {
        let mut row = std::mem::take(&mut self.open);
        state(&mut row);
        self.rows.push(row);
    }

    /// Returns the rows between two times in seconds.
    pub fn between(&self, from: f64, to: f64) -> &[Row] {
        let row = |at: f64| ((at * 10.0).round() as usize).min(self.rows.len());
        &self.rows[row(from)..row(to)]
    }
}
