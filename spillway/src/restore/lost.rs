//! Notes for `spillway gaps` of what a restoration does not bring back. They are written with its last step, or not at all.

use spillway_archive::chain::MissingEntries;
use spillway_queue::gaps::{GapReason, NotedGap};
use spillway_webhook::StreamId;

/// Notes of the holes in the archive, and of what was accepted after its end.
pub(super) fn notes(holes: &[MissingEntries], end: StreamId, now_ms: u64) -> Vec<NotedGap> {
    let holes = holes.iter().map(|hole| (hole.after.ms, hole.through.ms));
    let spans = holes.chain([(end.ms, now_ms.max(end.ms))]);
    spans.map(|(from_ms, to_ms)| lost(from_ms, to_ms)).collect()
}

fn lost(from_ms: u64, to_ms: u64) -> NotedGap {
    let (shop, topic) = Default::default();
    NotedGap { reason: GapReason::Lost, shop, topic, from_ms, to_ms, count: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_in_the_archive_are_lost_like_what_came_after_its_end() {
        let id = |ms| StreamId { ms, seq: 0 };
        let holes = [MissingEntries { after: id(10), through: id(20) }];
        assert_eq!(notes(&holes, id(50), 90), [lost(10, 20), lost(50, 90)]);
        assert_eq!(notes(&[], id(50), 40), [lost(50, 50)], "a clock that was set back");
    }
}
