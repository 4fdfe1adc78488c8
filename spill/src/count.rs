//! Counts the webhooks that a start has found, for an operator: nothing waits for it.
//!
//! By the records' heads alone, and from the newest segment on: they are fed from the oldest on, and
//! what is fed meanwhile need not be counted. Damage is the reader's to find.

use std::fs::File;
use std::io;

use crate::index::{Index, Segment};
use crate::scan::{Miss, Span};
use crate::segment::HEAD_BYTES;

/// Counts what is in each segment of which that is not known, one after the other.
pub fn count(index: &Index) {
    while let Some(segment) = index.uncounted() {
        let webhooks = webhooks_of(&segment).unwrap_or_else(|error| {
            // It is gone, or it is the reader that will say so.
            tracing::debug!(%error, path = ?segment.path, "a spill segment cannot be counted");
            0
        });
        index.counted(segment.first, webhooks);
    }
}

fn webhooks_of(segment: &Segment) -> io::Result<u64> {
    let file = File::open(&segment.path)?;
    let span = Span { file: &file, end: segment.end };
    let (mut offset, mut number, mut webhooks) = (HEAD_BYTES, segment.after, 0);
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
