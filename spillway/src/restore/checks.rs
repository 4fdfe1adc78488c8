//! Signs that a restoration would be a mistake, or would lack something. Pure.

use std::time::Duration;

use spillway_archive::chain::MissingEntries;
use spillway_archive::{Checkpoint, ListedObject};
use spillway_webhook::freshness::rfc3339;

use crate::out::age;

/// A checkpoint that is older than the archive's end by more than this was not written for some reason.
const CHECKPOINT_LAGS: Duration = Duration::from_secs(600);
/// An archive that was written to within this time may belong to a cell that is alive.
const ALIVE_WITHIN: Duration = Duration::from_secs(120);

/// Facts about an archive that is to be restored.
pub(super) struct RestoreSigns<'a> {
    /// Checkpoint that is used.
    pub checkpoint: Option<&'a Checkpoint>,
    /// Object with the newest entry.
    pub newest: &'a ListedObject,
    /// Entries that may be needed and are in no object.
    pub gaps: &'a [MissingEntries],
    /// True if something was written while it was read.
    pub has_changed: bool,
    /// Time of this machine's clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl RestoreSigns<'_> {
    /// Reasons not to restore, as sentences. They are empty if all is well.
    pub(super) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let end_ms = self.newest.name.last.ms;
        let read_at_ms = self.checkpoint.map_or(0, |checkpoint| checkpoint.read_at_ms);
        let lag_ms = end_ms.saturating_sub(read_at_ms);
        if self.checkpoint.is_some() && lag_ms > millis(CHECKPOINT_LAGS) {
            let lag = age(Duration::from_millis(lag_ms).as_secs_f64());
            doubts.push(format!(
                "the checkpoint is {lag} older than the archive's end: everything that was delivered in that time is \
                 delivered again"
            ));
        }
        for gap in self.gaps {
            doubts.push(format!(
                "the archive lacks what was accepted from {} to {} (entries after {} up to {})",
                rfc3339(gap.after.ms),
                rfc3339(gap.through.ms),
                gap.after,
                gap.through
            ));
        }
        let written_ms = self.newest.written_ms.max(read_at_ms);
        if self.has_changed {
            doubts.push(
                "the archive changed while it was read: the cell is alive, and its queue is not lost".to_owned(),
            );
        } else if self.now_ms.saturating_sub(written_ms) < millis(ALIVE_WITHIN) {
            doubts.push(format!(
                "the archive was written to at {}: the cell may be alive. Wait for two minutes if it is not",
                rfc3339(written_ms)
            ));
        }
        doubts
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use spillway_archive::ObjectName;
    use spillway_webhook::StreamId;

    use super::*;

    const END_MS: u64 = 10_000_000;

    fn newest() -> ListedObject {
        let last = StreamId { ms: END_MS, seq: 0 };
        let name = ObjectName { cell: 1, first: last, last, webhooks: 1, tag: 1, generation: 0 };
        ListedObject { name, bytes: 1, written_ms: END_MS + 1_000 }
    }

    fn doubts(read_at_ms: Option<u64>, later_ms: u64, gaps: &[MissingEntries]) -> String {
        let checkpoint = read_at_ms.map(|read_at_ms| Checkpoint::new(1, read_at_ms, Vec::new()));
        let signs = RestoreSigns {
            checkpoint: checkpoint.as_ref(),
            newest: &newest(),
            gaps,
            has_changed: false,
            now_ms: END_MS + later_ms,
        };
        signs.doubts().join("\n")
    }

    #[test]
    fn a_lost_cell_with_a_whole_archive_is_beyond_doubt() {
        assert_eq!(doubts(Some(END_MS - 9_000), 600_000, &[]), "");
        assert_eq!(doubts(None, 600_000, &[]), "");
    }

    #[test]
    fn an_old_checkpoint_a_gap_and_a_cell_that_may_be_alive_are_told() {
        assert!(doubts(Some(END_MS - 601_000), 600_000, &[]).contains("the checkpoint is"));
        let id = |ms| StreamId { ms, seq: 0 };
        let gap = MissingEntries { after: id(5), through: id(9) };
        assert!(doubts(None, 600_000, &[gap]).contains("entries after 5-0 up to 9-0"));
        assert!(doubts(None, 60_000, &[]).contains("may be alive"));
        let by_checkpoint = doubts(Some(END_MS + 550_000), 600_000, &[]);
        assert!(by_checkpoint.contains("may be alive"), "{by_checkpoint}");
        let newest = newest();
        let signs = RestoreSigns {
            checkpoint: None,
            newest: &newest,
            gaps: &[],
            has_changed: true,
            now_ms: END_MS + 600_000,
        };
        assert!(signs.doubts()[0].contains("is alive"));
    }
}
