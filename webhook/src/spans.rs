//! Spans of time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Spans of time, oldest first. As text: a list of pairs in milliseconds. A pair holds the start of
/// a span since the Unix epoch, and its length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Maximum number of separate spans. They are mostly outages, pauses and restarts within two
    /// days.
    pub const MOST: usize = 8;

    /// Creates a list of one span.
    pub fn one(began_ms: u64, time: Duration) -> Self {
        let mut spans = Self::default();
        spans.push(began_ms, time);
        spans
    }

    /// True if there are no spans.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Total length of all spans.
    pub fn total(&self) -> Duration {
        Duration::from_millis(self.0.iter().map(|(_, ms)| ms).sum())
    }

    /// Part of the total that lies after a moment, given in milliseconds since the Unix epoch.
    pub fn after(&self, moment_ms: u64) -> Duration {
        let parts = self
            .0
            .iter()
            .map(|(began, ms)| began.saturating_add(*ms).saturating_sub(moment_ms).min(*ms));
        Duration::from_millis(parts.sum())
    }

    /// Adds a span. It mostly comes after the others, but the clock that dates spans may have gone
    /// back.
    ///
    /// If there are too many spans, the two with the shortest time between them become one. Its
    /// length is the sum of both, so it ends earlier by the time between them. For no moment does
    /// the time after it grow by that.
    pub fn push(&mut self, began_ms: u64, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if ms > 0 {
            let behind = self.0.partition_point(|(began, _)| *began <= began_ms);
            self.0.insert(behind, (began_ms, ms));
        }
        while self.0.len() > Self::MOST {
            let gap = |at: &usize| {
                let ((began, ms), (next, _)) = (self.0[*at], self.0[*at + 1]);
                next.saturating_sub(began.saturating_add(ms))
            };
            let Some(at) = (0..self.0.len() - 1).min_by_key(gap) else { return };
            let (next, ms) = self.0.remove(at + 1);
            let (began, before) = self.0[at];
            let total = before.saturating_add(ms);
            // If the two overlap, the result ends no later than the second one.
            let began = began.min(next.saturating_add(ms).saturating_sub(total));
            self.0[at] = (began, total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_part_after_a_moment_leaves_out_what_lies_between_spans() {
        let mut spans = Spans::one(1_000, ms(500));
        spans.push(2_000, ms(100));
        spans.push(2_500, Duration::ZERO);
        assert_eq!(spans.total(), ms(600));
        let after = [0, 1_000, 1_200, 1_700, 2_050, 2_100, 9_000].map(|moment| spans.after(moment));
        assert_eq!(after, [600, 600, 400, 100, 50, 0, 0].map(ms));
        assert_eq!(serde_json::to_string(&spans).unwrap(), "[[1000,500],[2000,100]]");
    }

    #[test]
    fn of_too_many_none_gets_longer_after_any_moment() {
        let mut spans = Spans::default();
        let mut all = Vec::new();
        for number in 0..30 {
            // Some overlap, and some come after the clock has gone back.
            let began = number * 1_000 + number % 7 * 100 - if number % 5 == 4 { 2_450 } else { 0 };
            spans.push(began, ms(300));
            all.push((began, 300));
        }
        assert_eq!(spans.0.len(), Spans::MOST);
        assert_eq!(spans.total(), ms(30 * 300));
        let all = Spans(all);
        assert!((0..32_000).step_by(50).all(|moment| spans.after(moment) <= all.after(moment)));
    }
}
