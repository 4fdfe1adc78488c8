//! A hash function that never changes: 64-bit FNV-1a over parts and their lengths, with a final
//! mix.
//!
//! Not for input that an attacker chooses freely: only input that Shopify signed reaches it. Two
//! resources that share a hash are delivered as if they were one, which is slower but safe.
//! Source: Fowler, Noll and Vo, "The FNV Non-Cryptographic Hash Algorithm" (RFC 9923).

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Returns the hash of a list of parts. No two lists give the same bytes to hash.
pub fn of(parts: &[&[u8]]) -> u64 {
    let mut hash = OFFSET;
    for part in parts {
        for byte in *part {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        hash = (hash ^ length ^ 0x100).wrapping_mul(PRIME);
    }
    // FNV's high bits depend on few bits of the input: mix them (MurmurHash3's finaliser).
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_changes() {
        assert_eq!(of(&[]), of(&[]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_ne!(of(&[b"a"]), of(&[b"a", b""]));
        assert_eq!(of(&[b"kind", b"a.myshopify.com", b"product"]), KNOWN);
    }

    /// Hash under which Redis already stores rows.
    const KNOWN: u64 = 474_462_619_705_381_981;
}
