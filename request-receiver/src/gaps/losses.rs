//! Decides if a Redis lost what it had answered, when it is connected to again.

use spillway_queue::gaps::{GapReason, NotedGap, RedisRun};

/// Time before the last answer of a Redis that syncs each second which a crash may undo.
const UNSYNCED_MS: u64 = 2_000;

/// Watch over the runs of Redis. It knows no clock.
#[derive(Debug, Default)]
pub struct LossWatch {
    /// Number of the connection whose run is known.
    generation: Option<u64>,
    /// Time of the last look that Redis answered.
    answered_ms: Option<u64>,
    /// Loss that was found, and may not be written yet.
    found: Option<NotedGap>,
    /// Entries of the newest loss that the end of a stream showed. It is found once, also if nothing is stored after it.
    lost: Option<LostEntries>,
}

/// Confirmed entries that a stream did not have.
#[derive(Debug, Clone, Copy)]
struct LostEntries {
    /// Time of the newest of them.
    stored_ms: u64,
    /// End of that stream, which is before them.
    end_ms: u64,
}

/// Facts that are known at a new connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionFacts {
    /// Time of the newest entry whose append was confirmed before Redis was asked for its run; 0 if none was.
    pub stored_ms: u64,
    /// True if a start of this Redis loses nothing: it syncs before it answers, and it is certainly the same one.
    pub keeps_all: bool,
    /// Time of the look.
    pub now_ms: u64,
}

impl LossWatch {
    /// Returns true if the run of this connection is known, and no loss is left to note.
    pub fn is_known(&self, generation: u64) -> bool {
        self.generation == Some(generation) && self.found.is_none()
    }

    /// Handles the end of the stream as a new connection finds it, before anything is appended on that: it is a loss if an
    /// entry was confirmed before that is later, and not known to be lost. Afterwards, what is appended would hide it.
    pub fn on_stream_end(&mut self, stored_ms: u64, newest_ms: u64, now_ms: u64) {
        let expected_ms = self.expected_ms(stored_ms, newest_ms);
        if expected_ms > newest_ms {
            // An empty stream says nothing about the time.
            let is_empty = newest_ms == 0;
            let from_ms =
                if is_empty { expected_ms.saturating_sub(UNSYNCED_MS) } else { newest_ms };
            self.find(from_ms, now_ms);
            let before_ms = self.lost.map_or(0, |lost| lost.stored_ms);
            self.lost =
                Some(LostEntries { stored_ms: stored_ms.max(before_ms), end_ms: newest_ms });
        }
    }

    /// Time at which a stream has to end at least: that of the newest confirmed entry, unless this stream is known to have
    /// lost it. One that ends elsewhere is another copy, without the note of the loss.
    fn expected_ms(&self, stored_ms: u64, newest_ms: u64) -> u64 {
        match self.lost {
            Some(lost) if stored_ms <= lost.stored_ms && newest_ms == lost.end_ms => newest_ms,
            _ => stored_ms,
        }
    }

    /// Handles an answer of a Redis whose run is known.
    pub fn on_answer(&mut self, now_ms: u64) {
        self.answered_ms = Some(now_ms);
    }

    /// Handles the run that a new connection is of. Two cases are a loss: the stream ends before an entry that was
    /// confirmed, which is certain. Or it is another run of a Redis that may lose its last seconds. Returns the loss, which
    /// is known until [`Self::on_noted`].
    pub fn on_run(&mut self, run: &RedisRun, facts: ConnectionFacts) -> Option<NotedGap> {
        let ConnectionFacts { stored_ms, keeps_all, now_ms } = facts;
        let is_another_run = !run.before.is_empty() && run.before != run.current;
        let newest_ms = run.newest.ms;
        if self.expected_ms(stored_ms, newest_ms) > newest_ms {
            self.on_stream_end(stored_ms, newest_ms, now_ms);
        } else if is_another_run && !keeps_all {
            let from_ms = self.answered_ms.unwrap_or(newest_ms).saturating_sub(UNSYNCED_MS);
            self.find(from_ms, now_ms);
        }
        self.found.clone()
    }

    /// Handles that the run of this connection is written, with the loss that [`Self::on_run`] returned.
    pub fn on_noted(&mut self, generation: u64, lost: Option<&NotedGap>, now_ms: u64) {
        self.generation = Some(generation);
        self.answered_ms = Some(now_ms);
        // Another one may be found meanwhile.
        if self.found.as_ref() == lost {
            self.found = None;
        }
    }

    fn find(&mut self, from_ms: u64, now_ms: u64) {
        let (shop, topic) = Default::default();
        let reason = GapReason::Lost;
        // Found before, but not written.
        let from_ms = self.found.take().map_or(from_ms, |found| found.from_ms.min(from_ms));
        self.found = Some(NotedGap { reason, shop, topic, from_ms, to_ms: now_ms, count: 0 });
    }
}

#[cfg(test)]
mod tests {
    use spillway_webhook::StreamId;

    use super::*;

    fn run(before: &str, current: &str, newest_ms: u64) -> RedisRun {
        let newest = StreamId { ms: newest_ms, seq: 0 };
        RedisRun { before: before.to_owned(), current: current.to_owned(), newest }
    }

    fn facts(stored_ms: u64, keeps_all: bool) -> ConnectionFacts {
        ConnectionFacts { stored_ms, keeps_all, now_ms: 100_000 }
    }

