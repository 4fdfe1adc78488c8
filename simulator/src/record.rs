//! What happened in a run: a row for each tenth of a second, and every latency.

use std::time::Duration;

use crate::scenario::Answer;

/// A row is so long.
pub const ROW: Duration = Duration::from_millis(100);

/// A tenth of a second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row {
    /// Requests sent.
    pub sent: u32,
    /// Answered 200.
    pub done: u32,
    /// Answered 429.
    pub overloaded: u32,
    /// Answered 503, timed out, broken, or 500.
    pub failed: u32,
    /// At its end.
    pub limit: usize,
    /// At its end.
    pub in_flight: usize,
    /// What the backend can do, a second.
    pub capacity: f64,
    /// The mean latency of one alone, in seconds.
    pub base: f64,
    /// The median.
    pub base_p50: f64,
}

/// A whole run.
#[derive(Debug, Default)]
pub struct Record {
    /// One after the other from the start.
    pub rows: Vec<Row>,
    /// When each that was done ended, and its latency, in seconds.
    pub latencies: Vec<(f32, f32)>,
    open: Row,
}

impl Record {
    /// A request was sent.
    pub fn sent(&mut self) {
        self.open.sent += 1;
    }

    /// One ended.
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

    /// When the open row ends.
    pub fn row_ends(&self) -> Duration {
        ROW * (u32::try_from(self.rows.len()).unwrap_or(u32::MAX) + 1)
    }

    /// Ends the open row; `state` fills in what is true at its end.
    pub fn close(&mut self, state: impl FnOnce(&mut Row)) {
        let mut row = std::mem::take(&mut self.open);
        state(&mut row);
        self.rows.push(row);
    }

    /// The rows between two times in seconds.
    pub fn between(&self, from: f64, to: f64) -> &[Row] {
        let row = |at: f64| ((at * 10.0).round() as usize).min(self.rows.len());
        &self.rows[row(from)..row(to)]
    }
}
