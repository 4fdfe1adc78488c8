//! Load of the shops, and the answers of the backend.

use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{Class, Classified, Content, StateRole};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

/// Packs that the receiver appends per second.
pub(crate) const PACKS_PER_SECOND: f64 = 100.0;
/// Approximate number of resources of a shop. Events of one resource are delivered one after the
/// other.
const RESOURCES: u64 = 50;
/// Additional turns of a shop over its rate.
const MORE_TURNS: u32 = 9;
/// Failing webhooks, of ten webhooks of a partly failing shop.
const FAILING_PART: u64 = 4;
/// Size of a webhook in bytes.
pub(crate) const RAW_BYTES: usize = 500;

/// Load of an hour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub shops: u32,
    /// Webhooks per second of all shops together.
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

/// Shops that are not healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ills {
    /// No shop.
    None,
    /// One in a hundred shops of each kind.
    Hundredth,
    /// The first shops, in this number, fail partly.
    InPart(u32),
    /// The first shops, in this number, fail until shortly before the second takeover.
    Recovering(u32),
}

/// State of a shop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    Fails,
    Hangs,
    Paused,
    OverRate,
    /// Some webhooks of the shop fail, again and again.
    FailsInPart,
    /// The shop fails up to a time.
    Recovers,
}

impl Health {
    pub(crate) const ALL: [Self; 7] = [
        Self::Well,
        Self::Fails,
        Self::Hangs,
        Self::Paused,
        Self::OverRate,
        Self::FailsInPart,
        Self::Recovers,
    ];

    /// True if webhooks may be given up: they fail or hang for longer than `RETRY_FOR`.
    pub(crate) fn may_die(self) -> bool {
        matches!(self, Self::Fails | Self::Hangs | Self::FailsInPart)
    }
}

/// A pseudorandom number that is the same in each run.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Load {
    /// Number of turns in a round: one for each shop, and ten for shops over their rate.
    fn turns(&self) -> u32 {
        self.shops + MORE_TURNS * (self.shops / 100)
    }

    pub(crate) fn health(&self, shop: u32) -> Health {
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
    pub(crate) fn has(&self, health: Health) -> bool {
        (0..self.shops).any(|shop| self.health(shop) == health)
    }

    /// Time up to which recovering shops fail: some seconds before the leader is killed again.
    pub(crate) fn recovers_at(&self) -> Duration {
        self.length * 2 / 3 - Duration::from_secs(5)
    }

    /// True between the recovery of shops and the kill of the leader shortly after.
    pub(crate) fn is_catching_up(&self, since: Duration) -> bool {
        let times = self.recovers_at()..self.length * 2 / 3;
        matches!(self.ills, Ills::Recovering(_)) && times.contains(&since)
    }

    /// Shortest time between two deliveries to one shop: twice the time that shops over their rate
    /// would need, and a fifth of the time that the others need.
    pub(crate) fn spacing(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.turns()) / (5.0 * f64::from(self.rate)))
    }

    /// Shop and resource of the webhook with this number.
    pub(crate) fn webhook(&self, number: u64) -> (u32, u64) {
        // Neighbours in a round belong to distant shops.
        let turn = number * 7_919 % u64::from(self.turns());
        let turn = u32::try_from(turn).expect("it is small");
        let shop = match turn.checked_sub(self.shops) {
            None => turn,
            Some(more) => more / MORE_TURNS * 100 + 4,
        };
        let resource = match self.ills {
            // A failing resource does not block others.
            Ills::InPart(_) | Ills::Recovering(_) => (1 << 40) + number,
            _ => (u64::from(shop) << 16) + mixed(number) % RESOURCES,
        };
        (shop, resource)
    }

    /// True if the webhook belongs to a shop that is healthy in both hours.
    pub(crate) fn is_compared(&self, shop: u32) -> bool {
        !(1..=4).contains(&(shop % 100)) && self.health(shop) == Health::Well
    }
}

/// An accepted webhook.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Webhook {
    pub position: Position,
    pub shop: u32,
    pub resource: u64,
}

impl Webhook {
    /// True if the webhook fails when its shop fails partly.
    pub(crate) fn is_failing_part(&self) -> bool {
        mixed(self.resource) % 10 < FAILING_PART
    }

    pub(crate) fn classified(&self) -> Classified {
        let shop = u64::from(self.shop) + 1;
        Classified {
            resource: mixed(self.resource),
            lane: shop,
            shop,
            class: Class::Rest,
            is_barrier: false,
            coalesces: 0,
            role: StateRole::None,
            fingerprint: None,
            expires_at_ms: None,
            is_excluded: false,
        }
    }
}

/// Webhooks of a pack or chunk.
#[derive(Debug, Clone)]
pub(crate) struct Webhooks(pub Rc<Vec<Webhook>>);

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
