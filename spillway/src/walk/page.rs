//! One page of what waits: it ends at its length, or at what was looked at.

use std::time::{Duration, Instant};

use spillway_queue::controls::Filter;
use spillway_queue::lane::{ChunkId, LaneRow};
use spillway_webhook::StreamId;

use super::cursor::{LookBudget, WaitCursor};
use super::{CHUNKS_MAX, Fetched, Look, Met, PAGE_BYTES, Waiting};
use crate::failure::Failure;

/// Time for one page. With the way to Redis and back, an answer is there in less than 300 ms.
const PAGE_TIME: Duration = Duration::from_millis(150);
/// Packs and chunks that one page looks at.
pub(crate) const PACKS_MAX: usize = 4_000;
/// Bytes of packs that one page looks at.
pub(crate) const BYTES_MAX: usize = 8 * PAGE_BYTES;
/// Bytes of the first read of a page: mostly its first webhooks are all that is needed.
const FIRST_BYTES: usize = 256 << 10;
/// Chunks of the first read of a page.
const FIRST_CHUNKS: usize = 4;
const _: () = assert!(FIRST_BYTES < PAGE_BYTES && FIRST_CHUNKS < CHUNKS_MAX, "reads grow");

/// Question for a page.
#[derive(Debug, Clone)]
pub(crate) struct PageQuestion {
    /// Position after which it begins.
    pub from: WaitCursor,
    /// Webhooks that are meant.
    pub filter: Filter,
    /// Most webhooks of the page.
    pub limit: usize,
}

/// A page of what waits.
#[derive(Debug)]
pub(crate) struct WaitPage<T> {
    /// Findings of the page, in its order.
    pub found: Vec<T>,
    /// Position with which the next page goes on; `None` at the end.
    pub next: Option<WaitCursor>,
}

/// Packs that were read, and the position after them.
struct PageStep {
    fetched: Option<Fetched>,
    entries: usize,
    bytes: usize,
    next: Option<WaitCursor>,
}

/// Sizes of the next read, which grow.
struct ReadSizes {
    bytes: usize,
    chunks: usize,
}

impl Waiting {
    /// Reads one page. `of` returns what is to be known of a webhook, or nothing if it is not meant.
    pub(crate) async fn page<T: Send + 'static>(
        &mut self,
        question: &PageQuestion,
        of: impl Fn(&Met<'_>) -> Option<T> + Send + Sync + 'static,
    ) -> Result<WaitPage<T>, Failure> {
        let PageQuestion { from, filter, limit } = question.clone();
        let mut budget = LookBudget::new(Instant::now(), PAGE_TIME, PACKS_MAX, BYTES_MAX);
        let wanted = filter.clone();
        let mut looks = self.looks(move |look: &Look<'_>| {
            let meant = look.webhooks().filter(|met| met.cursor > from && met.is_meant(&wanted));
            meant.filter_map(|met| Some((met.cursor, of(&met)?))).collect::<Vec<(WaitCursor, T)>>()
        });
        let mut page = WaitPage { found: Vec::new(), next: Some(from) };
        let mut sizes = ReadSizes { bytes: FIRST_BYTES, chunks: FIRST_CHUNKS };
        let mut lanes = None;
        while let Some(at) = page.next {
            let step = self.step(at, &filter, &mut lanes, &mut sizes).await?;
            page.next = step.next;
            if let Some(fetched) = step.fetched {
                budget.spend(step.entries, step.bytes);
                looks.begin(fetched);
                for (cursor, found) in looks.next(0).await?.into_iter().flatten().flatten() {
                    page.found.push(found);
                    if page.found.len() == limit {
                        page.next = Some(cursor);
                        return Ok(page);
                    }
                }
            }
            if budget.is_spent(Instant::now()) {
                break;
            }
        }
        Ok(page)
    }

    /// Reads what is after a position.
    async fn step(
        &mut self,
        at: WaitCursor,
        filter: &Filter,
        lanes: &mut Option<Vec<LaneRow>>,
        sizes: &mut ReadSizes,
    ) -> Result<PageStep, Failure> {
        match at {
            WaitCursor::Main(entry, index) => {
                let step = self.main_step(entry, index, sizes.bytes).await?;
                sizes.bytes = (2 * sizes.bytes).min(PAGE_BYTES);
                Ok(step)
            }
            WaitCursor::Replay(after) => self.replay_step(after, sizes.bytes).await,
            WaitCursor::Lane(chunk, count) => {
                if lanes.is_none() {
                    *lanes = Some(self.lanes(filter).await?);
                }
                let rows = lanes.as_deref().unwrap_or_default();
                let ids = chunks_after(rows, chunk, count, sizes.chunks);
                let Some(last) = ids.last().copied() else { return Ok(PageStep::end(None)) };
                let chunks = self.chunks(&ids).await?;
                let bytes: usize = chunks.iter().map(|chunk| chunk.stored.bytes.len()).sum();
                let fitting = ids.len() * PAGE_BYTES / bytes.max(1);
                sizes.chunks = fitting.clamp(1, CHUNKS_MAX.min(2 * ids.len()));
                Ok(PageStep {
                    entries: ids.len(),
                    bytes,
                    fetched: Some(Fetched::Chunks(chunks)),
                    next: Some(WaitCursor::Lane(last, u32::MAX)),
                })
            }
        }
    }

    async fn main_step(
        &mut self,
        entry: StreamId,
        index: u32,
        bytes: usize,
    ) -> Result<PageStep, Failure> {
        // The rest of a pack is read again.
        let after = if index == u32::MAX { entry } else { entry.previous() };
        let after = after.max(self.cursor());
        let mut page = self.reader.main_after(&mut self.connection, after, bytes).await?;
        page.retain(|entry| entry.id <= self.last);
        let Some(last) = page.last().map(|entry| entry.id) else {
            return Ok(PageStep::end(Some(WaitCursor::REPLAYS)));
        };
        Ok(PageStep {
            entries: page.len(),
            bytes: page.iter().map(|entry| entry.pack.len()).sum(),
            fetched: Some(Fetched::Main(page)),
            next: Some(WaitCursor::Main(last, u32::MAX)),
        })
    }

    async fn replay_step(&mut self, after: StreamId, bytes: usize) -> Result<PageStep, Failure> {
        let page = self.reader.replays_after(&mut self.connection, after, bytes).await?;
        let Some(last) = page.last().map(|replay| replay.id) else {
            return Ok(PageStep::end(Some(WaitCursor::LANES)));
        };
        Ok(PageStep {
            entries: page.len(),
            bytes: page.iter().map(|replay| replay.pack.len()).sum(),
            fetched: Some(Fetched::Replays(page)),
            next: Some(WaitCursor::Replay(last)),
        })
    }
}

