//! A pack some of whose webhooks wait: where it lies, and which of them are settled.

use spillway_webhook::StreamId;

/// What a main pack takes, beside its webhooks: its row, its bits, its place in the order.
const MAIN_PACK_BYTES: usize = 200;
/// What a parked webhook takes, beside its own: a pack, what it has been through, its next trial.
const PARKED_PACK_BYTES: usize = 320;

/// Which stream a pack lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The main stream.
    Main,
    /// The parked stream: a pack of one.
    Parked,
}

/// A pack with webhooks that are not settled.
#[derive(Debug)]
pub struct OpenPack {
    /// Which stream it lies in.
    pub source: Source,
    /// Its id there.
    pub id: StreamId,
    /// The entry its webhooks were accepted in.
    pub origin: StreamId,
    /// Whether an operator replayed it from the dead letters.
    pub is_replayed: bool,
    /// Webhooks in it.
    pub count: u32,
    /// Of these, not settled.
    pub left: u32,
    /// Of these, paused, about: a hint for what to read.
    pub paused: u32,
    /// A bit for each settled webhook.
    pub bits: Vec<u8>,
    /// Whether Redis holds the bits.
    pub bits_stored: bool,
    /// Webhooks that were settled, in all, when one of it was last.
    pub moved_at: u64,
}

impl OpenPack {
    /// A pack in the main stream; `bits` are those that Redis holds.
    pub fn main(id: StreamId, count: u32, bits: Option<&Vec<u8>>) -> Self {
        let mut own = vec![0u8; (count as usize).div_ceil(8)];
        if let Some(bits) = bits {
            own.iter_mut().zip(bits).for_each(|(own, bits)| *own = *bits);
        }
        let mut pack = Self {
            source: Source::Main,
            id,
            origin: id,
            is_replayed: false,
            count,
            left: 0,
            paused: 0,
            bits: own,
            bits_stored: bits.is_some(),
            moved_at: 0,
        };
        pack.left = (0..count).filter(|index| !pack.is_settled(*index)).count() as u32;
        pack
    }

    /// A pack in the parked stream, of one webhook accepted in `origin`.
    pub fn parked(id: StreamId, origin: StreamId, is_replayed: bool) -> Self {
        Self {
            source: Source::Parked,
            id,
            origin,
            is_replayed,
            count: 1,
            left: 1,
            paused: 0,
            bits: Vec::new(),
            bits_stored: false,
            moved_at: 0,
        }
    }

    /// Whether the webhook at `index` is settled.
    pub fn is_settled(&self, index: u32) -> bool {
        self.bits.get(index as usize / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }

    /// Webhooks to be delivered, as far as nothing is paused.
    pub fn wanted(&self) -> u32 {
        self.left.saturating_sub(self.paused)
    }

    /// Whether all that is left of it is paused.
    pub fn is_paused(&self) -> bool {
        self.left > 0 && self.wanted() == 0
    }

    /// The place in the pack of the webhook that was accepted at `index`.
    pub fn record_index(&self, index: u32) -> u32 {
        match self.source {
            Source::Main => index,
            Source::Parked => 0,
        }
    }
}

impl Source {
    /// What a pack of this kind takes in the index, beside its webhooks.
    pub(super) fn pack_bytes(self) -> usize {
        match self {
            Self::Main => MAIN_PACK_BYTES,
            Self::Parked => PARKED_PACK_BYTES,
        }
    }
}
