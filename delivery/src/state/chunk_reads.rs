//! Limits of the reads of chunks for windows.
//!
//! Lanes with few webhooks and lanes with many are counted separately, so that neither waits for
//! the other. Otherwise two hundred thousand lanes of one webhook would block a lane of a million.

use std::time::Duration;

use crate::state::index::usize_of;

/// Raw bytes that are read at once for each kind of lane, estimated from the size of recent chunks.
const BYTES: usize = 32 << 20;
const BYTES_AT_FIRST: usize = 1 << 20;
/// Chunks that are read at once for lanes with many webhooks, of up to a megabyte each, and for
/// lanes with few. Each read waits for the script of a settlement. Between two settlements, as many
/// lanes of one webhook advance as were read.
const MANY_MAX: u32 = 32;
const FEW_MAX: u32 = 128;
const _: () = assert!(MANY_MAX <= FEW_MAX, "few lanes may read more of each");
const _: () = assert!(BYTES_AT_FIRST < BYTES);
/// Chunks that are read at once, however large they are.
const LEAST: usize = 4;
/// The estimated size falls by 1/`DECAY` with each smaller chunk.
const DECAY: usize = 16;

/// Reads of chunks that are under way, and the size of recent chunks.
#[derive(Debug)]
pub(crate) struct ChunkReads {
    few: u32,
    many: u32,
    /// Raw bytes of the largest recent chunk.
    bytes: usize,
    /// Time at which lanes were last checked for chunks to read.
    looked_at: Duration,
}

impl Default for ChunkReads {
    fn default() -> Self {
        Self { few: 0, many: 0, bytes: BYTES_AT_FIRST, looked_at: Duration::ZERO }
    }
}

impl ChunkReads {
    /// True if a chunk of a lane with few webhooks, or of one with many, may be read.
    pub(crate) fn may_begin(&self, has_few: bool) -> bool {
        let (under_way, most) = if has_few { (self.few, FEW_MAX) } else { (self.many, MANY_MAX) };
        (under_way as usize) < (BYTES / self.bytes.max(1)).clamp(LEAST, most as usize)
    }

    /// Number of reads under way.
    pub(crate) fn under_way(&self) -> usize {
        usize_of(self.few + self.many)
    }

    /// Notes that `count` more reads are under way.
    pub(crate) fn begin(&mut self, has_few: bool, count: u32) {
        *self.of(has_few) += count;
    }

    /// Notes that `count` reads have ended.
    pub(crate) fn end(&mut self, has_few: bool, count: u32) {
        let under_way = self.of(has_few);
        debug_assert!(*under_way >= count, "BUG: more reads end than begin");
        *under_way = under_way.saturating_sub(count);
    }

    /// Time since lanes were last checked, or zero within a millisecond. Notes that they are checked now.
    pub(crate) fn looks_after(&mut self, now: Duration) -> Duration {
        let since = now.saturating_sub(self.looked_at);
        if since < Duration::from_millis(1) {
            return Duration::ZERO;
        }
        self.looked_at = now;
        since
    }

    /// Notes the raw bytes of a chunk that was read.
    pub(crate) fn note_bytes(&mut self, bytes: usize) {
        self.bytes = bytes.max(self.bytes - self.bytes / DECAY);
    }

    fn of(&mut self, has_few: bool) -> &mut u32 {
        if has_few { &mut self.few } else { &mut self.many }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of reads that may begin at once after chunks of these `bytes`.
    fn most(has_few: bool, bytes: &[usize]) -> u32 {
        let mut reads = ChunkReads::default();
        bytes.iter().for_each(|bytes| reads.note_bytes(*bytes));
        let mut most = 0;
        while reads.may_begin(has_few) {
            reads.begin(has_few, 1);
            most += 1;
        }
        assert!(reads.may_begin(!has_few), "the others have room of their own");
        reads.end(has_few, most);
        assert!(reads.may_begin(has_few));
        most
    }

    #[test]
    fn more_small_chunks_are_read_at_once_than_large_ones() {
        let mut sizes = vec![5 << 10; 100];
        assert_eq!(most(true, &[]), 32, "nothing is known of their sizes");
        assert_eq!(most(true, &sizes), 128);
        assert_eq!(most(false, &sizes), 32, "of lanes with many webhooks");
        sizes.push(512 << 10);
        assert_eq!(most(true, &sizes), 64);
        sizes.push(4 << 20);
        assert_eq!((most(true, &sizes), most(false, &sizes)), (8, 8));
        sizes.push(20 << 20);
        assert_eq!(most(false, &sizes), 4);
        sizes.extend([5 << 10; 200]);
        assert_eq!(most(true, &sizes), 128, "some time after a large one");
    }
}
