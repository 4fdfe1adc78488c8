//! The webhook as a value, and everything that can be decided about one webhook without a socket, a
//! clock or Redis.
//!
//! The path of a webhook through this crate: [`target`] (is the path acceptable?) → [`signature`]
//! (did Shopify send it?) → [`shopify`], [`family`] and [`freshness`] (what is its topic, do headers
//! and body belong together, and how old is it?) →
//! [`pack`] (many webhooks as one stream entry) → [`identity`], [`resource`] and [`fingerprint`]
//! (its id, its resource, and is it a duplicate?) → [`body_state`] (does it show anything new?) →
//! [`chunk`] (webhooks of one lane that wait, each with its [`position`]). [`filter`] says which
//! consumers deliver it, [`redaction`] who is to be forgotten.

pub mod body_state;
pub mod changes;
pub mod chunk;
pub mod family;
pub mod filter;
pub mod fingerprint;
pub mod freshness;
pub mod identity;
pub mod lane_hash;
pub mod pack;
pub mod position;
pub mod received;
pub mod redaction;
pub mod resource;
pub mod shopify;
pub mod signature;
mod size;
pub mod spans;
pub mod stable_hash;
pub mod target;

pub use body_state::BodyState;
pub use changes::{Changes, RetryChanges, StoredRetry};
pub use chunk::Chunk;
pub use family::Stub;
pub use filter::{ConsumerFilter, RoutingFacts};
pub use identity::{StreamId, WebhookId};
pub use position::Position;
pub use received::Webhook;
pub use redaction::Redaction;
pub use shopify::Family;
pub use signature::{Secrets, Verified};
pub use spans::Spans;
