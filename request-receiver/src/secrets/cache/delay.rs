//! Time that the source takes.

use std::time::Duration;

/// Mean and mean deviation of the time that the source takes, as TCP estimates round trips.
/// Source: RFC 6298, section 2.
#[derive(Debug, Default)]
pub(super) struct SourceDelay {
    mean_and_deviation: Option<(Duration, Duration)>,
    /// Begin and end of the last lookup. Those of one request are the same.
    last: Option<(Duration, Duration)>,
}

impl SourceDelay {
    /// Takes a lookup into account. Of several by one request, it takes one.
    pub(super) fn observe(&mut self, began: Duration, ended: Duration) {
        if self.last.replace((began, ended)) == Some((began, ended)) {
            return;
        }
        let took = ended.saturating_sub(began);
        self.mean_and_deviation = Some(match self.mean_and_deviation {
            None => (took, took / 2),
            Some((mean, deviation)) => {
                ((mean * 7 + took) / 8, (deviation * 3 + mean.abs_diff(took)) / 4)
            }
        });
    }

    /// Time within which nearly all answers come.
    pub(super) fn most(&self) -> Duration {
        self.mean_and_deviation.map_or(Duration::ZERO, |(mean, deviation)| mean + deviation * 4)
    }
}
