//! Requests to read, and their division.

use spillway_queue::lane::ChunkId;
use spillway_webhook::StreamId;

/// Packs of the front in one round trip. They are small where there are many.
pub(super) const FRONT_AT_ONCE: usize = 16;

/// Something to read.
#[derive(Debug, Clone)]
pub(crate) enum ReadRequest {
    /// A pack of the main stream.
    Main(StreamId),
    /// A replay.
    Replay(StreamId),
    /// Chunks whose webhooks have their turn.
    ChunksAgain(Vec<ChunkId>),
    /// Packs at the front of the main stream.
    Front(Vec<StreamId>),
    /// Chunks of some lanes.
    Chunks(Vec<ChunkRange>),
    /// A pack of the main stream, for a lane.
    Rest(u64, StreamId),
}

/// Chunks of one lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkRange {
    /// Hash of the lane.
    pub lane: u64,
    /// Number of the first one.
    pub first: u32,
    /// Number of chunks.
    pub count: u32,
}

impl ReadRequest {
    /// Divides a request for several lanes, or for several chunks that are read again, in two.
    /// Returns only the first half of a request for one lane's chunks or for the front: the core
    /// asks for the rest later.
    pub(super) fn halves(self) -> Vec<Self> {
        match self {
            Self::Chunks(ranges) if ranges.len() == 1 => {
                let half =
                    |range: ChunkRange| ChunkRange { count: range.count.div_ceil(2), ..range };
                vec![Self::Chunks(ranges.into_iter().map(half).collect())]
            }
            Self::Chunks(ranges) if ranges.len() > 1 => {
                let (first, second) = ranges.split_at(ranges.len() / 2);
                vec![Self::Chunks(first.to_vec()), Self::Chunks(second.to_vec())]
            }
            Self::ChunksAgain(ids) if ids.len() > 1 => {
                let (first, second) = ids.split_at(ids.len() / 2);
                vec![Self::ChunksAgain(first.to_vec()), Self::ChunksAgain(second.to_vec())]
            }
            Self::Front(mut entries) => {
                // Less than the first round trip, which may have been too much.
                entries.truncate(entries.len().min(FRONT_AT_ONCE).div_ceil(2));
                vec![Self::Front(entries)]
            }
            other => vec![other],
        }
    }
}

impl ChunkRange {
    pub(super) fn ids(&self) -> impl Iterator<Item = ChunkId> + use<> {
        let lane = self.lane;
        (self.first..self.first + self.count).map(move |number| ChunkId { lane, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_halves_of_a_read_are_all_of_it_down_to_one_chunk() {
        let chunks: Vec<u32> = (1..=16).collect();
        let ids = chunks.iter().map(|number| ChunkId { lane: 7, number: *number });
        let ranges = chunks.iter().map(|first| ChunkRange { lane: 7, first: *first, count: 2 });
        let whole =
            [ReadRequest::ChunksAgain(ids.collect()), ReadRequest::Chunks(ranges.collect())];
        for whole in whole {
            let mut parts = vec![whole];
            for count in [2, 4, 8, 16] {
                parts = parts.into_iter().flat_map(ReadRequest::halves).collect();
                assert_eq!(parts.len(), count);
                let mut held = Vec::new();
                for part in &parts {
                    match part {
                        ReadRequest::ChunksAgain(ids) => {
                            held.extend(ids.iter().map(|id| id.number))
                        }
                        ReadRequest::Chunks(ranges) => {
                            held.extend(ranges.iter().map(|one| one.first))
                        }
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!(held, chunks);
            }
        }
        let long = ChunkRange { lane: 7, first: 3, count: 4 };
        let mut parts = vec![ReadRequest::Chunks(vec![long])];
        for expected in [2, 1, 1] {
            parts = parts.into_iter().flat_map(ReadRequest::halves).collect();
            let [ReadRequest::Chunks(ranges)] = &parts[..] else { panic!("{parts:?}") };
            let [ChunkRange { lane: 7, first: 3, count }] = ranges[..] else {
                panic!("{ranges:?}")
            };
            assert_eq!(count, expected, "of one lane, from its first chunk on");
        }
        let entry = |ms| StreamId { ms, seq: 0 };
        let mut front = ReadRequest::Front((1..=64).map(entry).collect());
        for expected in [8, 4, 2, 1, 1] {
            front = front.halves().remove(0);
            let ReadRequest::Front(entries) = &front else { panic!("{front:?}") };
            assert_eq!(*entries, (1..=expected).map(entry).collect::<Vec<_>>());
        }
        let one = ReadRequest::Rest(7, StreamId { ms: 1, seq: 0 }).halves();
        assert!(matches!(one[..], [ReadRequest::Rest(7, StreamId { ms: 1, seq: 0 })]), "{one:?}");
    }
}
