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
/// Of ten webhooks of a shop that fails in part, so many fail.
const FAILING_PART: u64 = 4;
/// A webhook's size, in bytes.
pub const RAW_BYTES: usize = 500;

/// Load of an hour.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub shops: u32,
    /// Webhooks a second of all shops together.
    pub rate: u32,
    pub length: Duration,
    /// `PARK_AFTER`.
    pub park_after: Duration,
    /// `RETRY_FOR`.
    pub retry_for: Duration,
    /// `INDEX_MEMORY`.
    pub index_bytes: usize,
    pub ills: Ills,
}

/// Shops that are unwell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ills {
    /// None.
    None,
    /// One in a hundred of each kind.
    Hundredth,
    /// The first so many fail in part.
    InPart(u32),
    /// The first so many fail until shortly before the second takeover.
    Recovering(u32),
}

/// State of a shop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Well,
    Fails,
    Hangs,
    Paused,
    OverRate,
    /// Some of its webhooks fail, again and again.
    FailsInPart,
    /// It fails up to a time.
    Recovers,
}

impl Health {
    pub const ALL: [Self; 7] = [
        Self::Well,
        Self::Fails,
        Self::Hangs,
        Self::Paused,
        Self::OverRate,
        Self::FailsInPart,
        Self::Recovers,
    ];

    /// True if webhooks may be given up: they fail or hang for longer than `RETRY_FOR`.
    pub fn may_die(self) -> bool {
        matches!(self, Self::Fails | Self::Hangs | Self::FailsInPart)
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
        match (self.ills, shop % 100) {
            (Ills::InPart(shops), _) if shop < shops => Health::FailsInPart,
            (Ills::Recovering(shops), _) if shop < shops => Health::Recovers,
            (Ills::Hundredth, 1) => Health::Fails,
            (Ills::Hundredth, 2) => Health::Hangs,
            (Ills::Hundredth, 3) => Health::Paused,
            (Ills::Hundredth, 4) => Health::OverRate,
            _ => Health::Well,
        }
    }

    /// True if there are shops of this kind.
    pub fn has(&self, health: Health) -> bool {
        (0..self.shops).any(|shop| self.health(shop) == health)
    }

    /// Until when shops fail that recover: some seconds before the leader is killed again.
    pub fn recovers_at(&self) -> Duration {
        self.length * 2 / 3 - Duration::from_secs(5)
    }

    /// True from when shops recover until the leader is killed, shortly after.
    pub fn is_catching_up(&self, since: Duration) -> bool {
        let times = self.recovers_at()..self.length * 2 / 3;
        matches!(self.ills, Ills::Recovering(_)) && times.contains(&since)
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
        let resource = match self.ills {
            // One that fails does not hold others up.
            Ills::InPart(_) | Ills::Recovering(_) => (1 << 40) + number,
            _ => (u64::from(shop) << 16) + mixed(number) % RESOURCES,
        };
        (shop, resource)
    }

    /// True if the webhook is of a shop that is well in both hours.
    pub fn is_compared(&self, shop: u32) -> bool {
        !(1..=4).contains(&(shop % 100)) && self.health(shop) == Health::Well
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
    /// True if it fails when its shop fails in part.
    pub fn is_failing_part(&self) -> bool {
        mixed(self.resource) % 10 < FAILING_PART
    }

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

    fn shop_of((): &()) -> Option<u64> {
        None
    }

    fn is_matched(&self, _: u32, _: Position, _: &()) -> bool {
        false
    }

    fn dead_bytes(&self, _: u32, _: &()) -> u64 {
        RAW_BYTES as u64
    }
}
