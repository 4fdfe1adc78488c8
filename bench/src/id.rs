//! Ids of webhooks. Their digits look random, as Shopify's do: ids that count up would compress, and
//! a queue of them would take less memory than one of real webhooks.

/// Formats 128 bits as a UUID of version 4.
pub fn uuid(high: u64, low: u64) -> String {
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        (low >> 48) & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}

/// Returns the id of webhook `number` of a run, which no other number has. `run` is random, so that
/// two runs share no id.
pub fn numbered(run: u64, number: u64) -> String {
    uuid(mixed(run ^ number), mixed(number.wrapping_add(run.rotate_left(32))))
}

/// Spreads a number over 64 bits. Each result belongs to one number (the last steps of SplitMix64).
pub fn mixed(number: u64) -> u64 {
    let first = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let second = (first ^ (first >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    second ^ (second >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_of_numbers_and_runs_differ() {
        let ids: HashSet<String> = (0..1_000).map(|number| numbered(7, number)).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(!ids.contains(&numbered(8, 1)));
        assert_eq!(numbered(7, 1), numbered(7, 1));
    }

    #[test]
    fn an_id_is_a_uuid_of_version_4() {
        assert_eq!(uuid(0, 0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u64::MAX, u64::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
