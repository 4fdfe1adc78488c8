//! Counts the webhooks that a start has found. The result is for operators; nothing waits for it.
//!
//! Only the heads of records are read, from the newest segment to the oldest: segments are restored
//! from the oldest on, and those restored meanwhile need not be counted. Damage is left to the
//! reader.

use std::fs::File;
use std::io;

use crate::index::{Segment, SegmentIndex};
use crate::scan::{Miss, ScanRange};
use crate::segment::HEAD_BYTES;

/// Counts the webhooks of each segment whose number is unknown, one segment after the other.
pub fn count(index: &SegmentIndex) {
    while let Some(segment) = index.uncounted() {
        let webhooks = webhooks_of(&segment).unwrap_or_else(|error| {
            // The segment is gone, or the reader will report the error.
            tracing::debug!(%error, path = ?segment.path, "a spill segment cannot be counted");
            0
        });
        index.counted(segment.first, webhooks);
    }
}

fn webhooks_of(segment: &Segment) -> io::Result<u64> {
    let file = File::open(&segment.path)?;
    let span = ScanRange { file: &file, end: segment.end };
    let mut offset = HEAD_BYTES;
    let mut number = segment.after;
    let mut webhooks = 0;
    loop {
        match span.head(offset, number) {
            Ok(record) => {
                offset += record.record_bytes();
                number = record.number;
                webhooks += u64::from(record.webhooks);
            }
            Err(Miss::End | Miss::Bad(_)) => return Ok(webhooks),
            Err(Miss::Unreadable(error)) => return Err(error),
        }
    }
}
