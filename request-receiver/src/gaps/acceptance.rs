//! Times in which this receiver accepts webhooks, by the looks at Redis and at the overflow log.

use spillway_queue::accepting::AcceptedTime;

/// Times that are kept while Redis takes none. Beyond it, the last one is extended: a silence is rather listed than not.
const TIMES_MAX: usize = 100;

/// Times in which webhooks were accepted, since they were reported. It knows no clock.
#[derive(Debug, Default)]
pub struct AcceptanceLog {
    times: Vec<AcceptedTime>,
    /// Time of the last look, and true if webhooks were accepted then.
    looked: Option<(u64, bool)>,
}

impl AcceptanceLog {
    /// Handles a look: `accepts` is true if a webhook would be accepted now. Returns the milliseconds since the last look
    /// that do not count as accepting: all, unless webhooks were accepted at both.
    pub fn on_look(&mut self, accepts: bool, now_ms: u64) -> u64 {
        let before = self.looked.replace((now_ms, accepts));
        let goes_on = before.is_some_and(|(_, accepted)| accepted);
        let is_full = self.times.len() >= TIMES_MAX;
        match self.times.last_mut() {
            Some(last) if accepts && (goes_on || is_full) => {
                // A clock that was ahead is set back.
                last.from_ms = last.from_ms.min(now_ms);
                last.to_ms = now_ms;
            }
            _ if accepts => self.times.push(AcceptedTime { from_ms: now_ms, to_ms: now_ms }),
            _ => {}
        }
        match before {
            Some((looked_ms, _)) if !(accepts && goes_on) => now_ms.saturating_sub(looked_ms),
            _ => 0,
        }
    }

    /// Times that are not reported, oldest first. The first one may begin with what was reported.
    pub fn times(&self) -> Vec<AcceptedTime> {
        self.times.clone()
    }

    /// Handles that these times are reported. The last one stays: it may go on.
    pub fn on_reported(&mut self, reported: &[AcceptedTime]) {
        let Some(last) = reported.last() else { return };
        self.times.drain(..reported.len() - 1);
        if let Some(rest) = self.times.first_mut() {
            rest.from_ms = last.to_ms.min(rest.to_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(from_ms: u64, to_ms: u64) -> AcceptedTime {
        AcceptedTime { from_ms, to_ms }
    }

    #[test]
    fn a_time_goes_on_over_reports_and_ends_with_a_look_that_finds_nothing_accepted() {
        let mut log = AcceptanceLog::default();
        assert_eq!(log.on_look(false, 5), 0);
        assert_eq!(log.on_look(true, 10), 5);
        assert_eq!(log.on_look(true, 20), 0);
        assert_eq!(log.times(), [time(10, 20)]);
        let reported = log.times();
        assert_eq!(log.on_look(true, 30), 0);
        log.on_reported(&reported);
        assert_eq!(log.times(), [time(20, 30)]);
        assert_eq!(
            [log.on_look(false, 40), log.on_look(false, 50), log.on_look(true, 60)],
            [10; 3]
        );
        assert_eq!(log.on_look(true, 70), 0);
        assert_eq!(log.times(), [time(20, 30), time(60, 70)]);
        log.on_reported(&log.times());
        assert_eq!(log.times(), [time(70, 70)]);
        log.on_look(true, 80);
        assert_eq!(log.times(), [time(70, 80)], "no hole between two reports");
    }

    #[test]
    fn a_redis_that_is_away_for_long_is_no_heap_of_times() {
        let mut log = AcceptanceLog::default();
        for number in 0..10_000 {
            log.on_look(number % 2 == 0, number);
        }
        let times = log.times();
        assert_eq!((times.len(), times[99]), (100, time(198, 9_998)));
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let mut log = AcceptanceLog::default();
        log.on_look(true, 5_000);
        log.on_look(true, 6_000);
        assert_eq!(log.on_look(true, 100), 0);
        log.on_look(true, 200);
        assert_eq!(log.times(), [time(100, 200)]);
    }
}
