//! A hash that never changes: FNV-1a with 64 bits over parts with their lengths, and a final mix.
//!
//! Not for input that an attacker chooses freely: only what Shopify signed gets this far, and two
//! resources that share a hash are delivered as if they were one, which is slower and safe.
//! Source: Fowler, Noll and Vo, "The FNV Non-Cryptographic Hash Algorithm" (RFC 9923).

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Hash of a list of parts: no two lists run together into the same bytes.
pub fn of(parts: &[&[u8]]) -> u64 {
    let mut hash = OFFSET;
    for part in parts {
        for byte in *part {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        hash = (hash ^ length ^ 0x100).wrapping_mul(PRIME);
    }
    // FNV's high bits depend on few of the input's: mix them (MurmurHash3's finaliser).
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

    /// Value that rows in Redis are stored under.
    const KNOWN: u64 = 474_462_619_705_381_981;
}