impl Look<'_> {
    /// Bytes that the pack takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.pack.raw_bytes()
    }
}

impl PageStep {
    /// A step that found nothing more at its place.
    fn end(next: Option<WaitCursor>) -> Self {
        Self { fetched: None, entries: 0, bytes: 0, next }
    }
}

/// At most `max` chunks of lanes that are sorted by their hashes, after a position.
fn chunks_after(rows: &[LaneRow], chunk: ChunkId, count: u32, max: usize) -> Vec<ChunkId> {
    let first = rows.partition_point(|row| row.lane < chunk.lane);
    let all = rows[first..].iter().flat_map(|row| {
        (row.first_chunk..=row.last_chunk).map(|number| ChunkId { lane: row.lane, number })
    });
    all.filter(|id| *id > chunk || (*id == chunk && count < u32::MAX)).take(max).collect()
}

#[cfg(test)]
mod tests {
    use spillway_queue::lane::KeyScheme;
    use spillway_webhook::{Position, Spans};

    use super::*;

    fn row(lane: u64, first_chunk: u32, last_chunk: u32) -> LaneRow {
        let at = Position::new(StreamId { ms: 5, seq: 0 }, 0);
        LaneRow {
            lane,
            shop: String::new(),
            kind: String::new(),
            scheme: KeyScheme::Kind,
            first_chunk,
            last_chunk,
            waiting: 1,
            first: at,
            last: at,
            failing: Spans::default(),
            tripped: false,
            suspect: false,
        }
    }

    #[test]
    fn chunks_go_on_where_a_page_ended() {
        let rows = [row(3, 7, 8), row(5, 0, 0), row(9, 2, 3)];
        let found = |lane, number, count, max| {
            let chunks = chunks_after(&rows, ChunkId { lane, number }, count, max);
            chunks.into_iter().map(|id| (id.lane, id.number)).collect::<Vec<_>>()
        };
        assert_eq!(found(0, 0, 0, 3), [(3, 7), (3, 8), (5, 0)]);
        assert_eq!(found(3, 7, 4, 2), [(3, 7), (3, 8)], "the rest of the chunk");
        assert_eq!(found(3, 7, u32::MAX, 2), [(3, 8), (5, 0)]);
        assert_eq!(found(4, 0, 0, 1), [(5, 0)], "the lane is gone");
        assert_eq!(found(9, 3, u32::MAX, 9), []);
    }
}
