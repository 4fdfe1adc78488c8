//! Faults of a schedule.

use super::Random;

/// Faults of each kind in a thousand steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub hangs: u64,
    pub fills: u64,
    pub breaks: u64,
    pub stalls: u64,
    pub expires: u64,
    pub disk_fails: u64,
    pub claims: u64,
    pub crashes: u64,
    /// SIGTERMs.
    pub stops: u64,
    /// Steps in which senders send.
    pub sends: u64,
}

impl Plan {
    pub(super) fn of(random: &mut Random) -> Self {
        let mut pick = |all: &[u64]| all[random.below(all.len())];
        Self {
            hangs: pick(&[0, 5, 20, 60]),
            fills: pick(&[0, 0, 5, 20]),
            breaks: pick(&[0, 5, 30]),
            stalls: pick(&[0, 20, 100]),
            expires: pick(&[0, 10, 50]),
            disk_fails: pick(&[0, 0, 100, 500]),
            claims: pick(&[0, 0, 3, 10]),
            crashes: pick(&[0, 0, 3, 10]),
            stops: pick(&[0, 0, 3, 10]),
            sends: pick(&[100, 300, 600]),
        }
    }

    /// Plan in which nothing fails any more, and nothing new is sent.
    pub(super) fn healed() -> Self {
        Self {
            hangs: 0,
            fills: 0,
            breaks: 0,
            stalls: 0,
            expires: 0,
            disk_fails: 0,
            claims: 0,
            crashes: 0,
            stops: 0,
            sends: 0,
        }
    }

    pub(super) fn is_healed(&self) -> bool {
        self.sends == 0
    }
}
