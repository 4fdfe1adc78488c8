//! Webhooks of the simulation: small, with all attributes that decide about their delivery.

use std::num::NonZeroU32;
use std::rc::Rc;

use spillway_delivery::{Class, Classified, Content, StateRole, UpdateState};
use spillway_webhook::BodyState;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::random::mix;

pub(crate) const SHOPS: u8 = 3;
/// Kind of orders, which coalesce.
pub(crate) const ORDERS: u8 = 0;
/// Kind of products, of which there are few.
pub(crate) const PRODUCTS: u8 = 1;
/// Kind of requests to erase a shop's data: barriers in the priority class.
pub(crate) const BARRIERS: u8 = 2;
/// Subscription to a topic whose webhooks are not compared.
pub(crate) const UNCOMPARED: u8 = 0;
/// Time of a state whose body has no time.
pub(crate) const UNDATED: u64 = 0;
/// Paths to which webhooks are sent.
const PATHS: u128 = 3;
/// Bytes of a webhook.
pub(crate) const RAW_BYTES: usize = 100;

/// Paths whose webhooks the consumer's filter excludes, one bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Exclusion(pub u8);

/// Rules by which a leader classifies webhooks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub scheme: Scheme,
    pub keeps_fingerprints: bool,
    pub exclusion: Exclusion,
}

/// Unit of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Resource,
    Shop,
}

/// An accepted webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Webhook {
    pub position: Position,
    pub shop: u8,
    pub kind: u8,
    pub resource: u8,
    pub fingerprint: Fingerprint,
    /// State of the resource that the body shows.
    pub state: u8,
    /// Time of that state; [`UNDATED`] if the body has none.
    pub updated_ms: u64,
    /// Number of the subscription; [`UNCOMPARED`] for a topic whose webhooks are not compared.
    pub subscription: u8,
}

impl Exclusion {
    /// True if the filter excludes a webhook. Copies of a webhook have its path.
    pub(crate) fn excludes(self, webhook: &Webhook) -> bool {
        let path = (webhook.fingerprint >> 8) % PATHS;
        self.0 >> path & 1 == 1
    }
}

/// A resource: shop, kind and id.
pub(crate) type Resource = (u8, u8, u8);

impl Webhook {
    pub(crate) fn is_barrier(&self) -> bool {
        self.kind == BARRIERS
    }

    pub(crate) fn coalesces(&self, scheme: Scheme) -> u8 {
        u8::from(self.kind == ORDERS && scheme == Scheme::Resource)
    }

    pub(crate) fn is_compared(&self, scheme: Scheme) -> bool {
        self.role(scheme) == StateRole::Compared
    }

    fn role(&self, scheme: Scheme) -> StateRole {
        match (self.is_barrier(), scheme, self.subscription) {
            (true, ..) => StateRole::HidesAll,
            (false, Scheme::Shop, _) => StateRole::None,
            (false, Scheme::Resource, UNCOMPARED) => StateRole::MayShow,
            (false, Scheme::Resource, _) => StateRole::Compared,
        }
    }

    pub(crate) fn resource(&self) -> Resource {
        (self.shop, self.kind, self.resource)
    }

    /// The unit of order under a scheme.
    pub(crate) fn unit(&self, scheme: Scheme) -> Resource {
        match scheme {
            Scheme::Resource => self.resource(),
            Scheme::Shop => (self.shop, u8::MAX, u8::MAX),
        }
    }

    pub(crate) fn lane(&self, scheme: Scheme) -> u64 {
        match scheme {
            Scheme::Resource => hash([2, self.shop, self.kind, 0]),
            Scheme::Shop => hash([3, self.shop, 0, 0]),
        }
    }

    pub(crate) fn classified(&self, rules: Rules) -> Classified {
        let Rules { scheme, keeps_fingerprints, exclusion } = rules;
        let (shop, kind, resource) = self.unit(scheme);
        Classified {
            resource: hash([1, shop, kind, resource]),
            lane: self.lane(scheme),
            shop: shop_hash(self.shop),
            class: if self.is_barrier() { Class::Priority } else { Class::Rest },
            is_barrier: self.is_barrier(),
            coalesces: u32::from(self.coalesces(scheme)),
            role: self.role(scheme),
            fingerprint: keeps_fingerprints.then_some(self.fingerprint),
            expires_at_ms: self.resource.is_multiple_of(2).then_some(0),
            is_excluded: exclusion.excludes(self),
        }
    }

    pub(crate) fn name(&self) -> String {
        let kind = ["o", "p", "B"][usize::from(self.kind)];
        let Position { ms, seq, index } = self.position;
        format!("{}{kind}{}@{ms}-{seq}-{index}", self.shop, self.resource)
    }
}

pub(crate) fn shop_hash(shop: u8) -> u64 {
    hash([4, shop, 0, 0])
}

fn hash(of: [u8; 4]) -> u64 {
    mix(u64::from(u32::from_le_bytes(of)) + 1)
}

/// Bytes of a pack, a chunk or a replay.
#[derive(Debug, Clone)]
pub(crate) struct Bytes(pub Rc<Vec<Webhook>>);

impl Bytes {
    pub(crate) fn of(webhooks: Vec<Webhook>) -> Self {
        Self(Rc::new(webhooks))
    }
}

impl Content for Bytes {
    type Evidence = ();
    type Filter = Resource;

    fn raw_bytes(&self) -> usize {
        self.0.len() * RAW_BYTES
    }

    fn record_bytes(&self, _: u32) -> usize {
        RAW_BYTES
    }

    fn pluck(&self, index: u32) -> Self {
        Self::of(vec![self.0[index as usize]])
    }

    fn fingerprint(&self, index: u32) -> Option<Fingerprint> {
        Some(self.0[index as usize].fingerprint)
    }

    fn update(&self, index: u32) -> Option<UpdateState> {
        let Webhook { state, updated_ms, subscription, .. } = self.0[index as usize];
        let hash = u128::from(mix(u64::from(state)));
        Some(UpdateState {
            subscription: NonZeroU32::new(u32::from(subscription))?,
            body: BodyState { hash, updated_ms: Some(updated_ms).filter(|ms| *ms != UNDATED) },
        })
    }

    fn shop_of(filter: &Resource) -> Option<u64> {
        Some(shop_hash(filter.0))
    }

    fn is_matched(&self, index: u32, position: Position, filter: &Resource) -> bool {
        let webhook = self.0[index as usize];
        assert_eq!(webhook.position, position, "a filter sees another webhook");
        webhook.resource() == *filter
    }

    fn dead_bytes(&self, _: u32, (): &()) -> u64 {
        100
    }
}
