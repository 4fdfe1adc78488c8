//! Names of packs and chunks whose bytes are in memory, or are wanted.

use spillway_webhook::StreamId;

/// Location of bytes in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PackKey {
    /// Entry of the main stream.
    Main(StreamId),
    /// Chunk, by the hash of its lane and its number.
    Chunk(u64, u32),
    /// Entry in the stream of replays.
    Replay(StreamId),
}
