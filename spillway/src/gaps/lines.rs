//! Joins notes and silences to lines. Knows no Redis and no clock.

use std::cmp::Reverse;

use spillway_console::model::gaps::{GapCause, GapLine, GapList};
use spillway_queue::gaps::{GapReason, NotedGap};
use spillway_queue::rhythm::PairRhythm;

use crate::failure::Failure;

/// Time between two notes of the same cause that are still one gap. Shopify sends again what was refused, in the first
/// minutes often.
const JOINED_WITHIN_MS: u64 = 300_000;

/// Lines of all gaps, the newest first.
pub(super) fn of(notes: Vec<NotedGap>, silences: Vec<GapLine>) -> Vec<GapLine> {
    let mut all: Vec<GapLine> = notes.into_iter().map(of_note).chain(silences).collect();
    all.sort_by(|a, b| identity(a).cmp(&identity(b)).then(a.from_ms.cmp(&b.from_ms)));
    let mut joined: Vec<GapLine> = Vec::new();
    for gap in all {
        match joined.last_mut() {
            Some(before) if is_same_gap(before, &gap) => before.to_ms = before.to_ms.max(gap.to_ms),
            _ => joined.push(gap),
        }
    }
    joined.sort_by(|a, b| key(a).cmp(&key(b)));
    joined
}

/// Returns true if a gap may concern this shop. Without a shop, all do.
pub(super) fn is_of(gap: &GapLine, shop: Option<&str>) -> bool {
    gap.shop.is_empty() || shop.is_none_or(|shop| gap.shop == shop)
}

/// Line of a silence that lasts.
pub(super) fn silence(shop: String, topic: String, rhythm: PairRhythm, now_ms: u64) -> GapLine {
    GapLine { shop, topic, from_ms: rhythm.last_ms, to_ms: now_ms, cause: GapCause::Silent }
}

/// Name of a cause, as the API has it.
pub(super) fn cause(cause: GapCause) -> &'static str {
    match cause {
        GapCause::Refused => "refused",
        GapCause::Lost => "lost",
        GapCause::Silent => "silent",
        GapCause::Down => "down",
    }
}

/// A page of lines, from the one after the cursor. A cursor names a line, and holds although others come.
pub(super) fn page<'a>(
    gaps: impl Iterator<Item = &'a GapLine>,
    after: Option<&str>,
    limit: usize,
) -> Result<GapList, Failure> {
    let after = after.filter(|after| !after.is_empty());
    let mut rest: Vec<GapLine> = match after {
        None => gaps.take(limit.saturating_add(1)).cloned().collect(),
        Some(cursor) => {
            let wrong = || {
                Failure::Usage(format!("{cursor:?} is no cursor: take `next` of the page before"))
            };
            let mut parts = cursor.splitn(4, ' ');
            let from_ms =
                parts.next().and_then(|from| from.parse::<u64>().ok()).ok_or_else(wrong)?;
            let mut word = || parts.next().ok_or_else(wrong);
            let [cause, shop, topic] = [word()?, word()?, word()?];
            let last = (Reverse(from_ms), shop, topic, cause);
            let rest = gaps.filter(|gap| key(gap) > last);
            rest.take(limit.saturating_add(1)).cloned().collect()
        }
    };
    let is_more = rest.len() > limit;
    rest.truncate(limit);
    let next = rest.last().filter(|_| is_more).map(cursor_of);
    Ok(GapList { gaps: rest, next })
}

fn cursor_of(gap: &GapLine) -> String {
    format!("{} {} {} {}", gap.from_ms, cause(gap.cause), gap.shop, gap.topic)
}

/// Order of the lines: the newest first.
fn key(gap: &GapLine) -> (Reverse<u64>, &str, &str, &'static str) {
    (Reverse(gap.from_ms), &gap.shop, &gap.topic, cause(gap.cause))
}

fn identity(gap: &GapLine) -> (&'static str, &str, &str) {
    (cause(gap.cause), &gap.shop, &gap.topic)
}

fn is_same_gap(before: &GapLine, next: &GapLine) -> bool {
    let joined_within_ms = if next.cause == GapCause::Refused { JOINED_WITHIN_MS } else { 0 };
    identity(before) == identity(next)
        && next.from_ms <= before.to_ms.saturating_add(joined_within_ms)
}

fn of_note(note: NotedGap) -> GapLine {
    let cause = match note.reason {
        GapReason::Refused => GapCause::Refused,
        GapReason::Lost => GapCause::Lost,
        GapReason::Silent => GapCause::Silent,
        GapReason::Down => GapCause::Down,
    };
    let NotedGap { shop, topic, from_ms, to_ms, .. } = note;
    GapLine { shop, topic, from_ms, to_ms, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(shop: &str, topic: &str, from_ms: u64, to_ms: u64) -> NotedGap {
        let (shop, topic) = (shop.to_owned(), topic.to_owned());
        NotedGap { reason: GapReason::Refused, shop, topic, from_ms, to_ms, count: 1 }
    }

    fn shown(gaps: &[GapLine]) -> Vec<String> {
        let show = |gap: &GapLine| {
            format!("{} {} {}-{} {}", gap.shop, gap.topic, gap.from_ms, gap.to_ms, cause(gap.cause))
        };
        gaps.iter().map(show).collect()
    }

    #[test]
    fn notes_of_several_receivers_are_one_gap() {
        let notes = vec![
            refused("a", "orders/create", 100_000, 200_000),
            refused("a", "orders/create", 50_000, 120_000),
            refused("a", "orders/create", 499_000, 500_000),
            refused("a", "orders/create", 800_001, 900_000),
            refused("a", "products/update", 60_000, 61_000),
        ];
        let expected = [
            "a orders/create 800001-900000 refused",
            "a products/update 60000-61000 refused",
            "a orders/create 50000-500000 refused",
        ];
        assert_eq!(shown(&of(notes, Vec::new())), expected);
    }

    #[test]
    fn a_shop_has_its_own_gaps_and_those_of_any_shop() {
        let lost = NotedGap { reason: GapReason::Lost, ..refused("", "", 1, 2) };
        let notes = vec![refused("a", "t/x", 5, 6), refused("b", "t/x", 7, 8), lost];
        let rhythm = PairRhythm { last_ms: 3, ..PairRhythm::default() };
        let silent = silence("a".to_owned(), "t/y".to_owned(), rhythm, 9);
        let expected = ["a t/x 5-6 refused", "a t/y 3-9 silent", "  1-2 lost"];
        let mut all = of(notes, vec![silent]);
        all.retain(|gap| is_of(gap, Some("a")));
        assert_eq!(shown(&all), expected);
    }

    #[test]
    fn a_silence_does_not_continue_another_one() {
        let silent = |from_ms, to_ms| NotedGap {
            reason: GapReason::Silent,
            ..refused("a", "t/x", from_ms, to_ms)
        };
        assert_eq!(of(vec![silent(1, 5), silent(6, 9)], Vec::new()).len(), 2);
    }

    #[test]
    fn pages_hold_every_gap_once() {
        let notes = (0..25).map(|number| {
            refused("a", &format!("t/{}", number % 5), number * 1_000_000, number * 1_000_000 + 1)
        });
        let all = of(notes.collect(), Vec::new());
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let found = page(all.iter(), after.as_deref(), 7).expect("a page");
            seen.extend(found.gaps);
            after = found.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen.len(), 25);
        assert!(page(all.iter(), Some("what"), 7).is_err());
    }
}
