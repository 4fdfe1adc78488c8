//! Who sends how much, and what the backend does with it.

use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{Class, Content, Sorted};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

/// The receiver appends so many packs a second.
pub const PACKS_PER_SECOND: f64 = 100.0;
/// Events of one resource come after each other: a resource of a shop has so many, about.
const RESOURCES: u64 = 50;
/// Turns that a shop over its rate has beside its own.
const MORE_TURNS: u32 = 9;
/// A webhook's size, in bytes.
pub const RAW_BYTES: usize = 500;

/// What an hour is like.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub shops: u32,
    /// Webhooks a second of all shops together.
    pub rate: u32,
    pub length: Duration,
    /// `PARK_AFTER`.
    pub park_after: Duration,
    pub has_ill: bool,
}

/// State of a shop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Well,
    Fails,
    Hangs,
    Paused,
    OverRate,
}

impl Health {
    pub const ALL: [Self; 5] = [Self::Well, Self::Fails, Self::Hangs, Self::Paused, Self::OverRate];

    /// What fails or hangs for longer than `RETRY_FOR` is given up.
    pub fn may_die(self) -> bool {
        matches!(self, Self::Fails | Self::Hangs)
    }
}

/// A number that looks random and is the same in each run.
pub fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Load {
    /// Turns in a round: each shop has one, and those that are over their rate have ten.
    fn turns(&self) -> u32 {
        self.shops + MORE_TURNS * (self.shops / 100)
    }

    pub fn health(&self, shop: u32) -> Health {
        if !self.has_ill {
            return Health::Well;
        }
        match shop % 100 {
            1 => Health::Fails,
            2 => Health::Hangs,
            3 => Health::Paused,
            4 => Health::OverRate,
            _ => Health::Well,
        }
    }

    /// Least time between two deliveries to one shop: twice as long as those over their rate would
    /// need, and a fifth of what the others do.
    pub fn spacing(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.turns()) / (5.0 * f64::from(self.rate)))
    }

    /// Shop and resource of the webhook of this number.
    pub fn webhook(&self, number: u64) -> (u32, u64) {
        // Neighbours in a round are of distant shops.
        let turn = number * 7_919 % u64::from(self.turns());
        let turn = u32::try_from(turn).expect("it is small");
        let shop = match turn.checked_sub(self.shops) {
            None => turn,
            Some(more) => more / MORE_TURNS * 100 + 4,
        };
        (shop, (u64::from(shop) << 16) + mixed(number) % RESOURCES)
    }

    /// Whether the webhook is of a shop that is asked for and is well in both hours.
    pub fn is_compared(shop: u32) -> bool {
        !(1..=4).contains(&(shop % 100))
    }
}

/// A webhook.
#[derive(Debug, Clone, Copy)]
pub struct Webhook {
    pub position: Position,
    pub shop: u32,
    pub resource: u64,
}

impl Webhook {
    pub fn sorted(&self) -> Sorted {
        let shop = u64::from(self.shop) + 1;
        Sorted {
            resource: self.resource,
            lane: shop,
            shop,
            class: Class::Rest,
            is_barrier: false,
            coalesces: 0,
            fingerprint: None,
        }
    }
}

/// Webhooks of a pack or chunk.
#[derive(Debug, Clone)]
pub struct Webhooks(pub Rc<Vec<Webhook>>);

impl Content for Webhooks {
    type Evidence = ();
    type Filter = ();

    fn raw_bytes(&self) -> usize {
        self.0.len() * RAW_BYTES
    }

    fn record_bytes(&self, _: u32) -> usize {
        RAW_BYTES
    }

    fn pluck(&self, index: u32) -> Self {
        Self(Rc::new(vec![self.0[index as usize]]))
    }

    fn fingerprint(&self, _: u32) -> Option<Fingerprint> {
        None
    }

    fn is_matched(&self, _: u32, _: Position, _: &()) -> bool {
        false
    }

    fn dead_bytes(&self, _: u32, _: &()) -> u64 {
        RAW_BYTES as u64
    }
}
