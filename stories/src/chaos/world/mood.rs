//! Current misbehaviour of the backend.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::behaviour::Behaviour;
use crate::chaos::fault::Kind;
use crate::receipt::{Receipt, hash};
use crate::shop;

/// Answer time of a slow backend, shorter than the delivery timeout.
const SLOW: Duration = Duration::from_millis(300);
/// One webhook in this many is refused for good while `poisons` is set.
const POISON_ONE_OF: u8 = 8;

/// Shops of the load.
pub const SHOPS: Range<u64> = 0..8;
/// Shop that a fault of one shop affects.
pub(super) const ONE_SHOP: u64 = 3;
/// Shop whose webhooks fail until the episode ends.
pub const BROKEN_SHOP: u64 = 100;

/// State that the backend shares with the faults.
#[derive(Debug)]
pub(super) struct Mood {
    seed: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    trouble: Option<Kind>,
    poisons: bool,
    poisoned: HashSet<String>,
    is_shop_fixed: bool,
}

impl Mood {
    /// Creates a state without misbehaviour.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, state: Mutex::default() }
    }

    /// Sets or clears the backend's misbehaviour.
    pub(super) fn suffers(&self, trouble: Option<Kind>) {
        self.state().trouble = trouble;
    }

    /// Sets if some webhooks are refused for good.
    pub(super) fn poisons(&self, poisons: bool) {
        self.state().poisons = poisons;
    }

    /// Makes the backend accept the broken shop's webhooks from now on.
    pub(super) fn fixes_shop(&self) {
        self.state().is_shop_fixed = true;
    }

    /// Webhook ids that were refused for good.
    pub(super) fn poisoned(&self) -> HashSet<String> {
        self.state().poisoned.clone()
    }

    /// True if this webhook was refused for good.
    pub(super) fn has_poisoned(&self, webhook_id: &str) -> bool {
        self.state().poisoned.contains(webhook_id)
    }

    /// Behaviour for a request.
    pub(super) fn answer(&self, receipt: &Receipt) -> Behaviour {
        let drawn = hash(format!("{}{}", self.seed, receipt.webhook_id()).as_bytes())[0];
        let mut state = self.state();
        if !state.is_shop_fixed && receipt.shop() == shop::domain(BROKEN_SHOP) {
            return Behaviour::status(500);
        }
        let is_one_shop = receipt.shop() == shop::domain(ONE_SHOP);
        match state.trouble {
            Some(Kind::ShopFails) if is_one_shop => return Behaviour::status(500),
            Some(Kind::ShopHangs) if is_one_shop => return Behaviour::Hang,
            Some(Kind::BackendSlow) => return Behaviour::slowly(SLOW),
            Some(Kind::BackendFails) => {
                return Behaviour::status([500, 502, 503][usize::from(drawn) % 3]);
            }
            Some(Kind::BackendBusy) => return Behaviour::status(429).header("Retry-After", "1"),
            Some(Kind::BackendResets) => return Behaviour::Reset,
            Some(Kind::BackendHangs) => return Behaviour::Hang,
            Some(Kind::BackendCutsShort) => return Behaviour::CutShort,
            _ => {}
        }
        if state.poisons && drawn.is_multiple_of(POISON_ONE_OF) {
            state.poisoned.insert(receipt.webhook_id().to_owned());
            return Behaviour::status(400);
        }
        Behaviour::ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no mood panicked")
    }
}