    /// Times of the gaps that a watch notes whose Redis answered at 50 s.
    fn noted(run: &RedisRun, facts: ConnectionFacts) -> Vec<(u64, u64)> {
        let mut watch = LossWatch::default();
        watch.on_answer(50_000);
        let lost = watch.on_run(run, facts);
        watch.on_noted(1, lost.as_ref(), facts.now_ms);
        assert!(watch.is_known(1) && !watch.is_known(2));
        lost.iter().map(|note| (note.from_ms, note.to_ms)).collect()
    }

    #[test]
    fn a_loss_that_could_not_be_written_is_found_again() {
        let mut watch = LossWatch::default();
        watch.on_answer(50_000);
        assert!(watch.on_run(&run("a", "b", 40_000), facts(49_000, true)).is_some());
        assert!(!watch.is_known(1));
        // New webhooks were stored since.
        let later = ConnectionFacts { now_ms: 103_000, ..facts(101_000, true) };
        let found = watch.on_run(&run("a", "b", 101_000), later).expect("the loss");
        assert_eq!((found.from_ms, found.to_ms), (40_000, 100_000));
        watch.on_noted(1, Some(&found), 103_000);
        assert_eq!(watch.on_run(&run("b", "b", 101_000), later), None);
    }

    #[test]
    fn a_loss_is_found_although_a_shard_appends_before_the_look() {
        let mut watch = LossWatch::default();
        watch.on_noted(1, None, 49_500);
        watch.on_stream_end(49_000, 49_000, 49_600);
        assert!(watch.is_known(1));
        // A shard connects: the stream ends too early. Then it appends, and the look finds the new entry.
        watch.on_stream_end(49_000, 40_000, 50_000);
        assert!(!watch.is_known(1), "it is noted with the next look");
        let lost = watch.on_run(&run("a", "a", 50_100), facts(50_100, true)).expect("a loss");
        assert_eq!((lost.from_ms, lost.to_ms), (40_000, 50_000));
        // Another one is found while this one is written.
        watch.on_stream_end(50_100, 30_000, 51_000);
        watch.on_noted(1, Some(&lost), 51_001);
        assert!(!watch.is_known(1));
        let lost = watch.on_run(&run("a", "a", 50_100), facts(50_100, true)).expect("a loss");
        assert_eq!((lost.from_ms, lost.to_ms), (30_000, 51_000));
        watch.on_noted(1, Some(&lost), 51_002);
        assert!(watch.is_known(1));
    }

    #[test]
    fn a_loss_that_was_noted_is_not_found_again_while_nothing_is_stored() {
        let mut watch = LossWatch::default();
        watch.on_noted(1, None, 49_500);
        watch.on_stream_end(49_000, 40_000, 50_000);
        let lost = watch.on_run(&run("a", "a", 40_000), facts(49_000, true));
        let times = |lost: &NotedGap| (lost.from_ms, lost.to_ms);
        assert_eq!(lost.as_ref().map(times), Some((40_000, 50_000)));
        watch.on_noted(2, lost.as_ref(), 50_001);
        // Hours later, the first webhook comes, and each shard connects again.
        for now_ms in [9_000_000, 9_000_001] {
            watch.on_stream_end(49_000, 40_000, now_ms);
            assert!(watch.is_known(2), "it grows");
        }
        assert_eq!(watch.on_run(&run("a", "a", 40_000), facts(49_000, true)), None);
        // An older copy lost more, and so did one that lost what came later.
        // So did a newer copy that is loaded in place of an older one.
        for (stored_ms, end_ms) in [(49_000, 30_000), (49_000, 35_000), (9_100_000, 9_050_000)] {
            watch.on_stream_end(stored_ms, end_ms, 9_200_000);
            let lost = watch.on_run(&run("a", "a", end_ms), facts(stored_ms, true));
            assert_eq!(lost.as_ref().map(times), Some((end_ms, 9_200_000)));
            watch.on_noted(2, lost.as_ref(), 9_200_001);
        }
        assert!(watch.is_known(2));
    }

    #[test]
    fn a_stream_that_ends_before_a_confirmed_entry_lost_it() {
        assert_eq!(noted(&run("a", "b", 40_000), facts(49_000, true)), [(40_000, 100_000)]);
        // Also without another run: an older copy was loaded.
        assert_eq!(noted(&run("", "b", 40_000), facts(49_000, true)), [(40_000, 100_000)]);
        assert_eq!(noted(&run("", "b", 0), facts(49_000, true)), [(47_000, 100_000)]);
    }

    #[test]
    fn another_run_may_have_lost_its_last_seconds() {
        assert_eq!(noted(&run("a", "b", 49_000), facts(49_000, false)), [(48_000, 100_000)]);
        assert_eq!(noted(&run("a", "b", 49_000), facts(49_000, true)), []);
        assert_eq!(noted(&run("a", "a", 49_000), facts(49_000, false)), []);
        assert_eq!(noted(&run("", "b", 49_000), facts(0, false)), [], "the first one");
    }

    #[test]
    fn a_receiver_that_starts_with_redis_knows_only_the_end_of_the_stream() {
        let mut watch = LossWatch::default();
        let lost = watch.on_run(&run("a", "b", 40_000), facts(0, false)).expect("a loss");
        assert_eq!(lost.from_ms, 38_000);
    }
}
