//! Stored lengths and counts, which have 32 bits, as sizes in memory.

const _: () = assert!(usize::BITS >= u32::BITS, "a stored length fits into a size");

/// Returns the number as a size. No bit is lost.
pub(crate) const fn size(number: u32) -> usize {
    number as usize
}
