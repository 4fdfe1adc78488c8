//! Reads of chunks for windows: how many may be under way.

/// Chunks that are read at once, a megabyte at most each. Of small ones more: each read waits for a
/// settlement's script, and between two of those as many lanes of one webhook go on as were read.
const UNDER_WAY_MAX: usize = 32;
const BYTES_MAX: usize = 1 << 20;
const SMALL_UNDER_WAY_MAX: usize = 256;
/// A chunk of few webhooks counts as small while those of late were no larger.
const SMALL_BYTES: usize = 128 << 10;
/// The size of late falls by such a part with each smaller chunk.
const DECAY: usize = 16;

/// Reads of chunks that are under way, and the size of those of late.
#[derive(Debug)]
pub(crate) struct ChunkReads {
    under_way: usize,
    /// Raw bytes of the largest chunk of late.
    bytes: usize,
}

impl Default for ChunkReads {
    fn default() -> Self {
        Self { under_way: 0, bytes: BYTES_MAX }
    }
}

impl ChunkReads {
    /// True if another chunk may be read: of lanes with few webhooks, as many small ones as would be in
    /// a few large ones.
    pub fn may_begin(&self, has_few: bool) -> bool {
        let small = (UNDER_WAY_MAX * BYTES_MAX / self.bytes.max(1))
            .clamp(UNDER_WAY_MAX, SMALL_UNDER_WAY_MAX);
        self.under_way < if has_few { small } else { UNDER_WAY_MAX }
    }

    /// So many more are under way.
    pub fn begin(&mut self, count: u32) {
        self.under_way += count as usize;
    }

    /// So many have ended.
    pub fn end(&mut self, count: u32) {
        self.under_way -= count as usize;
    }

    /// Notes the raw bytes of a chunk that was read.
    pub fn note_bytes(&mut self, bytes: usize) {
        self.bytes = bytes.max(self.bytes - self.bytes / DECAY);
    }

    /// True if a chunk of few webhooks counts as small.
    pub fn are_small(&self) -> bool {
        self.bytes <= SMALL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(has_few: bool, bytes: &[usize]) -> u32 {
        let mut reads = ChunkReads::default();
        bytes.iter().for_each(|bytes| reads.note_bytes(*bytes));
        let mut most = 0;
        while reads.may_begin(has_few) {
            reads.begin(1);
            most += 1;
        }
        reads.end(most);
        assert!(reads.may_begin(has_few));
        most
    }

    #[test]
    fn more_small_chunks_are_read_at_once_than_large_ones() {
        let mut sizes = vec![5 << 10; 100];
        assert_eq!(most(true, &[]), 32, "nothing is known of their sizes");
        assert_eq!(most(true, &sizes), 256);
        assert_eq!(most(false, &sizes), 32, "of a lane with many webhooks");
        sizes.push(512 << 10);
        assert_eq!(most(true, &sizes), 64);
        sizes.push(20 << 20);
        assert_eq!(most(true, &sizes), 32);
    }

    #[test]
    fn chunks_count_as_small_again_some_time_after_a_large_one() {
        let mut reads = ChunkReads::default();
        let mut small_after = || {
            (0..200)
                .take_while(|_| {
                    reads.note_bytes(5 << 10);
                    !reads.are_small()
                })
                .count()
        };
        let at_start = small_after();
        assert!((20..50).contains(&at_start), "{at_start}");
        reads.note_bytes(20 << 20);
        assert!(!reads.are_small());
    }
}
